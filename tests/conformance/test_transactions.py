"""Transactions of a library that has them, on a real broker; what they did is looked at with another library."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import Outgoing, receive_all
from tests.conformance.clients.python_sync import PythonSync
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect as open_client

if TYPE_CHECKING:
    from tests.conformance.clients.proton_transactions import TransactionalProton

MakeQueue = Callable[..., str]
MemberInfo = Callable[[str], list[bytes]]
ROLLED_BACK = "amqp:transaction:rollback"
NOT_ALLOWED = "amqp:not-allowed"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("proton") is None,
    reason="python-qpid-proton is not installed: it has no wheel and needs a C compiler (`make setup` says so)",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Serve on a clock that the tests move: transactions have two minutes."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), arguments=("--clock", "manual")) as broker:
        yield broker


@pytest.fixture
def proton(broker: BrokerProcess) -> Iterator[TransactionalProton]:
    with closing(connect(broker)) as client:
        yield client


@pytest.fixture(params=["plain", "partitioned"])
def queue(make_queue: MakeQueue, request: pytest.FixtureRequest) -> str:
    return make_queue(EnablePartitioning=request.param == "partitioned", LockDuration="PT5M")


@pytest.fixture
def partitioned(make_queue: MakeQueue) -> str:
    return make_queue(EnablePartitioning=True)


def connect(broker: BrokerProcess) -> TransactionalProton:
    from tests.conformance.clients.proton_transactions import TransactionalProton

    parsed = parse_connection_string(broker.connection_string)
    assert parsed.port is not None
    return TransactionalProton(parsed.host, parsed.port, parsed.key_name, parsed.key)


def keyed(body: bytes, key: str = "k") -> Outgoing:
    return Outgoing(body, partition_key=key)


@pytest.fixture
def present(broker: BrokerProcess) -> MemberInfo:
    """``present(queue)``: the bodies of all its messages, also of those under lock."""
    return lambda queue: peek_all(broker, queue)


def peek_all(broker: BrokerProcess, queue: str) -> list[bytes]:
    found: list[bytes] = []
    start = 1
    with open_client(broker.connection_string) as client:
        node = client.management(queue)
        while messages := node.peek(start, 1_000):
            found += [message.body for message in messages if isinstance(message.body, bytes)]
            start = max(message.sequence_number or 0 for message in messages) + 1
    return sorted(found)


@pytest.mark.row("T1", "P4")
def test_a_transaction_is_seen_whole_when_it_is_committed(
    proton: TransactionalProton, python: PythonSync, queue: str, present: MemberInfo
) -> None:
    python.send(queue, keyed(b"old"))
    ((_, delivery),) = proton.receive(queue, 1)
    outcome = proton.begin()
    assert proton.send(outcome, queue, keyed(b"1"), keyed(b"2")) == [None, None]
    assert proton.accept(outcome, [delivery]) == [None]
    assert present(queue) == [b"old"]
    proton.commit(outcome)
    assert outcome.committed
    assert present(queue) == [b"1", b"2"]
    assert {message.body for message in receive_all(python, queue, 2)} == {b"1", b"2"}


@pytest.mark.row("T1")
def test_a_transaction_that_is_aborted_was_never_there(
    broker: BrokerProcess, proton: TransactionalProton, python: PythonSync, queue: str, present: MemberInfo
) -> None:
    python.send(queue, keyed(b"old"))
    ((_, delivery),) = proton.receive(queue, 1)
    outcome = proton.begin()
    proton.send(outcome, queue, keyed(b"new"))
    proton.accept(outcome, [delivery])
    proton.abort(outcome)
    assert outcome.aborted
    assert present(queue) == [b"old"]
    proton.close_receivers()
    broker.advance(300_000)  # the lock ends
    assert [message.body for message in receive_all(python, queue, 1)] == [b"old"]


@pytest.mark.row("T1")
def test_a_transaction_whose_connection_breaks_is_rolled_back(
    broker: BrokerProcess, python: PythonSync, queue: str, present: MemberInfo
) -> None:
    python.send(queue, keyed(b"old"))
    client = connect(broker)
    ((_, delivery),) = client.receive(queue, 1)
    outcome = client.begin()
    client.send(outcome, queue, keyed(b"new"))
    client.accept(outcome, [delivery])
    client.drop()
    assert present(queue) == [b"old"]
    broker.advance(300_000)
    assert [message.body for message in receive_all(python, queue, 1)] == [b"old"]
    assert present(queue) == [b"old"]


def test_settlements_may_be_settled_before_the_discharge(
    proton: TransactionalProton, python: PythonSync, queue: str, present: MemberInfo
) -> None:
    python.send(queue, keyed(b"old"))
    ((_, delivery),) = proton.receive(queue, 1)
    outcome = proton.begin(settle_before_discharge=True)
    proton.accept(outcome, [delivery])
    proton.commit(outcome)
    assert outcome.committed
    assert present(queue) == []


def test_transactions_follow_one_another_and_go_side_by_side(
    proton: TransactionalProton, queue: str, present: MemberInfo
) -> None:
    outcomes = [proton.begin() for _ in range(3)]
    for number, outcome in enumerate(outcomes):
        proton.send(outcome, queue, keyed(b"%d" % number, f"key-{number}"))
    proton.commit(outcomes[2])
    proton.abort(outcomes[1])
    proton.commit(outcomes[0])
    later = proton.begin()
    proton.send(later, queue, keyed(b"3"))
    proton.commit(later)
    assert present(queue) == [b"0", b"2", b"3"]


@pytest.mark.row("T4", "T2")
def test_no_key_is_refused_on_a_partitioned_queue(
    proton: TransactionalProton, partitioned: str, present: MemberInfo
) -> None:
    outcome = proton.begin()
    (refusal,) = proton.send(outcome, partitioned, Outgoing(b"x"))
    assert refusal.name == NOT_ALLOWED
    assert "without a key" in refusal.description
    proton.commit(outcome)
    assert outcome.error.name == ROLLED_BACK
    assert present(partitioned) == []


@pytest.mark.row("T5", "T3")
def test_two_keys_are_refused_on_a_partitioned_queue(
    proton: TransactionalProton, partitioned: str, present: MemberInfo
) -> None:
    outcome = proton.begin()
    first, second = proton.send(outcome, partitioned, keyed(b"1", "a"), keyed(b"2", "b"))
    assert first is None
    assert second.name == NOT_ALLOWED
    proton.commit(outcome)
    assert outcome.error.name == ROLLED_BACK
    assert present(partitioned) == []


@pytest.mark.row("T7")
def test_a_queue_of_sessions_needs_the_session_id(proton: TransactionalProton, make_queue: MakeQueue) -> None:
    queue = make_queue(EnablePartitioning=True, RequiresSession=True)
    for message in (keyed(b"x"), Outgoing(b"x", partition_key="a", session_id="b"), Outgoing(b"x")):
        (refusal,) = proton.send(proton.begin(), queue, message)
        assert refusal.name == NOT_ALLOWED
    outcome = proton.begin()
    same = [Outgoing(b"1", session_id="s"), Outgoing(b"2", partition_key="s", session_id="s")]
    assert proton.send(outcome, queue, *same) == [None, None]
    proton.commit(outcome)
    assert outcome.committed


@pytest.mark.row("T8")
@pytest.mark.parametrize("sessions", [False, True])
def test_two_sessions_are_fine_on_a_plain_queue_only(
    proton: TransactionalProton, make_queue: MakeQueue, *, sessions: bool
) -> None:
    messages = [Outgoing(b"1", session_id="a"), Outgoing(b"2", session_id="b")]
    plain = make_queue(RequiresSession=sessions)
    outcome = proton.begin()
    assert proton.send(outcome, plain, *messages) == [None, None]
    proton.commit(outcome)
    assert outcome.committed
    _, refusal = proton.send(proton.begin(), make_queue(RequiresSession=sessions, EnablePartitioning=True), *messages)
    assert refusal.name == NOT_ALLOWED


@pytest.mark.row("T6")
def test_a_key_pins_with_and_without_a_transaction(
    proton: TransactionalProton, python: PythonSync, partitioned: str
) -> None:
    for number in range(4):
        outcome = proton.begin()
        proton.send(outcome, partitioned, keyed(b"%d" % number, "pinned"))
        proton.commit(outcome)
        python.send(partitioned, keyed(b"%d" % number, "pinned"))
    numbers = [message.sequence_number for message in receive_all(python, partitioned, 8)]
    assert len({number >> 48 for number in numbers if number is not None}) == 1
    assert None not in numbers


def test_a_second_queue_is_reached_through_the_first(
    proton: TransactionalProton, make_queue: MakeQueue, present: MemberInfo
) -> None:
    """Use one AMQP session, as cross-entity transactions do."""
    first, second = make_queue(), make_queue()
    outcome = proton.begin()
    assert proton.send(outcome, first, keyed(b"x")) == [None]
    assert proton.send(outcome, second, keyed(b"y")) == [None]
    assert present(first) == present(second) == []
    proton.commit(outcome)
    eventually("the second queue has it", lambda: present(second) == [b"y"])
    assert present(first) == [b"x"]


def test_more_than_two_minutes_are_refused(
    broker: BrokerProcess, proton: TransactionalProton, queue: str, present: MemberInfo
) -> None:
    outcome = proton.begin()
    broker.advance(600_000)
    assert proton.send(outcome, queue, keyed(b"x")) == [None]
    broker.advance(119_000)
    assert proton.send(outcome, queue, keyed(b"y")) == [None]
    broker.advance(1_000)
    proton.commit(outcome)
    assert outcome.error.name == "amqp:transaction:timeout"
    assert present(queue) == []


def test_a_lock_that_has_ended_rolls_back(
    broker: BrokerProcess, proton: TransactionalProton, python: PythonSync, make_queue: MakeQueue, present: MemberInfo
) -> None:
    queue = make_queue(LockDuration="PT10S")
    python.send(queue, Outgoing(b"old"))
    ((_, delivery),) = proton.receive(queue, 1)
    outcome = proton.begin()
    proton.send(outcome, queue, keyed(b"new"))
    proton.accept(outcome, [delivery])
    proton.close_receivers()
    broker.advance(10_000)
    proton.commit(outcome)
    assert outcome.error.name == ROLLED_BACK
    assert "to complete 1 message, failed: the lock" in outcome.error.description
    assert present(queue) == [b"old"]


def test_what_is_received_and_deleted_does_not_come_back(
    proton: TransactionalProton, python: PythonSync, queue: str, present: MemberInfo
) -> None:
    python.send(queue, keyed(b"gone"))
    outcome = proton.begin()
    ((body, _),) = proton.receive(queue, 1, delete=True)
    assert body == b"gone"
    proton.send(outcome, queue, keyed(b"never"))
    proton.abort(outcome)
    assert present(queue) == []


def test_a_rolled_back_transaction_survives_no_restart_and_a_committed_one_does(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("q")
        client = connect(broker)
        kept, lost = client.begin(), client.begin()
        client.send(kept, "q", keyed(b"kept"))
        client.send(lost, "q", keyed(b"lost"))
        client.commit(kept)
        broker.kill()
        broker.start()
        assert peek_all(broker, "q") == [b"kept"]
