"""Which task reads what: pure functions over the positions that the broker's partitions hold.

The ranges are asked for once, when a query is planned; what arrives later belongs to a later query. Positions, not
sequence numbers, are counted: a dead-lettered message keeps its number but gets a new position (D14).
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from partibus.client.browse import PartitionRange


class Split(NamedTuple):
    """What one task reads: the positions ``first_pos <= position < end_pos`` of one broker partition."""

    partition_id: int
    first_pos: int
    end_pos: int

    def __str__(self) -> str:
        return f"partition {self.partition_id}, positions [{self.first_pos}, {self.end_pos})"


def plan_splits(ranges: Iterable[PartitionRange], positions_per_task: int | None = None) -> list[Split]:
    """One split per broker partition in order of partition id, empty ones included, so that Spark's partition number
    is the broker's; with ``positions_per_task``, a longer partition becomes several splits of nearly equal length."""
    splits: list[Split] = []
    for partition in sorted(ranges):
        bounds = _cut(partition.first_pos, partition.end_pos, positions_per_task)
        splits += (Split(partition.partition_id, low, high) for low, high in pairwise(bounds))
    return splits


def _cut(first: int, end: int, step_max: int | None) -> list[int]:
    """Bounds of the fewest pieces of [first, end) that are no longer than ``step_max``."""
    length = max(end - first, 0)
    pieces = max(-(-length // step_max), 1) if step_max else 1
    return [first + length * piece // pieces for piece in range(pieces + 1)]
