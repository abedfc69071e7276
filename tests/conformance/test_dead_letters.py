"""The dead-letter sub-queue is a queue of its own, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    DEAD_LETTER,
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
from tests.kit.azure_receiving import receive_exactly

CLOCK = "manual"
PAIRED = True
MakeQueue = Callable[..., str]
LOCK_MS = 60_000


def bury(client: ServiceBusClient, queue: str, *bodies: bytes) -> None:
    """Send messages and dead-letter them, in order."""
    client.send_list(queue, [Outgoing(body, partition_key="k") for body in bodies])
    for message in receive_all(client, queue, len(bodies)):
        client.dead_letter(queue, message, "reason", "description")


@pytest.mark.row("P15")
def test_dead_letter_is_renewed_deferred_and_received_by_its_number(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    bury(sdk, queue, b"0", b"1")
    dead = queue + DEAD_LETTER
    first, second = receive_all(sdk, dead, 2)
    now_ms = broker.advance(LOCK_MS - 1)
    assert sdk.renew_lock(dead, first) == now_ms + LOCK_MS
    broker.advance(1)
    with pytest.raises(ClientTrouble) as lost:
        sdk.complete(dead, second)
    assert lost.value.kind is Trouble.LOCK_LOST
    sdk.defer(dead, first)
    (again,) = receive_all(sdk, dead, 1)
    assert (again.body, again.delivery_count) == (b"1", 0)
    sdk.complete(dead, again)
    assert nothing_left(sdk, dead)
    assert [(m.body, m.state) for m in peek_all(sdk, dead)] == [(b"0", "deferred")]
    (deferred,) = sdk.receive_deferred(dead, [first.number])
    facts = (deferred.dead_letter_reason, deferred.dead_letter_description, deferred.dead_letter_source)
    assert facts == ("reason", "description", queue)
    sdk.complete(dead, deferred)
    assert messages_in(queue, dead=True) == 0


def test_dead_letters_are_received_and_deleted(sdk: ServiceBusClient, queue: str, messages_in: CountMessages) -> None:
    bury(sdk, queue, b"0", b"1", b"2")
    found = receive_all(sdk, queue + DEAD_LETTER, 3, delete=True)
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    assert messages_in(queue, dead=True) == 0


def test_dead_letters_do_not_expire_and_are_not_dead_lettered_again(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    queue = make_queue(DefaultMessageTimeToLive="PT10S", DeadLetteringOnMessageExpiration=True, MaxDeliveryCount=1)
    bury(javascript, queue, b"x")
    broker.advance(24 * 3_600_000)
    dead = queue + DEAD_LETTER
    for _ in range(3):
        (message,) = receive_all(javascript, dead, 1)
        assert message.delivery_count == 0
        javascript.abandon(dead, message)
    assert messages_in(queue, dead=True) == 1


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_messages_expire_without_a_receiver_and_say_why(
    broker: BrokerProcess,
    javascript: JavaScriptServiceBus,
    make_queue: MakeQueue,
    messages_in: CountMessages,
    partitioned: bool,
) -> None:
    queue = make_queue(EnablePartitioning=partitioned)
    keeping = make_queue(DeadLetteringOnMessageExpiration=True, EnablePartitioning=partitioned)
    for name in (queue, keeping):
        javascript.send_list(name, [Outgoing(b"%d" % i, partition_key=str(i), ttl_ms=1_000 + i) for i in range(10)])
    broker.advance(1_004)
    assert (messages_in(queue), messages_in(keeping)) == (5, 5)
    broker.advance(10)
    assert (messages_in(queue), messages_in(keeping)) == (0, 0)
    assert (messages_in(queue, dead=True), messages_in(keeping, dead=True)) == (0, 10)
    found = peek_all(javascript, keeping + DEAD_LETTER)
    assert sorted(message.body for message in found) == [b"%d" % i for i in range(10)]
    assert {(m.dead_letter_reason, m.dead_letter_source) for m in found} == {("TTLExpiredException", keeping)}
    assert all(message.dead_letter_description for message in found)


def test_expired_messages_of_a_session_are_never_delivered(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    queue = make_queue(RequiresSession=True, DeadLetteringOnMessageExpiration=True, EnablePartitioning=True)
    javascript.send_list(
        queue,
        [Outgoing(b"short", session_id="a", ttl_ms=1_000), Outgoing(b"long", session_id="a")],
    )
    session = javascript.accept_session(queue, "a")
    broker.advance(1_000)
    assert [message.body for message in session.receive()] == [b"long"]
    session.close()
    assert messages_in(queue, dead=True) == 1


def test_dead_letters_survive_with_what_they_say(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    """Reason and description may be of the greatest length that the service takes."""
    queue = make_queue(EnablePartitioning=True)
    javascript.send(queue, Outgoing(b"x", properties={"kept": 1}))
    (message,) = receive_all(javascript, queue, 1)
    javascript.dead_letter(queue, message, "r" * 4_096, "ü" * 4_096)
    (dead,) = peek_all(javascript, queue + DEAD_LETTER)
    assert (dead.dead_letter_reason, dead.dead_letter_description) == ("r" * 4_096, "ü" * 4_096)
    assert dead.properties["kept"] == 1
    assert dead.number == message.number


def test_dead_letter_is_refused_in_the_dead_letter_queue(
    sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    bury(sdk, queue, b"x")
    dead = queue + DEAD_LETTER
    (message,) = receive_all(sdk, dead, 1)
    with pytest.raises(ClientTrouble) as refused:
        sdk.dead_letter(dead, message, "again", "again")
    assert "can't be dead-lettered again" in str(refused.value)
    assert messages_in(queue, dead=True) == 1


@pytest.mark.parametrize("sessions", [False, True])
def test_python_sends_a_dead_letter_again_as_it_received_it(
    python: PythonSync, make_queue: MakeQueue, sessions: bool
) -> None:
    """Use a plain queue: the library itself can't encode the sequence numbers of a partitioned one."""
    queue = make_queue(RequiresSession=sessions)
    session = NEXT_AVAILABLE_SESSION if sessions else None
    key = "key" if sessions else None
    sent = ServiceBusMessage(b"x", message_id="id", partition_key="key", reply_to_session_id="reply", session_id=key)
    azure = python.azure
    with azure.get_queue_sender(queue) as sender:
        sender.send_messages(sent)
        with azure.get_queue_receiver(queue, session_id=session) as receiver:
            (message,) = receive_exactly(receiver, 1)
            receiver.dead_letter_message(message, reason="why")
        with azure.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            (message,) = receive_exactly(dead, 1)
            sender.send_messages(message)
            dead.complete_message(message)
        with azure.get_queue_receiver(queue, session_id=session) as receiver:
            (again,) = receive_exactly(receiver, 1)
            assert (again.partition_key, again.message_id, again.session_id) == ("key", "id", key)
            assert (b"".join(again.body), again.reply_to_session_id) == (b"x", "reply")
            receiver.complete_message(again)
