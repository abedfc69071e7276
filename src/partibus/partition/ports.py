"""What a partition needs of a messaging store: rows to commit, rows to load.

A store is the unit of durability, commit and ownership (D1, D11). Its calls block; the runtime makes commits from one
writer thread per store at a time and reads from others, so a store must allow one commit and several reads at once.
Reads see committed rows only.

Rows to write travel as flat lists of columns, ready to be bound to a multi-row statement: one list per table and commit
instead of one object per message (hot path budget).
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol


class EntryState(IntEnum):
    """State column of an entry. A lock is not a state: it is a lock batch that covers the entry until its deadline."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class EntryRow(NamedTuple):
    """One stored entry with its message, as a page, a peek or a browse answers it."""

    pos: int
    """Arrival position in the sub-queue; equal to ``sequence`` in the active sub-queue, an own count elsewhere."""
    body: int
    """Key of the body row."""
    sequence: int
    """Counter part of the sequence number (lower 48 bits)."""
    enqueued_ms: int
    state: int
    delivery_count: int
    """Unsuccessful deliveries so far; one less than the truth while a lock batch covers the entry (D12)."""
    session: str | None
    due_ms: int | None
    """When an active entry expires, or a scheduled one becomes active; wall clock, ms since 1970."""
    data: bytes
    """The stored form of the message (`partibus.message`); empty where a load did not ask for it."""


class LockBatchRow(NamedTuple):
    """One delivery batch under lock (D12): bit i of ``bitmap`` (little-endian bytes) stands for ``first_pos + i``.

    A settled entry has no row any more, so a set bit without an entry means nothing. When two batches cover a position
    the one with the later deadline holds.
    """

    subqueue: int
    lock_id: int
    first_pos: int
    until_ms: int
    bitmap: bytes


class SubqueueCounts(NamedTuple):
    """Messages and bytes (stored form) in a sub-queue."""

    messages: int
    size_bytes: int


class Snapshot(NamedTuple):
    """Durable state of one partition, as much of it as is needed to go on: counters, counts, and what is under lock.

    Everything else stays in the store and is paged in on demand, so the size of a snapshot follows what was in use and
    not the backlog.
    """

    next_sequence: int
    next_number: int
    counts: dict[int, SubqueueCounts]
    """By sub-queue key."""
    lock_batches: list[LockBatchRow]
    locked_entries: list[tuple[int, EntryRow, int]]
    """(sub-queue key, entry without data, bytes of its data) of every entry that a lock batch covers."""


class Writes:
    """The rows of one commit. Applied in the order of the attributes below, in one transaction.

    A commit may insert a row and delete it again: a message received-and-deleted before its enqueue was durable.
    """

    __slots__ = (
        "bodies",
        "counters",
        "counts",
        "deleted_bodies",
        "deleted_entries",
        "deleted_locks",
        "dropped_partitions",
        "entries",
        "entry_updates",
        "lock_batches",
        "operations",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.counters: dict[int, tuple[int, int]] = {}
        """Partition row -> (next_sequence, next_number). Made on first use."""
        self.counts: dict[int, tuple[int, int]] = {}
        """Sub-queue key -> (messages, bytes): absolute, since the owner is the only writer."""
        self.bodies: list[int | bytes] = []
        """Flat: body key, stored form."""
        self.entries: list[int | str | None] = []
        """Flat: entry key, body key, sequence, enqueued ms, state, delivery count, session, due ms."""
        self.entry_updates: list[int | None] = []
        """Flat: entry key, state, delivery count, due ms. An entry that is gone is passed over."""
        self.deleted_locks: list[int] = []
        """Lock keys: every row of that lock id goes."""
        self.lock_batches: dict[int, list[tuple[int, int, bytes]]] = {}
        """Lock key -> its rows (first pos, until ms, bitmap), all new: what was there went with ``deleted_locks``."""
        self.deleted_entries: list[tuple[int, int]] = []
        """Ranges of entry keys, both ends included."""
        self.deleted_bodies: list[tuple[int, int]] = []
        """Ranges of body keys, both ends included."""
        self.dropped_partitions: list[int] = []
        """Partition rows whose every row goes: the entity was deleted."""
        self.operations = 0
        """Messages enqueued, locked, settled or moved: what the bound of a store's queue counts (D24)."""
        self.size_bytes = 0


ENTRY_COLUMNS = 8
BODY_COLUMNS = 2
UPDATE_COLUMNS = 4


class StoreError(Exception):
    """A commit or a load failed. ``executed`` is False when surely nothing of the commit is stored, None when nobody
    can tell before the store is opened again (the sync failed, say)."""

    def __init__(self, message: str, *, executed: bool | None = None) -> None:
        super().__init__(message)
        self.executed = executed


class StoreFull(StoreError):
    """No room for the commit; nothing of it is stored. Commits that only free room still work (the ballast)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, executed=False)


class StoreFenced(StoreError):
    """Another broker owns the store now (D19); nothing of the commit is stored and none will be again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, executed=False)


class Store(Protocol):
    """One messaging store. Every call may raise `StoreError`; after a failed commit the store is closed by its owner
    and opened anew, never used on."""

    @property
    def name(self) -> str:
        """What errors and health call it: a path, a URL without its password."""
        ...

    @property
    def has_room(self) -> bool:
        """False while commits that bring messages would be refused with `StoreFull`."""
        ...

    def commit(self, writes: Writes) -> None:
        """Make all rows durable, or none. Returns after the sync."""
        ...

    def load_partition(self, partition_row: int) -> Snapshot | None:
        """Durable state of a partition; None when it was never written."""
        ...

    def load_page(self, subqueue: int, from_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """The first ACTIVE entries with ``pos >= from_pos`` in order of position; at least one when one exists, else
        no more than ``max_bytes`` of data. May be fewer than both bounds allow: only an empty page says that nothing
        is left."""
        ...

    def load_bodies(self, keys: Sequence[int]) -> list[bytes | None]:
        """The stored forms, in the order of ``keys``; None where the body is gone."""
        ...

    def peek(self, subqueue: int, from_sequence: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """Entries in any state with ``sequence >= from_sequence`` in order of sequence; bounded as `load_page`."""
        ...

    def browse(self, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
        """Entries in any state with ``from_pos <= pos < to_pos`` in order of position; bounded as `load_page`."""
        ...

    def close(self) -> None:
        """Idempotent. What was committed stays."""
        ...
