"""The state of one sub-queue in memory.

```text
 positions   0 ............ paged_up_to ............... tail_from ............ end
              memory is the      the store knows,          the last arrivals,
              truth (ready,      memory does not           kept in case the
              locked)                                      receivers catch up
```

Below ``paged_up_to`` memory is the truth, so a page can't bring back what is completed but not yet committed. From
``tail_from`` on the latest arrivals are in memory too; when a page reaches them the two meet, and nothing is read any
more until receivers fall behind again. In between only the store knows. Entries found under lock after a restart lie
above the mark; pages pass them over (``above``) until the mark has passed them.
"""

from collections import deque
from dataclasses import dataclass

from partibus.partition.entry import Entry
from partibus.partition.lock_table import LockTable
from partibus.partition.ready_queue import ReadyQueue


@dataclass(slots=True)
class Demand:
    """What a receiver waits for."""

    receiver: int
    count: int
    size_bytes: int
    delete: bool
    reserve: bool


class Subqueue:
    """Ready, reserved and locked entries, and who waits for more."""

    __slots__ = (
        "above",
        "demands",
        "doomed",
        "end_pos",
        "loading_bodies",
        "loading_page",
        "locks",
        "messages",
        "paged_up_to",
        "ready",
        "reservations",
        "size_bytes",
        "tail",
        "tail_bytes",
        "tail_from",
    )

    def __init__(self, *, messages: int, size_bytes: int, end_pos: int) -> None:
        self.messages = messages
        """All entries, whatever their state."""
        self.size_bytes = size_bytes
        self.end_pos = end_pos
        """Above every position given so far."""
        self.ready = ReadyQueue()
        self.locks = LockTable()
        self.reservations = LockTable()
        self.demands: deque[Demand] = deque()
        self.paged_up_to = end_pos if messages == 0 else 0
        self.tail_from = end_pos
        self.tail: deque[Entry] = deque()
        self.tail_bytes = 0
        self.above: set[int] = set()
        self.doomed: dict[int, Entry] = {}
        """Entries to be dead-lettered as soon as their body is read again."""
        self.loading_page = False
        self.loading_bodies = False

    @property
    def in_memory(self) -> bool:
        """Memory holds every entry that waits, be it among the ready ones or at the tail."""
        return self.paged_up_to >= self.tail_from

    def arrive(self, entries: list[Entry], size_bytes: int, *, window_entries: int, window_bytes: int) -> None:
        """Take in new entries: among the ready ones while all of those are in memory and there is room, else at the
        tail, from which the oldest fall off."""
        self.messages += len(entries)
        self.size_bytes += size_bytes
        self.end_pos = end_pos = entries[-1].pos + 1
        ready = self.ready
        if self.in_memory and not self.tail and len(ready) < window_entries and ready.size_bytes < window_bytes:
            ready.extend(entries, size_bytes)
            self.paged_up_to = self.tail_from = end_pos
            return
        tail = self.tail
        tail.extend(entries)
        self.tail_bytes += size_bytes
        while len(tail) > window_entries or self.tail_bytes > window_bytes:
            oldest = tail.popleft()
            self.tail_bytes -= oldest.size_bytes
            self.tail_from = oldest.pos + 1

    def page_in(self, entries: list[Entry], up_to: int) -> None:
        """Take in a page; everything below ``up_to`` is in memory now."""
        fresh = [e for e in entries if e.pos < self.tail_from and e.pos not in self.above]
        self.ready.extend(fresh, sum([e.size_bytes for e in fresh]))
        self.paged_up_to = min(up_to, self.tail_from)
        if self.above:
            self.above = {pos for pos in self.above if pos >= self.paged_up_to}

    def absorb_tail(self) -> None:
        """The pages have met the tail: its entries are ready like the others."""
        self.ready.extend(self.tail, self.tail_bytes)
        self.tail.clear()
        self.tail_bytes = 0
        self.paged_up_to = self.tail_from = self.end_pos
