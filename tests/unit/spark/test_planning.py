"""Which task reads what, and how much a micro-batch takes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.spark.planning import PassedOver, Split, admit, admit_bytes, compacted, expanded, plan_splits, share

positions = st.dictionaries(st.integers(0, 99), st.integers(0, 10**9), max_size=5)
wants = st.dictionaries(st.integers(0, 20), st.integers(0, 1000), max_size=8)


def test_one_split_per_partition_in_order_empty_ones_included() -> None:
    assert plan_splits({2: 5, 0: 0, 1: 7}, {2: 9, 0: 0, 1: 7}) == [Split(0, 0, 0), Split(1, 7, 7), Split(2, 5, 9)]


def test_partition_that_has_come_since_is_read_from_its_beginning() -> None:
    assert plan_splits({0: 5}, {0: 5, 1: 3}) == [Split(0, 5, 5), Split(1, 0, 3)]


def test_long_partition_is_cut_into_nearly_equal_pieces() -> None:
    assert plan_splits({0: 10, 1: 0}, {0: 20, 1: 3}, 4) == [
        Split(0, 10, 13), Split(0, 13, 16), Split(0, 16, 20), Split(1, 0, 3),
    ]  # fmt: skip


def test_split_is_shown_with_its_partition_and_range() -> None:
    assert str(Split(3, 10, 20)) == "partition 3, positions [10, 20)"


@given(
    st.dictionaries(st.integers(0, 99), st.tuples(st.integers(0, 10**9), st.integers(0, 10**4)), max_size=5),
    st.none() | st.integers(1, 500).map(lambda pieces: max(10**4 // pieces, 1)),
)
def test_splits_tile_every_range_and_respect_the_bound(
    lengths: dict[int, tuple[int, int]], positions_max: int | None
) -> None:
    start = {number: first for number, (first, _) in lengths.items()}
    end = {number: first + length for number, (first, length) in lengths.items()}
    splits = plan_splits(start, end, positions_max)
    for number in lengths:
        own = [split for split in splits if split.partition_id == number]
        assert own[0].first_pos == start[number]
        assert own[-1].end_pos == end[number]
        assert all(left.end_pos == right.first_pos for left, right in pairwise(own))
        if positions_max is None:
            assert len(own) == 1
        else:
            assert all(split.end_pos - split.first_pos <= positions_max for split in own)
    assert splits == sorted(splits)


def test_limit_is_shared_and_what_one_does_not_need_goes_to_the_others() -> None:
    assert share({0: 100, 1: 2, 2: 100}, 20) == {0: 9, 1: 2, 2: 9}


def test_limit_below_the_number_of_partitions_goes_round() -> None:
    taken = {
        number for turn in range(4) for number, count in share(dict.fromkeys(range(4), 9), 1, turn).items() if count
    }
    assert taken == {0, 1, 2, 3}


@given(wants, st.integers(0, 5000), st.integers(0, 100))
def test_shares_are_fair_and_use_the_limit_up(wanted: dict[int, int], most: int, turn: int) -> None:
    given_ = share(wanted, most, turn)
    assert given_.keys() == wanted.keys()
    assert sum(given_.values()) == min(most, sum(wanted.values()))
    assert all(0 <= given_[number] <= wanted[number] for number in wanted)
    unmet = [given_[number] for number in wanted if given_[number] < wanted[number]]
    assert all(given_[number] <= least + 1 for least in unmet for number in wanted)


def test_without_a_limit_everything_is_taken() -> None:
    assert admit({0: 5, 1: 7}, {0: 9, 1: 7, 2: 3}, None) == {0: 9, 1: 7, 2: 3}


@given(positions, positions, st.none() | st.integers(1, 10**6))
def test_admission_goes_on_and_never_back(start: dict[int, int], end: dict[int, int], most: int | None) -> None:
    """Also past a partition that is gone, or one whose end is told smaller than it was."""
    admitted = admit(start, end, most)
    assert admitted.keys() == start.keys() | end.keys()
    taken = 0
    for number, position in admitted.items():
        first = start.get(number, 0)
        assert first <= position <= max(first, end.get(number, 0))
        taken += position - first
    assert most is None or taken <= most


@given(positions.filter(bool), st.integers(1, 10**6))
def test_limit_is_reached_in_the_end(end: dict[int, int], most: int) -> None:
    """Available-now runs end: each micro-batch takes something until nothing is left."""
    behind = sum(end.values())
    admitted = admit({}, end, most)
    assert sum(admitted.values()) == min(most, behind)


def test_bytes_are_shared_by_what_messages_weigh() -> None:
    assert admit_bytes({0: 0, 1: 10}, {0: 1000, 1: 1010}, 1000, {0: 100.0, 1: 10.0}) == {0: 5, 1: 60}


def test_little_is_taken_whole_whatever_the_estimate() -> None:
    assert admit_bytes({0: 0}, {0: 10, 1: 5}, 1000, {0: 20.5}) == {0: 10, 1: 5}


def test_message_larger_than_the_limit_comes_alone() -> None:
    assert admit_bytes({0: 4, 1: 4}, {0: 9, 1: 9}, 1000, {0: 5000.0, 1: 5000.0}) in ({0: 5, 1: 4}, {0: 4, 1: 5})


# -- positions that were passed over ----------------------------------------------------------------------------------

GAP = 1 << 30
PASSED: PassedOver = {0: [(100, GAP), (GAP + 50, 3 * GAP)]}
"""The store was put back from a copy twice: 99 positions, 50 and those from 3 * GAP on."""


@pytest.mark.parametrize(
    ("position", "number", "back"),
    [(0, 0, 0), (99, 99, 99), (100, 100, GAP), (GAP - 1, 100, GAP), (GAP, 100, GAP), (GAP + 49, 149, GAP + 49),
     (GAP + 50, 150, 3 * GAP), (2 * GAP, 150, 3 * GAP), (3 * GAP + 7, 157, 3 * GAP + 7)],
)  # fmt: skip
def test_positions_that_were_passed_over_do_not_count(position: int, number: int, back: int) -> None:
    assert compacted({0: position, 1: position}, PASSED) == {0: number, 1: position}
    assert expanded({0: number}, PASSED) == {0: back}


def test_a_stream_crosses_what_was_passed_over_at_once() -> None:
    position, batches = 0, []
    while position < 3 * GAP + 10:
        first, last = compacted({0: position}, PASSED), compacted({0: 3 * GAP + 10}, PASSED)
        position = expanded(admit(first, last, 60), PASSED)[0]
        batches.append(position)
    assert batches == [60, GAP + 20, 3 * GAP + 10]


def test_splits_have_about_as_many_positions_that_messages_may_have() -> None:
    splits = plan_splits({0: 0}, {0: 3 * GAP + 10}, 50, PASSED)
    assert [(split.first_pos, split.end_pos) for split in splits] == [
        (0, 40), (40, 80), (80, GAP + 20), (GAP + 20, 3 * GAP + 10)
    ]  # fmt: skip
    assert plan_splits({0: 100}, {0: GAP}, 50, PASSED) == [Split(0, 100, GAP)]
    assert plan_splits({0: GAP}, {0: 7}, 50, PASSED) == [Split(0, GAP, GAP)]


def test_large_messages_come_although_another_partition_always_has_enough_to_read() -> None:
    start, sizes = {0: 0, 1: 0}, {0: 2_000.0, 1: 10.0}
    for _ in range(3):
        start = admit_bytes(start, {0: 3, 1: start[1] + 1_000}, 1_000, sizes)
    assert start == {0: 3, 1: 150}
