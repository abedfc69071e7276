"""The start and the end of a read, the ranges of tasks, and the size of a micro-batch: pure functions over positions.

They count positions, not sequence numbers: a dead-lettered message keeps its number but gets a new position (D14).
Positions have gaps, so their count is an upper bound of the number of messages.

The offsets of a stream are the positions in a query's checkpoint:

```json
{"entity": "...", "mapVersion": 1, "positions": {"00000": 17, "00001": 0}}
```

Spark compares offsets as text. So keys have one order, and partition ids are padded, so that text order is their order.
A position is the first unread one.

The options ``startingPositions`` and ``endingPositions`` have these forms:

```text
earliest | latest
2026-01-31T12:00:00Z                       the first message that was enqueued then or later
{"0": 17, "1": -1}                         a position by partition; -2: earliest, -1: latest
{"sequenceNumbers": {"0": 17, "3": 844424930131970}}    likewise, with or without the partition in the upper bits
```
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from partibus.client.extensions.ranges import PartitionMap
from partibus.spark.errors import OffsetError, OptionError, PlanError
from partibus.spark.ports import RangeReader

EARLIEST, LATEST = "earliest", "latest"
_SEQUENCE_NUMBERS = "sequenceNumbers"
_EARLIEST, _LATEST = -2, -1
_COUNTER = (1 << 48) - 1
"""The part of a sequence number that is not the partition's id."""
_FORMS = 'earliest, latest, a time as "2026-01-31T12:00:00Z", or JSON as {"0": 17, "1": -1}'


class Bound(NamedTuple):
    """One of the two options, checked as far as possible without the broker."""

    word: str = EARLIEST
    """The bound of partitions that are not named."""
    time: datetime | None = None
    positions: Mapping[int, int] = {}
    sequence_numbers: bool = False
    """Whether `positions` are counters of sequence numbers. Only in the active sub-queue do both agree."""


def parse_bound(option: str, text: str, otherwise: str = EARLIEST) -> Bound:
    """Parse a bound. ``otherwise`` is `Bound.word` where only some partitions are named. Raises `OptionError`."""
    stripped = text.strip()
    if stripped.lower() in (EARLIEST, LATEST):
        return Bound(stripped.lower())
    if stripped.startswith("{"):
        try:
            found = json.loads(stripped)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"option {option!r} is no JSON: {error}; it may be {_FORMS}") from None
        by_number = list(found) == [_SEQUENCE_NUMBERS] and isinstance(found[_SEQUENCE_NUMBERS], dict)
        positions = found[_SEQUENCE_NUMBERS] if by_number else found
        checked = dict(_position(option, partition, position, by_number) for partition, position in positions.items())
        return Bound(otherwise, positions=checked, sequence_numbers=by_number)
    try:
        time = datetime.fromisoformat(stripped)
    except ValueError:
        raise OptionError(f"option {option!r} is {text!r}; it may be {_FORMS}") from None
    return Bound(otherwise, time.replace(tzinfo=UTC) if time.tzinfo is None else time)


def _position(option: str, partition: str, position: Any, by_number: bool) -> tuple[int, int]:
    if not partition.isdecimal():
        raise OptionError(f"option {option!r} has the partition {partition!r}; partitions are numbers from 0")
    if not isinstance(position, int) or isinstance(position, bool) or position < _EARLIEST:
        raise OptionError(
            f"option {option!r} has {position!r} for partition {partition}; "
            f"a position is a whole number from 0, or {_LATEST} for latest, {_EARLIEST} for earliest"
        )
    if by_number and position >> 48 not in (-1, 0, int(partition)):
        raise OptionError(
            f"option {option!r} has the sequence number {position} for partition {partition}, "
            f"but it is of partition {position >> 48}"
        )
    return int(partition), position & _COUNTER if by_number and position > 0 else position


def resolve(
    option: str, bound: Bound, found: PartitionMap, client: RangeReader, *, finished: bool, is_sub_queue: bool
) -> dict[int, int]:
    """Return the position in every partition. ``finished`` is the parameter of `RangeReader.read`.

    Raises `OptionError` for an unknown partition, and `PlanError` for a position past the end.
    """
    if bound.time is not None:
        return dict(client.find_positions(bound.time, finished=finished))
    if bound.sequence_numbers and is_sub_queue:
        raise OptionError(
            f"option {option!r} gives sequence numbers, which are in no order in a dead-letter queue; "
            "give positions or a time"
        )
    ranges = {one.partition_id: one for one in found.partitions}
    for partition_id in bound.positions:
        if partition_id not in ranges:
            raise OptionError(
                f"option {option!r} names partition {partition_id}; {found.entity!r} has {_listed(list(ranges))}"
            )
    resolved: dict[int, int] = {}
    for partition_id, one in ranges.items():
        otherwise = _EARLIEST if bound.word == EARLIEST else _LATEST
        position = bound.positions.get(partition_id, otherwise)
        if position > one.end_pos:
            raise PlanError(
                f"option {option!r} has position {position} for partition {partition_id} of {found.entity!r}, "
                f"which ends at {one.end_pos}: there is nothing there yet; use -1 for latest"
            )
        resolved[partition_id] = {_EARLIEST: one.first_pos, _LATEST: one.end_pos}.get(position, position)
    return resolved


def _listed(partitions: list[int]) -> str:
    return f"partition {partitions[0]} only" if len(partitions) == 1 else f"partitions 0 to {max(partitions)}"


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

    ``bytes_per_position`` is the expected size of a position. Of the partitions whose next message is larger than their
    part of the bytes, one gets it: it would have none as long as the others have enough to read.
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
    left_out = {partition_id: 1 for partition_id, count in behind.items() if count and not taken[partition_id]}
    taken |= {one: count for one, count in share(left_out, 1, sum(start.values())).items() if count}
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
