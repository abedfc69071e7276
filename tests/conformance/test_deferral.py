"""Messages that a receiver puts aside and asks for by number later, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    Client,
    ClientTrouble,
    Outgoing,
    Received,
    ServiceBusClient,
    Trouble,
    nothing_left,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import Clients, CountMessages

CLOCK = "manual"
PAIRED = True
MakeQueue = Callable[..., str]
LOCK_MS = 60_000


def defer_one(client: Client, queue: str, body: bytes = b"x") -> Received:
    """Send a message and put it aside."""
    client.send(queue, Outgoing(body, partition_key="k"))
    (message,) = receive_all(client, queue, 1)
    client.defer(queue, message)
    return message


@pytest.mark.row("P15")
def test_deferred_message_comes_only_by_its_number(
    sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    deferred = defer_one(sdk, queue)
    assert nothing_left(sdk, queue)
    assert [(m.sequence_number, m.state) for m in peek_all(sdk, queue)] == [(deferred.number, "deferred")]
    (message,) = sdk.receive_deferred(queue, [deferred.number])
    assert (message.body, message.sequence_number, message.delivery_count) == (b"x", deferred.number, 1)
    sdk.complete(queue, message)
    assert messages_in(queue) == 0
    with pytest.raises(ClientTrouble) as gone:
        sdk.receive_deferred(queue, [deferred.number])
    assert gone.value.kind is Trouble.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("library", ["rhea", "proton"])
def test_any_client_defers_by_a_modified_outcome_that_is_undeliverable_here(
    clients: Clients, python: PythonSync, library: str, queue: str
) -> None:
    client = clients.get(library)
    deferred = defer_one(client, queue)
    assert nothing_left(client, queue)
    (message,) = python.receive_deferred(queue, [deferred.number])
    assert message.body == b"x"


def test_deferred_message_is_locked_while_somebody_has_it(
    broker: BrokerProcess, sdk: ServiceBusClient, javascript: JavaScriptServiceBus, queue: str
) -> None:
    deferred = defer_one(sdk, queue)
    (held,) = sdk.receive_deferred(queue, [deferred.number])
    assert held.locked_until_ms == broker.now_ms() + LOCK_MS
    with pytest.raises(ClientTrouble) as locked:
        javascript.receive_deferred(queue, [deferred.number])
    assert locked.value.kind is Trouble.MESSAGE_NOT_FOUND
    broker.advance(LOCK_MS - 1)
    assert sdk.renew_lock(queue, held) == broker.now_ms() + LOCK_MS
    broker.advance(LOCK_MS - 1)
    sdk.complete(queue, held)


def test_abandoned_or_expired_it_stays_deferred_and_is_counted(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str
) -> None:
    number = defer_one(sdk, queue).number
    (first,) = sdk.receive_deferred(queue, [number])
    sdk.abandon(queue, first)
    assert nothing_left(sdk, queue)
    (second,) = sdk.receive_deferred(queue, [number])
    assert second.delivery_count == 2
    broker.advance(LOCK_MS)
    with pytest.raises(ClientTrouble) as lost:
        sdk.complete(queue, second)
    assert lost.value.kind is Trouble.LOCK_LOST
    assert nothing_left(sdk, queue)
    (third,) = sdk.receive_deferred(queue, [number])
    assert third.delivery_count == 3
    sdk.defer(queue, third)
    (fourth,) = sdk.receive_deferred(queue, [number])
    assert fourth.delivery_count == 4


def test_deferred_message_is_dead_lettered_by_its_holder_or_by_too_many_deliveries(
    sdk: ServiceBusClient, make_queue: MakeQueue
) -> None:
    queue = make_queue(MaxDeliveryCount=1, EnablePartitioning=True)
    numbers = [defer_one(sdk, queue, body).number for body in (b"by hand", b"too often")]
    by_hand, too_often = sdk.receive_deferred(queue, numbers)
    sdk.dead_letter(queue, by_hand, "reason", "description")
    sdk.abandon(queue, too_often)
    found = {m.body: m.dead_letter_reason for m in receive_all(sdk, queue + DEAD_LETTER, 2)}
    assert found == {b"by hand": "reason", b"too often": "MaxDeliveryCountExceeded"}


def test_deferred_messages_are_received_and_deleted_by_their_numbers(
    sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    numbers = [defer_one(sdk, queue, b"%d" % i).number for i in range(3)]
    found = sdk.receive_deferred(queue, numbers[:2], delete=True)
    assert [message.body for message in found] == [b"0", b"1"]
    assert messages_in(queue) == 1


def test_one_number_that_is_not_deferred_gives_none_of_them(
    sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    deferred = defer_one(sdk, queue)
    sdk.send(queue, Outgoing(b"active", partition_key="k"))
    (active,) = sdk.peek(queue, 1, deferred.number + 1)
    for other in (active.number, active.number + 100):
        with pytest.raises(ClientTrouble) as refused:
            sdk.receive_deferred(queue, [deferred.number, other])
        assert refused.value.kind is Trouble.MESSAGE_NOT_FOUND
    (message,) = sdk.receive_deferred(queue, [deferred.number])
    assert message.delivery_count == 1
    assert messages_in(queue) == 2


def test_deferred_messages_of_several_partitions_come_in_one_call(
    javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    """More than the service itself does."""
    queue = make_queue(EnablePartitioning=True)
    javascript.send_list(queue, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(12)])
    messages = receive_all(javascript, queue, 12)
    assert len({message.partition for message in messages}) > 1
    for message in messages:
        javascript.defer(queue, message)
    found = javascript.receive_deferred(queue, [message.number for message in messages])
    assert [message.body for message in found] == [message.body for message in messages]


def test_deferring_keeps_the_place_of_others(sdk: ServiceBusClient, queue: str) -> None:
    sdk.send(queue, *(Outgoing(b"%d" % i, partition_key="k") for i in range(3)))
    first, second = receive_all(sdk, queue, 2)
    sdk.defer(queue, first)
    sdk.abandon(queue, second)
    assert [message.body for message in receive_all(sdk, queue, 2, delete=True)] == [b"1", b"2"]


def test_deferred_message_expires_when_somebody_asks_for_it_after_its_time(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue
) -> None:
    """Not on its own: until then it is there."""
    queue = make_queue(DeadLetteringOnMessageExpiration=True)
    python.send(queue, Outgoing(b"x", ttl_ms=1_000))
    (message,) = receive_all(python, queue, 1)
    python.defer(queue, message)
    broker.advance(10_000)
    assert [peeked.state for peeked in peek_all(python, queue)] == ["deferred"]
    with pytest.raises(ClientTrouble) as expired:
        python.receive_deferred(queue, [message.number])
    assert expired.value.kind is Trouble.MESSAGE_NOT_FOUND
    (dead,) = receive_all(python, queue + DEAD_LETTER, 1)
    assert (dead.body, dead.dead_letter_reason) == (b"x", "TTLExpiredException")


@pytest.mark.parametrize("how", ["defer", "abandon", "dead-letter"])
def test_properties_can_be_changed_with_a_settlement(
    javascript: JavaScriptServiceBus, python: PythonSync, make_queue: MakeQueue, how: str
) -> None:
    """All other parts of the message stay, the body to the byte."""
    queue = make_queue(EnablePartitioning=True)
    body = bytes(range(256))
    javascript.send(queue, Outgoing(body, subject="s", properties={"kept": "ü", "changed": 1}))
    (message,) = receive_all(javascript, queue, 1)
    changes = {"changed": "two", "new": True}
    if how == "defer":
        javascript.defer_with(queue, message, changes)
        (found,) = python.receive_deferred(queue, [message.number])
    elif how == "abandon":
        javascript.abandon_with(queue, message, changes)
        (found,) = receive_all(python, queue, 1)
    else:
        javascript.dead_letter_with(queue, message, "r", "d", changes)
        (found,) = receive_all(python, queue + DEAD_LETTER, 1)
        changes |= {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}
    assert found.properties == {"kept": "ü", **changes}
    assert (found.body, found.subject, found.sequence_number) == (body, "s", message.number)
