"""Remembered message ids as Python values: part of `tables`."""

from collections.abc import Sequence
from itertools import islice
from typing import Self


class DuplicateIds:
    """Ids of all partitions of one store."""

    def __init__(self) -> None:
        self._ids: dict[int, dict[int, dict[bytes, int]]] = {}
        """Partition row -> bucket -> id -> accepted ms."""

    def copy(self) -> Self:
        """Ids and times are immutable, so only the containers are copied."""
        twin = type(self)()
        twin._ids = {
            partition_row: {bucket: dict(ids) for bucket, ids in buckets.items()}
            for partition_row, buckets in self._ids.items()
        }
        return twin

    def remember(self, partition_row: int, bucket: int, message_id: bytes, accepted_ms: int) -> None:
        """Add an id, or give it the new time."""
        self._ids.setdefault(partition_row, {}).setdefault(bucket, {})[message_id] = accepted_ms

    def forget(self, partition_row: int, bucket: int, most: int) -> None:
        """Remove up to ``most`` ids of buckets below ``bucket``, the first in order."""
        buckets = self._ids.get(partition_row, {})
        for old in sorted(old for old in buckets if old < bucket):
            gone = sorted(buckets[old])[: max(0, most)]
            for message_id in gone:
                del buckets[old][message_id]
            if not buckets[old]:
                del buckets[old]
            most -= len(gone)

    def drop(self, partition_row: int) -> None:
        """Remove all of a partition."""
        self._ids.pop(partition_row, None)

    def find(self, partition_row: int, first_bucket: int, ids: Sequence[bytes]) -> dict[bytes, int]:
        """See `partition.protocol.ports.Store.find_duplicates`."""
        found: dict[bytes, int] = {}
        for bucket, remembered in self._ids.get(partition_row, {}).items():
            if bucket >= first_bucket:
                for message_id in ids:
                    accepted_ms = remembered.get(message_id)
                    if accepted_ms is not None:
                        found[message_id] = max(accepted_ms, found.get(message_id, accepted_ms))
        return found

    def scan(self, partition_row: int, after: tuple[int, bytes], max_ids: int) -> list[tuple[int, bytes, int]]:
        """See `partition.protocol.ports.Store.scan_duplicates`."""
        behind = (
            (bucket, message_id, accepted_ms)
            for bucket, ids in sorted(self._ids.get(partition_row, {}).items())
            if bucket >= after[0]
            for message_id, accepted_ms in sorted(ids.items())
            if (bucket, message_id) > after
        )
        return list(islice(behind, max(0, max_ids)))
