"""Scheduled messages: over a link or the management node, cancelled, and where their numbers come from."""

from __future__ import annotations

from typing import Any

import pytest

from partibus.amqp import ACCEPTED
from partibus.amqp.codec.types import Array, Timestamp
from partibus.amqp.section_encoding import encode_annotations, encode_data
from partibus.client.messages import IncomingMessage
from partibus.filters.model import Rule, SqlAction, SqlFilter
from partibus.frontends.amqp.ingress import SCHEDULED_TIME
from partibus.message import Message
from partibus.namespace.queues import Queue
from partibus.partition.protocol.ports import StoreError
from partibus.routing.slots import partition_for_key
from tests.unit.frontends.harness import Client, World
from tests.unit.frontends.node_requests import ask, longs, now_ms, peek, refusal, scheduled

MINUTE_MS = 60_000


def schedule(client: Client, queue: str, *payloads: bytes) -> list[int]:
    _, found = ask(client, queue, "schedule-message", {"messages": [{"message": payload} for payload in payloads]})
    numbers = found["sequence-numbers"]
    assert isinstance(numbers, Array)
    assert numbers.constructor == 0x81
    return [int(number) for number in numbers.items]  # type: ignore[call-overload]


def cancel(client: Client, queue: str, numbers: list[int]) -> None:
    assert ask(client, queue, "cancel-scheduled-message", {"sequence-numbers": longs(numbers)}) == (200, {})


def test_a_scheduled_message_comes_when_it_is_due_under_a_new_number(world: World) -> None:
    client = world.client()
    link = client.receiver(world.queue("q"))
    due_ms = now_ms(world) + MINUTE_MS
    (number,) = schedule(client, "q", scheduled(due_ms))
    (waiting,) = peek(client, "q")
    assert (waiting.state, waiting.sequence_number) == ("scheduled", number)
    assert client.receive(link, 1) == []
    world.wait(due_ms - now_ms(world) - 1)
    assert client.deliveries(link) == []
    world.wait(500)
    (found,) = [IncomingMessage(delivery.payload) for delivery in client.deliveries(link)]
    assert found.state == "scheduled", "a receiver is told how it came"
    (peeked,) = peek(client, "q")
    assert peeked.state == "active"
    assert found.sequence_number is not None
    assert found.sequence_number > number
    assert found.enqueued_ms is not None
    assert found.enqueued_ms >= due_ms
    assert found.annotations["x-opt-scheduled-enqueue-time"] == Timestamp(due_ms)


def test_a_link_schedules_by_the_annotation(world: World) -> None:
    client = world.client()
    assert client.send(client.sender(world.queue("q")), scheduled(now_ms(world) + MINUTE_MS)) == [ACCEPTED]
    assert [found.state for found in peek(client, "q")] == ["scheduled"]


def test_a_message_that_was_due_when_it_came_is_received_as_active(world: World) -> None:
    client = world.client()
    client.send(client.sender(world.queue("q")), scheduled(now_ms(world) - 1))
    (delivery,) = client.receive(client.receiver("q"), 1)
    assert IncomingMessage(delivery.payload).state == "active"


def test_a_subscription_tells_that_a_message_was_scheduled_also_where_an_action_changed_it(world: World) -> None:
    client = world.client()
    world.broker.create_topic("t", {})
    for name in ("plain", "changed"):
        world.broker.create_subscription("t", name, {})
    world.broker.create_rule("t/Subscriptions/changed", Rule("r", SqlFilter("1 = 1"), SqlAction("SET a = 1")))
    world.broker.delete_rule("t/Subscriptions/changed", "$Default")
    links = [client.receiver(f"t/subscriptions/{name}") for name in ("plain", "changed")]
    for link in links:
        link.grant(1)
    client.send(client.sender("t"), scheduled(now_ms(world) + MINUTE_MS))
    world.wait(MINUTE_MS + 500)
    found = [IncomingMessage(one.payload) for link in links for one in client.deliveries(link)]
    assert [one.state for one in found] == ["scheduled", "scheduled"]


def test_what_is_due_already_comes_at_once_and_has_a_number(world: World) -> None:
    client = world.client()
    world.queue("q")
    (number,) = schedule(client, "q", scheduled(now_ms(world) - MINUTE_MS))
    assert number > 0
    assert len(client.receive(client.receiver("q"), 1)) == 1


def test_what_is_cancelled_never_comes(world: World) -> None:
    client = world.client()
    link = client.receiver(world.queue("q"))
    first, second, third = schedule(client, "q", *[scheduled(now_ms(world) + MINUTE_MS, b"%d" % n) for n in range(3)])
    cancel(client, "q", [third, first])
    world.wait(2 * MINUTE_MS)
    assert [IncomingMessage(found.payload).body for found in client.receive(link, 5)] == [b"1"]
    assert second not in (first, third)


def test_what_is_not_scheduled_any_more_is_not_found_and_nothing_is_cancelled(world: World) -> None:
    client = world.client()
    world.queue("q")
    waiting, early = schedule(
        client, "q", scheduled(now_ms(world) + 10 * MINUTE_MS), scheduled(now_ms(world) + MINUTE_MS)
    )
    world.wait(2 * MINUTE_MS)
    found = refusal(client, "q", "cancel-scheduled-message", {"sequence-numbers": longs([waiting, early])})
    assert found[:2] == (404, "com.microsoft:message-not-found")
    assert f"number {early}." in found[2]
    assert [one.state for one in peek(client, "q")] == ["scheduled", "active"]


@pytest.mark.row("K1", "P18")
def test_numbers_name_the_partitions_of_the_keys(world: World) -> None:
    client = world.client()
    world.queue("q", EnablePartitioning=True)
    due_ms = now_ms(world) + MINUTE_MS
    keys = [None, "a", "b", "a", None, "c", "b"]
    payloads = [scheduled(due_ms, b"%d" % index, key=key) for index, key in enumerate(keys)]
    numbers = schedule(client, "q", *payloads)
    partitions = [number >> 48 for number in numbers]
    for key, partition in zip(keys, partitions, strict=True):
        assert key is None or partition == partition_for_key(key, 16)
    assert partitions[0] == partitions[4], "a run without keys goes whole to one partition"
    assert {found.sequence_number: found.body for found in peek(client, "q")} == {
        number: b"%d" % index for index, number in enumerate(numbers)
    }
    cancel(client, "q", numbers)
    assert peek(client, "q") == []


def test_a_key_whose_store_is_away_leaves_nothing_scheduled(world: World) -> None:
    client = world.client()
    world.queue("q", EnablePartitioning=True)
    lost = world.store_of("q", partition_for_key("b", 16))
    lost.fails, lost.stays_away = StoreError("sick", executed=False), True
    due_ms = now_ms(world) + MINUTE_MS
    payloads = [{"message": scheduled(due_ms, key=key)} for key in "abc"]
    found = refusal(client, "q", "schedule-message", {"messages": payloads})
    assert found[:2] == (503, "com.microsoft:server-busy")
    lost.fails, lost.stays_away = None, False
    world.wait(5_000)
    assert peek(client, "q") == []


@pytest.mark.row("K12")
def test_without_a_key_another_partition_takes_them(world: World) -> None:
    client = world.client()
    world.queue("q", EnablePartitioning=True)
    for store in world.stores[:15]:
        store.fails, store.stays_away = StoreError("sick", executed=False), True
    due_ms = now_ms(world) + MINUTE_MS
    for _ in range(3):
        assert len(schedule(client, "q", scheduled(due_ms), scheduled(due_ms))) == 2


@pytest.mark.row("K3")
def test_a_session_is_scheduled_in_its_partition(world: World) -> None:
    client = world.client()
    world.queue("q", EnablePartitioning=True, RequiresSession=True)
    numbers = schedule(client, "q", *[scheduled(now_ms(world) + MINUTE_MS, session="s") for _ in range(3)])
    assert {number >> 48 for number in numbers} == {partition_for_key("s", 16)}


@pytest.mark.parametrize(
    ("properties", "messages", "condition", "text"),
    [
        ({}, None, "com.microsoft:argument-error", "messages is None"),
        ({}, [], "com.microsoft:argument-error", "0 messages"),
        ({}, [b"bytes"], "com.microsoft:argument-error", "a list of maps"),
        ({}, [{"message": "text"}], "com.microsoft:argument-error", "a list of maps"),
        ({}, [{"message": b"\x01"}], "com.microsoft:argument-error", "an encoded AMQP message"),
        ({}, [{"message": encode_data(b"")}], "com.microsoft:argument-error", "x-opt-scheduled-enqueue-time is None"),
        ({}, [{"message": scheduled(1, bytes(300_000))}], "amqp:link:message-size-exceeded", "'q'"),
        ({"RequiresSession": True}, [{"message": scheduled(1)}], "amqp:not-allowed", "requires sessions"),
        ({"Status": "SendDisabled"}, [{"message": scheduled(1)}], "com.microsoft:entity-disabled", "SendDisabled"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_whole(
    world: World, properties: dict[str, Any], messages: list[object] | None, condition: str, text: str
) -> None:
    client = world.client()
    world.queue("q", **properties)
    good = {"message": scheduled(now_ms(world) + MINUTE_MS, session="s")}
    body = {"messages": [good, *messages] if messages else messages}
    found = refusal(client, "q", "schedule-message", body)
    assert found[1] == condition
    assert text in found[2]
    assert peek(client, "q") == []


def test_nothing_is_scheduled_in_a_sub_queue(world: World) -> None:
    world.queue("q")
    body = {"messages": [{"message": scheduled(1)}]}
    assert refusal(world.client(), "q/$DeadLetterQueue", "schedule-message", body)[1] == "amqp:not-allowed"


@pytest.mark.parametrize("operation", ["schedule-message", "cancel-scheduled-message"])
def test_scheduling_needs_the_right_to_send(world: World, operation: str) -> None:
    world.queue("q")
    found = refusal(world.client(login="listener"), "q", operation, {})
    assert found[:2] == (401, "amqp:unauthorized-access")


def test_the_messages_of_a_large_request_are_looked_at_in_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 at once would hold the loop for 60 ms."""
    looked_at: list[int] = []
    begin, message_of = world.ingress.begin, world.ingress.message_of

    def begin_noted() -> None:
        looked_at.append(0)
        begin()

    def message_noted(payload: bytes, queue: Queue) -> Message:
        looked_at[-1] += 1
        return message_of(payload, queue)

    monkeypatch.setattr(world.ingress, "begin", begin_noted)
    monkeypatch.setattr(world.ingress, "message_of", message_noted)
    client = world.client()
    world.queue("q")
    due = encode_annotations({SCHEDULED_TIME: Timestamp(now_ms(world) + 60_000)}) + encode_data(b"")
    body = {"messages": [{"message": due}] * 1_200}
    _, found = ask(client, "q", "schedule-message", body)
    numbers: Any = found["sequence-numbers"]
    assert len(numbers.items) == 1_200
    assert [count for count in looked_at if count] == [512, 512, 176]
