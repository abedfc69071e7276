"""The start and end of a read, as the options ``startingPositions`` and ``endingPositions`` give them.

```text
earliest | latest
2026-01-31T12:00:00Z                       the first message that was enqueued then or later
{"0": 17, "1": -1}                         a position by partition; -2: earliest, -1: latest
{"sequenceNumbers": {"0": 17, "3": 844424930131970}}    likewise, with or without the partition in the upper bits
```
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from partibus.client.extensions.ranges import PartitionMap
from partibus.spark.errors import OptionError, PlanError
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
