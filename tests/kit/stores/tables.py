"""The rows of a store as Python values: the content of `memory`, and a plain model of how any store must answer."""

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Self, TypeVar

from partibus.partition.protocol.generations import FIRST_NUMBER, Generation, LeftOff, left_off
from partibus.partition.protocol.keys import (
    KIND_BITS,
    POSITION_BITS,
    POSITION_MAX,
    SHARED_BODY,
    SubqueueKind,
    body_key,
    entry_key,
    kind_of,
    subqueue_key,
)
from partibus.partition.protocol.ports import (
    BODY_COLUMNS,
    DISPOSITION_COLUMNS,
    DUPLICATE_COLUMNS,
    ENTRY_COLUMNS,
    FINISHED,
    SINK_ID_COLUMNS,
    UPDATE_COLUMNS,
    CursorRow,
    DispositionRow,
    DueRows,
    EntryRow,
    EntryState,
    LockBatchRow,
    RangeFrame,
    SessionLockRow,
    Snapshot,
    SubqueueCounts,
    Writes,
    executed_requests,
    executed_rows,
    unwritten_partition,
)
from partibus.store.frames import pack
from partibus.store.generations import Draw, next_generation
from tests.kit.stores.entry_index import EntryIndex, StoredEntry
from tests.kit.stores.remembered_ids import DuplicateIds, SinkIds

K = TypeVar("K")
V = TypeVar("V")

_KEY_MAX = (1 << 63) - 1


class DuplicateKey(ValueError):
    """A commit inserts a row that exists already: an error of the caller."""


class Tables:
    """All rows of one store, and the orders in which entries are read."""

    def __init__(self) -> None:
        self.partitions: dict[int, tuple[int, int, int]] = {}
        self.counts: dict[int, tuple[int, int]] = {}
        self.bodies: dict[int, bytes] = {}
        self.entries: dict[int, StoredEntry] = {}
        self.lock_batches: dict[int, dict[int, tuple[int, bytes]]] = {}
        """Lock key -> first pos -> until ms, bitmap."""
        self.session_states: dict[tuple[int, str], tuple[bytes, int]] = {}
        """(partition row, session) -> state, updated ms."""
        self.duplicate_ids = DuplicateIds()
        self.inbound_marks: dict[tuple[int, int], int] = {}
        """(partition row, source) -> position."""
        self.executed: list[tuple[str, int, bytes]] = []
        self.cursors: dict[tuple[int, str], CursorRow] = {}
        self.retained: dict[int, tuple[int, int]] = {}
        self.dispositions: dict[int, tuple[int, int, int, int, int]] = {}
        """The disposition log, by key of the line."""
        self.sink_ids = SinkIds()
        self.sink_batches: dict[tuple[int, int], int] = {}
        self.session_locks: dict[tuple[int, str], SessionLockRow] = {}
        self.generations: tuple[Generation, ...] = (Generation(FIRST_NUMBER, 0),)
        self.left_off: dict[int, tuple[LeftOff, ...]] = {}
        """The ends of earlier owners' numbers by partition row (`partition.protocol.generations.left_off`)."""
        self.index = EntryIndex()
        """The orders in which entries are read."""

    def copy(self) -> Self:
        """Copy the containers; rows are immutable."""
        twin = type(self)()
        twin.partitions = dict(self.partitions)
        twin.counts = dict(self.counts)
        twin.bodies = dict(self.bodies)
        twin.entries = dict(self.entries)
        twin.lock_batches = {lock_key: dict(rows) for lock_key, rows in self.lock_batches.items()}
        twin.session_states = dict(self.session_states)
        twin.duplicate_ids = self.duplicate_ids.copy()
        twin.inbound_marks = dict(self.inbound_marks)
        twin.executed = list(self.executed)
        twin.cursors = dict(self.cursors)
        twin.retained = dict(self.retained)
        twin.dispositions = dict(self.dispositions)
        twin.sink_ids = self.sink_ids.copy()
        twin.sink_batches = dict(self.sink_batches)
        twin.session_locks = dict(self.session_locks)
        twin.generations = self.generations
        twin.left_off = dict(self.left_off)
        twin.index = self.index.copy()
        return twin

    def apply(self, writes: Writes) -> None:
        """Apply a commit in the order of `Writes`. Raises `DuplicateKey` before anything has changed."""
        bodies = dict(_rows(writes.bodies, BODY_COLUMNS))
        entries = {key: StoredEntry(*columns) for key, *columns in _rows(writes.entries, ENTRY_COLUMNS)}
        _refuse_duplicates("body", len(writes.bodies) // BODY_COLUMNS, bodies.keys(), self.bodies.keys())
        _refuse_duplicates("entry", len(writes.entries) // ENTRY_COLUMNS, entries.keys(), self.entries.keys())
        dispositions = {key: (pos, *columns) for key, pos, *columns in _rows(writes.dispositions, DISPOSITION_COLUMNS)}
        _refuse_duplicates(
            "fate", len(writes.dispositions) // DISPOSITION_COLUMNS, dispositions.keys(), self.dispositions.keys()
        )
        self.partitions.update(writes.counters)
        self.counts.update(writes.counts)
        self.bodies.update(bodies)
        self.entries.update(entries)
        for key, entry in entries.items():
            self.index.add(key, entry)
        for key, body, state, delivery_count, due_ms in _rows(writes.entry_updates, UPDATE_COLUMNS):
            self._update_entry(key, body, state, delivery_count, due_ms)
        for session, (session_state, updated_ms) in writes.session_states.items():
            if session_state is None:
                self.session_states.pop(session, None)
            else:
                self.session_states[session] = (session_state, updated_ms)
        for columns in _rows(writes.duplicate_ids, DUPLICATE_COLUMNS):
            self.duplicate_ids.remember(*columns)
        for forgotten in writes.forgotten_duplicates:
            self.duplicate_ids.forget(*forgotten)
        self.inbound_marks.update(writes.inbound_marks)
        if writes.forgotten_executed_ms is not None:
            self.executed = [row for row in self.executed if row[1] >= writes.forgotten_executed_ms]
        self.executed += executed_rows(writes)
        self._apply_readers_and_sinks(writes, dispositions)
        for lock_key in writes.deleted_locks:
            self.lock_batches.pop(lock_key, None)
        for lock_key, rows in writes.lock_batches.items():
            self.lock_batches.setdefault(lock_key, {}).update(
                {first_pos: (until_ms, bitmap) for first_pos, until_ms, bitmap in rows}
            )
        for first, last in writes.deleted_entries:
            self._delete_entries(first, last)
        for first, last in writes.deleted_bodies:
            _delete_range(self.bodies, first, last)
        for key in writes.deleted_shared_bodies:
            self._delete_if_unnamed(key)
        for partition_row in writes.dropped_partitions:
            self._drop_partition(partition_row)

    def _apply_readers_and_sinks(self, writes: Writes, dispositions: dict[int, Any]) -> None:
        _set_or_remove(self.cursors, writes.cursors)
        self.retained.update(writes.retained)
        self.dispositions.update(dispositions)
        for first, last in writes.forgotten_dispositions:
            _delete_range(self.dispositions, first, last)
        for row, sink, batch, ids in writes.new_sink_ids:
            for row_id in ids:
                self.sink_ids.remember(row, sink, row_id, batch)
        for columns in _rows(writes.sink_ids, SINK_ID_COLUMNS):
            self.sink_ids.remember(*columns)
        self.sink_batches.update(writes.sink_batches)
        for forgotten in writes.forgotten_sink_ids:
            self.sink_ids.forget(*forgotten)
        _set_or_remove(self.session_locks, writes.session_locks)

    def snapshot(self, partition_row: int) -> Snapshot | None:
        """Load the durable state of a partition; None if it was never written."""
        counters = self.partitions.get(partition_row)
        if counters is None:
            return unwritten_partition(self.generations)
        subqueues = _subqueues(partition_row)
        batches = [
            LockBatchRow(lock_key >> POSITION_BITS, lock_key & POSITION_MAX, first_pos, until_ms, bitmap)
            for lock_key, rows in sorted(self.lock_batches.items())
            if lock_key >> POSITION_BITS in subqueues
            for first_pos, (until_ms, bitmap) in sorted(rows.items())
        ]
        covered = {
            entry_key(batch.subqueue, batch.first_pos + bit)
            for batch in batches
            for bit in _bits(batch.bitmap)
            if batch.first_pos + bit <= POSITION_MAX
        }
        locked = [
            (key >> POSITION_BITS, row._replace(data=b""), len(row.data))
            for key in sorted(covered & self.entries.keys())
            for row in self._rows_of([key])
            if row.state < FINISHED
        ]
        counts = {key: SubqueueCounts(*self.counts[key]) for key in subqueues if key in self.counts}
        next_due = {
            waiting: due_ms
            for waiting in self.index.due_states(subqueues)
            if (due_ms := self._next_due(*waiting, 0)) is not None
        }
        marks = {source: pos for (row, source), pos in self.inbound_marks.items() if row == partition_row}
        return Snapshot(
            *counters,
            counts,
            batches,
            locked,
            next_due,
            marks,
            cursors=tuple(row for (key, _), row in sorted(self.cursors.items()) if key in subqueues),
            retained={key: SubqueueCounts(*self.retained[key]) for key in subqueues if key in self.retained},
            sinks={sink: batch for (row, sink), batch in self.sink_batches.items() if row == partition_row},
            session_locks=tuple(lock for (row, _), lock in sorted(self.session_locks.items()) if row == partition_row),
            left_off=left_off(self.generations, self.left_off.get(partition_row, ())),
        )

    def cut_locks(self, end_ms: int) -> None:
        """Limit the end of locks, session locks and exclusive leases to ``end_ms``."""
        for rows in self.lock_batches.values():
            for first_pos, (until_ms, bitmap) in rows.items():
                rows[first_pos] = (min(until_ms, end_ms), bitmap)
        for place, lock in self.session_locks.items():
            self.session_locks[place] = lock._replace(until_ms=min(lock.until_ms, end_ms))
        for key, cursor in self.cursors.items():
            self.cursors[key] = cursor._replace(until_ms=min(cursor.until_ms, end_ms))

    def begin_generation(self, above: int, draw: Draw) -> Generation:
        """Begin a generation, durably, with numbers above all that were given out and above ``above``.

        Raises `NoNumbersLeft`.
        """
        highest = max((max(counters[:2]) for counters in self.partitions.values()), default=FIRST_NUMBER)
        generation = next_generation(max(highest, self.generations[-1].first), above, draw)
        for row, (next_sequence, next_number, session_state_bytes) in self.partitions.items():
            passed = LeftOff(next_sequence, next_number, generation.first)
            self.left_off[row] = (*self.left_off.get(row, ()), passed)
            self.partitions[row] = (generation.first, generation.first, session_state_bytes)
        self.generations += (generation,)
        return generation

    def sizes(self, partition_rows: Sequence[int]) -> dict[int, int]:
        """Return the stored bytes of partitions by partition row."""
        return {
            row: self.partitions[row][2] + sum(self.counts[key][1] for key in _subqueues(row) if key in self.counts)
            for row in partition_rows
            if row in self.partitions
        }

    def filled(self, most: int) -> dict[int, SubqueueCounts]:
        """Return the messages and bytes of the first ``most`` sub-queues that hold any, by key."""
        keys = sorted(key for key, (messages, _) in self.counts.items() if messages)
        return {key: SubqueueCounts(*self.counts[key]) for key in keys[:most]}

    def executed_by(self, asker: str) -> dict[int, int]:
        """Return the answered requests of one run of a broker, with the known outcome of each."""
        return executed_requests(part for of, _, part in self.executed if of == asker)

    def timed_subqueues(self) -> dict[int, int]:
        """Return when the first entry falls due, by key of the sub-queue."""
        found: dict[int, int] = {}
        for key, entry in self.entries.items():
            if entry.due_ms is not None and entry.state < FINISHED and entry.body in self.bodies:
                subqueue = key >> POSITION_BITS
                found[subqueue] = min(entry.due_ms, found.get(subqueue, entry.due_ms))
        return found

    def cursor_partitions(self, most: int) -> list[int]:
        """Return the rows of the first ``most`` partitions that have cursors, in order."""
        return sorted({subqueue >> KIND_BITS for subqueue, _ in self.cursors})[:most]

    def count_due(self, subqueue: int, state: int) -> int:
        """Count the entries in ``state`` that have a due time."""
        return sum(
            entry.state == state and entry.due_ms is not None
            for key, entry in self.entries.items()
            if key >> POSITION_BITS == subqueue
        )

    def page(
        self, subqueue: int, from_pos: int, max_entries: int, max_bytes: int, session: str | None
    ) -> list[EntryRow]:
        """Return active entries with ``pos >= from_pos`` by position, of one session if it is given."""
        rows = self.in_range(subqueue, from_pos, POSITION_MAX + 1, session)
        return bounded((row for row in rows if row.state == EntryState.ACTIVE), max_entries, max_bytes)

    def browse(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """Return unfinished entries with ``from_pos <= pos < to_pos`` by position."""
        return bounded(self.in_range(subqueue, from_pos, to_pos), max_entries, max_bytes)

    def in_range(self, subqueue: int, from_pos: int, to_pos: int, session: str | None = None) -> Iterator[EntryRow]:
        """Yield unfinished entries with ``from_pos <= pos < to_pos`` by position, of one session if it is given."""
        rows = self._rows_of(self.index.in_range(subqueue, from_pos, to_pos, session))
        return (row for row in rows if row.state < FINISHED)

    def frame(
        self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int, finished: bool
    ) -> RangeFrame:
        """Load readable entries with ``from_pos <= pos < to_pos``, packed, in order of position."""
        rows = bounded(self._readable(subqueue, from_pos, to_pos, finished=finished), max_entries, max_bytes)
        following = rows[-1].pos + 1 if rows else from_pos
        is_all = next(self._readable(subqueue, following, to_pos, finished=finished), None) is None
        return pack(rows, to_pos if is_all else following)

    def _readable(self, subqueue: int, from_pos: int, to_pos: int, *, finished: bool) -> Iterator[EntryRow]:
        for row in self._rows_of(self.index.in_range(subqueue, from_pos, to_pos)):
            if row.state != EntryState.SCHEDULED and (finished or row.state < FINISHED):
                yield row

    def scan(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int) -> list[tuple[EntryRow, int]]:
        """Load entries in any state, finished ones too, without their data but with its length."""
        keys = islice(self.index.in_range(subqueue, from_pos, to_pos), max(0, max_entries))
        return [
            (EntryRow(key & POSITION_MAX, *entry, b""), len(self.bodies.get(entry.body, b"")))
            for key, entry in ((key, self.entries[key]) for key in keys)
        ]

    def dispositions_from(self, subqueue: int, from_number: int, max_rows: int) -> list[DispositionRow]:
        """Load lines of the disposition log with ``number >= from_number``, in order."""
        keys = sorted(
            key for key in self.dispositions if key >> POSITION_BITS == subqueue and key & POSITION_MAX >= from_number
        )
        return [DispositionRow(key & POSITION_MAX, *self.dispositions[key]) for key in keys[: max(0, max_rows)]]

    def peek(
        self, subqueue: int, from_sequence: int, max_entries: int, max_bytes: int, session: str | None
    ) -> list[EntryRow]:
        """Return entries with ``sequence >= from_sequence`` by sequence, of one session if it is given."""
        return bounded(self._from_sequence(subqueue, from_sequence, session), max_entries, max_bytes)

    def _from_sequence(self, subqueue: int, from_sequence: int, session: str | None) -> Iterator[EntryRow]:
        """Yield entries by sequence. In the active sub-queue the sequence is the position."""
        if kind_of(subqueue) == SubqueueKind.ACTIVE:
            return self.in_range(subqueue, from_sequence, POSITION_MAX + 1, session)
        keys = [
            key
            for key in self.index.all_of(subqueue, session)
            if self.entries[key].sequence >= from_sequence and self.entries[key].state < FINISHED
        ]
        return self._rows_of(sorted(keys, key=lambda key: (self.entries[key].sequence, key)))

    def with_sequences(self, subqueue: int, sequences: Sequence[int]) -> list[EntryRow]:
        """Load the entries with these sequence counters, in any state and any order."""
        wanted = set(sequences)
        if kind_of(subqueue) == SubqueueKind.ACTIVE:
            keys = [entry_key(subqueue, pos) for pos in wanted if 0 <= pos <= POSITION_MAX]
            rows = self._rows_of(key for key in keys if key in self.entries)
        else:
            rows = self._rows_of(key for key in self.index.all_of(subqueue) if self.entries[key].sequence in wanted)
        return [row for row in rows if row.state < FINISHED]

    def due(self, subqueue: int, state: int, until_ms: int, max_entries: int, max_bytes: int) -> DueRows:
        """Load the entries in ``state`` that are due at ``until_ms`` or before, the earliest first."""
        waiting = self.index.due(subqueue, state)
        due_now = bisect_right(waiting, (until_ms, _KEY_MAX))
        rows = bounded(self._rows_of(waiting[index][1] for index in range(due_now)), max_entries, max_bytes)
        following = 0
        if rows:
            following = bisect_right(waiting, (rows[-1].due_ms or 0, entry_key(subqueue, rows[-1].pos)))
        return DueRows(rows, self._next_due(subqueue, state, following))

    def sessions_behind(self, subqueue: int, after: str | None, max_sessions: int, state: int) -> list[str]:
        """Return the first sessions behind ``after`` that have entries in a state."""
        sessions = self._sessions(subqueue, state)
        first = 0 if after is None else bisect_right(sessions, after)
        return sessions[first : first + max(0, max_sessions)]

    def absent_sessions(self, subqueue: int, sessions: Sequence[str]) -> list[str]:
        """Return the sessions that have no entry in any state."""
        stored = self.index.sessions(subqueue)
        return [session for session in sessions if session not in stored or not self._is_there(stored[session])]

    def _is_there(self, keys: Iterable[int]) -> bool:
        """Tell whether one of these entries is unfinished and has its body."""
        entries = (self.entries[key] for key in keys)
        return any(entry.state < FINISHED and entry.body in self.bodies for entry in entries)

    def _sessions(self, subqueue: int, state: int) -> list[str]:
        """Return the sessions that have entries in a state, in order: code points sort as their UTF-8 bytes do."""
        return sorted(
            session
            for session, keys in self.index.sessions(subqueue).items()
            if any(self.entries[key].state == state for key in keys)
        )

    def listed_sessions(
        self, subqueue: int, skip: int, top: int, updated_after_ms: int | None, after: str | None
    ) -> list[str]:
        """Return ``top`` sessions with active entries or a state, behind the first ``skip``."""
        updated = {
            session: updated_ms
            for (partition_row, session), (_, updated_ms) in self.session_states.items()
            if partition_row == subqueue >> KIND_BITS
        }
        if updated_after_ms is None:
            sessions = updated.keys() | set(self._sessions(subqueue, EntryState.ACTIVE))
            sessions = {session for session in sessions if after is None or session > after}
        else:
            sessions = {session for session, updated_ms in updated.items() if updated_ms > updated_after_ms}
        return sorted(sessions)[max(0, skip) :][: max(0, top)]

    def session_state(self, partition_row: int, session: str) -> bytes | None:
        """Return the state of a session; None if it has none."""
        state, _ = self.session_states.get((partition_row, session), (None, 0))
        return state

    def bodies_of(self, keys: Sequence[int]) -> list[bytes | None]:
        """Return stored messages in the order of ``keys``; None where a body was removed."""
        return [self.bodies.get(key) for key in keys]

    def _rows_of(self, keys: Iterable[int]) -> Iterator[EntryRow]:
        """Yield the rows of entries. An entry without its body can't be delivered, so it is left out."""
        for key in keys:
            entry = self.entries[key]
            data = self.bodies.get(entry.body)
            if data is not None:
                yield EntryRow(key & POSITION_MAX, *entry, data)

    def _next_due(self, subqueue: int, state: int, following: int) -> int | None:
        """Return the due time of the first entry with a body from index ``following`` on."""
        waiting = self.index.due(subqueue, state)
        rows = self._rows_of(waiting[index][1] for index in range(following, len(waiting)))
        return next((row.due_ms for row in rows), None)

    def _update_entry(self, key: int, body: int, state: int, delivery_count: int, due_ms: int | None) -> None:
        entry = self.entries.get(key)
        if entry is not None:
            self.index.remove_due(key, entry)
            self.index.unname(entry.body)
            entry = entry._replace(body=body, state=state, delivery_count=delivery_count, due_ms=due_ms)
            self.entries[key] = entry
            self.index.add_due(key, entry)
            self.index.name(body)

    def _delete_entries(self, first: int, last: int) -> list[int]:
        """Delete entries and return the keys of the bodies that they referenced."""
        bodies = []
        for key in self.index.remove_range(first, last):
            entry = self.entries.pop(key)
            self.index.remove(key, entry)
            bodies.append(entry.body)
        return bodies

    def _delete_if_unnamed(self, body: int) -> None:
        if not self.index.is_named(body):
            self.bodies.pop(body, None)

    def _drop_partition(self, partition_row: int) -> None:
        first, following = subqueue_key(partition_row, 0), subqueue_key(partition_row + 1, 0)
        self.partitions.pop(partition_row, None)
        self.left_off.pop(partition_row, None)
        _delete_range(self.counts, first, following - 1)
        _delete_range(self.lock_batches, entry_key(first, 0), entry_key(following, 0) - 1)
        _delete_range(self.bodies, body_key(partition_row, 0), body_key(partition_row + 1, 0) - 1)
        for body in self._delete_entries(entry_key(first, 0), entry_key(following, 0) - 1):
            if not body & SHARED_BODY:
                self.bodies.pop(body, None)
            else:
                self._delete_if_unnamed(body)
        for place in [place for place in self.inbound_marks if place[0] == partition_row]:
            del self.inbound_marks[place]
        for session in [session for session in self.session_states if session[0] == partition_row]:
            del self.session_states[session]
        self.duplicate_ids.drop(partition_row)
        self._drop_readers_and_sinks(partition_row)

    def _drop_readers_and_sinks(self, partition_row: int) -> None:
        first, following = subqueue_key(partition_row, 0), subqueue_key(partition_row + 1, 0)
        self.cursors = {place: row for place, row in self.cursors.items() if not first <= place[0] < following}
        _delete_range(self.retained, first, following - 1)
        _delete_range(self.dispositions, entry_key(first, 0), entry_key(following, 0) - 1)
        self.sink_ids.drop(partition_row)
        self.sink_batches = {place: batch for place, batch in self.sink_batches.items() if place[0] != partition_row}
        self.session_locks = {place: lock for place, lock in self.session_locks.items() if place[0] != partition_row}


def bounded(rows: Iterable[EntryRow], max_entries: int, max_bytes: int) -> list[EntryRow]:
    """Return the first rows within both bounds, at least one unless ``max_entries`` is 0."""
    page: list[EntryRow] = []
    size_bytes = 0
    for row in rows:
        size_bytes += len(row.data)
        if len(page) >= max_entries or (page and size_bytes > max_bytes):
            break
        page.append(row)
    return page


def _rows(flat: Sequence[Any], columns: int) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(flat)] * columns, strict=True)


def _subqueues(partition_row: int) -> range:
    return range(subqueue_key(partition_row, 0), subqueue_key(partition_row + 1, 0))


def _bits(bitmap: bytes) -> Iterator[int]:
    return (bit for bit in range(8 * len(bitmap)) if bitmap[bit // 8] >> bit % 8 & 1)


def _refuse_duplicates(what: str, inserted: int, new: Iterable[int], stored: Container[int]) -> None:
    different = set(new)
    twice = {key for key in different if key in stored}
    if twice or inserted != len(different):
        raise DuplicateKey(f"{what} key {min(twice, default='inserted twice')} exists already")


def _set_or_remove(rows: dict[K, V], changes: dict[K, V | None]) -> None:
    for key, row in changes.items():
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row


def _delete_range(rows: dict[int, Any], first: int, last: int) -> None:
    """Delete a range by key or by scan, whichever looks at fewer rows."""
    candidates = range(first, last + 1) if last - first < len(rows) else list(rows)
    for key in candidates:
        if first <= key <= last:
            rows.pop(key, None)
