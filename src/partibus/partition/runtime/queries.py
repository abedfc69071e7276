"""Queries to a store besides commands to its partitions: counts, executed requests, loads, looks at cold partitions.

A cold look answers questions about a partition that is not in memory without loading it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from partibus.clock import Clock
from partibus.partition.core.express import Express, Pool
from partibus.partition.core.machine import Partition
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import KIND_BITS, SubqueueKind, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import DispositionRow, EntryRow, EntryState, Store
from partibus.partition.protocol.slots import slot_for_key, slots_in
from partibus.partition.runtime.commits import ExecutedNotes, OnFound, known_of
from partibus.partition.runtime.lifecycle import StoreLifecycle
from partibus.partition.runtime.slot import Slot


class StoreQueries:
    """Queries of one store, about partitions in use or not.

    Each query calls back once, never before it returns.
    """

    __slots__ = ("_executed", "_express", "_lifecycle", "_slots")

    def __init__(
        self, lifecycle: StoreLifecycle, slots: Mapping[int, Slot], executed: ExecutedNotes, express: Pool
    ) -> None:
        """Answer for a store; ``slots``: its partitions in use, by row, and ``express``: their unwritten messages."""
        self._lifecycle = lifecycle
        self._slots = slots
        self._executed = executed
        self._express = express

    def find_filled(self, rows: list[int], found: Callable[[list[int] | None], None]) -> None:
        """Tell which of these partitions hold anything, without loading them; None when the store could not say."""

        def sized(sizes: Mapping[int, int] | None) -> None:
            if sizes is None:
                found(None)
                return
            filled = {row for row, size_bytes in sizes.items() if size_bytes}
            filled.update(row for row, _ in self._unwritten())
            found([row for row in rows if row in filled])

        self._lifecycle.ask(lambda store: store.read(q.Sizes(rows)), sized, vital=True)

    def count_messages(self, most: int, counted: Callable[[Mapping[int, tuple[int, int]] | None], None]) -> None:
        """Count messages by sub-queue key, as of the last commit and in memory only (`queries.Counts`).

        ``counted`` gets None when the store could not answer.
        """
        self._lifecycle.ask(
            lambda store: store.read(q.Counts(most)),
            lambda found: counted(None if found is None else self._with_unwritten(found)),
        )

    def find_timed(self, found: Callable[[list[int] | None], None]) -> None:
        """Find the rows of the partitions in which an entry falls due (`queries.TimedSubqueues`), in order.

        ``found`` gets None when the store could not answer.
        """
        self._lifecycle.ask(
            lambda store: sorted({subqueue >> KIND_BITS for subqueue in store.read(q.TimedSubqueues())}), found
        )

    def find_cursors(self, most: int, found: Callable[[list[int] | None], None]) -> None:
        """Tell which partitions have cursors: see `queries.CursorPartitions`. None when the store could not say."""
        self._lifecycle.ask(lambda store: store.read(q.CursorPartitions(most)), found)

    def find_executed(self, asker: str, requests: Sequence[int], found: OnFound) -> None:
        """Find notes of executed requests (`partibus.routing.store_access.Remembers`)."""
        forgets = self._executed.forgets
        self._lifecycle.ask(
            lambda store: store.read(q.Executed(asker)),
            lambda notes: found(None if notes is None else known_of(requests, notes, forgets=forgets)),
        )

    def _with_unwritten(self, counts: Mapping[int, tuple[int, int]]) -> Mapping[int, tuple[int, int]]:
        found = dict(counts)
        for row, express in self._unwritten():
            key = subqueue_key(row, SubqueueKind.ACTIVE)
            messages, size_bytes = found.get(key, (0, 0))
            found[key] = (messages + len(express.unwritten), size_bytes + express.size_bytes)
        return found

    def _unwritten(self) -> Iterator[tuple[int, Express]]:
        """Rows of partitions with messages in memory only. Thousands are in use; nearly always none has any."""
        if not self._express.messages:
            return
        for row, slot in self._slots.items():
            if slot.machine is not None and (express := slot.machine.state.express) is not None and express.unwritten:
                yield row, express


RANGE_ENTRIES_MAX = 16_384
"""The most entries of one `ReadRange`: some 3 MB of small messages, which a reader decodes at once."""


QUIET_PAGES = 64
"""Pages of one tenant that are read past messages in flight."""


def read(store: Store, row: int, load: w.Load) -> Any:
    """Do a load; blocks."""
    active = subqueue_key(row, SubqueueKind.ACTIVE)
    match load:
        case w.PageLoad():
            return _read_page(store, subqueue_key(row, load.kind), load)
        case w.BodyLoad():
            return store.read(q.Bodies(load.bodies))
        case w.RangeScanLoad():
            return _read_for_scan(store, subqueue_key(row, load.kind), load)
        case w.DeferredLoad():
            return store.read(q.BySequence(subqueue_key(row, load.command.kind), load.command.sequences))
        case w.ScheduledCount():
            return store.read(q.DueCount(active, EntryState.SCHEDULED))
        case w.SessionScan():
            return store.read(q.SessionsBehind(active, load.after, load.max_sessions))
        case w.SessionStateLoad():
            return store.read(q.SessionState(row, load.session))
        case w.SessionResume():
            return store.read(q.BySequence(active, load.sequences))
        case w.SessionListLoad():
            wanted = load.command
            return store.read(q.SessionList(active, wanted.skip, wanted.top, wanted.updated_after_ms, wanted.after))
        case w.DuplicateLoad():
            return store.read(q.Duplicates(row, load.first_bucket, load.ids))
        case w.QuietLoad():
            return _read_quiet(store, active, load)
        case w.DuplicateScan():
            return store.read(q.DuplicatesBehind(row, load.after, load.max_ids))
        case w.SinkLoad():
            count = store.read(q.SinkIdCount(row, load.sink, c.SINK_ENDS)) if load.counts else None
            return store.read(q.SinkIds(row, load.sink, load.ids)) if count != 0 else set(), count
        case w.SinkCount():
            return store.read(q.SinkIdCount(row, load.sink, load.batch))
        case w.GroupsLoad():
            return _absent_groups(store, row, load.names)
        case w.SlotScan():
            return _scan_slots(store, active, load)
        case w.PeekLoad():
            return store.read(
                q.Peek(subqueue_key(row, load.kind), load.from_sequence, load.max_entries, load.max_bytes, load.session)
            )
        case w.RangeLoad():
            asked = load.command
            subqueue, most = subqueue_key(row, load.kind), RANGE_ENTRIES_MAX
            return store.read(
                q.Range(subqueue, asked.from_pos, load.end_pos, most, asked.max_bytes, finished=asked.finished)
            )
        case w.DispositionsLoad():
            most = min(load.command.most, RANGE_ENTRIES_MAX)
            return store.read(q.Dispositions(subqueue_key(row, load.command.kind), load.command.from_number, most))
        case w.ClearLoad():
            return _read_for_janitor(store, subqueue_key(row, load.kind), load)


def _read_page(store: Store, subqueue: int, load: w.PageLoad) -> tuple[list[EntryRow], bool]:
    """Return a page, and whether it surely is the last one up to the end of the load.

    Many sessions have a few messages. A look behind their page tells that a session is empty once those are settled;
    otherwise the next receiver that takes any session would have to read another page to find that out.
    """
    rows = store.read(q.Page(subqueue, load.from_pos, load.max_entries, load.max_bytes, load.session))
    if not rows or load.session is None:
        return rows, not rows
    if len(rows) >= load.max_entries or 2 * sum([len(row.data) for row in rows]) >= load.max_bytes:
        return rows, False
    return rows, not store.read(q.Page(subqueue, rows[-1].pos + 1, 1, 1, load.session))


def _read_quiet(store: Store, subqueue: int, load: w.QuietLoad) -> tuple[list[EntryRow], str | None, bool]:
    """Return entries of quiet tenants, the last tenant seen (None: all were), and whether the tenants may have more."""
    names = store.read(q.SessionsBehind(subqueue, load.after, load.max_tenants))
    rows: list[EntryRow] = []
    has_more = False
    noisy = set(load.noisy)
    for name in names:
        if name not in noisy:
            found = _read_unheld(store, subqueue, load, name)
            rows += found
            has_more = has_more or bool(found)
    return rows, names[-1] if len(names) == load.max_tenants else None, has_more


def _read_unheld(store: Store, subqueue: int, load: w.QuietLoad, name: str) -> list[EntryRow]:
    """Return the first entries of a tenant that memory does not have."""
    from_pos = load.from_pos
    for _ in range(QUIET_PAGES):
        page = store.read(q.Page(subqueue, from_pos, load.max_entries, load.max_bytes, name))
        found = [row for row in page if row.pos not in load.held and row.pos < load.end_pos]
        if found or not page:
            return found
        from_pos = page[-1].pos + 1
    return []


def _absent_groups(store: Store, row: int, names: list[str]) -> list[tuple[str, bytes | None]]:
    absent = store.read(q.AbsentSessions(subqueue_key(row, SubqueueKind.ACTIVE), names))
    return [(name, store.read(q.SessionState(row, name))) for name in absent]


def _scan_slots(store: Store, subqueue: int, load: w.SlotScan) -> tuple[list[str], str | None]:
    """Return the groups of the wanted slots among the next ones, and the last name seen; None: all were seen."""
    most, after = load.max_sessions, load.command.after
    pages = [store.read(q.SessionsBehind(subqueue, after, most, state)) for state in EntryState]
    # Behind the end of a full page there may be more names of its state.
    ends = [page[-1] for page in pages if len(page) == most]
    seen = sorted({name for page in pages for name in page if not ends or name <= min(ends)})
    wanted = set(slots_in(load.command.runs))
    return [name for name in seen if slot_for_key(name) in wanted], min(ends) if ends else None


def _read_for_scan(store: Store, subqueue: int, load: w.RangeScanLoad) -> Any:
    range_scan = load.range_scan
    if isinstance(range_scan, w.DueScan):
        return store.read(q.Due(subqueue, range_scan.state, range_scan.until_ms, load.max_entries, load.max_bytes))
    if isinstance(range_scan, w.Consume | w.PurgeSlice | w.DelaySlice):
        return store.read(q.Scan(subqueue, range_scan.from_pos, range_scan.to_pos, load.max_entries))
    if isinstance(range_scan, w.LostTokens):
        return store.read(
            q.BySequence(subqueue, sorted({range_scan.command.tokens[index][1] for index in range_scan.lost}))
        )
    if isinstance(range_scan, c.CancelScheduled):
        return store.read(q.BySequence(subqueue, range_scan.sequences))
    return store.read(q.Page(subqueue, 0, load.max_entries, load.max_bytes, range_scan.session))


def _read_for_janitor(
    store: Store, subqueue: int, load: w.ClearLoad
) -> tuple[list[tuple[EntryRow, int]], list[DispositionRow]]:
    rows = store.read(q.Scan(subqueue, load.from_pos, load.to_pos, load.most)) if load.from_pos < load.to_pos else []
    if load.dispositions_from is None:
        return rows, []
    return rows, store.read(q.Dispositions(subqueue, load.dispositions_from, load.most))


AT_ONCE = 64
"""Partitions per read job: some 10 ms, the longest delay for receivers that need the reader thread."""


class ColdInspect(NamedTuple):
    """One partition that is asked."""

    row: int
    options: PartitionOptions
    command: c.Inspect
    subscriptions: Sequence[int]
    """Rows of a topic's subscriptions: its size is theirs, too."""


class ColdInspects:
    """The cold partitions of one store that wait for an inspection, which reads some at a time."""

    __slots__ = ("_asked", "_clock", "_lifecycle", "_looking", "_seen")

    def __init__(
        self, lifecycle: StoreLifecycle, clock: Clock, seen: Callable[[Sequence[tuple[ColdInspect, r.Inspected]]], None]
    ) -> None:
        """``seen`` gets the results of some inspections, in the order of the requests."""
        self._lifecycle = lifecycle
        self._clock = clock
        self._seen = seen
        self._asked: list[ColdInspect] = []
        self._looking = False

    def add(self, cold_inspect: ColdInspect) -> None:
        """Look at one more; the store is open."""
        self._asked.append(cold_inspect)
        if not self._looking:
            self._look()

    def clear(self) -> None:
        """Forget all questions after the loss of the store; the owner of their answers tells the askers."""
        self._asked.clear()
        self._looking = False

    def _look(self) -> None:
        asked, self._asked = self._asked[:AT_ONCE], self._asked[AT_ONCE:]
        self._looking = bool(asked)
        if not asked:
            return
        generation, now_ms = self._lifecycle.generation, self._clock.now_ms()

        def seen(inspected: list[r.Inspected]) -> None:
            self._seen(list(zip(asked, inspected, strict=True)))
            if generation == self._lifecycle.generation:
                self._look()

        self._lifecycle.read(lambda store: look(store, asked, now_ms), seen)


def look(store: Store, asked: Sequence[ColdInspect], now_ms: int) -> list[r.Inspected]:
    """Return the counts of partitions as of the last commit, in the order of ``asked``.

    Blocks; changes nothing. Raises `StoreError`.
    """
    return [_look(store, one, now_ms) for one in asked]


def _look(store: Store, asked: ColdInspect, now_ms: int) -> r.Inspected:
    partition = Partition(asked.row, asked.options, store.read(q.Partition(asked.row)))
    if asked.subscriptions and partition.state.subscriptions is not None:
        partition.state.subscriptions.begin(store.read(q.Sizes(asked.subscriptions)))
    step = partition.handle(asked.command, now_ms)
    for load in step.loads:
        if isinstance(load, w.ScheduledCount):
            step = partition.handle(w.Loaded(load, read(store, asked.row, load)), now_ms)
    (inspected,) = (reply for reply in step.replies if isinstance(reply, r.Inspected))
    return inspected
