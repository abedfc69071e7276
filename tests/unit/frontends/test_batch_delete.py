"""Batch delete and purge: the oldest messages, without receiving them."""

from __future__ import annotations

from typing import Any

import pytest

from partibus.amqp.codec.types import Int, Timestamp
from partibus.frontends.amqp.operations.batch_delete import COUNT_MAX, _shares
from partibus.partition.protocol.ports import StoreError
from partibus.routing.slots import partition_for_key
from tests.unit.frontends.harness import Client, World, message
from tests.unit.frontends.node_requests import ask, now_ms, peek, refusal, scheduled


def delete(client: Client, count: int, **arguments: Any) -> int:
    """How many were deleted; until all of those that were sent just now are old enough."""
    client.world.wait(10)
    status, found = ask(client, "q", "batch-delete-messages", {"message-count": Int(count), **arguments})
    if status == 204:
        return 0
    assert isinstance(found["message-count"], Int)
    return int(found["message-count"])


def filled(world: World, count: int, **properties: Any) -> Client:
    client = world.client()
    sender = client.sender(world.queue("q", **properties))
    session = "s" if properties.get("RequiresSession") else None
    for start in range(0, count, 10):
        end = min(start + 10, count)
        client.send_batch(sender, [message(b"%d" % number, session_id=session) for number in range(start, end)])
    return client


def left(client: Client) -> list[object]:
    return [found.body for found in peek(client, "q")]


def test_the_oldest_go_first(world: World) -> None:
    client = filled(world, 5)
    assert delete(client, 3) == 3
    assert left(client) == [b"3", b"4"]
    assert delete(client, 10) == 2
    assert delete(client, 10) == 0


def test_one_call_deletes_as_many_as_a_client_library_asks_for(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    for _ in range(41):
        client.send_batch(sender, [message(b"x") for _ in range(100)])
    assert delete(client, 4_000) == 4_000
    assert len(left(client)) == 100


def test_only_what_was_there_before_a_time(world: World) -> None:
    client = filled(world, 2)
    world.wait(1_000)
    time_ms = now_ms(world)
    client.send(client.sender("q"), message(b"new"))
    assert delete(client, 10, **{"enqueued-time-utc": Timestamp(time_ms)}) == 2
    assert left(client) == [b"new"]


def test_what_somebody_holds_and_what_waits_for_its_time_stays(world: World) -> None:
    client = filled(world, 4)
    client.send(client.sender("q"), scheduled(now_ms(world) + 60_000, b"later"))
    client.receive(client.receiver("q"), 2)
    assert delete(client, 10) == 2
    assert left(client) == [b"0", b"1", b"later"]


@pytest.mark.parametrize("count", [1, 16, 33, 100])
def test_every_partition_gives_its_part(world: World, count: int) -> None:
    client = filled(world, 60, EnablePartitioning=True)
    assert delete(client, count) == min(count, 60)
    assert len(left(client)) == 60 - min(count, 60)


def test_one_full_partition_gives_all_that_others_have_not(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q", EnablePartitioning=True))
    client.send_batch(sender, [message(b"%d" % number, partition_key="k") for number in range(50)])
    assert delete(client, 40) == 40
    assert left(client) == [b"%d" % number for number in range(40, 50)]


def test_one_session_alone(world: World) -> None:
    client = filled(world, 3, RequiresSession=True, EnablePartitioning=True)
    other = next(key for key in map(str, range(100)) if partition_for_key(key, 16) == partition_for_key("s", 16))
    client.send(client.sender("q"), message(b"other", session_id=other))
    assert delete(client, 10, **{"session-id": "s"}) == 3
    assert delete(client, 10, **{"session-id": "s"}) == 0
    assert left(client) == [b"other"]


def test_a_purge_repeats_it_until_a_count_is_lower(world: World) -> None:
    client = filled(world, 2 * COUNT_MAX + 10, EnablePartitioning=True)
    counts = [delete(client, COUNT_MAX) for _ in range(4)]
    assert counts == [COUNT_MAX, COUNT_MAX, 10, 0]


def test_dead_letters_are_purged_too(world: World) -> None:
    client = filled(world, 2, MaxDeliveryCount=1, LockDuration="PT5S")
    client.receive(client.receiver("q"), 2)
    world.wait(6_000)
    assert len(peek(client, "q/$DeadLetterQueue")) == 2
    _, found = ask(client, "q/$DeadLetterQueue", "batch-delete-messages", {"message-count": Int(10)})
    assert found == {"message-count": 2}


def test_a_partition_that_is_away_is_told(world: World) -> None:
    client = filled(world, 30, EnablePartitioning=True)
    store = world.store_of("q", partition_for_key("k", 16))
    store.fails, store.stays_away = StoreError("sick", executed=False), True
    client.send(client.sender("q"), message(partition_key="k"))
    found = refusal(client, "q", "batch-delete-messages", {"message-count": Int(COUNT_MAX)})
    assert found[:2] == (503, "com.microsoft:server-busy")


@pytest.mark.parametrize(
    ("arguments", "condition", "text"),
    [
        ({}, "com.microsoft:argument-error", "message-count is None"),
        ({"message-count": Int(0)}, "com.microsoft:argument-error", "from 1 to 4000"),
        ({"message-count": Int(COUNT_MAX + 1)}, "com.microsoft:argument-error", "from 1 to 4000"),
        ({"message-count": Int(1), "enqueued-time-utc": "now"}, "com.microsoft:argument-error", "enqueued-time-utc"),
        ({"message-count": Int(1), "session-id": 7}, "com.microsoft:argument-error", "session-id is 7"),
        ({"message-count": Int(1), "session-id": "s"}, "amqp:not-allowed", "does not require sessions"),
    ],
)
def test_what_is_refused(world: World, arguments: dict[str, object], condition: str, text: str) -> None:
    client = filled(world, 1)
    found = refusal(client, "q", "batch-delete-messages", arguments)
    assert found[:2] == (400, condition)
    assert text in found[2]
    assert left(client) == [b"0"]


@pytest.mark.parametrize(
    ("count", "parts", "shares"),
    [(500, 1, [500]), (3, 16, [1, 1, 1]), (16, 16, [1] * 16), (35, 16, [3, 3, 3, *[2] * 13]), (0, 4, [])],
)
def test_shares_are_as_equal_as_can_be(count: int, parts: int, shares: list[int]) -> None:
    assert _shares(count, parts) == shares
