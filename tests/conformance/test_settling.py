"""The fate of messages that are not simply completed: counts, locks, time to live, credit that is taken back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.exceptions import MessageAlreadySettled

from tests.conformance.clients.interface import (
    DEAD_LETTER,
    QUIET_S,
    WAIT_S,
    Client,
    Outgoing,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import Clients, CountMessages

MakeQueue = Callable[..., str]
TWO_KINDS = pytest.mark.parametrize("queue", ["plain", "subscription"], indirect=True)
"""Queues of one partition and of sixteen."""


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_message_that_was_abandoned_too_often_is_dead_lettered(
    client: Client, make_queue: MakeQueue, messages_in: CountMessages, partitioned: bool
) -> None:
    queue = make_queue(MaxDeliveryCount=3, EnablePartitioning=partitioned)
    client.send(queue, Outgoing(b"poison"))
    counts = []
    for _ in range(3):
        (message,) = receive_all(client, queue, 1)
        counts.append(message.delivery_count)
        client.abandon(queue, message)
    assert counts == [0, 1, 2]
    (dead,) = receive_all(client, queue + DEAD_LETTER, 1)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_description
    assert dead.body == b"poison"
    assert messages_in(queue) == 0


@TWO_KINDS
def test_dead_letter_sub_queue_by_the_sub_queue_option_of_the_library(python: PythonSync, queue: str) -> None:
    python.send(queue, Outgoing(b"x"))
    (message,) = receive_all(python, queue, 1)
    python.dead_letter(queue, message, "reason", "description")
    with python.azure.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = receiver.receive_messages(1, WAIT_S)
        assert (dead.dead_letter_reason, dead.dead_letter_source) == ("reason", queue)
        receiver.abandon_message(dead)
        (again,) = receiver.receive_messages(1, WAIT_S)
        assert again.delivery_count == 0
        receiver.complete_message(again)


def test_message_in_the_dead_letter_sub_queue_stays_there_however_often_it_is_abandoned(
    javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    queue = make_queue(MaxDeliveryCount=1)
    javascript.send(queue, Outgoing(b"x"))
    javascript.abandon(queue, *receive_all(javascript, queue, 1))
    for _ in range(4):
        (dead,) = receive_all(javascript, queue + DEAD_LETTER, 1)
        assert dead.delivery_count == 1
        javascript.abandon(queue + DEAD_LETTER, dead)


def test_dead_lettering_without_a_reason(python: PythonSync, make_queue: MakeQueue) -> None:
    queue = make_queue()
    python.send(queue, Outgoing(b"x"))
    (message,) = receive_all(python, queue, 1)
    python.receiver(queue).dead_letter_message(message.token)
    (dead,) = receive_all(python, queue + DEAD_LETTER, 1)
    assert dead.body == b"x"
    assert not dead.dead_letter_reason


def test_second_settlement_of_a_message_fails_in_the_library(python: PythonSync, make_queue: MakeQueue) -> None:
    queue = make_queue()
    python.send(queue, Outgoing(b"x"))
    (message,) = receive_all(python, queue, 1)
    python.complete(queue, message)
    with pytest.raises(MessageAlreadySettled):
        python.receiver(queue).complete_message(message.token)


@TWO_KINDS
def test_lock_outlives_the_link_it_was_given_on(clients: Clients, python: PythonSync, queue: str) -> None:
    """Trap 28: the message stays locked, so no other receiver gets it at once."""
    python.send(queue, Outgoing(b"first"))
    python.complete(queue, *receive_all(python, queue, 1))
    python.send(queue, Outgoing(b"locked"))
    another = clients.another("rhea")
    receive_all(another, queue, 1)
    another.close()
    assert python.receive(queue, 1, wait_s=QUIET_S) == []
    assert [message.body for message in peek_all(python, queue)] == [b"locked"]


@TWO_KINDS
def test_message_that_comes_after_an_unfilled_receive_is_not_lost(
    javascript: JavaScriptServiceBus, queue: str, messages_in: CountMessages
) -> None:
    """Trap 18: this library drains its credit after each call, and asks on the same link again."""
    for i in range(3):
        javascript.send(queue, Outgoing(b"%d" % i))
        (message,) = javascript.receive(queue, 10)
        assert (message.body, message.delivery_count) == (b"%d" % i, 0)
        javascript.complete(queue, message)
    assert javascript.receive(queue, 10, wait_s=QUIET_S) == []
    javascript.send(queue, Outgoing(b"after"))
    (message,) = receive_all(javascript, queue, 1)
    assert (message.body, message.delivery_count) == (b"after", 0)
    javascript.complete(queue, message)
    assert messages_in(queue) == 0


@TWO_KINDS
def test_message_that_comes_after_credit_was_taken_back_is_free_for_others(
    javascript: JavaScriptServiceBus, python: PythonSync, queue: str
) -> None:
    """A receiver that has stopped waiting holds nothing."""
    javascript.send(queue, Outgoing(b"first"))
    javascript.complete(queue, *receive_all(javascript, queue, 1))
    assert javascript.receive(queue, 10, wait_s=QUIET_S) == []
    python.send(queue, Outgoing(b"second"))
    (message,) = receive_all(python, queue, 1)
    assert (message.body, message.delivery_count) == (b"second", 0)


@pytest.mark.row("P15")
@pytest.mark.parametrize("concurrent", [1, 10])
def test_messages_are_pushed_to_a_handler_and_completed_when_it_returns(
    javascript: JavaScriptServiceBus, queue: str, messages_in: CountMessages, concurrent: int
) -> None:
    javascript.send_list(queue, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(50)])
    found = javascript.subscribe(queue, 50, concurrent=concurrent)
    assert sorted(int(message.body) for message in found) == list(range(50))
    assert messages_in(queue) == 0


@pytest.mark.row("P15")
@TWO_KINDS
def test_receiver_is_iterated_over(python: PythonSync, queue: str, messages_in: CountMessages) -> None:
    python.send_list(queue, [Outgoing(b"%d" % i, partition_key="k") for i in range(20)])
    with python.azure.get_queue_receiver(queue, max_wait_time=WAIT_S, prefetch_count=5) as receiver:
        found = []
        for message in receiver:
            found.append(b"".join(message.body))
            receiver.complete_message(message)
            if len(found) == 20:
                break
    assert found == [b"%d" % i for i in range(20)]
    assert messages_in(queue) == 0
