"""A store that fails on purpose: wraps any other, with a seed.

What can go wrong with a commit, and what is true afterwards:

| fault      | the caller learns  | rows before a crash | rows after a crash |
|------------|--------------------|---------------------|--------------------|
| refused    | executed=False     | absent              | absent             |
| forgotten  | executed=None      | absent              | absent             |
| torn       | executed=None      | absent              | absent: a part is on the disk, recovery discards it |
| unanswered | executed=None      | there               | there              |
| unsynced   | executed=None      | there               | absent, unless a later commit has synced            |

A store that can't be torn or left unsynced from outside (one on a real disk) forgets the commit instead.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import (
    ENTRY_COLUMNS,
    DueRows,
    EntryRow,
    FateRow,
    RangeFrame,
    Snapshot,
    Store,
    StoreError,
    Writes,
)


class Faults(NamedTuple):
    """Chances from 0 to 1. At most one fault happens to a commit, so those of commits add up to 1 at most."""

    refused: float = 0.0
    forgotten: float = 0.0
    torn: float = 0.0
    unanswered: float = 0.0
    unsynced: float = 0.0
    load_fails: float = 0.0
    delayed: float = 0.0
    """Of commits and loads alike; on top of the others."""
    delay_ms_max: int = 1_000


NO_FAULTS = Faults()


class FaultSource:
    """Draws the faults; shared by a store and those opened after it, so that one seed tells the whole story."""

    def __init__(self, seed: int, faults: Faults = NO_FAULTS, delay: Callable[[int], None] | None = None) -> None:
        """``delay`` is called with milliseconds; it moves a simulated clock, say. Nothing here sleeps."""
        self.faults = faults
        self.happened: dict[str, int] = {}
        """Name of a fault -> how often it has happened."""
        self._random = Random(seed)
        self._delay = delay

    def before(self) -> None:
        """Perhaps delay a call."""
        if self._delay is not None and self._random.random() < self.faults.delayed:
            self._note("delayed")
            self._delay(self._random.randint(1, self.faults.delay_ms_max))

    def for_commit(self) -> str | None:
        """The fault of this commit."""
        drawn = self._random.random()
        for fault in ("refused", "forgotten", "torn", "unanswered", "unsynced"):
            drawn -= getattr(self.faults, fault)
            if drawn < 0:
                return self._note(fault)
        return None

    def for_load(self) -> str | None:
        """The fault of this load."""
        return self._note("load_fails") if self._random.random() < self.faults.load_fails else None

    def part_of(self, rows: int) -> int:
        """How many of so many rows reach the disk; never all."""
        return self._random.randrange(rows) if rows else 0

    def _note(self, fault: str) -> str:
        self.happened[fault] = self.happened.get(fault, 0) + 1
        return fault


@runtime_checkable
class Breakable(Protocol):
    """A store whose disk can be left half done: `partibus.store.memory.MemoryStore`."""

    def commit_unsynced(self, writes: Writes) -> None:
        """Written, not durable."""
        ...

    def commit_torn(self, writes: Writes, rows: int) -> None:
        """Only the first rows reach the disk."""
        ...

    def crash(self) -> None:
        """The power fails; what was not synced is gone and the store is closed."""
        ...


@runtime_checkable
class Reopenable(Protocol):
    """A store that can open anew what it stands for, as its owner does after a failure."""

    def reopen(self) -> Store:
        """Close this one and open its rows again."""
        ...


class FaultyStore:
    """A `partition.protocol.ports.Store` that lets ``source`` decide what goes wrong with ``inner``."""

    def __init__(self, inner: Store, source: FaultSource) -> None:
        self.inner = inner
        self._source = source

    @property
    def name(self) -> str:
        """Of the store inside."""
        return self.inner.name

    def crash(self) -> None:
        """The power fails, as far as the store inside can: one on a real disk is closed."""
        if isinstance(self.inner, Breakable):
            self.inner.crash()
        else:
            self.inner.close()

    def reopen(self) -> "FaultyStore":
        """Close and open anew, with the same source of faults. Raises as the store inside, `TypeError` if it can't."""
        if not isinstance(self.inner, Reopenable):
            raise TypeError(f"{type(self.inner).__name__} can't be reopened; open a new one and wrap it")
        return FaultyStore(self.inner.reopen(), self._source)

    @property
    def has_room(self) -> bool:
        """What the store inside says."""
        return self.inner.has_room

    @property
    def highest_ms(self) -> int:
        """What the store inside says."""
        return self.inner.highest_ms

    @property
    def is_held(self) -> bool:
        """What the store inside says."""
        return self.inner.is_held

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    @property
    def durability(self) -> str:
        """What the store inside says."""
        return self.inner.durability

    @property
    def generations(self) -> Sequence[Generation]:
        """Of the store inside."""
        return self.inner.generations

    def set_time(self, now_ms: int) -> None:
        """See the port."""
        self.inner.set_time(now_ms)

    def begin_generation(self, above: int = 0) -> Generation:
        """See the port."""
        return self.inner.begin_generation(above)

    def commit(self, writes: Writes) -> None:
        """See the port, and the table above."""
        self._source.before()
        fault = self._source.for_commit()
        if fault == "refused":
            raise StoreError(f"{self.name}: the disk refused a commit (a planned fault)", executed=False)
        if fault == "unsynced" and isinstance(self.inner, Breakable):
            self.inner.commit_unsynced(writes)
        elif fault == "torn" and isinstance(self.inner, Breakable):
            self.inner.commit_torn(writes, self._source.part_of(len(writes.entries) // ENTRY_COLUMNS))
        elif fault in (None, "unanswered"):
            self.inner.commit(writes)
        if fault is not None:
            raise StoreError(f"{self.name}: the end of a commit is unknown (a planned fault: {fault})", executed=None)

    def load_partition(self, partition_row: int) -> Snapshot | None:
        """See the port."""
        return self._loading().load_partition(partition_row)

    def load_sizes(self, partition_rows: Sequence[int]) -> dict[int, int]:
        """See the port."""
        return self._loading().load_sizes(partition_rows)

    def load_counts(self, most: int) -> Mapping[int, tuple[int, int]]:
        """See the port."""
        return self._loading().load_counts(most)

    def timed_partitions(self) -> list[int]:
        """See the port."""
        return self._loading().timed_partitions()

    def cursor_partitions(self, most: int) -> list[int]:
        """See the port."""
        return self._loading().cursor_partitions(most)

    def load_page(
        self, subqueue: int, from_pos: int, max_entries: int, max_bytes: int, session: str | None = None
    ) -> list[EntryRow]:
        """See the port."""
        return self._loading().load_page(subqueue, from_pos, max_entries, max_bytes, session)

    def load_due(self, subqueue: int, state: int, until_ms: int, max_entries: int, max_bytes: int) -> DueRows:
        """See the port."""
        return self._loading().load_due(subqueue, state, until_ms, max_entries, max_bytes)

    def count_due(self, subqueue: int, state: int) -> int:
        """See the port."""
        return self._loading().count_due(subqueue, state)

    def load_sequences(self, subqueue: int, sequences: Sequence[int]) -> list[EntryRow]:
        """See the port."""
        return self._loading().load_sequences(subqueue, sequences)

    def scan_sessions(self, subqueue: int, after: str | None, max_sessions: int) -> list[str]:
        """See the port."""
        return self._loading().scan_sessions(subqueue, after, max_sessions)

    def list_sessions(self, subqueue: int, skip: int, top: int, updated_after_ms: int | None) -> list[str]:
        """See the port."""
        return self._loading().list_sessions(subqueue, skip, top, updated_after_ms)

    def load_session_state(self, partition_row: int, session: str) -> bytes | None:
        """See the port."""
        return self._loading().load_session_state(partition_row, session)

    def find_duplicates(self, partition_row: int, first_bucket: int, ids: Sequence[bytes]) -> dict[bytes, int]:
        """See the port."""
        return self._loading().find_duplicates(partition_row, first_bucket, ids)

    def scan_duplicates(
        self, partition_row: int, after: tuple[int, bytes], max_ids: int
    ) -> list[tuple[int, bytes, int]]:
        """See the port."""
        return self._loading().scan_duplicates(partition_row, after, max_ids)

    def load_executed(self, asker: str) -> dict[int, int]:
        """See the port."""
        return self._loading().load_executed(asker)

    def load_bodies(self, keys: Sequence[int]) -> list[bytes | None]:
        """See the port."""
        return self._loading().load_bodies(keys)

    def peek(
        self, subqueue: int, from_sequence: int, max_entries: int, max_bytes: int, session: str | None = None
    ) -> list[EntryRow]:
        """See the port."""
        return self._loading().peek(subqueue, from_sequence, max_entries, max_bytes, session)

    def browse(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """See the port."""
        return self._loading().browse(subqueue, from_pos, to_pos, max_entries, max_bytes)

    def read_range(
        self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int, *, finished: bool
    ) -> RangeFrame:
        """See the port."""
        return self._loading().read_range(subqueue, from_pos, to_pos, max_entries, max_bytes, finished=finished)

    def scan(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int) -> list[tuple[EntryRow, int]]:
        """See the port."""
        return self._loading().scan(subqueue, from_pos, to_pos, max_entries)

    def load_fates(self, subqueue: int, from_number: int, max_rows: int) -> list[FateRow]:
        """See the port."""
        return self._loading().load_fates(subqueue, from_number, max_rows)

    def find_sink_ids(self, partition_row: int, sink: int, ids: Sequence[bytes]) -> set[bytes]:
        """See the port."""
        return self._loading().find_sink_ids(partition_row, sink, ids)

    def count_sink_ids(self, partition_row: int, sink: int, batch: int) -> int:
        """See the port."""
        return self._loading().count_sink_ids(partition_row, sink, batch)

    def close(self) -> None:
        """See the port."""
        self.inner.close()

    def _loading(self) -> Store:
        self._source.before()
        if self._source.for_load() is not None:
            raise StoreError(f"{self.name}: the disk refused a read (a planned fault)", executed=False)
        return self.inner
