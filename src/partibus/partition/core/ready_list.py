"""Ready lists: the entries of a sub-queue, or of one session in it, in order of position, for receivers.

```text
 positions   0 ............ paged_up_to ............... tail_from ............ end
              memory is the      the store knows,          the last arrivals,
              truth (ready,      memory does not           kept in case the
              locked)                                      receivers catch up
```

Below ``paged_up_to`` memory is the truth, so a page can't bring back an entry that is completed but not yet committed.
From ``tail_from`` on the latest arrivals are in memory too. When a page reaches them the two meet, and no page is read
until receivers fall behind again. In between, in the *gap*, only the store knows. Pages skip entries in memory above
the mark (``above``; found under lock after a restart, say) until the mark has passed them.

A change to entries in the gap (a purge, expiry without receivers) must call `edit`: a page on its way may have read
them before, and the next one has to see the change.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct

from partibus.partition.core.fair_queue import Fairness, FairQueue, ReadyQueue
from partibus.partition.core.lock_table import LockTable
from partibus.partition.protocol.keys import Entry

ENTRY_BYTES = 320
"""Memory of an entry beside its stored bytes: the object, its numbers, the head of the bytes, its place in a queue."""


class Demand(Struct):
    """The demand of one receiver."""

    receiver: int
    count: int
    size_bytes: int
    delete: bool
    reserve: bool
    forward: bool = False
    lock_ms: int = 0
    """The length of the locks; 0: the entity's LockDuration."""
    once: bool = False
    """Whether the first grant ends it."""


class ReadyList:
    """Ready, reserved and locked entries, and the receivers' demands."""

    pending_dead_letters: Mapping[int, Entry] = MappingProxyType({})
    """Entries to be dead-lettered that wait for their bodies, by position. Those of sessions are in the sub-queue's."""
    __slots__ = (
        "above",
        "bodies_stale",
        "demands",
        "edited",
        "end_pos",
        "fairness",
        "forwarder",
        "gap_checked",
        "has_more_quiet",
        "holder",
        "kind",
        "loading_bodies",
        "loading_page",
        "loading_quiet",
        "locks",
        "page_stale",
        "paged_up_to",
        "quiet_after",
        "ready",
        "reservations",
        "session",
        "tail",
        "tail_bytes",
        "tail_checked",
        "tail_from",
        "weighed",
    )

    def __init__(
        self,
        kind: int,
        *,
        end_pos: int,
        is_empty: bool,
        session: str | None = None,
        holder: int = 0,
        edited: bool = False,
    ) -> None:
        self.kind = kind
        self.session = session
        self.holder = holder
        """The lock id under which the session is held."""
        self.end_pos = end_pos
        """A position above every one given so far."""
        self.forwarder = 0
        """The receiver that forwards the entries; 0: none has begun."""
        self.fairness: Fairness | None = None
        """The tenants of a fair queue."""
        self.tail_checked = 0
        """The version of the tenants for which the tail has no entry of a quiet one."""
        self.gap_checked = -1
        """The version of the tenants for which the gap has no entry of a quiet one."""
        self.quiet_after: str | None = None
        """The last tenant of the gap that was looked at."""
        self.has_more_quiet = False
        """Whether a tenant before that one may have more entries."""
        self.loading_quiet = 0
        """The number of the load that reads entries of quiet tenants in the gap; 0: none does."""
        self.ready = ReadyQueue()
        self.locks = LockTable()
        self.reservations = LockTable()
        self.demands: OrderedDict[int, Demand] = OrderedDict()
        """The demands of receivers by number, the next to be served first."""
        self.paged_up_to = end_pos if is_empty else 0
        self.tail_from = end_pos
        self.tail: deque[Entry] = deque()
        self.tail_bytes = 0
        self.above: set[int] = set()
        self.edited = edited
        """The next page has to see everything that was written: the gap was changed."""
        self.loading_page = False
        self.loading_bodies = False
        self.page_stale = False
        """The page that is being read is of before `forget`."""
        self.bodies_stale = False
        """The bodies that are being read are of before `forget`."""
        self.weighed = 0
        """The memory of its windows when the partition counted them last; below 0: its session has ended."""

    def be_fair(self, fairness: Fairness) -> None:
        """Hand out entries by the tenants of ``fairness``, before there is any entry."""
        self.fairness = fairness
        self.ready = self._new_queue()

    def _new_queue(self) -> ReadyQueue:
        return ReadyQueue() if self.fairness is None else FairQueue(self.fairness)

    @property
    def in_memory(self) -> bool:
        """Memory holds every entry that waits, be it among the ready ones or at the tail."""
        return self.paged_up_to >= self.tail_from

    @property
    def is_drained(self) -> bool:
        """Whether memory holds every entry that waits, and none waits."""
        return self.paged_up_to >= self.tail_from and not (self.ready.count or self.tail)

    @property
    def held(self) -> list[Entry]:
        """Entries under lock."""
        return [entry for batch in self.locks for entry in batch.entries.values()]

    @property
    def held_bytes(self) -> int:
        """Stored bytes in memory of entries under lock or reserved."""
        return sum(
            [
                len(entry.data)
                for table in (self.locks, self.reservations)
                for batch in table
                for entry in batch.entries.values()
                if entry.data is not None
            ]
        )

    @property
    def has_more(self) -> bool:
        """The gap may have entries."""
        return True

    @property
    def is_exhausted(self) -> bool:
        """Whether no entry waits and none is locked or reserved."""
        return self.in_memory and not (self.ready or self.tail or self.locks or self.reservations)

    def arrive(self, entries: list[Entry], size_bytes: int, *, window_entries: int, window_bytes: int) -> None:
        """Add new entries: to the ready ones while all of those are in memory and there is room, else to the tail.

        The oldest entries of a full tail are dropped.
        """
        self.end_pos = end_pos = entries[-1].pos + 1
        ready = self.ready
        is_open = self.paged_up_to >= self.tail_from and not self.tail  # `in_memory`
        if is_open and ready.count < window_entries and ready.size_bytes < window_bytes:
            ready.extend(entries, size_bytes)
            self.paged_up_to = self.tail_from = end_pos
            return
        if self.fairness is not None and self.fairness.noisy:
            entries, size_bytes = self._pass_noisy(entries, size_bytes, window_entries, window_bytes)
        tail = self.tail
        tail.extend(entries)
        self.tail_bytes += size_bytes
        while len(tail) > window_entries or self.tail_bytes > window_bytes:
            oldest = tail.popleft()
            self.tail_bytes -= oldest.size_bytes
            self.tail_from = oldest.pos + 1

    def _pass_noisy(
        self, entries: list[Entry], size_bytes: int, window_entries: int, window_bytes: int
    ) -> tuple[list[Entry], int]:
        """Make arrivals of quiet tenants ready, while noisy ones have a backlog; return the others and their bytes."""
        assert self.fairness is not None, "a fair queue"
        noisy, behind = self.fairness.noisy, []
        for entry in entries:
            if entry.session in noisy:
                behind.append(entry)
            elif len(self.above) < 2 * window_entries and self.ready.size_bytes < 2 * window_bytes:
                self._make_ready(entry)
                size_bytes -= entry.size_bytes
            else:
                behind.append(entry)
                self.tail_checked = self.gap_checked = -1
        return behind, size_bytes

    def _look_anew(self) -> None:
        """Forget what is known of the tail and the gap, and ignore a load under way."""
        self.tail_checked = self.gap_checked = -1
        self.quiet_after = None
        self.has_more_quiet = False
        self.loading_quiet = 0

    def _make_ready(self, entry: Entry) -> None:
        """Make an entry ready before those below it; pages skip it from now on."""
        self.ready.requeue(entry)
        self.above.add(entry.pos)

    def pass_tail(self) -> None:
        """Make entries of quiet tenants at the tail ready: they came before another tenant was noisy."""
        assert self.fairness is not None, "a fair queue"
        noisy = self.fairness.noisy
        if self.tail_checked == self.fairness.version:
            return
        self.tail_checked = self.fairness.version
        quiet = [entry for entry in self.tail if entry.session not in noisy]
        if quiet:
            self.tail = deque(entry for entry in self.tail if entry.session in noisy)
            self.tail_bytes -= sum([entry.size_bytes for entry in quiet])
            for entry in quiet:
                self._make_ready(entry)

    def calm_tenants(self, taken: Iterable[Entry]) -> None:
        """Take noisy tenants for quiet whose last waiting entries were ``taken``."""
        fairness, ready = self.fairness, self.ready
        if fairness is not None and fairness.noisy and self.in_memory and not self.tail:
            assert isinstance(ready, FairQueue), "a fair queue"
            for tenant in {entry.session for entry in taken if entry.session in fairness.noisy}:
                if tenant is not None and not ready.has_of(tenant):
                    fairness.calm(tenant)

    @property
    def holds_noisy(self) -> bool:
        """Whether noisy tenants wait until the first tenants in the gap were looked at."""
        return self.quiet_after is None and self._may_pass

    @property
    def wants_quiet(self) -> bool:
        """Whether entries of quiet tenants in the gap have to be read, for receivers that wait."""
        return bool(self.demands) and not self.loading_quiet and self._may_pass

    @property
    def _may_pass(self) -> bool:
        """Whether only the gap may have entries of quiet tenants."""
        fairness, ready = self.fairness, self.ready
        return (
            fairness is not None
            and bool(fairness.noisy)
            and self.paged_up_to < self.tail_from
            and self.gap_checked != fairness.version
            and isinstance(ready, FairQueue)
            and not ready.has_quiet
        )

    def take_quiet(self, entries: Iterable[Entry]) -> int:
        """Take in entries of quiet tenants that were read from the gap; return how many memory did not have."""
        gap, taken = range(self.paged_up_to, self.tail_from), 0
        for entry in entries:
            if entry.pos in gap and entry.pos not in self.above:
                self._make_ready(entry)
                taken += 1
        return taken

    def forget(self, *, is_empty: bool) -> None:
        """Drop all waiting and reserved entries: the store has them, and the next page sees all rows written until now.

        ``is_empty``: no entry is to come.
        """
        self.ready = self._new_queue()
        self._look_anew()
        self.reservations = LockTable()
        self.tail.clear()
        self.tail_bytes = 0
        self.above.clear()
        self.tail_from = self.end_pos
        self.paged_up_to = self.end_pos if is_empty else 0
        self.edited = True
        self.page_stale = self.loading_page
        self.bodies_stale = self.loading_bodies

    def drop_window(self) -> None:
        """Drop the waiting entries, in a partition without a load under way.

        A page brings them again. It must see all rows written until now, and skips held entries.
        """
        lowest = self.ready.lowest()
        if lowest is None and not self.tail:
            return
        self.paged_up_to = mark = self.paged_up_to if lowest is None else min(lowest, self.paged_up_to)
        self.above = {
            pos for table in (self.locks, self.reservations) for batch in table for pos in batch.entries if pos >= mark
        }
        self.ready = self._new_queue()
        self._look_anew()
        self.tail.clear()
        self.tail_bytes = 0
        self.tail_from = self.end_pos
        self.edited = True

    def page_in(self, entries: list[Entry], up_to: int) -> None:
        """Take in a page; everything below ``up_to`` is in memory now."""
        fresh = [e for e in entries if e.pos < self.tail_from and e.pos not in self.above]
        self.ready.extend(fresh, sum([e.size_bytes for e in fresh]))
        self.paged_up_to = min(up_to, self.tail_from)
        if self.above:
            self.above = {pos for pos in self.above if pos >= self.paged_up_to}

    def absorb_tail(self) -> None:
        """Add the tail to the ready entries: the pages have met it."""
        self.ready.extend(self.tail, self.tail_bytes)
        self.tail.clear()
        self.tail_bytes = 0
        self.paged_up_to = self.tail_from = self.end_pos

    def waiting(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the waiting entries among ``entries`` as read from the store: those without a holder."""
        in_memory = self.ready.positions()
        in_memory.update(entry.pos for entry in self.tail)
        above, gap = self.above, range(self.paged_up_to, self.tail_from)
        return [entry for entry in entries if entry.pos in in_memory or (entry.pos in gap and entry.pos not in above)]

    def take_out(self, waiting: list[Entry]) -> list[Entry]:
        """Take out what `waiting` gave; entries as memory knows them, or, in the gap, as they were given."""
        wanted = {entry.pos: entry for entry in waiting}
        taken = self.ready.remove(wanted.keys())
        if self.tail:
            from_tail = [entry for entry in self.tail if entry.pos in wanted]
            if from_tail:
                self.tail = deque(entry for entry in self.tail if entry.pos not in wanted)
                self.tail_bytes -= sum(entry.size_bytes for entry in from_tail)
                taken += from_tail
        for entry in taken:
            del wanted[entry.pos]
        self.edit(list(wanted))
        return [*taken, *wanted.values()]

    def edit(self, positions: list[int]) -> None:
        """Note that entries in the gap were changed, at these positions."""
        if positions:
            self.edited = True
            if self.loading_page or self.loading_quiet:
                self.above.update(positions)
