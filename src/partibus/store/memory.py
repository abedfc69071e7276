"""A messaging store in memory: for tests, the simulation, and brokers without durable messages.

The rows are on a `MemoryDisk`, which outlives the store that writes to it, as a file does. `MemoryStore.commit` is
durable when it returns. `MemoryDisk.crash` resets the disk to its durable content. Its other ways to write leave a
commit half done as a real disk can; `faulty` chooses among them.
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
    DispositionRow,
    DueRows,
    EntryRow,
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
        self._closed = False
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
            self._closed = True

    def load_partition(self, partition_row: int) -> Snapshot | None:
        """Load the durable state of a partition; None if it was never written."""
        with self._lock:
            return self._tables().snapshot(partition_row)

    def load_sizes(self, partition_rows: Sequence[int]) -> dict[int, int]:
        """Return the stored bytes of partitions by partition row."""
        with self._lock:
            return self._tables().sizes(partition_rows)

    def load_counts(self, most: int) -> dict[int, SubqueueCounts]:
        """Return the messages and bytes of the first ``most`` sub-queues that hold any, by key."""
        with self._lock:
            return self._tables().filled(most)

    def timed_partitions(self) -> list[int]:
        """Return the rows of partitions with entries that have a due time, in order."""
        with self._lock:
            return self._tables().timed_partitions()

    def cursor_partitions(self, most: int) -> list[int]:
        """Return the rows of the first ``most`` partitions that have cursors, in order."""
        with self._lock:
            return self._tables().cursor_partitions(most)

    def load_page(
        self, subqueue: int, from_pos: int, max_entries: int, max_bytes: int, session: str | None = None
    ) -> list[EntryRow]:
        """Load the first active entries with ``pos >= from_pos``, within both bounds."""
        with self._lock:
            return bounded(self._tables().active_from(subqueue, from_pos, session), max_entries, max_bytes)

    def load_due(self, subqueue: int, state: int, until_ms: int, max_entries: int, max_bytes: int) -> DueRows:
        """Load the entries in ``state`` that are due at ``until_ms`` or before, the earliest first."""
        with self._lock:
            return self._tables().due(subqueue, state, until_ms, max_entries, max_bytes)

    def count_due(self, subqueue: int, state: int) -> int:
        """Count the entries in ``state`` that have a due time."""
        with self._lock:
            return self._tables().count_due(subqueue, state)

    def load_sequences(self, subqueue: int, sequences: Sequence[int]) -> list[EntryRow]:
        """Load the entries with these sequence counters, in any state and any order."""
        with self._lock:
            return self._tables().with_sequences(subqueue, sequences)

    def scan_sessions(self, subqueue: int, after: str | None, max_sessions: int, state: int = 0) -> list[str]:
        """Return sessions that have entries in a state, after ``after``, in order of their UTF-8 bytes."""
        with self._lock:
            sessions = self._tables().sessions(subqueue, state)
        first = 0 if after is None else bisect_right(sessions, after)
        return sessions[first : first + max(0, max_sessions)]

    def list_sessions(self, subqueue: int, skip: int, top: int, updated_after_ms: int | None) -> list[str]:
        """List ``top`` sessions after the first ``skip``, in order of their UTF-8 bytes."""
        with self._lock:
            sessions = self._tables().listed_sessions(subqueue, updated_after_ms)
        return sessions[max(0, skip) :][: max(0, top)]

    def load_session_state(self, partition_row: int, session: str) -> bytes | None:
        """Load the state of a session; None if it has none."""
        with self._lock:
            state, _ = self._tables().session_states.get((partition_row, session), (None, 0))
            return state

    def find_duplicates(
        self, partition_row: int, first_bucket: int, ids: Sequence[bytes]
    ) -> dict[bytes, tuple[int, bytes]]:
        """Return which of ``ids`` are in ``first_bucket`` or later, with the time of last acceptance in ms."""
        with self._lock:
            return self._tables().duplicate_ids.find(partition_row, first_bucket, ids)

    def scan_duplicates(
        self, partition_row: int, after: tuple[int, bytes], max_ids: int
    ) -> list[tuple[int, bytes, int]]:
        """Return (bucket, id, accepted ms) in order, after the given bucket and id."""
        with self._lock:
            return self._tables().duplicate_ids.scan(partition_row, after, max_ids)

    def load_executed(self, asker: str) -> dict[int, int]:
        """Return the answered requests of one run of a broker, with what is known of each."""
        with self._lock:
            return self._tables().executed_by(asker)

    def load_bodies(self, keys: Sequence[int]) -> list[bytes | None]:
        """Load stored messages in the order of ``keys``; None where a body was removed."""
        with self._lock:
            bodies = self._tables().bodies
            return [bodies.get(key) for key in keys]

    def peek(
        self, subqueue: int, from_sequence: int, max_entries: int, max_bytes: int, session: str | None = None
    ) -> list[EntryRow]:
        """Load entries in any state with ``sequence >= from_sequence``, in order of sequence."""
        with self._lock:
            return bounded(self._tables().from_sequence(subqueue, from_sequence, session), max_entries, max_bytes)

    def browse(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """Load entries in any state with ``from_pos <= pos < to_pos``, in order of position."""
        with self._lock:
            return bounded(self._tables().in_range(subqueue, from_pos, to_pos), max_entries, max_bytes)

    def read_range(
        self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int, *, finished: bool
    ) -> RangeFrame:
        """Load readable entries with ``from_pos <= pos < to_pos``, packed, in order of position."""
        with self._lock:
            return self._tables().frame(subqueue, from_pos, to_pos, max_entries, max_bytes, finished=finished)

    def scan(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int) -> list[tuple[EntryRow, int]]:
        """Load entries in any state, finished ones too, without their data but with its length."""
        with self._lock:
            return self._tables().scan(subqueue, from_pos, to_pos, max_entries)

    def load_dispositions(self, subqueue: int, from_number: int, max_rows: int) -> list[DispositionRow]:
        """Load lines of the disposition log with ``number >= from_number``, in order."""
        with self._lock:
            return self._tables().dispositions_from(subqueue, from_number, max_rows)

    def find_sink_ids(self, partition_row: int, sink: int, ids: Sequence[bytes]) -> set[bytes]:
        """Return those of ``ids`` that the sink has stored and still remembers."""
        with self._lock:
            return self._tables().sink_ids.find(partition_row, sink, ids)

    def count_sink_ids(self, partition_row: int, sink: int, batch: int) -> int:
        """Count the ids that a sink has of ``batch`` and earlier batches."""
        with self._lock:
            return self._tables().sink_ids.count(partition_row, sink, batch)

    def close(self) -> None:
        """Close the store; the disk keeps its rows. Idempotent."""
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
