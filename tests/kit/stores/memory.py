"""A messaging store in memory, for tests and the simulation.

The rows are on a `MemoryDisk`, which outlives the store that writes to it, as a file does. `MemoryStore.commit` is
durable when it returns. `MemoryDisk.crash` resets the disk to its durable content. Its other ways to write leave a
commit half done as a real disk can; `faulty` chooses among them.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

from msgspec.structs import astuple

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import (
    BODY_COLUMNS,
    ENTRY_COLUMNS,
    LOCK_MS_MAX,
    Query,
    StoreError,
    StoreFenced,
    Writes,
)
from partibus.store.generations import Draw, NoNumbersLeft
from tests.kit.stores.tables import DuplicateKey, Tables

T = TypeVar("T")


class MemoryDisk:
    """Rows that outlive a store: a durable image and, while it differs, a written one."""

    def __init__(self, draw: Draw = secrets.randbelow) -> None:
        """Begin an empty disk. ``draw`` is the source of generation numbers."""
        self.draw = draw
        self.durable = Tables()
        self.written = self.durable
        """The image that the next commit builds on and reads see; the same object as ``durable`` while everything is
        synced.
        """
        self.epoch = 0
        self.highest_ms = 0
        self.torn_tail: Writes | None = None
        """Rows of a commit of which only a part reached the disk, without an end mark."""
        self.is_copy = False
        """Whether this is a copy that has not been opened yet: its first opening begins a generation."""

    def backup(self) -> "MemoryDisk":
        """Copy the durable content, as a backup does."""
        copy = MemoryDisk(self.draw)
        copy.durable = copy.written = self.durable.copy()
        copy.epoch, copy.highest_ms = self.epoch, self.highest_ms
        copy.is_copy = True
        return copy

    def write(self, writes: Writes) -> None:
        """Apply a commit without making it durable. Raises `DuplicateKey`; then nothing has changed."""
        if self.written is self.durable:
            self.written = self.durable.copy()
        self.written.apply(writes)

    def sync(self) -> None:
        """Make everything written durable."""
        self.durable = self.written

    def crash(self) -> None:
        """Simulate a power failure: keep what was durable, and perhaps a torn tail."""
        self.written = self.durable

    def recover(self) -> None:
        """Discard rows that have no end mark."""
        self.torn_tail = None


class MemoryStore:
    """A `partition.protocol.ports.Store` on a `MemoryDisk`. Opening it fences off the previous store on the disk."""

    def __init__(self, disk: MemoryDisk | None = None, name: str = "memory") -> None:
        """Open ``disk``, or a new one."""
        self.disk = MemoryDisk() if disk is None else disk
        self.disk.recover()
        self.disk.epoch += 1
        self._epoch = self.disk.epoch
        self._highest_ms = self.disk.highest_ms
        self._name = name
        self._lock = Lock()
        self.is_closed = False
        """Whether it was closed, or has lost its power."""
        if self.disk.is_copy:
            self.begin_generation()
            self.disk.is_copy = False

    @property
    def name(self) -> str:
        """The name given at construction."""
        return self._name

    @property
    def has_room(self) -> bool:
        """True: the process's memory is the only bound."""
        return True

    @property
    def highest_ms(self) -> int:
        """The latest owner time of all commits before the store was opened (D26)."""
        return self._highest_ms

    @property
    def is_held(self) -> bool:
        """True: the store is this process's memory."""
        return True

    @property
    def epoch(self) -> int:
        """The number of this opening of the store; it rises with each opening (D19)."""
        return self._epoch

    @property
    def durability(self) -> str:
        """The durability for people: lost with the process."""
        return "no copy"

    @property
    def generations(self) -> Sequence[Generation]:
        """The generations of the store in order, at least one."""
        return self.disk.written.generations

    def set_time(self, now_ms: int) -> None:
        """Turn `highest_ms` back to ``now_ms``, durably, and cut locks and leases accordingly."""
        with self._lock:
            self._check_owner()
            tables = self.disk.written.copy()
            tables.cut_locks(now_ms + LOCK_MS_MAX)
            self.disk.durable = self.disk.written = tables
            self.disk.highest_ms = self._highest_ms = now_ms

    def begin_generation(self, above: int = 0) -> Generation:
        """Begin a generation, durably, with numbers above all that were given out and above ``above``."""
        with self._lock:
            self._check_owner()
            tables = self.disk.written.copy()
            try:
                generation = tables.begin_generation(above, self.disk.draw)
            except NoNumbersLeft as error:
                raise StoreError(f"{self._name}: {error}", executed=False) from error
            self.disk.durable = self.disk.written = tables
            return generation

    def reopen(self) -> "MemoryStore":
        """Close the store and reopen its disk."""
        self.close()
        return MemoryStore(self.disk, self._name)

    def commit(self, writes: Writes) -> None:
        """Make all rows durable, or none; return after the sync."""
        with self._lock:
            self._check_owner()
            self._apply(writes)
            self.disk.sync()
            self.disk.highest_ms = max(self.disk.highest_ms, writes.now_ms)

    def commit_unsynced(self, writes: Writes) -> None:
        """Write the rows without syncing: visible, and lost in a crash unless a later commit syncs."""
        with self._lock:
            self._check_owner()
            self._apply(writes, synced=False)

    def commit_torn(self, writes: Writes, rows: int) -> None:
        """Write the first ``rows`` entries and bodies to the disk without the end mark.

        They never become visible; the next opening of the store discards them.
        """
        with self._lock:
            self._check_owner()
            self.disk.torn_tail = _first_rows(writes, rows)

    def crash(self) -> None:
        """Simulate a power failure: discard what was not synced, and close this store."""
        with self._lock:
            self.disk.crash()
            self.is_closed = True

    def read(self, query: Query[T]) -> T:
        """Answer a query."""
        with self._lock:
            found: T = _READS[type(query)](self._tables(), *astuple(query))
            return found

    def close(self) -> None:
        """Close the store; the disk keeps its rows. Idempotent."""
        self.is_closed = True

    def _tables(self) -> Tables:
        if self.is_closed:
            raise StoreError(f"{self._name}: closed; open it again", executed=False)
        return self.disk.written

    def _check_owner(self) -> None:
        self._tables()
        if self.disk.epoch != self._epoch:
            raise StoreFenced(f"{self._name}: opened again with epoch {self.disk.epoch}, ours was {self._epoch}")

    def _apply(self, writes: Writes, *, synced: bool = True) -> None:
        try:
            if synced:
                self.disk.written.apply(writes)
            else:
                self.disk.write(writes)
        except DuplicateKey as error:
            raise StoreError(f"{self._name}: a commit failed: {error}", executed=False) from error


_READS: Mapping[type[Query[Any]], Callable[..., Any]] = {
    q.Partition: Tables.snapshot,
    q.Sizes: Tables.sizes,
    q.Counts: Tables.filled,
    q.TimedSubqueues: Tables.timed_subqueues,
    q.CursorPartitions: Tables.cursor_partitions,
    q.Page: Tables.page,
    q.Due: Tables.due,
    q.DueCount: Tables.count_due,
    q.BySequence: Tables.with_sequences,
    q.SessionsBehind: Tables.sessions_behind,
    q.AbsentSessions: Tables.absent_sessions,
    q.SessionList: Tables.listed_sessions,
    q.SessionState: Tables.session_state,
    q.Duplicates: lambda tables, *fields: tables.duplicate_ids.find(*fields),
    q.DuplicatesBehind: lambda tables, *fields: tables.duplicate_ids.scan(*fields),
    q.Executed: Tables.executed_by,
    q.Bodies: Tables.bodies_of,
    q.Peek: Tables.peek,
    q.Browse: Tables.browse,
    q.Range: Tables.frame,
    q.Scan: Tables.scan,
    q.Dispositions: Tables.dispositions_from,
    q.SinkIds: lambda tables, *fields: tables.sink_ids.find(*fields),
    q.SinkIdCount: lambda tables, *fields: tables.sink_ids.count(*fields),
}


def _first_rows(writes: Writes, rows: int) -> Writes:
    part = Writes()
    part.bodies = writes.bodies[: rows * BODY_COLUMNS]
    part.entries = writes.entries[: rows * ENTRY_COLUMNS]
    return part
