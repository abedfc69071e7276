"""A messaging store in memory: for tests, the simulation, and brokers that need not survive.

The rows are on a `MemoryDisk`, which outlives the store that writes to it, as a file does. `MemoryStore.commit` is
durable when it returns. `MemoryDisk.crash` brings the disk back to what was durable; its other commits are the ways in
which a real disk leaves a commit half done, for `faulty` to choose from.
"""

from collections.abc import Sequence
from threading import Lock

from partibus.partition.ports import BODY_COLUMNS, ENTRY_COLUMNS, EntryRow, Snapshot, StoreError, StoreFenced, Writes
from partibus.store.tables import DuplicateKey, Tables, bounded


class MemoryDisk:
    """Rows that outlive a store: an image that is durable and, while they differ, one that is only written."""

    def __init__(self) -> None:
        self.durable = Tables()
        self.written = self.durable
        """What the next commit builds on and reads see; the same object as ``durable`` while everything is synced."""
        self.epoch = 0
        self.torn_tail: Writes | None = None
        """Rows of a commit of which only a part reached the disk: there is no end mark behind them."""

    def write(self, writes: Writes) -> None:
        """Apply a commit without making it durable. Raises `DuplicateKey`; then nothing has changed."""
        if self.written is self.durable:
            self.written = self.durable.copy()
        self.written.apply(writes)

    def sync(self) -> None:
        """Make everything written durable."""
        self.durable = self.written

    def crash(self) -> None:
        """The power fails: only what was durable is left, and perhaps a torn tail."""
        self.written = self.durable

    def recover(self) -> None:
        """Discard what has no end mark."""
        self.torn_tail = None


class MemoryStore:
    """A `partibus.partition.ports.Store` on a `MemoryDisk`. Opening it fences off whoever had the disk before."""

    def __init__(self, disk: MemoryDisk | None = None, name: str = "memory") -> None:
        """Open the disk, or a new one."""
        self.disk = MemoryDisk() if disk is None else disk
        self.disk.recover()
        self.disk.epoch += 1
        self._epoch = self.disk.epoch
        self._name = name
        self._lock = Lock()
        self._closed = False

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    @property
    def has_room(self) -> bool:
        """Always: the bound is the process's memory."""
        return True

    def reopen(self) -> "MemoryStore":
        """Close and open the same disk anew."""
        self.close()
        return MemoryStore(self.disk, self._name)

    def commit(self, writes: Writes) -> None:
        """See the port."""
        with self._lock:
            self._check_owner()
            self._apply(writes)
            self.disk.sync()

    def commit_unsynced(self, writes: Writes) -> None:
        """Written, visible, and gone after a crash unless a later commit syncs."""
        with self._lock:
            self._check_owner()
            self._apply(writes, synced=False)

    def commit_torn(self, writes: Writes, rows: int) -> None:
        """The first ``rows`` entries and bodies reach the disk without the end mark: never visible, discarded when the
        store is opened again."""
        with self._lock:
            self._check_owner()
            self.disk.torn_tail = _first_rows(writes, rows)

    def crash(self) -> None:
        """The power fails: what was not synced is gone, and this store with it."""
        with self._lock:
            self.disk.crash()
            self._closed = True

    def load_partition(self, partition_row: int) -> Snapshot | None:
        """See the port."""
        with self._lock:
            return self._tables().snapshot(partition_row)

    def load_page(self, subqueue: int, from_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """See the port."""
        with self._lock:
            return bounded(self._tables().active_from(subqueue, from_pos), max_entries, max_bytes)

    def load_bodies(self, keys: Sequence[int]) -> list[bytes | None]:
        """See the port."""
        with self._lock:
            bodies = self._tables().bodies
            return [bodies.get(key) for key in keys]

    def peek(self, subqueue: int, from_sequence: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """See the port."""
        with self._lock:
            return bounded(self._tables().from_sequence(subqueue, from_sequence), max_entries, max_bytes)

    def browse(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """See the port."""
        with self._lock:
            return bounded(self._tables().in_range(subqueue, from_pos, to_pos), max_entries, max_bytes)

    def close(self) -> None:
        """See the port. The disk keeps its rows."""
        self._closed = True

    def _tables(self) -> Tables:
        if self._closed:
            raise StoreError(f"{self._name}: closed; open it anew", executed=False)
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


def _first_rows(writes: Writes, rows: int) -> Writes:
    part = Writes()
    part.bodies = writes.bodies[: rows * BODY_COLUMNS]
    part.entries = writes.entries[: rows * ENTRY_COLUMNS]
    return part
