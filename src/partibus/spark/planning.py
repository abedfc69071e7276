"""The ranges of tasks, and the size of a micro-batch: pure functions over positions.

They count positions, not sequence numbers: a dead-lettered message keeps its number but gets a new position (D14).
Positions have gaps, so their count is an upper bound of the number of messages.

The offsets of a stream are the positions in a query's checkpoint:

```json
{"entity": "...", "mapVersion": 1, "positions": {"00000": 17, "00001": 0}}
```

Spark compares offsets as text. So keys have one order, and partition ids are padded, so that text order is their order.
A position is the first unread one.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from partibus.client.extensions.ranges import PartitionMap
from partibus.spark.errors import OffsetError

Positions = Mapping[int, int]
"""A position by partition id."""


PassedOver = Mapping[int, Sequence[tuple[int, int]]]
"""Positions without messages by partition id, as ascending (first, end) pairs. A store that was restored from a copy
passes over a thousand million of them. They do not count, or a stream would take days to cross them.
"""
NOTHING: PassedOver = {}


class Split(NamedTuple):
    """The range of one task: the positions ``first_pos <= position < end_pos`` of one broker partition."""

    partition_id: int
    first_pos: int
    end_pos: int

    def __str__(self) -> str:
        return f"partition {self.partition_id}, positions [{self.first_pos}, {self.end_pos})"


def plan_splits(
    start: Positions, end: Positions, positions_max: int | None = None, passed_over: PassedOver = NOTHING
) -> list[Split]:
    """Return one split per broker partition in order of partition id, empty ones included.

    So Spark's partition number is the broker's. With ``positions_max`` a longer partition becomes several splits of
    nearly equal length. A partition without a start is new, and read from 0.
    """
    splits: list[Split] = []
    for partition_id, end_pos in sorted(end.items()):
        passed = passed_over.get(partition_id, ())
        first, last = (_compacted(pos, passed) for pos in (start.get(partition_id, 0), end_pos))
        bounds = [_expanded(pos, passed) for pos in _cut(first, last, positions_max)]
        bounds[0], bounds[-1] = start.get(partition_id, 0), max(end_pos, bounds[0])
        splits += (Split(partition_id, low, high) for low, high in pairwise(bounds))
    return splits


def passed_over_in(found: PartitionMap) -> PassedOver:
    """Return what the partitions of an entity have passed over."""
    return {one.partition_id: one.passed_over for one in found.partitions if one.passed_over}


def compacted(positions: Positions, passed_over: PassedOver) -> dict[int, int]:
    """Renumber positions as if none had been passed over."""
    return {one: _compacted(pos, passed_over.get(one, ())) for one, pos in positions.items()}


def expanded(positions: Positions, passed_over: PassedOver) -> dict[int, int]:
    """Undo `compacted`. A position at the begin of what was passed over becomes the one behind it."""
    return {one: _expanded(pos, passed_over.get(one, ())) for one, pos in positions.items()}


def _compacted(position: int, passed: Sequence[tuple[int, int]]) -> int:
    return position - sum(max(0, min(position, end) - first) for first, end in passed)


def _expanded(position: int, passed: Sequence[tuple[int, int]]) -> int:
    for first, end in passed:
        if position >= first:
            position += end - first
    return position


def _cut(first: int, end: int, step_max: int | None) -> list[int]:
    """Return the bounds of the fewest pieces of [first, end) that are no longer than ``step_max``."""
    length = max(end - first, 0)
    pieces = max(-(-length // step_max), 1) if step_max else 1
    return [first + length * piece // pieces for piece in range(pieces + 1)]


def admit(start: Positions, end: Positions, positions_max: int | None) -> dict[int, int]:
    """Return the end of a micro-batch of at most ``positions_max`` positions.

    No partition goes back, not even one that is missing from ``end``.
    """
    behind = {partition_id: max(pos - start.get(partition_id, 0), 0) for partition_id, pos in end.items()}
    taken = behind if positions_max is None else share(behind, positions_max, sum(start.values()))
    return dict(start) | {partition_id: start.get(partition_id, 0) + count for partition_id, count in taken.items()}


def share(wanted: Mapping[int, int], most: int, turn: int = 0) -> dict[int, int]:
    """Divide ``most`` fairly: no partition gets more than it wants.

    The partitions that get less than they want get equal amounts, give or take one. ``turn`` selects the partitions
    that get the extra one, so that none starves when there is less than one for each.
    """
    given = dict.fromkeys(wanted, 0)
    left = most
    unserved = sorted(partition_id for partition_id, count in wanted.items() if count)
    while left and unserved:
        each = left // len(unserved)
        if each == 0:
            first = turn % len(unserved)
            for partition_id in (unserved[first:] + unserved[:first])[:left]:
                given[partition_id] += 1
            break
        for partition_id in unserved:
            count = min(each, wanted[partition_id] - given[partition_id])
            given[partition_id] += count
            left -= count
        unserved = [partition_id for partition_id in unserved if given[partition_id] < wanted[partition_id]]
    return given


def admit_bytes(
    start: Positions, end: Positions, bytes_max: int, bytes_per_position: Mapping[int, float]
) -> dict[int, int]:
    """Return the end of a micro-batch of at most ``bytes_max``, as `admit` does for positions.

    ``bytes_per_position`` is the expected size of a position. A micro-batch takes at least one position.
    """
    sizes = {partition_id: max(bytes_per_position.get(partition_id, 0.0), 1.0) for partition_id in end}
    behind = {partition_id: max(pos - start.get(partition_id, 0), 0) for partition_id, pos in end.items()}
    wanted = {partition_id: int(count * sizes[partition_id]) for partition_id, count in behind.items()}
    if sum(wanted.values()) <= bytes_max:
        return admit(start, end, None)
    given = share(wanted, bytes_max)
    taken = {
        partition_id: min(int(given[partition_id] / sizes[partition_id]), behind[partition_id]) for partition_id in end
    }
    if not any(taken.values()):
        taken = share(behind, 1, sum(start.values()))
    return dict(start) | {partition_id: start.get(partition_id, 0) + count for partition_id, count in taken.items()}


_ENTITY, _MAP_VERSION, _POSITIONS = "entity", "mapVersion", "positions"


class Offset(NamedTuple):
    """The position of each partition."""

    entity_id: str
    map_version: int
    positions: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return the offset for Spark, which writes the keys in their order."""
        positions = {f"{partition_id:05}": self.positions[partition_id] for partition_id in sorted(self.positions)}
        return {_ENTITY: self.entity_id, _MAP_VERSION: self.map_version, _POSITIONS: positions}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Offset":
        """Read an offset. Raises `OffsetError` for one that this source has not written."""
        try:
            positions = {int(partition): int(position) for partition, position in given[_POSITIONS].items()}
            return cls(str(given[_ENTITY]), int(given[_MAP_VERSION]), positions)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise OffsetError(
                f"the checkpoint has an offset that is none of this source's: {str(given)[:200]}; "
                "use the checkpointLocation that belongs to this query, or a new one"
            ) from None

    def check_entity(self, found: PartitionMap, where: str) -> None:
        """Check that the positions belong to the entity that is read now. Raises `OffsetError`."""
        if self.entity_id != found.entity_id:
            raise OffsetError(
                f"the checkpoint belongs to the entity {self.entity_id}, but {where} is {found.entity_id}: another "
                "one, or one that was deleted and made again since, whose positions begin anew. Read the entity that "
                "the checkpoint is of, or begin with a new checkpointLocation (and check what your sink has already)"
            )
        if any(
            position > one.end_pos
            for one in found.partitions
            if (position := self.positions.get(one.partition_id)) is not None
        ):
            ahead = next(one for one in found.partitions if self.positions.get(one.partition_id, 0) > one.end_pos)
            raise OffsetError(
                f"the checkpoint has read partition {ahead.partition_id} of {where} up to "
                f"{self.positions[ahead.partition_id]}, but it ends at {ahead.end_pos}: its store is an older copy. "
                "Begin with a new checkpointLocation (and check what your sink has already)"
            )
