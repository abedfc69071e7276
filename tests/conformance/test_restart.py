"""A broker that ends, gracefully or not: what it has answered for is there again.

They share a broker, which keeps its ports.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from typing import cast

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    QUIET_S,
    Client,
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    peek_all,
    receive_all,
)
from tests.conformance.conftest import LIBRARIES
from tests.kit.eventually import EVENTUALLY_S

# The Python library leaves sockets of broken connections to the collector, which comes when it likes.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

End = Callable[[BrokerProcess], None]

ENDS: dict[str, End] = {"SIGTERM": BrokerProcess.stop, "SIGKILL": BrokerProcess.kill}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Serve from the begin of a test to its end."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def make_queue(broker: BrokerProcess) -> Callable[[str], str]:
    """A queue that no other test uses, made of a kind: ``plain`` or ``partitioned``."""

    def make(kind: str) -> str:
        return broker.create_queue(f"{kind}-{next(_numbers)}", EnablePartitioning=kind == "partitioned")

    return make


_numbers = count()


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> End:
    return ENDS[request.param]


@pytest.fixture(autouse=True)
def _sockets_of_broken_connections() -> Iterator[None]:
    """The Python library leaves them to the garbage collector, which would warn in some later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def connected(library: str, broker: BrokerProcess) -> closing[ServiceBusClient]:
    return closing(cast(ServiceBusClient, LIBRARIES[library](broker.connection_string)))


def test_what_was_accepted_and_settled_is_as_it_was(
    broker: BrokerProcess, end: End, make_queue: Callable[[str], str]
) -> None:
    filled = [make_queue(kind) for kind in ("plain", "partitioned")]
    settled, numbered = make_queue("partitioned"), make_queue("plain")
    with connected("javascript", broker) as client, connected("rhea", broker) as other:
        for queue in filled:
            client.send_list(queue, [Outgoing(b"%d" % i, partition_key=str(i % 7), subject="s") for i in range(100)])
        before = {queue: {message.sequence_number for message in peek_all(client, queue)} for queue in filled}
        other.send(settled, *(Outgoing(b"%d" % i, partition_key="one") for i in range(4)))
        completed, dead, abandoned, *_ = receive_all(other, settled, 3)
        other.complete(settled, completed)
        other.dead_letter(settled, dead, "reason", "description")
        other.abandon(settled, abandoned)
        client.send(numbered, Outgoing(b"a"), Outgoing(b"b"))
        receive_all(client, numbered, 2, delete=True)
        end(broker)
    broker.start()
    with connected("javascript", broker) as client:
        for queue in filled:
            found = receive_all(client, queue, 100, delete=True)
            assert sorted(int(message.body) for message in found) == list(range(100))
            assert {message.sequence_number for message in found} == before[queue]
            assert {(message.subject, message.delivery_count) for message in found} == {("s", 0)}
        left = receive_all(client, settled, 2)
        assert [(message.body, message.delivery_count) for message in left] == [(b"2", 1), (b"3", 0)]
        (letter,) = receive_all(client, settled + DEAD_LETTER, 1)
        assert (letter.body, letter.dead_letter_reason, letter.dead_letter_source) == (b"1", "reason", settled)
        client.send(numbered, Outgoing(b"c"))
        (message,) = receive_all(client, numbered, 1, delete=True)
        assert message.sequence_number == 3


def test_lock_holds_across_a_graceful_restart(broker: BrokerProcess, make_queue: Callable[[str], str]) -> None:
    """Give the message to no other receiver while its lock lasts; it is not counted as delivered before that."""
    queue = make_queue("plain")
    with connected("javascript", broker) as client:
        client.send(queue, Outgoing(b"locked"), Outgoing(b"free"))
        receive_all(client, queue, 1)
        broker.restart()
    with connected("javascript", broker) as client:
        (free,) = receive_all(client, queue, 1)
        assert free.body == b"free"
        assert client.receive(queue, 1, wait_s=QUIET_S) == []
        assert [message.body for message in peek_all(client, queue)] == [b"locked", b"free"]


@pytest.mark.row("R14")
@pytest.mark.parametrize("library", ["python", "rhea", "proton"])
def test_killed_broker_loses_nothing_it_accepted_and_invents_nothing(
    broker: BrokerProcess, library: str, make_queue: Callable[[str], str]
) -> None:
    """A client sends one message after the other until the broker is killed in between."""
    queue = make_queue("partitioned")
    under_way = threading.Event()

    def kill_while_sending() -> None:
        assert under_way.wait(EVENTUALLY_S)
        broker.kill()

    with connected(library, broker) as client:
        killer = threading.Thread(target=kill_while_sending)
        killer.start()
        accepted = send_until_it_fails(client, queue, under_way)
        killer.join()
    broker.start()
    with connected("javascript", broker) as client:
        stored = [int(message.body) for message in peek_all(client, queue)]
    assert len(stored) == len(set(stored))
    # The last one was under way: its outcome is unknown to the client.
    assert set(stored) in ({*range(accepted)}, {*range(accepted + 1)})


def send_until_it_fails(client: Client, queue: str, under_way: threading.Event) -> int:
    """Send the numbers from 0 on; how many were accepted. ``under_way`` is set when some are."""
    for number in range(1_000_000):
        try:
            client.send(queue, Outgoing(b"%d" % number, partition_key=str(number % 5)))
        except ClientTrouble:
            return number
        if number == 50:
            under_way.set()
    raise AssertionError("a million messages were accepted, and the broker was not killed")


def test_clients_of_the_service_reconnect_by_themselves(
    broker: BrokerProcess, make_queue: Callable[[str], str]
) -> None:
    """One second try is all it takes; the adapter sets none, so the test tries again itself."""
    with ExitStack() as stack:
        clients = {
            make_queue("plain"): stack.enter_context(connected(library, broker))
            for library in ("python", "python-asyncio", "javascript")
        }
        for queue, client in clients.items():
            client.send(queue, Outgoing(b"before"))
        broker.restart()
        for queue, client in clients.items():
            send_again(client, queue, Outgoing(b"after"))
            bodies = {message.body for message in receive_all(client, queue, 2)}
            assert bodies == {b"before", b"after"}


def send_again(client: Client, queue: str, message: Outgoing) -> None:
    """Send; once more if the library first has to notice that its connection is gone."""
    try:
        client.send(queue, message)
    except ClientTrouble:
        client.send(queue, message)


def test_clients_are_told_why_a_broker_that_stops_closes_their_connection(
    broker: BrokerProcess, make_queue: Callable[[str], str]
) -> None:
    queue = make_queue("plain")
    with connected("rhea", broker) as client:
        client.send(queue, Outgoing(b"x"))
        broker.stop()
        try:
            with pytest.raises(ClientTrouble, match=r"amqp:connection:forced.*The broker is stopping"):
                client.send(queue, Outgoing(b"y"))
        finally:
            broker.start()
