"""A broker that ends, gracefully or not: what it has answered for is there again.

Each test has a broker of its own, which keeps its ports.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
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

End = Callable[[BrokerProcess], None]

ENDS: dict[str, End] = {"SIGTERM": BrokerProcess.stop, "SIGKILL": BrokerProcess.kill}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("plain")
        broker.create_queue("partitioned", EnablePartitioning=True)
        yield broker


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


@pytest.mark.row("R14")
@pytest.mark.parametrize("queue", ["plain", "partitioned"])
def test_accepted_messages_are_there_after_the_broker_has_ended(broker: BrokerProcess, end: End, queue: str) -> None:
    with connected("javascript", broker) as client:
        client.send_list(queue, [Outgoing(b"%d" % i, partition_key=str(i % 7), subject="s") for i in range(100)])
        before = peek_all(client, queue)
        end(broker)
    broker.start()
    with connected("javascript", broker) as client:
        found = receive_all(client, queue, 100, delete=True)
    assert sorted(int(message.body) for message in found) == list(range(100))
    assert {message.sequence_number for message in found} == {message.sequence_number for message in before}
    assert {(message.subject, message.delivery_count) for message in found} == {("s", 0)}


@pytest.mark.row("R14")
def test_what_was_settled_stays_settled(broker: BrokerProcess, end: End) -> None:
    queue = "partitioned"
    with connected("rhea", broker) as client:
        client.send(queue, *(Outgoing(b"%d" % i, partition_key="one") for i in range(4)))
        completed, dead, abandoned, *_ = receive_all(client, queue, 3)
        client.complete(queue, completed)
        client.dead_letter(queue, dead, "reason", "description")
        client.abandon(queue, abandoned)
        end(broker)
    broker.start()
    with connected("javascript", broker) as client:
        left = receive_all(client, queue, 2)
        assert [(message.body, message.delivery_count) for message in left] == [(b"2", 1), (b"3", 0)]
        (letter,) = receive_all(client, queue + DEAD_LETTER, 1)
        assert (letter.body, letter.dead_letter_reason, letter.dead_letter_source) == (b"1", "reason", queue)


def test_sequence_numbers_go_on_where_they_ended(broker: BrokerProcess, end: End) -> None:
    with connected("javascript", broker) as client:
        client.send("plain", Outgoing(b"a"), Outgoing(b"b"))
        receive_all(client, "plain", 2, delete=True)
        end(broker)
    broker.start()
    with connected("javascript", broker) as client:
        client.send("plain", Outgoing(b"c"))
        (message,) = receive_all(client, "plain", 1, delete=True)
    assert message.sequence_number == 3


def test_lock_holds_across_a_graceful_restart(broker: BrokerProcess) -> None:
    """Nobody else gets the message while its lock lasts, and it is not counted as delivered before that."""
    with connected("javascript", broker) as client:
        client.send("plain", Outgoing(b"locked"), Outgoing(b"free"))
        receive_all(client, "plain", 1)
        broker.restart()
    with connected("javascript", broker) as client:
        (free,) = receive_all(client, "plain", 1)
        assert free.body == b"free"
        assert client.receive("plain", 1, wait_s=QUIET_S) == []
        assert [message.body for message in peek_all(client, "plain")] == [b"locked", b"free"]


@pytest.mark.row("R14")
@pytest.mark.parametrize("library", ["python", "rhea", "proton"])
def test_killed_broker_loses_nothing_it_accepted_and_invents_nothing(broker: BrokerProcess, library: str) -> None:
    """A client sends one message after the other until the broker is killed in between."""
    queue = "partitioned"
    under_way = threading.Event()

    def kill_while_sending() -> None:
        assert under_way.wait(30)
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


@pytest.mark.parametrize("library", ["python", "python-asyncio", "javascript"])
def test_client_of_the_service_reconnects_by_itself(broker: BrokerProcess, library: str) -> None:
    """One second try is all it takes; the adapter sets none, so the test tries again itself."""
    with connected(library, broker) as client:
        client.send("plain", Outgoing(b"before"))
        broker.restart()
        send_again(client, Outgoing(b"after"))
        bodies = {message.body for message in receive_all(client, "plain", 2)}
    assert bodies == {b"before", b"after"}


def send_again(client: Client, message: Outgoing) -> None:
    """Send; once more if the library first has to notice that its connection is gone."""
    try:
        client.send("plain", message)
    except ClientTrouble:
        client.send("plain", message)


def test_clients_are_told_why_a_broker_that_stops_closes_their_connection(broker: BrokerProcess) -> None:
    with connected("rhea", broker) as client:
        client.send("plain", Outgoing(b"x"))
        broker.stop()
        with pytest.raises(ClientTrouble, match=r"amqp:connection:forced.*The broker is stopping"):
            client.send("plain", Outgoing(b"y"))
