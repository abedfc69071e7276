"""The state of a queue besides waiting messages is there again after a broker has ended, gracefully or killed.

They share a broker, whose clock stands where it stood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

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
from tests.conformance.conftest import AHEAD_MS
from tests.conformance.test_restart import ENDS, End

LOCK_MS = 60_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Serve from the begin of a test to its end."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), arguments=("--clock", "manual")) as broker:
        broker.advance(AHEAD_MS)
        yield broker


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest) -> End:
    return ENDS[request.param]


def connected(broker: BrokerProcess) -> closing[JavaScriptServiceBus]:
    return closing(JavaScriptServiceBus(broker.connection_string))


def test_scheduled_messages(broker: BrokerProcess, end: End, make_queue: Callable[..., str]) -> None:
    """Messages that fall due without a broker come when there is one; cancelled ones stay cancelled."""
    queue = make_queue(EnablePartitioning=True)
    now_ms = broker.now_ms()
    with connected(broker) as client:
        soon = client.schedule(queue, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(6)], now_ms + 1_000)
        (later,) = client.schedule(queue, [Outgoing(b"later")], now_ms + HOUR_MS)
        client.cancel_scheduled(queue, soon[5:])
        end(broker)
    broker.start()
    with connected(broker) as client:
        assert {m.sequence_number for m in peek_all(client, queue) if m.state == "scheduled"} == {*soon[:5], later}
        assert nothing_left(client, queue)
        broker.advance(1_000)
        found = receive_all(client, queue, 5, delete=True)
        assert sorted(message.body for message in found) == [b"%d" % i for i in range(5)]
        assert {message.number for message in found}.isdisjoint(soon)
        assert {message.enqueued_ms for message in found} == {now_ms + 1_000}
        assert [message.sequence_number for message in peek_all(client, queue)] == [later]


def test_time_that_passes_while_there_is_no_broker(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    """Locks have run out, scheduled messages have come and others have expired by the time it is back."""
    queue = make_queue(DeadLetteringOnMessageExpiration=True)
    with connected(broker) as client:
        client.send(queue, Outgoing(b"locked"))
        receive_all(client, queue, 1)
        client.send(queue, Outgoing(b"expired", ttl_ms=HOUR_MS))
        client.schedule(queue, [Outgoing(b"scheduled")], broker.now_ms() + HOUR_MS)
        broker.kill()
    broker.start()
    broker.advance(HOUR_MS)
    with connected(broker) as client:
        found = receive_all(client, queue, 2)
        assert [(m.body, m.delivery_count) for m in found] == [(b"locked", 1), (b"scheduled", 0)]
        (dead,) = receive_all(client, queue + DEAD_LETTER, 1)
        assert (dead.body, dead.dead_letter_reason) == (b"expired", "TTLExpiredException")


def test_deferred_messages_and_locks_that_were_renewed(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    queue = make_queue(EnablePartitioning=True)
    with connected(broker) as client:
        client.send(queue, *(Outgoing(b"%d" % i, partition_key="k") for i in range(3)))
        held, *deferred = receive_all(client, queue, 3)
        for message in deferred:
            client.defer(queue, message)
        (again,) = client.receive_deferred(queue, [deferred[0].number])
        client.abandon(queue, again)
        broker.advance(LOCK_MS - 1)
        until_ms = client.renew_lock(queue, held)
        broker.kill()
    broker.start()
    with connected(broker) as client:
        assert [(m.body, m.state) for m in peek_all(client, queue)] == [
            (b"0", "active"),
            (b"1", "deferred"),
            (b"2", "deferred"),
        ]
        found = client.receive_deferred(queue, [message.number for message in deferred])
        assert [(message.body, message.delivery_count) for message in found] == [(b"1", 2), (b"2", 1)]
        for message in found:
            client.complete(queue, message)
        broker.advance(until_ms - 1 - broker.now_ms())
        assert nothing_left(client, queue)
        broker.advance(1)
        (free,) = receive_all(client, queue, 1)
        assert (free.body, free.delivery_count) == (b"0", 1)


@pytest.mark.row("K4")
def test_sessions_with_their_order_and_state(broker: BrokerProcess, end: End, make_queue: Callable[..., str]) -> None:
    """Their locks end with the broker: whoever held one can't renew it, and the next one has it at once."""
    queue = make_queue(RequiresSession=True, EnablePartitioning=True)
    names = [f"s{i}" for i in range(8)]
    with connected(broker) as client:
        client.send_list(queue, [Outgoing(b"%d" % i, session_id=name) for i in range(5) for name in names])
        for name in names:
            session = client.accept_session(queue, name)
            first, second, _third = session.receive(3)
            session.complete(first)
            session.abandon(second)
            session.state = name.encode() + b"\xff"
        empty = client.accept_session(queue, "empty")
        empty.state = b"kept\xff"
        empty.close()
        end(broker)
    broker.start()
    with connected(broker) as client:
        for _ in names:
            session = client.accept_session(queue, None)
            assert session.state == session.id.encode() + b"\xff"
            found = session.receive(4)
            assert [message.body for message in found] == [b"1", b"2", b"3", b"4"]
            assert found[0].delivery_count == 1
            session.complete(*found)
        with pytest.raises(ClientTrouble) as none:
            client.accept_session(queue, None, wait_s=1)
        assert none.value.kind is Trouble.TIMEOUT
        assert client.accept_session(queue, "empty").state == b"kept\xff"


@pytest.mark.row("K9")
def test_ids_of_messages_that_came_before(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    """The broker knows the ids of the window, to its end."""
    queue = make_queue(
        EnablePartitioning=True,
        RequiresDuplicateDetection=True,
        DuplicateDetectionHistoryTimeWindow="PT1M",
    )
    messages = [Outgoing(b"x", message_id=f"id-{i}") for i in range(50)]
    with connected(broker) as client:
        client.send_list(queue, messages)
        receive_all(client, queue, 25, delete=True)
        broker.kill()
    broker.start()
    with connected(broker) as client:
        broker.advance(59_999)
        client.send_list(queue, [*messages, Outgoing(b"new", message_id="new")])
        assert len(peek_all(client, queue)) == 26
        broker.advance(1)
        client.send_list(queue, messages)
        assert len(peek_all(client, queue)) == 76


def test_properties_that_were_changed(broker: BrokerProcess, make_queue: Callable[..., str]) -> None:
    queue = make_queue(RequiresSession=True, RequiresDuplicateDetection=True, UserMetadata="mine")
    broker.update_queue(queue, LockDuration="PT2M", UserMetadata="yours", MaxDeliveryCount=3)
    before = broker.describe(queue)
    assert (before.properties["UserMetadata"], before.properties["MaxDeliveryCount"]) == ("yours", 3)
    broker.kill()
    broker.start()
    assert broker.describe(queue) == before
    with connected(broker) as client:
        assert client.accept_session(queue, "a").locked_until_ms == broker.now_ms() + 2 * LOCK_MS
