"""Queries to a messaging store: one class a question, answered by `partition.protocol.ports.Store.read`.

Every query sees committed rows only. A bound of entries below 1 finds nothing. Positions and sequence counters outside
of the possible range find nothing, and raise nothing.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from partibus.partition.protocol.keys import KIND_BITS
from partibus.partition.protocol.ports import DispositionRow, DueRows, EntryRow, Query, RangeFrame, Snapshot

T_co = TypeVar("T_co", covariant=True)


class OfRow(Query[T_co]):
    """A query that names the partition's row."""

    partition_row: int

    @property
    def row(self) -> int:
        """The partition's row."""
        return self.partition_row


class OfSubqueue(Query[T_co]):
    """A query that names a sub-queue by its key."""

    subqueue: int

    @property
    def row(self) -> int:
        """The partition's row."""
        return self.subqueue >> KIND_BITS


class Partition(OfRow[Snapshot | None]):
    """The durable state of a partition; None when it was never written and begins with number 1."""

    empty = type(None)


class Sizes(Query[dict[int, int]]):
    """The stored bytes of partitions by row, in all sub-queues and session states; unwritten ones are missing."""

    partition_rows: Sequence[int]


class Counts(Query[Mapping[int, tuple[int, int]]]):
    """Messages and bytes (stored form) of the first ``most`` sub-queues that hold any, by ascending key.

    There may be tens of thousands; plain tuples of numbers cost garbage collection nothing.
    """

    most: int


class TimedSubqueues(Query[Mapping[int, int]]):
    """When the first entry falls due, in ms, by key of the sub-queue; those without due times are missing."""


class CursorPartitions(Query[list[int]]):
    """The rows of the first ``most`` partitions that have cursors, in order."""

    most: int


class Page(OfSubqueue[list[EntryRow]]):
    """The first ACTIVE entries with ``pos >= from_pos`` in order of position.

    With ``session``, only entries of that session: sessions page apart (D3). A page has at least one entry if one
    exists, and otherwise at most ``max_bytes`` of data. A page may be smaller than both bounds allow: only an empty
    page means the end.
    """

    from_pos: int
    max_entries: int
    max_bytes: int
    session: str | None = None


class Due(OfSubqueue[DueRows]):
    """The entries in ``state`` due at ``until_ms`` or before, the earliest first; bounded as `Page`."""

    state: int
    until_ms: int
    max_entries: int
    max_bytes: int

    def nothing(self) -> DueRows:
        """Return no entries."""
        return DueRows([], None)


class DueCount(OfSubqueue[int]):
    """The number of entries in ``state`` that have a due time, with or without a body."""

    state: int

    empty = int


class BySequence(OfSubqueue[list[EntryRow]]):
    """The entries with these sequence counters, in any state and in any order; unknown ones are missing."""

    sequences: Sequence[int]


class SessionsBehind(OfSubqueue[list[str]]):
    """The first ``max_sessions`` sessions behind ``after`` that have entries in ``state``."""

    after: str | None
    max_sessions: int
    state: int = 0


class AbsentSessions(OfSubqueue[list[str]]):
    """The given sessions that have no entry in any state, in the given order."""

    sessions: Sequence[str]

    def nothing(self) -> list[str]:
        """Return all of them."""
        return list(self.sessions)


class SessionList(OfSubqueue[list[str]]):
    """``top`` sessions behind the first ``skip``.

    They are those with ACTIVE entries or a state, behind the name ``after``; with ``updated_after_ms``, those whose
    state was set later, whatever their name.
    """

    skip: int
    top: int
    updated_after_ms: int | None
    after: str | None = None


class SessionState(OfRow[bytes | None]):
    """The state of a session; None when it has none."""

    session: str

    empty = type(None)


class Duplicates(OfRow[dict[bytes, tuple[int, bytes]]]):
    """A query for those of ``ids`` that are in ``first_bucket`` or a later one.

    With each the time in ms when it was last accepted, and the note about the original message; empty: none.
    """

    first_bucket: int
    ids: Sequence[bytes]

    empty = dict


class DuplicatesBehind(OfRow[list[tuple[int, bytes, int]]]):
    """(bucket, id, accepted ms) in order, behind ``after`` = (bucket, id); an empty answer ends the scan."""

    after: tuple[int, bytes]
    max_ids: int


class Executed(Query[dict[int, int]]):
    """The requests of one run of a broker that commits have answered, with the note about each."""

    asker: str


class Bodies(Query[list[bytes | None]]):
    """Stored forms in the order of ``keys``; None for a body that does not exist."""

    keys: Sequence[int]


class Peek(OfSubqueue[list[EntryRow]]):
    """The entries in any state with ``sequence >= from_sequence`` in order of sequence; bounded as `Page`.

    With ``session``, only the entries of that session.
    """

    from_sequence: int
    max_entries: int
    max_bytes: int
    session: str | None = None


class Browse(OfSubqueue[list[EntryRow]]):
    """The entries in any state with ``from_pos <= pos < to_pos`` in order of position; bounded as `Page`."""

    from_pos: int
    to_pos: int
    max_entries: int
    max_bytes: int


class Range(OfSubqueue[RangeFrame]):
    """ACTIVE, DEFERRED and DELAYED entries with ``from_pos <= pos < to_pos`` in order, packed; bounded as `Page`.

    With ``finished`` also entries that have left and are kept for cursors. Scheduled entries are missing: they get
    another position when they are due.
    """

    from_pos: int
    to_pos: int
    max_entries: int
    max_bytes: int
    finished: bool

    def nothing(self) -> RangeFrame:
        """Return an empty frame that ends the range."""
        return RangeFrame(0, self.to_pos, b"")


class Scan(OfSubqueue[list[tuple[EntryRow, int]]]):
    """Entries in any state, finished ones too, with ``from_pos <= pos < to_pos``, in order of position.

    Without their data, but with its size in bytes. Only an empty answer means the end.
    """

    from_pos: int
    to_pos: int
    max_entries: int


class Dispositions(OfSubqueue[list[DispositionRow]]):
    """Lines of the log of dispositions with ``number >= from_number`` in order."""

    from_number: int
    max_rows: int


class SinkIds(OfRow[set[bytes]]):
    """A query for those of ``ids`` that the sink has stored and not forgotten."""

    sink: int
    ids: Sequence[bytes]

    empty = set


class SinkIdCount(OfRow[int]):
    """The number of ids that the sink has of ``batch`` and earlier ones."""

    sink: int
    batch: int

    empty = int
