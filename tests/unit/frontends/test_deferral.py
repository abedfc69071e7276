"""Deferred messages: received by their sequence numbers, settled by their lock tokens."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from partibus.amqp import Delivery
from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.types import Int, Timestamp, UInt
from partibus.amqp.section_fields import map_value
from partibus.amqp.sections import split_sections
from partibus.frontends.amqp.operations import receive_deferred
from partibus.partition.protocol.ports import StoreError
from partibus.routing.slots import partition_for_key
from tests.unit.frontends.controller import Controller
from tests.unit.frontends.harness import Client, World, message
from tests.unit.frontends.node_requests import ask, bodies, defer_all, longs, messages, peek, refusal, uuids

DELETE, PEEK_LOCK = UInt(0), UInt(1)


def deferred(client: Client, queue: str, count: int, body: bytes = b"") -> list[int]:
    """Sequence numbers of so many deferred messages."""
    sender = client.sender(queue)
    for number in range(count):
        client.send(sender, message(body + b"%d" % number))
    link = client.receiver(queue)
    found: list[Delivery] = []
    while len(found) < count:
        found += client.receive(link, count - len(found))
    by_body = {split_sections(delivery.payload).body[-2:]: delivery for delivery in found}
    assert len(by_body) == min(count, 100)
    return defer_all(client, queue, sorted(found, key=lambda delivery: split_sections(delivery.payload).body))


def key_of(partition_id: int) -> str:
    return next(key for key in map(str, range(10_000)) if partition_for_key(key, 16) == partition_id)


def receive(client: Client, queue: str, numbers: list[int], mode: int = PEEK_LOCK) -> dict[Any, Any]:
    body = {"sequence-numbers": longs(numbers), "receiver-settle-mode": mode}
    return ask(client, queue, "receive-by-sequence-number", body)[1]


def settle(client: Client, queue: str, tokens: list[UUID], status: str, **more: object) -> None:
    body = {"disposition-status": status, "lock-tokens": uuids(tokens), **more}
    assert ask(client, queue, "update-disposition", body) == (200, {})


def test_a_deferred_message_comes_by_its_number_under_lock(world: World) -> None:
    client = world.client()
    (number,) = deferred(client, world.queue("q"), 1)
    (item,) = receive(client, "q", [number])["messages"]
    assert isinstance(item["lock-token"], UUID)
    (found,) = messages({"messages": [item]})
    assert (found.body, found.sequence_number, found.state) == (b"0", number, "deferred")
    assert isinstance(found.annotations["x-opt-locked-until"], Timestamp)
    sections = split_sections(found.payload)
    assert map_value(sections.delivery_annotations, "x-opt-lock-token") == item["lock-token"]
    assert sections.join() == found.payload, "sections in the order of the standard"
    settle(client, "q", [item["lock-token"]], "Completed")
    assert peek(client, "q") == []


def test_deferred_messages_are_not_received_in_the_ordinary_way(world: World) -> None:
    client = world.client()
    deferred(client, world.queue("q"), 3)
    assert client.receive(client.receiver("q"), 10) == []
    assert [found.state for found in peek(client, "q")] == ["deferred"] * 3


@pytest.mark.parametrize("count", [1, 3])
def test_received_and_deleted_they_are_gone(world: World, count: int) -> None:
    client = world.client()
    numbers = deferred(client, world.queue("q"), count)
    found = receive(client, "q", numbers, DELETE)
    assert bodies(found) == [b"%d" % index for index in range(count)]
    assert all("x-opt-locked-until" not in one.annotations for one in messages(found))
    assert peek(client, "q") == []


@pytest.mark.parametrize("mode", [PEEK_LOCK, DELETE])
def test_they_come_in_the_order_asked_for_from_all_partitions(world: World, mode: int) -> None:
    client = world.client()
    numbers = deferred(client, world.queue("q", EnablePartitioning=True), 40)
    assert len({number >> 48 for number in numbers}) > 4
    wanted = numbers[::-1]
    found = receive(client, "q", wanted, mode)
    assert [one.sequence_number for one in messages(found)] == wanted
    assert [one.partition_id for one in messages(found)] == [number >> 48 for number in wanted]
    if mode == PEEK_LOCK:
        settle(client, "q", [item["lock-token"] for item in found["messages"]], "completed")
    assert peek(client, "q") == []


def test_abandoned_they_are_deferred_again_and_counted(world: World) -> None:
    client = world.client()
    (number,) = deferred(client, world.queue("q", MaxDeliveryCount=3), 1)
    for count in (1, 2):
        (item,) = receive(client, "q", [number])["messages"]
        (found,) = messages({"messages": [item]})
        assert (found.delivery_count, found.state) == (count, "deferred")
        settle(client, "q", [item["lock-token"]], "abandoned", **{"properties-to-modify": {"tries": Int(count)}})
    assert peek(client, "q") == []
    (dead,) = peek(client, "q/$DeadLetterQueue")
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.application_properties["tries"] == 2


def test_one_that_was_deferred_at_its_last_delivery_can_be_received_once_more(world: World) -> None:
    client = world.client()
    (number,) = deferred(client, world.queue("q", MaxDeliveryCount=1), 1)
    (item,) = receive(client, "q", [number])["messages"]
    (one,) = messages({"messages": [item]})
    assert one.delivery_count == 1
    settle(client, "q", [item["lock-token"]], "defered")
    body = {"sequence-numbers": longs([number]), "receiver-settle-mode": PEEK_LOCK}
    found = refusal(client, "q", "receive-by-sequence-number", body)
    assert found[:2] == (404, "com.microsoft:message-not-found")
    (dead,) = peek(client, "q/$DeadLetterQueue")
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


def test_a_lock_that_ran_out_leaves_them_deferred(world: World) -> None:
    client = world.client()
    (number,) = deferred(client, world.queue("q", LockDuration="PT5S"), 1)
    (item,) = receive(client, "q", [number])["messages"]
    world.wait(5_100)
    status, condition, _ = refusal(
        client,
        "q",
        "update-disposition",
        {"disposition-status": "completed", "lock-tokens": uuids([item["lock-token"]])},
    )
    assert (status, condition) == (410, "com.microsoft:message-lock-lost")
    (again,) = messages(receive(client, "q", [number]))
    assert again.delivery_count == 2


def test_in_the_dead_letter_sub_queue_too(world: World) -> None:
    client = world.client()
    client.send(client.sender(world.queue("q")), message(b"poison"))
    (found,) = client.receive(client.receiver("q"), 1)
    token = UUID(bytes_le=found.tag)
    settle(client, "q", [token], "suspended", **{"deadletter-reason": "why", "deadletter-description": "how"})
    (number,) = defer_all(client, "q/$DeadLetterQueue", client.receive(client.receiver("q/$DeadLetterQueue"), 1))
    (one,) = messages(receive(client, "q/$DeadLetterQueue", [number]))
    assert one.annotations["x-opt-deadletter-source"] == "q"
    assert one.application_properties == {"DeadLetterReason": "why", "DeadLetterErrorDescription": "how"}


@pytest.mark.parametrize("mode", [PEEK_LOCK, DELETE])
@pytest.mark.parametrize("partitioned", [False, True])
def test_one_number_too_many_leaves_all_as_they_were(world: World, mode: int, partitioned: bool) -> None:
    client = world.client()
    numbers = deferred(client, world.queue("q", EnablePartitioning=partitioned), 20)
    unknown = numbers[-1] + 1_000
    status, condition, text = refusal(
        client,
        "q",
        "receive-by-sequence-number",
        {"sequence-numbers": longs([*numbers, unknown]), "receiver-settle-mode": mode},
    )
    assert (status, condition) == (404, "com.microsoft:message-not-found")
    assert str(unknown) in text
    assert [one.delivery_count for one in messages(receive(client, "q", numbers))] == [1] * 20


@pytest.mark.parametrize("number", [0, -5, 16 << 48 | 1, (1 << 63) - 1])
def test_a_number_that_no_message_can_have(world: World, number: int) -> None:
    client = world.client()
    world.queue("q", EnablePartitioning=True)
    body = {"sequence-numbers": longs([number]), "receiver-settle-mode": PEEK_LOCK}
    status, condition, text = refusal(client, "q", "receive-by-sequence-number", body)
    assert (status, condition) == (404, "com.microsoft:message-not-found")
    assert str(number) in text


def test_a_message_that_is_not_deferred_is_not_found(world: World) -> None:
    client = world.client()
    client.send(client.sender(world.queue("q")), message())
    (found,) = peek(client, "q")
    body = {"sequence-numbers": [found.sequence_number], "receiver-settle-mode": Int(1)}
    assert refusal(client, "q", "receive-by-sequence-number", body)[:2] == (404, "com.microsoft:message-not-found")


@pytest.mark.parametrize("mode", [PEEK_LOCK, DELETE])
def test_more_than_one_reply_can_hold_is_refused_and_nothing_is_lost(
    world: World, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive_deferred, "ANSWER_BYTES_MAX", 50_000)
    client = world.client()
    numbers = deferred(client, world.queue("q"), 6, bytes(10_000))
    status, condition, text = refusal(
        client, "q", "receive-by-sequence-number", {"sequence-numbers": longs(numbers), "receiver-settle-mode": mode}
    )
    assert (status, condition) == (400, "com.microsoft:argument-error")
    assert "Ask for fewer" in text
    assert len(messages(receive(client, "q", numbers[:3]))) == 3


def test_a_store_that_is_away_leaves_no_message_of_the_others_locked(world: World) -> None:
    client = world.client()
    numbers = deferred(client, world.queue("q", EnablePartitioning=True), 32)
    lost = numbers[0] >> 48
    store = world.store_of("q", lost)
    store.fails, store.stays_away = StoreError("sick", executed=False), True
    client.send(client.sender("q"), message(partition_key=key_of(lost)))
    status, condition, _ = refusal(
        client,
        "q",
        "receive-by-sequence-number",
        {"sequence-numbers": longs(numbers[::-1]), "receiver-settle-mode": PEEK_LOCK},
    )
    assert (status, condition) == (503, "com.microsoft:server-busy")
    others = [number for number in numbers if number >> 48 != lost]
    assert [one.sequence_number for one in messages(receive(client, "q", others))] == others


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "sequence-numbers is None, but must be an array of sequence numbers"),
        ({"sequence-numbers": longs([])}, "from 1 to 5000"),
        ({"sequence-numbers": ["1"]}, "sequence-numbers is '1', but must be an array of longs"),
        ({"sequence-numbers": longs([1]), "receiver-settle-mode": UInt(2)}, "receiver-settle-mode is UInt(2)"),
    ],
)
def test_arguments_that_are_none_are_refused_by_name(world: World, arguments: dict[str, object], text: str) -> None:
    world.queue("q")
    found = refusal(world.client(), "q", "receive-by-sequence-number", arguments)
    assert found[:2] == (400, "com.microsoft:argument-error")
    assert text in found[2]


def test_a_queue_that_is_closed_for_receivers_gives_none(world: World) -> None:
    client = world.client()
    numbers = deferred(client, world.queue("q"), 1)
    world.broker.update("q", {"Status": "ReceiveDisabled"})
    body = {"sequence-numbers": longs(numbers), "receiver-settle-mode": PEEK_LOCK}
    found = refusal(client, "q", "receive-by-sequence-number", body)
    assert found[:2] == (400, "com.microsoft:entity-disabled")


@pytest.mark.row("C7")
def test_in_a_transaction_nothing_is_deleted_that_a_roll_back_could_not_bring_back(world: World) -> None:
    client = world.client()
    numbers = deferred(client, world.queue("q"), 1)
    transaction = Controller(client).declare()
    body = {"sequence-numbers": longs(numbers), "receiver-settle-mode": DELETE}
    found = refusal(client, "q", "receive-by-sequence-number", body, transaction=transaction)
    assert found[:2] == (400, "amqp:not-allowed")
    assert len(messages(receive(client, "q", numbers))) == 1


def test_sequence_numbers_of_a_reply_are_longs(world: World) -> None:
    client = world.client()
    numbers = deferred(client, world.queue("q"), 1)
    (found,) = messages(receive(client, "q", numbers))
    raw = found.sections.message_annotations
    start = raw.index(b"x-opt-sequence-number") + len("x-opt-sequence-number")
    assert raw[start] == 0x81
    assert decode(raw, start)[0] == numbers[0]
