"""The operations of an application on a queue, by five client libraries, on plain and partitioned queues.

Trap numbers are those of the Service Bus dialect (docs/dialect.md): what breaks clients when a broker gets it wrong.
Any of these tests fails with traps 3, 7, 8, 11, 16, 17, 19, 20, 22 or 23: no link opens, or no answer is understood.
"""

from __future__ import annotations

import pytest

from tests.conformance.clients.interface import (
    DEAD_LETTER,
    QUIET_S,
    Client,
    Outgoing,
    ServiceBusClient,
    peek_all,
    receive_all,
)
from tests.conformance.conftest import CountMessages

MESSAGE = Outgoing(
    b"\x00body\xff",
    message_id="id-1",
    partition_key="key-1",
    subject="subject-1",
    properties={"text": "ä", "number": 42, "flag": True},
)


@pytest.mark.row("C5", "P15")
def test_message_arrives_as_it_was_sent_and_is_gone_once_completed(
    client: Client, queue: str, messages_in: CountMessages
) -> None:
    client.send(queue, MESSAGE)
    (message,) = receive_all(client, queue, 1)
    assert message.body == MESSAGE.body
    assert message.message_id == "id-1"
    assert message.partition_key == "key-1"
    assert message.subject == "subject-1"
    assert message.properties == MESSAGE.properties
    assert message.delivery_count == 0
    assert message.sequence_number is not None
    client.complete(queue, message)
    assert messages_in(queue) == 0


@pytest.mark.row("C6")
def test_receive_and_delete_leaves_nothing_behind(client: Client, queue: str, messages_in: CountMessages) -> None:
    client.send(queue, *(Outgoing(b"%d" % i, partition_key="one") for i in range(3)))
    assert [m.body for m in receive_all(client, queue, 3, delete=True)] == [b"0", b"1", b"2"]
    assert messages_in(queue) == 0


@pytest.mark.row("P15")
def test_abandoned_message_comes_again_before_later_ones_and_is_counted(
    client: Client, queue: str, messages_in: CountMessages
) -> None:
    client.send(queue, *(Outgoing(b"%d" % i, partition_key="one") for i in range(2)))
    (first,) = receive_all(client, queue, 1)
    assert (first.body, first.delivery_count) == (b"0", 0)
    client.abandon(queue, first)
    again, later = receive_all(client, queue, 2)
    assert (again.body, again.delivery_count) == (b"0", 1)
    assert (later.body, later.delivery_count) == (b"1", 0)
    assert again.sequence_number == first.sequence_number
    client.complete(queue, again)
    client.complete(queue, later)
    assert messages_in(queue) == 0


@pytest.mark.row("P15")
def test_dead_lettered_message_is_in_the_sub_queue_with_its_reason(
    client: Client, queue: str, messages_in: CountMessages
) -> None:
    """Trap 12: an error in the answer would be read as failure."""
    client.send(queue, MESSAGE)
    (message,) = receive_all(client, queue, 1)
    client.dead_letter(queue, message, "Unreadable", "no such flight")
    (dead,) = receive_all(client, queue + DEAD_LETTER, 1)
    assert dead.body == MESSAGE.body
    assert dead.message_id == "id-1"
    assert dead.dead_letter_reason == "Unreadable"
    assert dead.dead_letter_description == "no such flight"
    assert dead.dead_letter_source == queue
    assert dead.properties["number"] == 42
    client.complete(queue + DEAD_LETTER, dead)
    assert messages_in(queue, dead=True) == 0
    assert messages_in(queue) == 0


def test_message_without_an_id_gets_one(client: Client, queue: str, messages_in: CountMessages) -> None:
    """Trap 2. Some of the libraries make the id themselves."""
    client.send(queue, Outgoing(b"a"), Outgoing(b"b"))
    a, b = receive_all(client, queue, 2)
    assert a.message_id
    assert b.message_id
    assert a.message_id != b.message_id
    client.complete(queue, a)
    client.complete(queue, b)
    assert messages_in(queue) == 0


def test_message_of_many_frames_comes_back_whole(client: Client, queue: str, messages_in: CountMessages) -> None:
    """250 KB are four frames of 64 KiB, in both directions."""
    body = bytes(range(256)) * 1000
    client.send(queue, Outgoing(body))
    (message,) = receive_all(client, queue, 1)
    assert message.body == body
    client.complete(queue, message)
    assert messages_in(queue) == 0


def test_list_is_sent_whole_and_in_order(sdk: ServiceBusClient, queue: str) -> None:
    sdk.send_list(queue, [Outgoing(b"%d" % i, partition_key="one") for i in range(50)])
    assert [m.body for m in receive_all(sdk, queue, 50, delete=True)] == [b"%d" % i for i in range(50)]


@pytest.mark.row("K1")
def test_batch_with_mixed_keys_arrives_whole_and_each_key_in_order(sdk: ServiceBusClient, queue: str) -> None:
    keys = ["a", "b", "c", None]
    batch = [Outgoing(b"%d" % i, partition_key=keys[i % 4]) for i in range(40)]
    sdk.send_batch(queue, batch)
    found = receive_all(sdk, queue, 40, delete=True)
    for key in keys:
        assert [m.body for m in found if m.partition_key == key] == [m.body for m in batch if m.partition_key == key]
        if key is not None:
            assert len({m.partition for m in found if m.partition_key == key}) == 1


@pytest.mark.row("A10")
def test_peek_goes_on_from_the_last_number_until_nothing_is_left(sdk: ServiceBusClient, queue: str) -> None:
    sdk.send_list(queue, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(40)])
    found = peek_all(sdk, queue, count=7)
    assert sorted(int(m.body) for m in found) == list(range(40))
    numbers = [m.sequence_number for m in found if m.sequence_number is not None]
    assert numbers == sorted(set(numbers))


def test_peek_shows_locked_messages_and_dead_letters_without_touching_them(sdk: ServiceBusClient, queue: str) -> None:
    sdk.send(queue, Outgoing(b"locked"), Outgoing(b"dead"))
    one, other = sorted(receive_all(sdk, queue, 2), key=lambda message: message.body, reverse=True)
    sdk.dead_letter(queue, other, "r", "d")
    assert [m.body for m in peek_all(sdk, queue)] == [b"locked"]
    (dead,) = peek_all(sdk, queue + DEAD_LETTER)
    assert (dead.body, dead.dead_letter_reason, dead.dead_letter_source) == (b"dead", "r", queue)
    sdk.complete(queue, one)
    assert peek_all(sdk, queue) == []
    (dead,) = receive_all(sdk, queue + DEAD_LETTER, 1)
    assert dead.delivery_count == 0


def test_receive_from_an_empty_queue_ends_with_nothing(client: Client, queue: str) -> None:
    client.send(queue, MESSAGE)
    client.complete(queue, *receive_all(client, queue, 1))
    assert client.receive(queue, 5, wait_s=QUIET_S) == []
    client.send(queue, MESSAGE)
    assert [m.body for m in receive_all(client, queue, 1)] == [MESSAGE.body]
