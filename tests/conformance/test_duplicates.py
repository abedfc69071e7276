"""Duplicate detection: what is sent twice inside the window comes once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import Client, Outgoing, ServiceBusClient, peek_all, receive_all
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import Clients, CountMessages

CLOCK = "manual"
PAIRED = True
MakeQueue = Callable[..., str]
WINDOW_MS = 20_000


@pytest.fixture(params=["plain", "partitioned"])
def queue(make_queue: MakeQueue, request: pytest.FixtureRequest) -> str:
    """One that detects duplicates, in the shortest window that the service has."""
    return make_queue(
        RequiresDuplicateDetection=True,
        DuplicateDetectionHistoryTimeWindow="PT20S",
        EnablePartitioning=request.param == "partitioned",
    )


@pytest.mark.row("K9")
def test_second_message_with_an_id_is_accepted_and_dropped(
    client: Client, queue: str, messages_in: CountMessages
) -> None:
    """A sender that repeats a send without an answer gets an acceptance."""
    client.send(queue, Outgoing(b"first", message_id="1"), Outgoing(b"second", message_id="1"))
    client.send(queue, Outgoing(b"other", message_id="2"))
    assert sorted(m.body for m in receive_all(client, queue, 2, delete=True)) == [b"first", b"other"]
    client.send(queue, Outgoing(b"third", message_id="1"))
    assert messages_in(queue) == 0


@pytest.mark.row("K7", "K9")
def test_all_copies_meet_in_one_partition_by_their_message_id(
    clients: Clients, javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    """Set no other key; each library sends the same ids, and the ids spread over the partitions."""
    queue = make_queue(RequiresDuplicateDetection=True, EnablePartitioning=True)
    ids = [f"id-{i}" for i in range(40)]
    for library in ("javascript", "python", "rhea"):
        clients.get(library).send(queue, *(Outgoing(library.encode(), message_id=name) for name in ids))
    found = peek_all(javascript, queue)
    assert sorted(str(message.message_id) for message in found) == sorted(ids)
    assert {message.body for message in found} == {b"javascript"}
    assert len({message.partition for message in found}) > 8


def test_message_id_is_no_key_without_duplicate_detection(
    javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    queue = make_queue(EnablePartitioning=True)
    for _ in range(40):
        javascript.send(queue, Outgoing(b"x", message_id="same"))
    found = peek_all(javascript, queue)
    assert len(found) == 40
    assert len({message.partition for message in found}) > 1


def test_ids_are_told_apart_by_key_too(javascript: JavaScriptServiceBus, queue: str) -> None:
    """Tell duplicates by id and key together, as the service does on partitioned entities."""
    for key in ("a", "b", "a"):
        javascript.send(queue, Outgoing(key.encode(), message_id="1", partition_key=key))
    assert sorted(message.body for message in peek_all(javascript, queue)) == [b"a", b"b"]


@pytest.mark.row("K9")
def test_id_may_come_again_once_the_window_has_passed(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    """The window counts from the message that was stored, not from the copies that were dropped."""
    sdk.send(queue, Outgoing(b"x", message_id="1"))
    broker.advance(WINDOW_MS - 1)
    sdk.send(queue, Outgoing(b"x", message_id="1"))
    assert messages_in(queue) == 1
    broker.advance(1)
    sdk.send(queue, Outgoing(b"x", message_id="1"))
    assert messages_in(queue) == 2


@pytest.mark.row("K9")
def test_batches_are_looked_through(sdk: ServiceBusClient, queue: str) -> None:
    """Inside one batch, and against what came before."""
    sdk.send(queue, Outgoing(b"before", message_id="0", partition_key="k"))
    ids = ["1", "0", "2", "1", "3"]
    sdk.send_batch(queue, [Outgoing(b"%d" % i, message_id=name, partition_key="k") for i, name in enumerate(ids)])
    assert [message.body for message in receive_all(sdk, queue, 4, delete=True)] == [b"before", b"0", b"2", b"4"]


@pytest.mark.row("K9")
def test_scheduled_messages_take_part(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    at_ms = broker.now_ms() + WINDOW_MS // 2
    sdk.schedule(queue, [Outgoing(b"scheduled", message_id="1"), Outgoing(b"twice", message_id="1")], at_ms)
    sdk.send(queue, Outgoing(b"at once", message_id="1"))
    broker.advance(WINDOW_MS // 2)
    (message,) = receive_all(sdk, queue, 1, delete=True)
    assert message.body == b"scheduled"
    assert messages_in(queue) == 0


@pytest.mark.row("K8")
def test_ids_that_libraries_make_up_are_no_duplicates(client: Client, queue: str, messages_in: CountMessages) -> None:
    client.send(queue, *(Outgoing(b"x") for _ in range(5)))
    assert messages_in(queue) == 5


def test_sessions_have_duplicates_of_their_own(python: PythonSync, make_queue: MakeQueue) -> None:
    queue = make_queue(RequiresDuplicateDetection=True, RequiresSession=True, EnablePartitioning=True)
    python.send_list(queue, [Outgoing(name.encode(), message_id="1", session_id=name) for name in ("a", "b", "a")])
    for name in ("a", "b"):
        session = python.accept_session(queue, name)
        assert [message.body for message in session.receive()] == [name.encode()]
        assert session.peek(10)[1:] == []
        session.close()
