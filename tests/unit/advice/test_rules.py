"""Each rule speaks where its facts are there, and is silent one step before, and about too little traffic."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest

from partibus.advice.facts import EntityFacts, KeySample, Traffic
from partibus.advice.rules import Advice, advise, create_command

HOUR_MS = 3_600_000
COMMANDS = ("partibus entity update ", "partibus entity delete ", "partibus partition rebalance ")


def facts(before: Traffic | None = None, after: Traffic | None = None, **changes: Any) -> EntityFacts:
    """A plain queue without any traffic in ten seconds."""
    made = EntityFacts(
        name="orders",
        kind="queue",
        partitions=1,
        properties={},
        lock_s=60.0,
        ttl_s=None,
        window_s=10.0,
        before=before or Traffic(),
        after=after or Traffic(),
    )
    return replace(made, **changes)


def rules(of: EntityFacts) -> list[str]:
    return [one.rule for one in advise(of)]


def only(of: EntityFacts) -> Advice:
    (one,) = advise(of)
    return one


KEYED = Traffic(received=2_000, transmissions=20, sender_links=1, sender_connections=1)


@pytest.mark.row("K15")
def test_keys_that_are_all_different_are_not_needed() -> None:
    keys = KeySample(messages=1_000, distinct=990)
    one = only(facts(after=KEYED, partitions=16, keys=keys))
    assert one.rule == "partition-key"
    assert "without partition_key" in one.change
    assert "recommended not to supply a partition key unless it is required" in one.sentence.text
    assert "6% of the sends fail" in one.gain


@pytest.mark.row("K15")
@pytest.mark.parametrize(
    "changes",
    [
        {"keys": KeySample(messages=1_000, distinct=900)},
        {"keys": KeySample(messages=49, distinct=49)},
        {"partitions": 1},
        {"properties": {"RequiresSession": True}},
        {"properties": {"RequiresDuplicateDetection": True}},
        {"kind": "subscription"},
    ],
    ids=["keys that keep messages together", "too few", "one partition", "sessions", "duplicates", "subscription"],
)
def test_needed_or_unproven_keys_are_left_alone(changes: dict[str, Any]) -> None:
    unneeded = facts(after=KEYED, partitions=16, keys=KeySample(messages=1_000, distinct=1_000))
    assert rules(unneeded) == ["partition-key"]
    assert "partition-key" not in rules(replace(unneeded, **changes))


SEEN = Traffic(received=40, counted_ms=HOUR_MS)
LOW = facts(SEEN, SEEN, partitions=16)


@pytest.mark.row("A13")
def test_a_low_volume_queue_is_better_without_partitions() -> None:
    one = only(replace(LOW, properties={"LockDuration": "PT30S", "EnablePartitioning": True}))
    assert one.rule == "low-volume"
    assert one.change == ("partibus entity delete orders && partibus entity create queue orders --lock-duration PT30S")
    assert "recreate them with partitioning disabled" in one.sentence.text


@pytest.mark.row("A13")
@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": 1},
        {"premium": True},
        {"kind": "topic"},
        {"properties": {"PartibusElasticPartitions": 32}},
        {"before": Traffic(received=9), "after": Traffic(received=9, counted_ms=HOUR_MS)},
        {"after": Traffic(received=40, counted_ms=599_999)},
        {"before": Traffic(received=3_600), "after": Traffic(received=3_600, counted_ms=HOUR_MS)},
    ],
    ids=["plain", "premium", "topic", "elastic", "too few messages", "too short", "medium rate"],
)
def test_other_queues_keep_their_partitions(changes: dict[str, Any]) -> None:
    assert rules(LOW) == ["low-volume"]
    assert "low-volume" not in rules(replace(LOW, **changes))


SLOW = Traffic(
    delivered=1_000, completed=500, locks_expired=400, receiver_links=1, receiver_connections=1, held_max=5_000
)


def test_a_cache_larger_than_the_lock_allows_is_named_with_the_right_size() -> None:
    one = only(facts(after=SLOW))
    assert one.rule == "prefetch-lock"
    assert one.change == "client.receiver('orders', prefetch=1000)", "20 s of 50 messages per second"
    assert "40% fewer deliveries" in one.gain
    assert "prefetch=500)" in only(facts(after=SLOW, lock_s=30.0)).change, "half of the lock, half of the cache"


@pytest.mark.parametrize(
    "after",
    [
        replace(SLOW, locks_expired=9),
        replace(SLOW, delivered=99, locks_expired=50),
        replace(SLOW, held_max=3_000),
        replace(SLOW, deleting_links=1),
    ],
    ids=["hardly any expired", "too few", "fits into the lock", "receive-and-delete"],
)
def test_a_cache_that_the_lock_allows_is_left_alone(after: Traffic) -> None:
    assert rules(facts(after=after)) == []


SINGLE = Traffic(received=2_000, transmissions=2_000, sender_links=1, sender_connections=1)


@pytest.mark.row("C27")
def test_single_sends_at_a_high_rate_are_named_with_the_interval_of_the_class() -> None:
    one = only(facts(after=SINGLE))
    assert (one.rule, one.change) == ("single-sends", "Client(connection_string, batch_flush_interval=0.05)")
    assert "50 ms" in one.sentence.text
    assert "20 transmissions per second" in one.gain
    two = only(facts(after=replace(SINGLE, sender_links=2, sender_connections=2)))
    assert two.change == "Client(connection_string, batch_flush_interval=0.1)"


@pytest.mark.parametrize(
    "after",
    [
        replace(SINGLE, received=999, transmissions=999),
        replace(SINGLE, transmissions=1_000),
        replace(SINGLE, transmissions=0),
        replace(SINGLE, sender_links=50, sender_connections=50),
    ],
    ids=["medium rate", "two in each", "unknown", "each sender is slow"],
)
def test_batched_or_slow_sends_are_left_alone(after: Traffic) -> None:
    assert rules(facts(after=after)) == []


def test_one_connection_at_a_high_rate_is_too_few() -> None:
    batched = Traffic(received=20_000, transmissions=200, sender_links=1, sender_connections=1)
    one = only(facts(after=batched))
    assert (one.rule, one.setting) == ("factories", "senders share one connection")
    assert "connections=4" in one.change
    assert rules(facts(after=replace(batched, sender_connections=2))) == []
    assert rules(facts(after=replace(batched, received=9_000, transmissions=90))) == []


def test_one_receiving_connection_with_a_backlog_is_too_few() -> None:
    behind = Traffic(delivered=2_000, completed=2_000, messages=4_000, receiver_links=3, receiver_connections=1)
    assert only(facts(after=behind)).setting == "receivers share one connection"
    assert rules(facts(after=replace(behind, messages=3_900))) == []
    assert rules(facts(after=replace(behind, receiver_connections=2))) == []


@pytest.mark.row("C26")
def test_one_client_for_several_busy_queues_is_named() -> None:
    shared = Traffic(received=2_000, transmissions=20, sender_links=1, sender_connections=1, shared_connections=1)
    one = only(facts(after=shared, queues=2))
    assert one.rule == "shared-client"
    assert "dedicated client for each entity" in one.sentence.text
    assert rules(facts(after=shared, queues=1)) == []
    assert rules(facts(after=replace(shared, shared_connections=0), queues=2)) == []


WAITS = Traffic(received=100, completed=100, delivered=100, commits=300, operations=330, waited_s=3.0, messages=900)


def test_writes_that_wait_and_share_nothing_are_better_written_at_once() -> None:
    one = only(facts(after=WAITS))
    assert (one.rule, one.change) == ("store-batching", "partibus entity update orders --no-batched-operations")
    assert "10.0 ms" in one.gain


@pytest.mark.parametrize(
    "changes",
    [
        {"after": replace(WAITS, operations=450)},
        {"after": replace(WAITS, waited_s=0.29)},
        {"after": replace(WAITS, commits=19, operations=19)},
        {"after": replace(WAITS, received=5_000)},
        {"after": replace(WAITS, sender_links=6)},
        {"properties": {"EnableBatchedOperations": False}},
    ],
    ids=["shared", "no wait", "too few", "high rate", "more clients", "off already"],
)
def test_batched_store_access_that_helps_is_left_on(changes: dict[str, Any]) -> None:
    assert rules(replace(facts(after=WAITS), **changes)) == []


def test_a_high_rate_without_shared_commits_gets_batched_store_access() -> None:
    alone = Traffic(received=2_000, transmissions=100, commits=2_000, operations=2_000)
    off = facts(after=alone, properties={"EnableBatchedOperations": False})
    assert only(off).change == "partibus entity update orders --batched-operations"
    assert rules(replace(off, properties={})) == []


FLEETING = Traffic(
    received=500, delivered=500, completed=500, transmissions=10, messages=20, receiver_links=2, deleting_links=2
)


def test_fleeting_messages_whose_loss_is_bearable_may_be_express() -> None:
    one = only(facts(after=FLEETING))
    assert (one.rule, one.change) == ("express", "partibus entity update orders --express")
    assert "receive-and-delete" in one.evidence
    assert "loses messages of the last 3 s" in one.caution
    kept = replace(FLEETING, deleting_links=0)
    assert only(facts(after=kept, ttl_s=60.0)).rule == "express"


@pytest.mark.parametrize(
    "changes",
    [
        {"after": replace(FLEETING, deleting_links=1)},
        {"after": replace(FLEETING, messages=101)},
        {"after": replace(FLEETING, completed=449)},
        {"after": replace(FLEETING, received=99, completed=99)},
        {"properties": {"EnableExpress": True}},
        {"properties": {"RequiresDuplicateDetection": True}},
        {"premium": True},
    ],
    ids=["one keeps", "they stay", "not consumed", "too few", "express already", "duplicates", "premium"],
)
def test_messages_that_stay_or_matter_are_stored(changes: dict[str, Any]) -> None:
    assert "express" not in rules(replace(facts(after=FLEETING), **changes))


SKEWED = Traffic(
    received=4_000, transmissions=40, sender_links=1, sender_connections=1, keyed_load=4_000.0, top_slot=7,
    top_slot_load=3_000.0, partition_received=(100, 3_700, 100, 100),
)  # fmt: skip


def test_a_hot_key_is_named_and_no_move_is_proposed() -> None:
    one = only(facts(after=SKEWED, partitions=4, keys=KeySample(messages=100, distinct=20, counts={"acme": 75})))
    assert one.rule == "hot-key"
    assert "'acme' has 75%" in one.evidence
    assert "partition_key=finer_key" in one.change
    assert "3.7 times the throughput" in one.gain


def test_many_hot_slots_move_by_a_command() -> None:
    spread = replace(SKEWED, top_slot_load=200.0)
    one = only(facts(after=spread, partitions=4))
    assert one.change == "partibus partition rebalance orders --any-order"
    sessions = only(facts(after=spread, partitions=4, properties={"RequiresSession": True}))
    assert sessions.change == "partibus partition rebalance orders"


@pytest.mark.parametrize(
    "received", [(240, 270, 240, 249), (900, 1_100, 1_000, 1_000), (1_000, 1_900, 1_000, 1_000)],
    ids=["too few", "even", "below twice"],
)  # fmt: skip
def test_even_partitions_are_left_alone(received: tuple[int, ...]) -> None:
    assert rules(facts(after=replace(SKEWED, partition_received=received), partitions=4)) == []


def test_only_messages_of_the_window_make_a_partition_hot() -> None:
    before = replace(SKEWED, received=0, partition_received=(0, 3_600, 0, 0))
    assert rules(facts(before, replace(SKEWED, received=400), partitions=4)) == []


HELD = Traffic(
    delivered=200, completed=200, messages=420, receiver_links=4, receiver_connections=4,
    partition_messages=(300, 40, 40, 40),
)  # fmt: skip
ONE_SESSION = KeySample(messages=300, distinct=6, by_partition={0: {"big": 250, "a": 10, "b": 20, "c": 20}})


def test_a_session_that_holds_its_partition_back_is_named() -> None:
    one = only(facts(after=HELD, partitions=4, properties={"RequiresSession": True}, keys=ONE_SESSION))
    assert one.rule == "session-backlog"
    assert "'big' holds partition 0 back" in one.setting
    assert one.change == "partibus partition rebalance orders"


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": {}},
        {"after": replace(HELD, partition_messages=(99, 0, 0, 0))},
        {"after": replace(HELD, partition_messages=(110, 100, 100, 100))},
        {"keys": KeySample(messages=300, by_partition={0: {"big": 300}})},
        {"keys": KeySample(messages=300, by_partition={0: {"a": 100, "b": 100, "c": 100}})},
    ],
    ids=["no sessions", "too few", "even", "it is alone", "no session has most"],
)
def test_even_backlogs_are_left_alone(changes: dict[str, Any]) -> None:
    held = facts(after=HELD, partitions=4, properties={"RequiresSession": True}, keys=ONE_SESSION)
    assert rules(replace(held, **changes)) == []


def test_counters_of_a_broker_that_was_started_again_count_from_zero() -> None:
    assert facts(replace(SINGLE, received=50_000, transmissions=50_000), SINGLE).rose("received") == 2_000


def test_the_traffic_of_two_brokers_adds_up() -> None:
    one = Traffic(received=5, held_max=10, counted_ms=50, top_slot=1, top_slot_load=3.0, partition_received=(1, 2))
    two = Traffic(received=7, held_max=4, counted_ms=40, top_slot=2, top_slot_load=5.0, partition_received=(0, 0, 7))
    both = one.plus(two)
    assert (both.received, both.held_max, both.counted_ms) == (12, 10, 40)
    assert (both.top_slot, both.top_slot_load) == (2, 5.0)
    assert tuple(both.partition_received) == (1, 2, 7)
    same = one.plus(replace(two, top_slot=1))
    assert (same.top_slot, same.top_slot_load) == (1, 8.0)


def test_every_change_is_a_command_or_a_line_of_python() -> None:
    found = [
        *advise(facts(after=KEYED, partitions=16, keys=KeySample(messages=100, distinct=100))),
        *advise(LOW),
        *advise(facts(after=SLOW)),
        *advise(facts(after=SINGLE)),
        *advise(facts(after=WAITS)),
        *advise(facts(after=FLEETING)),
        *advise(facts(after=SKEWED, partitions=4)),
    ]
    assert len({one.rule for one in found}) == 7
    for one in found:
        if one.where == "command":
            assert one.change.startswith(COMMANDS)
        else:
            ast.parse(f"async def main():\n    {one.change}")
        assert one.as_dict()["guidance"]["text"] == one.sentence.text


def test_a_queue_is_created_again_with_what_differs_from_the_defaults() -> None:
    properties = {
        "LockDuration": "PT1M",
        "MaxDeliveryCount": 3,
        "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S",
        "EnableBatchedOperations": False,
        "RequiresSession": True,
        "ForwardDeadLetteredMessagesTo": "the dead",
        "UserMetadata": "",
    }
    assert create_command("a b", properties) == (
        "partibus entity create queue 'a b' --session --max-delivery-count 3 --no-batched-operations "
        "--forward-dead-lettered-to 'the dead'"
    )
