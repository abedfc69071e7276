"""Partitions that are not in memory, and in which something is due: they are loaded a few at a time.

Thousands may be due together, after the broker was down for a while or at a full hour. Clients have their turn between
the slices, on the loop as well as in the store.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from partibus.partition.protocol.keys import KIND_BITS, SubqueueKind
from partibus.partition.runtime.slot import Slot

SLICE: Final = 64
"""The rows that are woken together; some 3 ms of the loop."""


def by_due_time(found: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return (due time, row) of each partition, the earliest first, from the answer to `queries.TimedSubqueues`.

    Messages on their way to another entity have a due time only so that they are found: their partition is due at once.
    """
    first: dict[int, int] = {}
    for subqueue, due_ms in found.items():
        row = subqueue >> KIND_BITS
        if subqueue & (1 << KIND_BITS) - 1 == SubqueueKind.TRANSFER:
            due_ms = 0
        first[row] = min(due_ms, first.get(row, due_ms))
    return sorted((due_ms, row) for row, due_ms in first.items())


class Waking:
    """The partitions of one store that are to be loaded, in the order in which they fell due."""

    __slots__ = ("_call_soon", "_due", "_go_on", "_loading", "_slots", "_wake")

    def __init__(
        self,
        slots: Mapping[int, Slot],
        wake: Callable[[list[int]], None] | None,
        call_soon: Callable[[Callable[[], None]], None],
        go_on: Callable[[], None],
    ) -> None:
        """Begin with none.

        ``slots``: the partitions in use, by row. ``wake`` begins to load rows; None: nothing is woken. ``go_on`` is
        called when it is time for `wake_some` again.
        """
        self._slots: Container[int] = slots
        self._wake = wake
        self._call_soon = call_soon
        self._go_on = go_on
        self._due: deque[int] = deque()
        self._loading: set[int] = set()
        """The rows of the last slice that are not loaded yet."""

    def __len__(self) -> int:
        """Return the number of rows that are still to be woken."""
        return len(self._due)

    def add(self, rows: Iterable[int]) -> None:
        """Add rows, to be woken in their turn."""
        if self._wake is not None:
            self._due.extend(rows)

    def wake_some(self) -> None:
        """Wake the next slice, unless some of the last one are still being loaded."""
        if self._wake is None or self._loading or not self._due:
            return
        rows = [self._due.popleft() for _ in range(min(SLICE, len(self._due)))]
        rows = [row for row in rows if row not in self._slots]  # a client was faster
        self._wake(rows)
        self._loading.update(row for row in rows if row in self._slots)  # others were deleted
        self._continue()

    def ended(self, row: int) -> None:
        """Note that a partition was loaded or dropped; it need not be a woken one."""
        if row in self._loading:
            self._loading.discard(row)
            self._continue()

    def _continue(self) -> None:
        if self._due and not self._loading:
            self._call_soon(self._go_on)

    def clear(self) -> None:
        """Forget all: no partition is in use."""
        self._due.clear()
        self._loading.clear()
