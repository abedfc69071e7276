"""Messages for later, on a broker whose clock stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    QUIET_S,
    Client,
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Trouble,
    nothing_left,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import CountMessages

CLOCK = "manual"
PAIRED = True
pytestmark = pytest.mark.queues
MakeQueue = Callable[..., str]
HOUR_MS = 3_600_000


@pytest.mark.row("P15")
def test_scheduled_messages_come_at_their_time_and_not_before(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    """They wait under the numbers that the call answers, and get new ones when their time has come."""
    at_ms = broker.now_ms() + HOUR_MS
    numbers = sdk.schedule(queue, [Outgoing(b"%d" % i, partition_key="one", subject="s") for i in range(3)], at_ms)
    waiting = peek_all(sdk, queue)
    assert [(m.body, m.sequence_number, m.state, m.scheduled_ms) for m in waiting] == [
        (b"%d" % i, numbers[i], "scheduled", at_ms) for i in range(3)
    ]
    broker.advance(HOUR_MS - 1)
    assert sdk.receive(queue, 3, wait_s=QUIET_S) == []
    broker.advance(1)
    came = receive_all(sdk, queue, 3)
    assert [(m.body, m.subject, m.state, m.enqueued_ms, m.scheduled_ms) for m in came] == [
        (b"%d" % i, "s", "scheduled", at_ms, at_ms) for i in range(3)
    ]
    assert min(m.number for m in came) > max(numbers)
    assert [m.delivery_count for m in came] == [0, 0, 0]
    for message in came:
        sdk.complete(queue, message)
    assert messages_in(queue) == 0


def test_message_that_says_its_time_is_sent_like_any_other(broker: BrokerProcess, client: Client, queue: str) -> None:
    at_ms = broker.now_ms() + HOUR_MS
    client.send(queue, Outgoing(b"later", partition_key="one", scheduled_ms=at_ms), Outgoing(b"now"))
    (now,) = receive_all(client, queue, 1)
    assert now.body == b"now"
    client.complete(queue, now)
    broker.advance(HOUR_MS)
    (later,) = receive_all(client, queue, 1)
    assert (later.body, later.enqueued_ms, later.scheduled_ms) == (b"later", at_ms, at_ms)


def test_receiver_that_waits_gets_a_message_when_its_time_comes(
    broker: BrokerProcess, python: PythonSync, javascript: JavaScriptServiceBus, queue: str
) -> None:
    """Its credit stays open; it asks only once."""
    python.schedule(queue, [Outgoing(b"x")], broker.now_ms() + HOUR_MS)
    assert nothing_left(python, queue)
    broker.advance(HOUR_MS)
    assert [message.body for message in receive_all(python, queue, 1)] == [b"x"]


def test_batch_may_mix_messages_for_now_and_for_different_times(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str
) -> None:
    now_ms = broker.now_ms()
    times: dict[bytes, int | None] = {b"3": now_ms + 3 * HOUR_MS, b"0": None, b"1": now_ms + HOUR_MS, b"past": 1}
    sdk.send_batch(queue, [Outgoing(body, scheduled_ms=at_ms, partition_key="k") for body, at_ms in times.items()])
    assert [message.body for message in receive_all(sdk, queue, 2, delete=True)] == [b"0", b"past"]
    for body, advance_ms in ((b"1", HOUR_MS), (b"3", 2 * HOUR_MS)):
        assert sdk.receive(queue, 1, wait_s=0.1, delete=True) == []
        broker.advance(advance_ms)
        assert [message.body for message in receive_all(sdk, queue, 1, delete=True)] == [body]


def test_cancelled_message_never_comes(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    """Keys of many partitions: what one call cancels may lie anywhere."""
    messages = [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(6)]
    numbers = sdk.schedule(queue, messages, broker.now_ms() + HOUR_MS)
    sdk.cancel_scheduled(queue, numbers[1:])
    assert [message.sequence_number for message in peek_all(sdk, queue)] == numbers[:1]
    broker.advance(HOUR_MS)
    (kept,) = receive_all(sdk, queue, 1, delete=True)
    assert kept.body == b"0"
    assert messages_in(queue) == 0


def test_what_is_not_scheduled_any_more_can_not_be_cancelled(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    (cancelled,) = sdk.schedule(queue, [Outgoing(b"x", partition_key="k")], broker.now_ms() + HOUR_MS)
    sdk.cancel_scheduled(queue, [cancelled])
    (came,) = sdk.schedule(queue, [Outgoing(b"y", partition_key="k")], broker.now_ms() + HOUR_MS)
    broker.advance(HOUR_MS)
    for number in (cancelled, came, came + 100):
        with pytest.raises(ClientTrouble) as refused:
            sdk.cancel_scheduled(queue, [number])
        assert refused.value.kind is Trouble.MESSAGE_NOT_FOUND
    assert messages_in(queue) == 1


def test_cancelling_one_that_is_unknown_cancels_none_of_its_partition(
    broker: BrokerProcess, python: PythonSync, queue: str, messages_in: CountMessages
) -> None:
    messages = [Outgoing(b"x", partition_key="k"), Outgoing(b"y", partition_key="k")]
    numbers = python.schedule(queue, messages, broker.now_ms() + HOUR_MS)
    with pytest.raises(ClientTrouble):
        python.cancel_scheduled(queue, [*numbers, numbers[-1] + 100])
    assert messages_in(queue) == 2


def test_time_that_has_passed_means_at_once_and_has_a_number_all_the_same(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str
) -> None:
    (number,) = sdk.schedule(queue, [Outgoing(b"x")], broker.now_ms() - 1)
    (message,) = receive_all(sdk, queue, 1)
    assert (message.body, message.sequence_number) == (b"x", number)


def test_time_to_live_of_a_scheduled_message_counts_from_its_time(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    queue = make_queue(DeadLetteringOnMessageExpiration=True)
    scheduled = [Outgoing(b"read", ttl_ms=2_000), Outgoing(b"expired", ttl_ms=1_000)]
    python.schedule(queue, scheduled, broker.now_ms() + HOUR_MS)
    broker.advance(HOUR_MS)
    assert messages_in(queue) == 2
    broker.advance(1_000)
    (message,) = receive_all(python, queue, 1)
    assert message.body == b"read"
    (dead,) = receive_all(python, queue + DEAD_LETTER, 1)
    assert (dead.body, dead.dead_letter_reason) == (b"expired", "TTLExpiredException")


def test_scheduled_message_of_a_session_comes_into_its_session(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    """Queue the message behind those from before its time; a session without a message is not free to be accepted."""
    queue = make_queue(RequiresSession=True, EnablePartitioning=True)
    javascript.schedule(queue, [Outgoing(b"later", session_id="s")], broker.now_ms() + HOUR_MS)
    with pytest.raises(ClientTrouble) as none:
        javascript.accept_session(queue, None, wait_s=1)
    assert none.value.kind is Trouble.TIMEOUT
    javascript.send(queue, Outgoing(b"now", session_id="s"))
    broker.advance(HOUR_MS)
    session = javascript.accept_session(queue, None)
    assert (session.id, [message.body for message in session.receive(2)]) == ("s", [b"now", b"later"])
