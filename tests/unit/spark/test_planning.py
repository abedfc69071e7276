"""Which task reads what."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from partibus.client.browse import PartitionRange
from partibus.spark.planning import Split, plan_splits


def test_one_split_per_partition_in_order_empty_ones_included() -> None:
    ranges = [PartitionRange(2, 5, 9, 3), PartitionRange(0, 0, 0, 0), PartitionRange(1, 7, 7, 0)]
    assert plan_splits(ranges) == [Split(0, 0, 0), Split(1, 7, 7), Split(2, 5, 9)]


def test_long_partition_is_cut_into_nearly_equal_pieces() -> None:
    assert plan_splits([PartitionRange(0, 10, 20, 10), PartitionRange(1, 0, 3, 3)], 4) == [
        Split(0, 10, 13), Split(0, 13, 16), Split(0, 16, 20), Split(1, 0, 3),
    ]  # fmt: skip


def test_split_is_shown_with_its_partition_and_range() -> None:
    assert str(Split(3, 10, 20)) == "partition 3, positions [10, 20)"


@given(
    st.dictionaries(st.integers(0, 99), st.tuples(st.integers(0, 10**9), st.integers(0, 10**4)), max_size=5),
    st.none() | st.integers(1, 500).map(lambda pieces: max(10**4 // pieces, 1)),
)
def test_splits_tile_every_range_and_respect_the_bound(
    lengths: dict[int, tuple[int, int]], positions_per_task: int | None
) -> None:
    ranges = [PartitionRange(number, first, first + length, length) for number, (first, length) in lengths.items()]
    splits = plan_splits(ranges, positions_per_task)
    for partition in ranges:
        own = [split for split in splits if split.partition_id == partition.partition_id]
        assert own[0].first_pos == partition.first_pos
        assert own[-1].end_pos == partition.end_pos
        assert all(left.end_pos == right.first_pos for left, right in pairwise(own))
        if positions_per_task is None:
            assert len(own) == 1
        else:
            assert all(split.end_pos - split.first_pos <= positions_per_task for split in own)
    assert splits == sorted(splits)
