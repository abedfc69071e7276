"""A messaging store in memory: for tests, the simulation, and brokers that need not survive.

The rows are on a `MemoryDisk`, which outlives the store that writes to it, as a file does. `MemoryStore.commit` is
durable when it returns. `MemoryDisk.crash` brings the disk back to what was durable; its other commits are the ways in
which a real disk leaves a commit half done, for `faulty` to choose from.
"""

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from threading import Lock

from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import (
    BODY_COLUMNS,
    ENTRY_COLUMNS,
    LOCK_MS_MAX,
    DueRows,
    EntryRow,
    FateRow,
    RangeFrame,
    Snapshot,
    StoreError,
    StoreFenced,
    SubqueueCounts,
    Writes,
)
from partibus.store.generations import Draw, NoNumbersLeft
from partibus.store.tables import DuplicateKey, Tables, bounded


class MemoryDisk:
    """Rows that outlive a store: an image that is durable and, while they differ, one that is only written."""

    def __init__(self, draw: Draw = secrets.randbelow) -> None:
        """``draw``: where the numbers of generations come from."""
        self.draw = draw
        self.durable = Tables()
        self.written = self.durable
        """What the next commit builds on and reads see; the same object as ``durable`` while everything is synced."""
        self.epoch = 0
        self.highest_ms = 0
        self.torn_tail: Writes | None = None
        """Rows of a commit of which only a part reached the disk: there is no end mark behind them."""
        self.is_copy = False
        """Whether nobody has opened it since it was copied: whoever does begins a generation."""

    def backup(self) -> "MemoryDisk":
        """Copy what is durable, as a backup does."""
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
        """The power fails: only what was durable is left, and perhaps a torn tail."""
        self.written = self.durable

    def recover(self) -> None:
        """Discard what has no end mark."""
        self.torn_tail = None


class MemoryStore:
    """A `partition.protocol.ports.Store` on a `MemoryDisk`. Opening it fences off whoever had the disk before."""

    def __init__(self, disk: MemoryDisk | None = None, name: str = "memory") -> None:
        """Open the disk, or a new one."""
        self.disk = MemoryDisk() if disk is None else disk
        self.disk.recover()
        self.disk.epoch += 1
        self._epoch = self.disk.epoch
        self._highest_ms = self.disk.highest_ms
        self._name = name
        self._lock = Lock()
        self._closed = False
        if self.disk.is_copy:
            self.begin_generation()
            self.disk.is_copy = False

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    @property
    def has_room(self) -> bool:
        """Always: the bound is the process's memory."""
        return True

    @property
    def highest_ms(self) -> int:
        """See the port."""
        return self._highest_ms

    @property
    def is_held(self) -> bool:
        """Always: it is this process's memory."""
        return True

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def durability(self) -> str:
        """Gone with the process."""
        return "no copy"

    @property
    def generations(self) -> Sequence[Generation]:
        """See the port."""
        return self.disk.written.generations

    def set_time(self, now_ms: int) -> None:
        """See the port."""
        with self._lock:
            self._check_owner()
            tables = self.disk.written.copy()
            tables.cut_locks(now_ms + LOCK_MS_MAX)
            self.disk.durable = self.disk.written = tables
            self.disk.highest_ms = self._highest_ms = now_ms

    def begin_generation(self, above: int = 0) -> Generation:
        """See the port."""
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
        """Close and open the same disk anew."""
        self.close()
        return MemoryStore(self.disk, self._name)

    def commit(self, writes: Writes) -> None:
        """See the port."""
        with self._lock:
            self._check_owner()
            self._apply(writes)
            self.disk.sync()
            self.disk.highest_ms = max(self.disk.highest_ms, writes.now_ms)

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

    def load_sizes(self, partition_rows: Sequence[int]) -> dict[int, int]:
        """See the port."""
        with self._lock:
            return self._tables().sizes(partition_rows)

    def load_counts(self, most: int) -> dict[int, SubqueueCounts]:
        """See the port."""
        with self._lock:
            return self._tables().filled(most)

    def timed_partitions(self) -> list[int]:
        """See the port."""
        with self._lock:
            return self._tables().timed_partitions()

    def cursor_partitions(self, most: int) -> list[int]:
        """See the port."""
        with self._lock:
            return self._tables().cursor_partitions(most)

    def load_page(
        self, subqueue: int, from_pos: int, max_entries: int, max_bytes: int, session: str | None = None
    ) -> list[EntryRow]:
        """See the port."""
        with self._lock:
            return bounded(self._tables().active_from(subqueue, from_pos, session), max_entries, max_bytes)

    def load_due(self, subqueue: int, state: int, until_ms: int, max_entries: int, max_bytes: int) -> DueRows:
        """See the port."""
        with self._lock:
            return self._tables().due(subqueue, state, until_ms, max_entries, max_bytes)

    def count_due(self, subqueue: int, state: int) -> int:
        """See the port."""
        with self._lock:
            return self._tables().count_due(subqueue, state)

    def load_sequences(self, subqueue: int, sequences: Sequence[int]) -> list[EntryRow]:
        """See the port."""
        with self._lock:
            return self._tables().with_sequences(subqueue, sequences)

    def scan_sessions(self, subqueue: int, after: str | None, max_sessions: int) -> list[str]:
        """See the port."""
        with self._lock:
            sessions = self._tables().sessions(subqueue)
        first = 0 if after is None else bisect_right(sessions, after)
        return sessions[first : first + max(0, max_sessions)]

    def list_sessions(self, subqueue: int, skip: int, top: int, updated_after_ms: int | None) -> list[str]:
        """See the port."""
        with self._lock:
            sessions = self._tables().listed_sessions(subqueue, updated_after_ms)
        return sessions[max(0, skip) :][: max(0, top)]

    def load_session_state(self, partition_row: int, session: str) -> bytes | None:
        """See the port."""
        with self._lock:
            state, _ = self._tables().session_states.get((partition_row, session), (None, 0))
            return state

    def find_duplicates(self, partition_row: int, first_bucket: int, ids: Sequence[bytes]) -> dict[bytes, int]:
        """See the port."""
        with self._lock:
            return self._tables().duplicate_ids.find(partition_row, first_bucket, ids)

    def scan_duplicates(
        self, partition_row: int, after: tuple[int, bytes], max_ids: int
    ) -> list[tuple[int, bytes, int]]:
        """See the port."""
        with self._lock:
            return self._tables().duplicate_ids.scan(partition_row, after, max_ids)

    def load_executed(self, asker: str) -> dict[int, int]:
        """See the port."""
        with self._lock:
            return self._tables().executed_by(asker)

    def load_bodies(self, keys: Sequence[int]) -> list[bytes | None]:
        """See the port."""
        with self._lock:
            bodies = self._tables().bodies
            return [bodies.get(key) for key in keys]

    def peek(
        self, subqueue: int, from_sequence: int, max_entries: int, max_bytes: int, session: str | None = None
    ) -> list[EntryRow]:
        """See the port."""
        with self._lock:
            return bounded(self._tables().from_sequence(subqueue, from_sequence, session), max_entries, max_bytes)

    def browse(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """See the port."""
        with self._lock:
            return bounded(self._tables().in_range(subqueue, from_pos, to_pos), max_entries, max_bytes)

    def read_range(
        self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int, *, finished: bool
    ) -> RangeFrame:
        """See the port."""
        with self._lock:
            return self._tables().frame(subqueue, from_pos, to_pos, max_entries, max_bytes, finished=finished)

    def scan(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int) -> list[tuple[EntryRow, int]]:
        """See the port."""
        with self._lock:
            return self._tables().scan(subqueue, from_pos, to_pos, max_entries)

    def load_fates(self, subqueue: int, from_number: int, max_rows: int) -> list[FateRow]:
        """See the port."""
        with self._lock:
            return self._tables().fates_from(subqueue, from_number, max_rows)

    def find_sink_ids(self, partition_row: int, sink: int, ids: Sequence[bytes]) -> set[bytes]:
        """See the port."""
        with self._lock:
            return self._tables().sink_ids.find(partition_row, sink, ids)

    def count_sink_ids(self, partition_row: int, sink: int, batch: int) -> int:
        """See the port."""
        with self._lock:
            return self._tables().sink_ids.count(partition_row, sink, batch)

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
