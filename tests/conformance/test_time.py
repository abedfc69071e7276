"""Locks and messages that run out, on a broker whose clock stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    QUIET_S,
    Client,
    ClientTrouble,
    Outgoing,
    Trouble,
    receive_all,
)
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import Clients, CountMessages

CLOCK = "manual"
MakeQueue = Callable[..., str]
LOCK_MS = 60_000
"""LockDuration of a queue that does not say otherwise."""


@pytest.mark.row("A7")
def test_lock_that_ran_out_is_lost_and_its_message_comes_again(
    broker: BrokerProcess, client: Client, queue: str, messages_in: CountMessages
) -> None:
    """Trap 13: no answer about a lock may read as if the entity were missing."""
    client.send(queue, Outgoing(b"x"))
    (held,) = receive_all(client, queue, 1)
    broker.advance(LOCK_MS)
    with pytest.raises(ClientTrouble) as lost:
        client.complete(queue, held)
    assert lost.value.kind is Trouble.LOCK_LOST
    (again,) = receive_all(client, queue, 1)
    assert (again.body, again.delivery_count) == (b"x", 1)
    assert again.sequence_number == held.sequence_number
    client.complete(queue, again)
    assert messages_in(queue) == 0


@pytest.mark.row("C18")
def test_lock_lasts_as_long_as_the_queue_says(broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue) -> None:
    short, long = make_queue(LockDuration="PT5S"), make_queue(LockDuration="PT5M")
    held = {}
    for queue, lock in ((short, timedelta(seconds=5)), (long, timedelta(minutes=5))):
        python.send(queue, Outgoing(b"x"))
        (held[queue],) = receive_all(python, queue, 1)
        message = held[queue].token
        assert message.locked_until_utc - message.enqueued_time_utc == lock
    broker.advance(4_999)
    python.complete(short, held[short])
    broker.advance(295_000)
    python.complete(long, held[long])


def test_receiver_that_waits_gets_the_message_when_its_lock_runs_out(
    broker: BrokerProcess, clients: Clients, queue: str
) -> None:
    """The one that waits keeps its credit open, without asking again."""
    holder, waiting = clients.get("javascript"), clients.get("rhea")
    holder.send(queue, Outgoing(b"x"))
    receive_all(holder, queue, 1)
    assert waiting.receive(queue, 1, wait_s=QUIET_S) == []
    broker.advance(LOCK_MS)
    (message,) = receive_all(waiting, queue, 1)
    assert message.delivery_count == 1


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_message_whose_lock_ran_out_too_often_is_dead_lettered(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue, partitioned: bool
) -> None:
    queue = make_queue(MaxDeliveryCount=2, EnablePartitioning=partitioned)
    python.send(queue, Outgoing(b"x"))
    for _ in range(2):
        receive_all(python, queue, 1)
        broker.advance(LOCK_MS)
    (dead,) = receive_all(python, queue + DEAD_LETTER, 1)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


def test_python_raises_lock_lost_for_each_way_to_settle(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue
) -> None:
    queue = make_queue(MaxDeliveryCount=100)
    python.send(queue, Outgoing(b"x"))
    receiver = python.receiver(queue)
    for settle in (receiver.complete_message, receiver.abandon_message, receiver.dead_letter_message):
        (message,) = receive_all(python, queue, 1)
        broker.advance(LOCK_MS)
        with pytest.raises(MessageLockLostError):
            settle(message.token)


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_expired_message_is_never_delivered_and_goes_where_the_queue_says(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue, messages_in: CountMessages, partitioned: bool
) -> None:
    dropping = make_queue(EnablePartitioning=partitioned)
    keeping = make_queue(DeadLetteringOnMessageExpiration=True, EnablePartitioning=partitioned)
    for queue in (dropping, keeping):
        python.send(queue, Outgoing(b"short", partition_key="k", ttl_ms=1_000), Outgoing(b"long", partition_key="k"))
    broker.advance(1_000)
    for queue in (dropping, keeping):
        (message,) = receive_all(python, queue, 1)
        assert message.body == b"long"
        python.complete(queue, message)
        assert messages_in(queue) == 0
    assert messages_in(dropping, dead=True) == 0
    (dead,) = receive_all(python, keeping + DEAD_LETTER, 1)
    assert (dead.body, dead.dead_letter_reason, dead.dead_letter_source) == (b"short", "TTLExpiredException", keeping)


def test_message_does_not_expire_while_it_is_locked(
    broker: BrokerProcess, client: Client, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    queue = make_queue(LockDuration="PT5M")
    client.send(queue, Outgoing(b"x", ttl_ms=1_000))
    (message,) = receive_all(client, queue, 1)
    broker.advance(2_000)
    client.complete(queue, message)
    assert messages_in(queue) == 0


def test_time_to_live_of_the_queue_is_the_most_that_a_message_gets(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    queue = make_queue(DefaultMessageTimeToLive="PT10S")
    python.sender(queue).send_messages(
        [ServiceBusMessage(b"none"), ServiceBusMessage(b"longer", time_to_live=timedelta(hours=1))]
    )
    broker.advance(10_000)
    python.send(queue, Outgoing(b"later"))
    assert [message.body for message in receive_all(python, queue, 1, delete=True)] == [b"later"]
    assert messages_in(queue) == 0
