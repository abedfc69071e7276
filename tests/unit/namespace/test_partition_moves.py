"""Plans of moves between an entity's partitions."""

from __future__ import annotations

from collections import Counter

import pytest

from partibus.namespace.partition_moves import (
    HISTORY_MAX,
    EntitySlots,
    even_counts,
    even_moves,
    from_plain,
    to_plain,
)
from partibus.partition.protocol.slots import slot_for_key
from partibus.routing.slots import SLOT_COUNT, SlotMap, slots_in


def carried_out(slots: SlotMap, moves: list[tuple[int, int, list[tuple[int, int]]]], partitions: int) -> SlotMap:
    moved: set[int] = set()
    by_target: dict[int, list[tuple[int, int]]] = {}
    for source, target, runs in moves:
        some = set(slots_in(runs))
        assert {slots.owner(slot) for slot in some} == {source}
        assert not some & moved, "a slot moves once"
        moved |= some
        by_target.setdefault(target, []).extend(runs)
    for target, runs in by_target.items():
        slots = slots.moved(runs, target, partitions)
    return slots


@pytest.mark.row("S7")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 7), (7, 3), (8, 1), (64, 63), (5, 5)])
def test_slots_are_even_after_any_change_and_the_fewest_move(before: int, after: int) -> None:
    slots = carried_out(SlotMap(1), even_moves(SlotMap(1), even_counts(before, before)), before)
    moves = even_moves(slots, even_counts(max(before, after), after))
    end = carried_out(slots, moves, max(before, after))
    counts = end.counts()
    assert max(counts[:after]) - min(counts[:after]) <= 1
    assert sum(counts[:after]) == SLOT_COUNT
    moved = sum(last - first + 1 for _, _, runs in moves for first, last in runs)
    if after > before:
        assert moved <= SLOT_COUNT * (after - before) / after + after


@pytest.mark.row("S7")
def test_similar_group_ids_are_spread_evenly_at_every_count() -> None:
    ids = Counter(slot_for_key(f"item{n}") for n in range(100_000))
    slots = SlotMap(1)
    for count in range(1, 65):
        slots = carried_out(slots, even_moves(slots, even_counts(count, count)), count)
        found = [0] * count
        for slot, some in ids.items():
            found[slots.owner(slot)] += some
        mean = 100_000 / count
        assert all(abs(some - mean) < 0.15 * mean for some in found), count


def test_slots_that_may_not_move_stay_and_the_others_go_to_all_that_lack_some() -> None:
    moves = even_moves(SlotMap(2), even_counts(4, 4), range(SLOT_COUNT // 2, SLOT_COUNT))
    assert {source for source, _, _ in moves} == {0}
    assert {target for _, target, _ in moves} == {2, 3}


def test_plan_goes_to_the_catalog_and_back() -> None:
    slots = EntitySlots().planned([(0, 1, [(5, 9)])], 2, 100, 900, "test")
    (move,) = slots.moves
    assert (slots.version, move.version, move.slots) == (1, 1, 5)
    assert slots.map(2) == SlotMap(2), "the formula is in force until the move is routed"
    assert slots.unsettled() == {5, 6, 7, 8, 9}
    routed = slots.routed(1, 2, 100)
    assert routed.map(2).owner(5) == 1
    assert routed.routed(1, 2, 500) is routed
    done = routed.finished(1, 500)
    assert not done.moves
    assert done.history[0].ended_ms == 500
    assert done.lately_at(600)[5] == {0, 1}
    assert done.lately_at(901) == {}
    assert from_plain(to_plain(done)) == done
    assert done.finished(1, 501) is done


def test_entity_that_grows_without_moves_keeps_its_formula() -> None:
    slots = EntitySlots().planned([(0, 3, [(0, 0)])], 2, 0, 0, "test")
    grown = slots.map(4)
    assert [grown.owner(slot) for slot in range(SLOT_COUNT)] == [SlotMap(2).owner(slot) for slot in range(SLOT_COUNT)]


def test_old_history_is_forgotten() -> None:
    slots = EntitySlots()
    for _ in range(HISTORY_MAX + 20):
        slots = slots.planned([(0, 1, [(0, 0)])], 2, 0, 10, "test")
        slots = slots.finished(slots.moves[0].version, 20)
    assert len(slots.history) == HISTORY_MAX


def test_slots_that_their_source_gives_late_may_go_back_late() -> None:
    slots = EntitySlots().planned([(0, 1, [(5, 9)])], 2, 100, 900, "test")
    done = slots.routed(1, 2, 5_000).finished(1, 5_001)
    assert done.lately_at(5_799)[5] == {0, 1}
    assert done.lately_at(5_800) == {}
