"""The entries of a sub-queue that may be granted, lowest position first.

Arrivals and pages come in order and go to the end of a deque. Returned entries (abandoned, released, lock expired) go
to a heap: they belong before the waiting ones, and several can return in any order (D10: a released message returns to
its place).
"""

from collections import deque
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush

from partibus.partition.protocol.keys import Entry


class ReadyQueue:
    """A queue by position. Its bytes are those in memory: an entry without its body counts as nothing."""

    __slots__ = ("_in_order", "_returned", "size_bytes")

    def __init__(self) -> None:
        self._in_order: deque[Entry] = deque()
        self._returned: list[tuple[int, Entry]] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._in_order) + len(self._returned)

    def extend(self, entries: Iterable[Entry], size_bytes: int) -> None:
        """Append entries whose positions are above all that came this way before."""
        self._in_order.extend(entries)
        self.size_bytes += size_bytes

    def requeue(self, entry: Entry) -> None:
        """Return an entry to its place."""
        heappush(self._returned, (entry.pos, entry))
        if entry.data is not None:
            self.size_bytes += entry.size_bytes

    def head(self) -> Entry | None:
        """Return the entry that `pop` would take."""
        if self._returned and (not self._in_order or self._returned[0][0] < self._in_order[0].pos):
            return self._returned[0][1]
        return self._in_order[0] if self._in_order else None

    @property
    def in_order(self) -> deque[Entry] | None:
        """The entries as `pop` takes them, from the left; None if others are among them.

        A taker of several may take them there, and subtracts their bytes.
        """
        return None if self._returned else self._in_order

    def lowest(self) -> int | None:
        """Return the lowest position."""
        head = self.head()
        return None if head is None else head.pos

    def pop(self) -> Entry:
        """Take the entry with the lowest position."""
        returned = self._returned
        if returned and (not self._in_order or returned[0][0] < self._in_order[0].pos):
            entry = heappop(returned)[1]
        else:
            entry = self._in_order.popleft()
        if entry.data is not None:
            self.size_bytes -= entry.size_bytes
        return entry

    def bodyless(self, most: int) -> list[Entry]:
        """Up to ``most`` returned entries whose body was let go, lowest position first.

        Only returned entries can be without: arrivals and pages bring theirs along.
        """
        missing = sorted(pair for pair in self._returned if pair[1].data is None)
        return [entry for _, entry in missing[:most]]

    def attach_body(self, entry: Entry, data: bytes) -> None:
        """Give an entry of this queue its body again."""
        entry.data = data
        self.size_bytes += entry.size_bytes

    def positions(self) -> set[int]:
        """Return the positions of the entries."""
        positions = {entry.pos for entry in self._in_order}
        positions.update(pos for pos, _ in self._returned)
        return positions

    def remove(self, positions: Collection[int]) -> list[Entry]:
        """Take entries out by their positions; the ones that are here."""
        removed = [entry for pos, entry in self._returned if pos in positions]
        if removed:
            self._returned = [pair for pair in self._returned if pair[0] not in positions]
            heapify(self._returned)
        if self._in_order and positions and min(positions) <= self._in_order[-1].pos:
            arrived = [entry for entry in self._in_order if entry.pos in positions]
            if arrived:
                self._in_order = deque(entry for entry in self._in_order if entry.pos not in positions)
                removed += arrived
        self.size_bytes -= sum(entry.size_bytes for entry in removed if entry.data is not None)
        return removed
