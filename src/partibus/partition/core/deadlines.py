"""Deadlines in order: of locks, of sessions, and, with a timer for the earliest, of the partitions of a store."""

import sys
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from partibus.partition.protocol.host import Host, Timer

_STALE_MIN = 64
"""Stale rows that a heap may have in any case: rebuilding a small one costs more than it frees."""


class DeadlineHeap:
    """One deadline for each key, the earliest first.

    A row of the heap is stale if its key was removed or has got another deadline since. When more than half of the rows
    are stale the heap is rebuilt, so that one late deadline at its head does not keep ended ones behind it. A change
    takes constant time, amortised.
    """

    __slots__ = ("_deadlines", "_heap")

    def __init__(self) -> None:
        self._deadlines: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Rows of the heap, stale ones included."""
        return len(self._heap)

    def set(self, key: int, deadline_ms: int) -> None:
        """Give a key this deadline, in place of the one that it had."""
        deadlines = self._deadlines
        deadlines[key] = deadline_ms
        heap = self._heap
        heappush(heap, (deadline_ms, key))
        if len(heap) > 2 * len(deadlines) + _STALE_MIN:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap[:] = [(deadline, key) for key, deadline in self._deadlines.items()]
        heapify(self._heap)

    def of(self, key: int) -> int | None:
        """Return the deadline of a key; None when it has none."""
        return self._deadlines.get(key)

    def discard(self, key: int) -> None:
        """Remove a key, if it is there."""
        deadlines = self._deadlines
        deadlines.pop(key, None)
        if len(self._heap) > 2 * len(deadlines) + _STALE_MIN:
            self._rebuild()

    def earliest_ms(self) -> int | None:
        """Return the earliest deadline; None when there is none."""
        heap, deadlines = self._heap, self._deadlines
        while heap:
            deadline_ms, key = heap[0]
            if deadlines.get(key) == deadline_ms:
                return deadline_ms
            heappop(heap)
        return None

    def take_due(self, now_ms: int, most: int = sys.maxsize) -> list[tuple[int, int]]:
        """Remove ``most`` keys at most whose deadline has come; give (deadline, key), earliest first."""
        due: list[tuple[int, int]] = []
        while len(due) < most and (deadline_ms := self.earliest_ms()) is not None and deadline_ms <= now_ms:
            due.append(heappop(self._heap))
            del self._deadlines[due[-1][1]]
        if len(self._heap) > 2 * len(self._deadlines) + _STALE_MIN:
            self._rebuild()
        return due

    def clear(self) -> None:
        """Remove all keys."""
        self._deadlines.clear()
        self._heap.clear()


class Deadlines:
    """Deadlines in ms of the clock by partition row. ``on_due`` is called when the earliest has come."""

    __slots__ = ("_armed_ms", "_heap", "_host", "_on_due", "_timer")

    def __init__(self, host: Host, on_due: Callable[[], None]) -> None:
        self._host = host
        self._on_due = on_due
        self._heap = DeadlineHeap()
        self._timer: Timer | None = None
        self._armed_ms = 0

    def add(self, deadline_ms: int, row: int, now_ms: int) -> None:
        """Note that a partition has an earlier deadline than before."""
        self._heap.set(row, deadline_ms)
        self.arm(now_ms)

    def discard(self, row: int) -> None:
        """Remove a partition."""
        self._heap.discard(row)

    def __contains__(self, row: int) -> bool:
        """Tell whether a partition has a deadline."""
        return self._heap.of(row) is not None

    def due(self, now_ms: int, most: int = sys.maxsize) -> list[tuple[int, int]]:
        """Remove and return ``most`` deadlines at most that have passed, as (deadline, row), earliest first.

        The timer is off until `arm`: its delay was computed before the clock may have been moved.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._heap.take_due(now_ms, most)

    def is_due(self, now_ms: int) -> bool:
        """Tell whether the earliest deadline has passed."""
        earliest_ms = self._heap.earliest_ms()
        return earliest_ms is not None and earliest_ms <= now_ms

    def arm(self, now_ms: int) -> None:
        """Set the timer to the earliest deadline."""
        earliest_ms = self._heap.earliest_ms()
        if earliest_ms is None:
            return
        if self._timer is not None:
            if self._armed_ms <= earliest_ms:
                return
            self._timer.cancel()
        self._armed_ms = earliest_ms
        self._timer = self._host.call_later(max(0, earliest_ms - now_ms), self._fire)

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()

    def _fire(self) -> None:
        self._timer = None
        self._on_due()
