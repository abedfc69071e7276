"""The rows of a store as Python values: what `memory` keeps, and a plain model of what any store must answer."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from partibus.partition.keys import (
    POSITION_BITS,
    POSITION_MAX,
    SubqueueKind,
    body_key,
    entry_key,
    kind_of,
    subqueue_key,
)
from partibus.partition.ports import (
    BODY_COLUMNS,
    ENTRY_COLUMNS,
    UPDATE_COLUMNS,
    EntryRow,
    EntryState,
    LockBatchRow,
    Snapshot,
    SubqueueCounts,
    Writes,
)


class StoredEntry(NamedTuple):
    """The columns of an entry beside its key."""

    body: int
    sequence: int
    enqueued_ms: int
    state: int
    delivery_count: int
    session: str | None
    due_ms: int | None


class DuplicateKey(ValueError):
    """A commit inserts a row that is there already: an error of the caller."""


class Tables:
    """All rows of one store, and the order of entries in each sub-queue."""

    def __init__(self) -> None:
        self.partitions: dict[int, tuple[int, int]] = {}
        self.counts: dict[int, tuple[int, int]] = {}
        self.bodies: dict[int, bytes] = {}
        self.entries: dict[int, StoredEntry] = {}
        self.lock_batches: dict[int, dict[int, tuple[int, bytes]]] = {}
        """Lock key -> first pos -> until ms, bitmap."""
        self._keys: dict[int, list[int]] = {}
        """Sub-queue key -> its entry keys, sorted. Enqueues append at the right edge."""

    def copy(self) -> Self:
        """Rows are immutable, so only the containers are copied."""
        twin = type(self)()
        twin.partitions = dict(self.partitions)
        twin.counts = dict(self.counts)
        twin.bodies = dict(self.bodies)
        twin.entries = dict(self.entries)
        twin.lock_batches = {lock_key: dict(rows) for lock_key, rows in self.lock_batches.items()}
        twin._keys = {subqueue: list(keys) for subqueue, keys in self._keys.items()}
        return twin

    def apply(self, writes: Writes) -> None:
        """Apply a commit in the order of `Writes`. Raises `DuplicateKey` before anything has changed."""
        bodies = dict(_rows(writes.bodies, BODY_COLUMNS))
        entries = {key: StoredEntry(*columns) for key, *columns in _rows(writes.entries, ENTRY_COLUMNS)}
        _refuse_duplicates("body", len(writes.bodies) // BODY_COLUMNS, bodies.keys(), self.bodies.keys())
        _refuse_duplicates("entry", len(writes.entries) // ENTRY_COLUMNS, entries.keys(), self.entries.keys())
        self.partitions.update(writes.counters)
        self.counts.update(writes.counts)
        self.bodies.update(bodies)
        self._insert_entries(entries)
        for key, state, delivery_count, due_ms in _rows(writes.entry_updates, UPDATE_COLUMNS):
            entry = self.entries.get(key)
            if entry is not None:
                self.entries[key] = entry._replace(state=state, delivery_count=delivery_count, due_ms=due_ms)
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
        for partition_row in writes.dropped_partitions:
            self._drop_partition(partition_row)

    def snapshot(self, partition_row: int) -> Snapshot | None:
        """See `partibus.partition.ports.Store.load_partition`."""
        counters = self.partitions.get(partition_row)
        if counters is None:
            return None
        subqueues = range(subqueue_key(partition_row, 0), subqueue_key(partition_row + 1, 0))
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
        ]
        counts = {key: SubqueueCounts(*self.counts[key]) for key in subqueues if key in self.counts}
        return Snapshot(*counters, counts, batches, locked)

    def active_from(self, subqueue: int, from_pos: int) -> Iterator[EntryRow]:
        """Active entries with ``pos >= from_pos`` by position."""
        for row in self.in_range(subqueue, from_pos, POSITION_MAX + 1):
            if row.state == EntryState.ACTIVE:
                yield row

    def in_range(self, subqueue: int, from_pos: int, to_pos: int) -> Iterator[EntryRow]:
        """Entries with ``from_pos <= pos < to_pos`` by position."""
        if from_pos > POSITION_MAX or to_pos <= 0:
            return iter(())
        keys = self._keys.get(subqueue, [])
        first = bisect_left(keys, entry_key(subqueue, max(0, from_pos)))
        last = bisect_right(keys, entry_key(subqueue, min(to_pos - 1, POSITION_MAX)))
        return self._rows_of(keys[index] for index in range(first, last))

    def from_sequence(self, subqueue: int, from_sequence: int) -> Iterator[EntryRow]:
        """Entries with ``sequence >= from_sequence`` by sequence; in the active sub-queue that is the position."""
        if kind_of(subqueue) == SubqueueKind.ACTIVE:
            return self.in_range(subqueue, from_sequence, POSITION_MAX + 1)
        keys = [key for key in self._keys.get(subqueue, []) if self.entries[key].sequence >= from_sequence]
        return self._rows_of(sorted(keys, key=lambda key: (self.entries[key].sequence, key)))

    def _rows_of(self, keys: Iterable[int]) -> Iterator[EntryRow]:
        """An entry without its body is passed over: it can't be delivered."""
        for key in keys:
            entry = self.entries[key]
            data = self.bodies.get(entry.body)
            if data is not None:
                yield EntryRow(key & POSITION_MAX, *entry, data)

    def _insert_entries(self, entries: dict[int, StoredEntry]) -> None:
        self.entries.update(entries)
        for key in entries:
            keys = self._keys.setdefault(key >> POSITION_BITS, [])
            if not keys or key > keys[-1]:
                keys.append(key)
            else:
                insort(keys, key)

    def _delete_entries(self, first: int, last: int) -> None:
        for subqueue in [key for key in self._keys if first >> POSITION_BITS <= key <= last >> POSITION_BITS]:
            keys = self._keys[subqueue]
            gone = slice(bisect_left(keys, first), bisect_right(keys, last))
            for key in keys[gone]:
                del self.entries[key]
            del keys[gone]
            if not keys:
                del self._keys[subqueue]

    def _drop_partition(self, partition_row: int) -> None:
        first, following = subqueue_key(partition_row, 0), subqueue_key(partition_row + 1, 0)
        self.partitions.pop(partition_row, None)
        _delete_range(self.counts, first, following - 1)
        _delete_range(self.lock_batches, entry_key(first, 0), entry_key(following, 0) - 1)
        _delete_range(self.bodies, body_key(partition_row, 0), body_key(partition_row + 1, 0) - 1)
        self._delete_entries(entry_key(first, 0), entry_key(following, 0) - 1)


def bounded(rows: Iterable[EntryRow], max_entries: int, max_bytes: int) -> list[EntryRow]:
    """The first rows within both bounds; the first one always, unless no entries are asked for."""
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


def _bits(bitmap: bytes) -> Iterator[int]:
    return (bit for bit in range(8 * len(bitmap)) if bitmap[bit // 8] >> bit % 8 & 1)


def _refuse_duplicates(what: str, inserted: int, new: Iterable[int], stored: Iterable[int]) -> None:
    twice = set(new) & set(stored)
    if twice or inserted != len(set(new)):
        raise DuplicateKey(f"{what} key {min(twice, default='inserted twice')} exists already")


def _delete_range(rows: dict[int, Any], first: int, last: int) -> None:
    """By key or by scan, whichever looks at fewer."""
    candidates = range(first, last + 1) if last - first < len(rows) else list(rows)
    for key in candidates:
        if first <= key <= last:
            rows.pop(key, None)
