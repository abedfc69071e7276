"""Changes to entries, in the past tense: the record of a step that `journal` turns into rows.

Memory has already changed when an event is seen. A store that fails before the rows are durable makes the partition
drop its memory and load again (D11). There is no replay: the store holds the image, not the history.
"""

from msgspec import Struct

from partibus.partition.core.cursors import Cursor
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.ports import Disposition


class Enqueued(Struct):
    """New entries, in order of position."""

    entries: list[Entry]
    kind: int = SubqueueKind.ACTIVE
    with_bodies: bool = True
    """False: their bodies are stored by another event of the same commit."""


class Written(Struct):
    """Express messages were written to the store (D18). No reply waits for it."""

    entries: list[Entry]
    """Entries of the active sub-queue, as they are now."""
    locks: list[tuple[int, list[tuple[int, list[int]]]]]
    """Lock ids that the store does not know, and the entries locked under each, as in `LockChanged.parts`."""


class Published(Struct):
    """Messages of a topic are stored, for the subscriptions to name."""

    bodies: list[int | bytes]
    """Flat: body key, stored form."""
    are_new: bool = True
    """Whether the entries are new; False: they replace stored ones, and are not refused for lack of room."""


class Locked(Struct):
    """One delivery batch was granted under one lock. Written lazily: no reply waits for it (D12)."""

    kind: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


class Removed(Struct):
    """Entries were completed, received-and-deleted, or have expired."""

    kind: int
    entries: list[Entry]
    disposition: Disposition | None = None
    """None: they had not become active yet."""


class Kept(Struct):
    """Entries removed as by `Removed`, but readable for cursors (D14)."""

    kind: int
    entries: list[Entry]
    disposition: Disposition


class Cleared(Struct):
    """Entries that were `Kept` go. Positions ascend; keys of bodies in their order."""

    kind: int
    positions: list[int]
    bodies: list[int]


class RetainedCounted(Struct):
    """The number and bytes of the entries that are `Kept` now."""

    kind: int
    messages: int
    size_bytes: int


class CursorSet(Struct):
    """The state of a cursor has changed."""

    kind: int
    cursor: Cursor


class CursorDropped(Struct):
    """A cursor was removed."""

    kind: int
    name: str


class DispositionsLogged(Struct):
    """Messages have left. Flat: a line's number, and the other columns of `partition.protocol.ports.DispositionRow`."""

    kind: int
    rows: list[int]


class DispositionsForgotten(Struct):
    """The lines of the log from one number to another, both included, go."""

    kind: int
    first: int
    last: int


class Updated(Struct):
    """The state, delivery count, due time or body of entries has changed."""

    kind: int
    entries: list[Entry]


class Rewritten(Struct):
    """Entries have got new bodies: pairs of (old body key, entry as it is). Another event says where they are."""

    pairs: list[tuple[int, Entry]]


class LockChanged(Struct):
    """A delivery batch is locked otherwise than before: part of it went back, or was renewed."""

    kind: int
    lock_id: int
    parts: list[tuple[int, list[int]]]
    """(until ms, positions) of all that is still locked."""


class Unlocked(Struct):
    """The last lock of a delivery batch has ended."""

    kind: int
    lock_id: int


class Moved(Struct):
    """Entries went from one sub-queue to another; pairs of (as it was, as it is)."""

    kind: int
    to_kind: int
    pairs: list[tuple[Entry, Entry]]
    kept: bool = False
    """Dead-lettered, and as they were they stay readable for cursors; each new one has a body of its own."""


class NumbersTaken(Struct):
    """Sequence counters were given out without an entry: the counter must be durable all the same."""


class SessionStateSet(Struct):
    """The holder of a session has set its state; None clears it."""

    session: str
    state: bytes | None
    updated_ms: int


class SessionLocked(Struct):
    """A session was locked, where several brokers share the stores (D21). The reply to a renewal waits for it."""

    session: str
    lock_id: int
    until_ms: int
    holder: str
    is_renewed: bool


class SessionUnlocked(Struct):
    """A session whose lock was stored has no holder."""

    session: str


class IdsRemembered(Struct):
    """Message ids were accepted, for the duplicate detection."""

    bucket: int
    accepted_ms: int
    ids: list[bytes]
    originals: list[bytes | None] | None = None
    """Notes about their messages, in the order of the ids (`partition.core.duplicates.note_of`)."""


class IdsForgotten(Struct):
    """Up to ``most`` ids of buckets below this one are out of the window."""

    bucket: int
    most: int


class MarkRaised(Struct):
    """Messages have come from a sub-queue that forwards, up to this position there (D15)."""

    source: int
    pos: int


class SinkIdsKept(Struct):
    """Rows of a sink are stored now, or were before: their ids are kept as those of this batch (row D5)."""

    sink: int
    batch: int
    ids: list[bytes]
    are_new: bool = False
    """Whether no batch has any of them."""


class SinkCommitted(Struct):
    """A sink has committed a batch."""

    sink: int
    batch: int


class SinkIdsForgotten(Struct):
    """Up to ``most`` ids of this batch and earlier ones go."""

    sink: int
    batch: int
    most: int


Event = (
    Enqueued
    | Written
    | Published
    | Locked
    | Removed
    | Kept
    | Cleared
    | RetainedCounted
    | CursorSet
    | CursorDropped
    | DispositionsLogged
    | DispositionsForgotten
    | Updated
    | Rewritten
    | LockChanged
    | Unlocked
    | Moved
    | NumbersTaken
    | SessionStateSet
    | SessionLocked
    | SessionUnlocked
    | IdsRemembered
    | IdsForgotten
    | MarkRaised
    | SinkIdsKept
    | SinkCommitted
    | SinkIdsForgotten
)
