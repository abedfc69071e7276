"""Ids of sinks as Python values: part of `tables`."""

from collections.abc import Sequence
from typing import Self


class SinkIds:
    """The ids of all sinks of all partitions of one store."""

    def __init__(self) -> None:
        self._batches: dict[tuple[int, int], dict[bytes, int]] = {}
        """(partition row, sink) -> id -> batch."""

    def copy(self) -> Self:
        """Copy the containers; ids and numbers are immutable."""
        twin = type(self)()
        twin._batches = {place: dict(batches) for place, batches in self._batches.items()}
        return twin

    def remember(self, partition_row: int, sink: int, row_id: bytes, batch: int) -> None:
        """Add an id, or update its batch."""
        self._batches.setdefault((partition_row, sink), {})[row_id] = batch

    def forget(self, partition_row: int, sink: int, batch: int, most: int) -> None:
        """Remove the first ``most`` ids of ``batch`` and earlier batches, in order of batch and id."""
        batches = self._batches.get((partition_row, sink), {})
        old = sorted((of, row_id) for row_id, of in batches.items() if of <= batch)
        for _, row_id in old[: max(0, most)]:
            del batches[row_id]

    def drop(self, partition_row: int) -> None:
        """Remove all ids of a partition."""
        for place in [place for place in self._batches if place[0] == partition_row]:
            del self._batches[place]

    def find(self, partition_row: int, sink: int, ids: Sequence[bytes]) -> set[bytes]:
        """Return those of ``ids`` that the sink has stored and still remembers (`queries.SinkIds`)."""
        return self._batches.get((partition_row, sink), {}).keys() & set(ids)

    def count(self, partition_row: int, sink: int, batch: int) -> int:
        """Count the ids that a sink has of ``batch`` and earlier batches (`queries.SinkIdCount`)."""
        return sum(of <= batch for of in self._batches.get((partition_row, sink), {}).values())
