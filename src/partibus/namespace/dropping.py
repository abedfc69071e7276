"""Deletion of the rows of deleted entities' partitions, as soon as their store can be used.

The catalog records such partitions until the rows are deleted, so a stop of the broker postpones that to the next
start.
"""

from collections.abc import Callable, Sequence
from typing import Any

from partibus.routing.partitions import Numbers, PartitionHandle

FORGOTTEN_AT_ONCE = 512
"""Partitions whose end the catalog is told in one change."""


class DroppedPartition:
    """One of them. A store that fails in between is asked again when it is back (row A2)."""

    __slots__ = ("_numbers", "_on_gone", "_partition", "_receiver")

    def __init__(self, partition: PartitionHandle, numbers: Numbers, on_gone: Callable[[int], None]) -> None:
        """``on_gone`` gets the row when nothing is left."""
        self._partition = partition
        self._numbers = numbers
        self._receiver = 0
        """Waits for no messages: that its store fails is told to receivers."""
        self._on_gone = on_gone

    def start(self) -> None:
        """Ask the store, now or when it can be used."""
        if not self._partition.available:
            self._partition.when_usable(self.start)
            return
        self._receiver = self._numbers.next()
        self._partition.register(self._receiver, self._failed)
        self._partition.drop(self._gone)

    def _failed(self, _: Any) -> None:
        self._partition.unregister(self._receiver)
        self._partition.when_usable(self.start)

    def _gone(self, row: int) -> None:
        self._partition.unregister(self._receiver)
        self._on_gone(row)


def drop(partitions: Sequence[PartitionHandle], numbers: Numbers, forget: Callable[[list[int]], None]) -> None:
    """Delete the rows of partitions in their stores.

    ``forget`` gets finished ones, many at a time: each call costs the catalog a sync.
    """
    missing = len(partitions)
    gone: list[int] = []

    def dropped(row: int) -> None:
        nonlocal missing
        missing -= 1
        gone.append(row)
        if not missing or len(gone) >= FORGOTTEN_AT_ONCE:
            rows = gone.copy()
            gone.clear()
            forget(rows)

    for partition in partitions:
        DroppedPartition(partition, numbers, dropped).start()
