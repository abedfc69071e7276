"""The management node beyond what each library's own calls show: batch delete, rules, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from partibus.amqp.codec.types import Int, Timestamp
from partibus.client.errors import ClientError
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    ClientTrouble,
    Outgoing,
    Trouble,
    nothing_left,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.conftest import CountMessages
from tests.kit.plain_client import Client as OwnClient
from tests.kit.plain_client import connect

CLOCK = "manual"
MakeQueue = Callable[..., str]
Purge = Callable[..., int]


@pytest.fixture
def own(broker: BrokerProcess) -> Iterator[OwnClient]:
    """None of the other libraries of these tests has a batch delete."""
    with connect(broker.connection_string) as client:
        yield client


@pytest.fixture
def purge(broker: BrokerProcess, own: OwnClient) -> Purge:
    """``purge(queue, count)``: how many messages one call has deleted."""

    def run(queue: str, count: int, *, before_ms: int | None = None, session: str | None = None) -> int:
        body: dict[str, object] = {
            "message-count": Int(count),
            "enqueued-time-utc": Timestamp(broker.now_ms() + 1 if before_ms is None else before_ms),
        }
        if session is not None:
            body["session-id"] = session
        deleted = own.management(queue).request("com.microsoft:batch-delete-messages", body).get("message-count", 0)
        assert isinstance(deleted, int)
        return deleted

    return run


def test_batch_delete_takes_the_oldest_first(
    javascript: JavaScriptServiceBus, purge: Purge, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    javascript.send_list(queue, [Outgoing(b"%d" % i) for i in range(10)])
    assert purge(queue, 4) == 4
    assert [message.body for message in peek_all(javascript, queue)] == [b"%d" % i for i in range(4, 10)]
    assert purge(queue, 100) == 6
    assert purge(queue, 100) == 0


def test_batch_delete_empties_a_partitioned_queue_too(
    javascript: JavaScriptServiceBus, purge: Purge, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    """Which the service itself does not."""
    queue = make_queue(EnablePartitioning=True)
    javascript.send_list(queue, [Outgoing(b"x", partition_key=str(i)) for i in range(100)])
    assert purge(queue, 30) == 30
    assert messages_in(queue) == 70
    assert purge(queue, 500) == 70
    assert messages_in(queue) == 0


@pytest.mark.queues
def test_batch_delete_leaves_what_is_locked_deferred_scheduled_or_younger(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, purge: Purge, queue: str
) -> None:
    javascript.send_list(queue, [Outgoing(b"deferred", partition_key="k"), Outgoing(b"locked", partition_key="k")])
    deferred, _locked = receive_all(javascript, queue, 2)
    javascript.defer(queue, deferred)
    javascript.schedule(queue, [Outgoing(b"scheduled", partition_key="k")], broker.now_ms() + 60_000)
    javascript.send(queue, Outgoing(b"old", partition_key="k"))
    time_ms = broker.advance(1)
    javascript.send(queue, Outgoing(b"young", partition_key="k"))
    assert purge(queue, 100, before_ms=time_ms) == 1
    left = {message.body for message in peek_all(javascript, queue)}
    assert left == {b"deferred", b"locked", b"scheduled", b"young"}


def test_batch_delete_of_one_session(javascript: JavaScriptServiceBus, purge: Purge, make_queue: MakeQueue) -> None:
    queue = make_queue(RequiresSession=True, EnablePartitioning=True)
    javascript.send_list(queue, [Outgoing(b"%d" % i, session_id="ab"[i % 2]) for i in range(10)])
    assert purge(queue, 3, session="a") == 3
    left = [(message.session_id, message.body) for message in peek_all(javascript, queue)]
    assert sorted(left) == [("a", b"6"), ("a", b"8"), *(("b", b"%d" % i) for i in range(1, 10, 2))]


def test_batch_delete_of_dead_letters(
    javascript: JavaScriptServiceBus, purge: Purge, queue: str, messages_in: CountMessages
) -> None:
    javascript.send(queue, Outgoing(b"x"), Outgoing(b"y"))
    for message in receive_all(javascript, queue, 2):
        javascript.dead_letter(queue, message, "r", "d")
    assert purge(queue + DEAD_LETTER, 10) == 2
    assert messages_in(queue, dead=True) == 0


def test_receiver_does_not_get_what_batch_delete_took(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, purge: Purge, queue: str, messages_in: CountMessages
) -> None:
    """A message that a front end has reserved counts as held, for five seconds at most."""
    javascript.send_list(queue, [Outgoing(b"x", partition_key=str(i)) for i in range(20)])
    (first,) = receive_all(javascript, queue, 1)
    deleted = purge(queue, 500)
    broker.advance(5_000)
    assert deleted + purge(queue, 500) == 19
    assert nothing_left(javascript, queue)
    javascript.complete(queue, first)
    assert messages_in(queue) == 0


@pytest.mark.parametrize("count", [0, -1, 4001])
def test_batch_delete_is_bounded(purge: Purge, queue: str, count: int) -> None:
    with pytest.raises(ClientError, match=rf"message-count.*{count}.*4000"):
        purge(queue, count)


@pytest.mark.queues
def test_rules_belong_to_subscriptions(javascript: JavaScriptServiceBus, own: OwnClient, queue: str) -> None:
    for operation, body in (
        ("add-rule", {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "1=1"}}}),
        ("remove-rule", {"rule-name": "r"}),
        ("enumerate-rules", {"top": Int(10), "skip": Int(0)}),
    ):
        with pytest.raises(ClientError, match="subscription"):
            own.management(queue).request(f"com.microsoft:{operation}", body)


def test_unknown_operation_is_refused_by_its_name(own: OwnClient, queue: str) -> None:
    with pytest.raises(ClientError, match="make-coffee"):
        own.management(queue).request("com.microsoft:make-coffee", {})


def test_session_is_managed_by_the_connection_that_holds_it(
    javascript: JavaScriptServiceBus, own: OwnClient, make_queue: MakeQueue
) -> None:
    queue = make_queue(RequiresSession=True, EnablePartitioning=True)
    session = javascript.accept_session(queue, "a")
    for operation, body in (
        ("get-session-state", {}),
        ("set-session-state", {"session-state": b"x"}),
        ("renew-session-lock", {}),
    ):
        with pytest.raises(ClientError, match=r"session"):
            own.management(queue).request(f"com.microsoft:{operation}", {"session-id": "a", **body})
    assert session.state is None
    session.close()


@pytest.mark.parametrize("wanted", ["schedule", "cancel", "peek"])
def test_node_of_an_unknown_queue_is_not_found(javascript: JavaScriptServiceBus, wanted: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "schedule": lambda: javascript.schedule("no-such-queue", [Outgoing(b"x")], 4_000_000_000_000),
        "cancel": lambda: javascript.cancel_scheduled("no-such-queue", [1]),
        "peek": lambda: javascript.peek("no-such-queue", 1),
    }
    with pytest.raises(ClientTrouble) as refused:
        calls[wanted]()
    assert refused.value.kind is Trouble.NOT_FOUND
