"""The frozen map from keys to slots and partitions. A change here would tear stored keys from their partitions."""

from collections import Counter

import pytest

from partibus.routing.slots import (
    SLOT_COUNT,
    SlotMap,
    partition_for_key,
    partition_for_slot,
    slot_for_key,
)

VECTORS = [
    # key, slot, partition of 16, partition of 4. Check one outside: printf N14228 | b2sum -l 64 = 164f…; 0x164f >> 2
    ("", 14633, 14, 3),
    ("a", 4158, 4, 1),
    ("N14228", 1427, 1, 0),
    ("order-1", 2406, 2, 0),
    ("order-2", 1220, 1, 0),
    ("session/1", 1358, 1, 0),
    ("ключ", 4917, 4, 1),
    ("\U0001f600", 15740, 15, 3),
    ("x" * 128, 9223, 9, 2),
]


@pytest.mark.row("K1")
@pytest.mark.parametrize(("key", "slot", "of_16", "of_4"), VECTORS)
def test_vectors_are_frozen(key: str, slot: int, of_16: int, of_4: int) -> None:
    assert slot_for_key(key) == slot
    assert partition_for_key(key, 16) == of_16
    assert partition_for_key(key, 4) == of_4
    assert partition_for_key(key, 1) == 0


@pytest.mark.parametrize("count", [1, 2, 4, 16, 64, 100])
def test_partitions_own_contiguous_even_runs_of_slots(count: int) -> None:
    owners = [partition_for_slot(slot, count) for slot in range(SLOT_COUNT)]
    assert owners == sorted(owners)
    sizes = Counter(owners)
    assert set(sizes) == set(range(count))
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_many_keys_spread_evenly() -> None:
    counts = Counter(partition_for_key(f"device-{n}", 16) for n in range(16_000))
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1150


def test_lone_surrogate_has_a_slot() -> None:
    assert 0 <= slot_for_key("\ud800") < SLOT_COUNT


@pytest.mark.row("S6")
@pytest.mark.parametrize("count", [1, 2, 3, 16, 100])
def test_default_map_is_the_frozen_formula(count: int) -> None:
    slots = SlotMap(count)
    assert [slots.owner(slot) for slot in range(SLOT_COUNT)] == [
        partition_for_slot(slot, count) for slot in range(SLOT_COUNT)
    ]
    assert all(slots.partition_of(key) == partition_for_key(key, count) for key, *_ in VECTORS)
    assert slots.version == 0
    assert sum(slots.counts()) == SLOT_COUNT


def test_moved_slots_have_another_owner_and_no_others() -> None:
    before = SlotMap(2)
    after = before.moved([(0, 9), (20, 20), (9000, 16383)], 2)
    assert (after.version, after.partitions) == (1, 3)
    moved = {slot for slot in range(SLOT_COUNT) if before.owner(slot) != after.owner(slot)}
    assert moved == {*range(10), 20, *range(9000, SLOT_COUNT)}
    assert after.slots_of(2) == [(0, 9), (20, 20), (9000, 16383)]
    assert after.counts() == [8192 - 11, 9000 - 8192, 11 + SLOT_COUNT - 9000]
    assert after == SlotMap(3, 1, after.runs)
    assert hash(after) == hash(SlotMap(3, 1, after.runs))
    assert after != before
    assert after.moved([(0, 9), (20, 20)], 0).moved([(9000, 16383)], 1).runs == before.runs


@pytest.mark.parametrize("runs", [[(1, 0)], [(0, 2)], [(0, 0), (0, 1)], [(0, 0), (SLOT_COUNT, 1)], [(0, -1)]])
def test_runs_that_are_no_map_are_refused(runs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="no map"):
        SlotMap(2, 1, runs)
