"""The port of a messaging store: rows to commit, rows to load.

A store is the unit of durability, commit and ownership (D1, D11). Its calls block. The runtime makes commits from one
writer thread per store at a time and reads from other threads, so a store allows one commit and several reads at once.
Reads see committed rows only.

Rows to write travel as flat lists of columns, ready to be bound to a multi-row statement: one list per table and commit
instead of one object per message (hot path budget).
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from partibus.partition.protocol.generations import Generation, LeftOff, left_off

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class EntryState(IntEnum):
    """The state of an entry. A lock is no state: it is a lock batch that covers the entry until its deadline."""

    ACTIVE = 0
    DEFERRED = 1
    """Set aside until a receiver asks for its sequence number."""
    SCHEDULED = 2
    """Becomes a new entry at the end of its sub-queue when it is due."""
    DELAYED = 3
    """Abandoned with a delay: active again, at its old place, when it is due."""


class Disposition(IntEnum):
    """The disposition of a message that has left its sub-queue, in the rows that cursors keep (D14)."""

    COMPLETED = 0
    RECEIVED_AND_DELETED = 1
    DEAD_LETTERED = 2
    EXPIRED = 3
    """Dropped. With dead-lettering on expiration it is `DEAD_LETTERED`."""
    PURGED = 4
    FORWARDED = 5
    CONSUMED = 6
    """Completed by the commit of an exclusive cursor."""
    LOST = 7
    """Removed since the store had lost its body."""


FINISHED = 16
"""Added to a `Disposition`, the state of an entry that has left its sub-queue and stays readable for a cursor.

Only the queries `Range` and `Scan` see such entries: not a page, a peek, a session or a count.
"""


class EntryRow(NamedTuple):
    """One stored entry with its message, the result of a page, a peek or a browse."""

    pos: int
    """The arrival position in the sub-queue. It equals ``sequence`` in the active sub-queue and is a count of its own
    elsewhere.
    """
    body: int
    """The key of the body row."""
    sequence: int
    """The counter part of the sequence number (lower 48 bits)."""
    enqueued_ms: int
    state: int
    delivery_count: int
    """Unsuccessful deliveries so far; one less than the truth while a lock batch covers the entry (D12)."""
    session: str | None
    """The session id on an entity that requires sessions; elsewhere it is only one of the message's properties."""
    due_ms: int | None
    """When an active or deferred entry expires, or a scheduled or delayed one becomes active; wall clock, ms since
    1970.
    """
    data: bytes
    """The stored form of the message (`partibus.message`); empty where a load did not ask for it."""


class LockBatchRow(NamedTuple):
    """One delivery batch under lock (D12): bit i of ``bitmap`` (little-endian bytes) stands for ``first_pos + i``.

    A settled entry has no row, so a set bit without an entry means nothing. Of two batches that cover a position, the
    one with the later deadline holds.
    """

    subqueue: int
    lock_id: int
    first_pos: int
    until_ms: int
    bitmap: bytes


class DueRows(NamedTuple):
    """Entries that are due."""

    rows: list[EntryRow]
    next_due_ms: int | None
    """When the next other entry of that sub-queue and state is due; None: there is none."""


class SubqueueCounts(NamedTuple):
    """Messages and bytes (stored form) in a sub-queue."""

    messages: int
    size_bytes: int


class CursorRow(NamedTuple):
    """One named reader of a sub-queue of a partition (D14)."""

    subqueue: int
    name: str
    position: int
    """The position below which its reader has everything."""
    disposition_position: int
    """The same position in the log of dispositions; -1: it does not read the log."""
    complete_from: int
    """The position below which finished messages may be missing, because the bound on retained ones was reached."""
    bound_bytes: int
    """The bound on finished messages in this sub-queue, as its reader asked; the largest of several cursors holds."""
    created_ms: int
    moved_ms: int
    """When `position` or `disposition_position` last rose."""
    epoch: int
    """Rises with each grant of exclusive reading."""
    until_ms: int
    """The end of the exclusive lease; 0: the cursor is not exclusive now."""


class DispositionRow(NamedTuple):
    """One line of the log of dispositions: a message that has left a sub-queue with a cursor."""

    number: int
    """Rises in the order in which messages leave; has gaps."""
    pos: int
    sequence: int
    disposition: int
    at_ms: int
    delivery_count: int


class SessionLockRow(NamedTuple):
    """The holder of a session (D21)."""

    session: str
    lock_id: int
    until_ms: int
    holder: str
    """The run of the broker that the holder is connected to."""


class Snapshot(NamedTuple):
    """The durable state of one partition that is needed to go on: counters, counts, and messages under lock.

    Everything else stays in the store and is paged in on demand, so the size of a snapshot follows what was in use, not
    the backlog.
    """

    next_sequence: int
    next_number: int
    session_state_bytes: int
    """The bytes of all session states of the partition."""
    counts: dict[int, SubqueueCounts]
    """Counts by sub-queue key."""
    lock_batches: list[LockBatchRow]
    locked_entries: list[tuple[int, EntryRow, int]]
    """(sub-queue key, entry without data, bytes of its data) of every entry that a lock batch covers."""
    next_due: dict[tuple[int, int], int]
    """(sub-queue key, state) -> when the first entry in that state is due, where one is."""
    inbound_marks: dict[int, int]
    """Key of a sub-queue that forwards to the partition -> the highest position received from there (D15).

    A negative key is a sink's: see `partition.protocol.commands.Enqueue`.
    """
    cursors: Sequence[CursorRow] = ()
    retained: Mapping[int, SubqueueCounts] = {}
    """Finished messages by sub-queue key that cursors have not passed yet. They are not in `counts`."""
    sinks: Mapping[int, int] = {}
    """Sink -> the batch that it committed last."""
    session_locks: Sequence[SessionLockRow] = ()
    left_off: Sequence[LeftOff] = ()
    """The numbers that the partition passed over, by generation of its store; most stores have none."""


def unwritten_partition(generations: Sequence[Generation]) -> Snapshot | None:
    """Return the state of a partition that was never written; None in the store's first generation."""
    if len(generations) == 1:
        return None
    first = generations[-1].first
    return Snapshot(first, first, 0, {}, [], [], {}, {}, left_off=left_off(generations, ()))


class RangeFrame(NamedTuple):
    """Many entries in one piece: columns of little-endian numbers, one after the other, and the messages behind them.

    The frame travels unchanged from the store's reader to the client.
    """

    count: int  # type: ignore[assignment]  # a tuple's own is of no use here
    next_pos: int
    """The position to go on from: behind the last entry, or ``to_pos`` when nothing is left below it."""
    data: bytes
    """The columns and messages.

    ``pos`` int64, ``sequence`` int64, ``enqueued_ms`` int64, ``due_ms`` int64 (-1: none), ``delivery_count`` int32,
    ``size`` int32, ``state`` uint8, each ``count`` times; then the stored forms (`partibus.message`), ``size`` bytes
    each.
    """


class Writes(Struct, eq=False):
    """The rows of one commit, applied in the order of the attributes below, in one transaction.

    A commit may insert a row and delete it again: a message received-and-deleted before its enqueue was durable.
    """

    counters: dict[int, tuple[int, int, int]] = {}
    """Partition row -> (next_sequence, next_number, session state bytes), where they changed. Made on first use."""
    rows: dict[int, None] = {}
    """The rows of the partitions that this commit writes for: an ordered set. The store ignores it."""
    counts: dict[int, tuple[int, int]] = {}
    """Sub-queue key -> (messages, bytes): absolute, since the owner is the only writer."""
    bodies: list[int | bytes] = []
    """Flat: body key, stored form."""
    replacing_bodies: int = 0
    """The number of bodies that replace others in this commit: not new messages."""
    entries: list[int | str | None] = []
    """Flat: entry key, body key, sequence, enqueued ms, state, delivery count, session, due ms."""
    entry_updates: list[int | None] = []
    """Flat: entry key, body key, state, delivery count, due ms.

    The store ignores the update of a missing entry. Of several updates of one entry the last counts.
    """
    session_states: dict[tuple[int, str], tuple[bytes | None, int]] = {}
    """(partition row, session) -> (state, updated ms); None removes the row."""
    duplicate_ids: list[int | bytes | None] = []
    """Flat: partition row, bucket, id (16 bytes), accepted ms, note about the original message or None.

    An id that the bucket has already gets the new time and note.
    """
    forgotten_duplicates: list[tuple[int, int, int]] = []
    """(partition row, bucket, most): delete up to ``most`` ids of buckets below ``bucket``."""
    inbound_marks: dict[tuple[int, int], int] = {}
    """(partition row, key of the source sub-queue) -> the highest position received from there (D15)."""
    executed: dict[str, list[int]] = {}
    """Executed requests of other brokers (`partition.runtime.executed`; D15).

    By run of the broker, flat: the number of a request that this commit answers, and the note about it.
    """
    executed_ms: int = 0
    """The time of these requests, by the owner's clock."""
    forgotten_executed_ms: int | None = None
    """Delete notes of requests executed before this time."""
    cursors: dict[tuple[int, str], CursorRow | None] = {}
    """(sub-queue key, name) -> the current row; None removes it."""
    retained: dict[int, tuple[int, int]] = {}
    """Sub-queue key -> (messages, bytes) that are finished and kept for cursors: absolute, as `counts`."""
    dispositions: list[int] = []
    """Flat: key of the log line (`partition.protocol.keys.entry_key` of sub-queue and number), pos, sequence,
    disposition, ms, delivery count.
    """
    forgotten_dispositions: list[tuple[int, int]] = []
    """Ranges of keys of log lines to delete, both ends included."""
    sink_ids: list[int | bytes] = []
    """Flat: partition row, sink, id (16 bytes), batch. An id that is there already gets the new batch."""
    new_sink_ids: list[tuple[int, int, int, list[bytes]]] = []
    """(partition row, sink, batch, ids) that no batch of the sink has: written before ``sink_ids``."""
    sink_batches: dict[tuple[int, int], int] = {}
    """(partition row, sink) -> the batch that it committed last."""
    forgotten_sink_ids: list[tuple[int, int, int, int]] = []
    """(partition row, sink, batch, most): delete up to ``most`` ids of that batch and earlier ones."""
    session_locks: dict[tuple[int, str], SessionLockRow | None] = {}
    """(partition row, session) -> its holder; None: free."""
    deleted_locks: list[int] = []
    """Lock keys: delete every row of that lock id."""
    lock_batches: dict[int, list[tuple[int, int, bytes]]] = {}
    """Lock key -> its rows (first pos, until ms, bitmap), all new: ``deleted_locks`` has removed earlier ones."""
    deleted_entries: list[tuple[int, int]] = []
    """Ranges of entry keys to delete, both ends included."""
    deleted_bodies: list[tuple[int, int]] = []
    """Ranges of body keys to delete, both ends included."""
    deleted_shared_bodies: list[int] = []
    """Keys of bodies to delete, unless an entry names them after all the above."""
    dropped_partitions: list[int] = []
    """Partition rows of deleted entities: delete all of their rows.

    With the entries go the bodies that they name in other partitions; shared ones as above.
    """
    now_ms: int = 0
    """The beginning of the commit by the owner's clock; 0 where that is moved by hand."""
    operations: int = 0
    """Messages enqueued, locked, settled or moved: the unit of the bound of a store's queue (D24)."""
    size_bytes: int = 0


ENTRY_COLUMNS = 8
BODY_COLUMNS = 2
UPDATE_COLUMNS = 5
DUPLICATE_COLUMNS = 5
DISPOSITION_COLUMNS = 6
SINK_ID_COLUMNS = 4


def executed_rows(writes: Writes) -> list[tuple[str, int, bytes]]:
    """Pack executed requests, one row per asker and commit.

    A row is (asker, ms, requests and notes as 64 bits each, little-endian).
    """
    return [
        (asker, writes.executed_ms, struct.pack(f"<{len(flat)}q", *flat)) for asker, flat in writes.executed.items()
    ]


def executed_requests(parts: Iterable[bytes]) -> dict[int, int]:
    """Unpack the parts of `executed_rows`."""
    return dict(pair for part in parts for pair in struct.iter_unpack("<qq", part))


LOCK_MS_MAX = 300_000
"""The longest lock that an entity can have."""


class StoreError(Exception):
    """A commit or a load failed.

    ``executed`` is False when surely nothing of the commit is stored, and None when the outcome is unknown until the
    store is opened again (after a failed sync, say).
    """

    def __init__(self, message: str, *, executed: bool | None = None) -> None:
        super().__init__(message)
        self.executed = executed


class StoreFull(StoreError):
    """An error for a full store; nothing of the commit is stored.

    Commits that only free room still work (the reserved space).
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, executed=False)


class StoreFenced(StoreError):
    """Another broker owns the store now (D19); nothing of the commit is stored, and no later commit will be."""

    def __init__(self, message: str) -> None:
        super().__init__(message, executed=False)


class Query(Struct, Generic[T_co]):
    """A query with an answer of type ``T_co`` (`partition.protocol.queries`)."""

    empty: ClassVar[Callable[[], Any]] = list
    """Makes the answer for a partition without rows."""

    @property
    def row(self) -> int | None:
        """The row of the partition that the query is about; None: it is about more than one."""
        return None

    def nothing(self) -> T_co:
        """Return the answer for a partition without rows."""
        found: T_co = type(self).empty()
        return found


class Store(Protocol):
    """One messaging store. Every call may raise `StoreError`.

    After a failed commit the owner closes the store and opens it anew; it never goes on using it.
    """

    @property
    def name(self) -> str:
        """The name for errors and health: a path, or a URL without its password."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether commits that bring messages would be accepted, not refused with `StoreFull`."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether this broker surely owns the store now (D19); without that, nothing may be granted (D20)."""
        ...

    @property
    def highest_ms(self) -> int:
        """The latest `Writes.now_ms` of all commits before the store was opened (D26)."""
        ...

    @property
    def epoch(self) -> int:
        """The number of this opening of the store: it rises with each, whichever broker opens it (D19)."""
        ...

    @property
    def durability(self) -> str:
        """The places of a finished commit, for the operator: "1 copy", "2 copies, synchronous"."""
        ...

    @property
    def generations(self) -> Sequence[Generation]:
        """The generations of the store, one at least, in the order of their numbers."""
        ...

    def set_time(self, now_ms: int) -> None:
        """Turn `highest_ms` back to ``now_ms``, durably: the clock that wrote it was wrong. Raises `StoreError`.

        Locks, session locks and exclusive leases end `LOCK_MS_MAX` later at most. Call this after opening and before a
        partition is loaded.
        """
        ...

    def begin_generation(self, above: int = 0) -> Generation:
        """Begin a generation, durably, of a store that went back in time. Raises `StoreError`.

        Every partition goes on with numbers above all that were given out, as far as can be known, and above ``above``.
        Call this after opening and before a partition is loaded.
        """
        ...

    def commit(self, writes: Writes) -> None:
        """Make all rows durable, or none. Returns after the sync."""
        ...

    def read(self, query: Query[T]) -> T:
        """Answer a query as of the last commit."""
        ...

    def close(self) -> None:
        """Close the store. Idempotent. Commits stay."""
        ...
