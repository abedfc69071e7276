"""Remembered ids of messages and of sinks as Python values: part of `tables`."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Self

from tests.kit.stores.entry_index import EMPTY


class DuplicateIds:
    """The message ids of all partitions of one store."""

    def __init__(self, ids: Mapping[int, dict[int, dict[bytes, tuple[int, bytes]]]] = EMPTY) -> None:
        """Begin without ids, or with copies of these."""
        self._ids = {
            partition_row: {bucket: dict(known) for bucket, known in buckets.items()}
            for partition_row, buckets in ids.items()
        }
        """Partition row -> bucket -> id -> accepted ms, note about the original."""

    def copy(self) -> Self:
        """Copy the containers; ids and times are immutable."""
        return type(self)(self._ids)

    def remember(
        self, partition_row: int, bucket: int, message_id: bytes, accepted_ms: int, original: bytes | None
    ) -> None:
        """Add an id, or update its time and note."""
        self._ids.setdefault(partition_row, {}).setdefault(bucket, {})[message_id] = (accepted_ms, original or b"")

    def forget(self, partition_row: int, bucket: int, most: int) -> None:
        """Remove the first ``most`` ids of buckets below ``bucket``, in order."""
        buckets = self._ids.get(partition_row, {})
        for old in sorted(old for old in buckets if old < bucket):
            gone = sorted(buckets[old])[: max(0, most)]
            for message_id in gone:
                del buckets[old][message_id]
            if not buckets[old]:
                del buckets[old]
            most -= len(gone)

    def drop(self, partition_row: int) -> None:
        """Remove all ids of a partition."""
        self._ids.pop(partition_row, None)

    def find(self, partition_row: int, first_bucket: int, ids: Sequence[bytes]) -> dict[bytes, tuple[int, bytes]]:
        """Return which of ``ids`` are in ``first_bucket`` or later, with time and note of the last acceptance."""
        found: dict[bytes, tuple[int, bytes]] = {}
        for bucket, remembered in self._ids.get(partition_row, {}).items():
            if bucket >= first_bucket:
                for message_id in ids:
                    accepted = remembered.get(message_id)
                    if accepted is not None:
                        found[message_id] = max(accepted, found.get(message_id, accepted))
        return found

    def scan(self, partition_row: int, after: tuple[int, bytes], max_ids: int) -> list[tuple[int, bytes, int]]:
        """Return (bucket, id, accepted ms) in order, after the given bucket and id."""
        behind = (
            (bucket, message_id, accepted_ms)
            for bucket, ids in sorted(self._ids.get(partition_row, {}).items())
            if bucket >= after[0]
            for message_id, (accepted_ms, _) in sorted(ids.items())
            if (bucket, message_id) > after
        )
        return list(islice(behind, max(0, max_ids)))


class SinkIds:
    """The ids of all sinks of all partitions of one store."""

    def __init__(self, batches: Mapping[tuple[int, int], dict[bytes, int]] = EMPTY) -> None:
        """Begin without ids, or with copies of these."""
        self._batches = {place: dict(known) for place, known in batches.items()}
        """(partition row, sink) -> id -> batch."""

    def copy(self) -> Self:
        """Copy the containers; ids and numbers are immutable."""
        return type(self)(self._batches)

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
