"""What happened to entries, in the past tense: the record of a step that `journal` turns into rows.

Memory has already changed when an event is seen; a store that fails before the rows are durable makes the partition
forget its memory and load again (D11). There is no replay: the store holds the image, not the history.
"""

from msgspec import Struct

from partibus.partition.core.cursors import Cursor
from partibus.partition.protocol.entry import Entry
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.ports import Disposition


class Enqueued(Struct):
    """New entries, in order of position."""

    entries: list[Entry]
    kind: int = SubqueueKind.ACTIVE
    with_bodies: bool = True
    """False: their bodies are stored by another event of the same commit."""


class Written(Struct):
    """Express messages are no longer in memory only (D18). Nobody waits for it."""

    entries: list[Entry]
    """Of the active sub-queue, as they are now."""
    locks: list[tuple[int, list[tuple[int, list[int]]]]]
    """Lock ids that the store does not know, and what is locked under each: as `LockChanged.parts`."""


class Published(Struct):
    """Messages of a topic are stored, for the subscriptions to name."""

    bodies: list[int | bytes]
    """Flat: body key, stored form."""
    are_new: bool = True
    """False: they take the place of what was stored before, so they are not refused for lack of room."""


class Locked(Struct):
    """One delivery batch went out under one lock. Written lazily: nobody waits for it (D12)."""

    kind: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


class Removed(Struct):
    """Entries are gone: completed, received-and-deleted, expired."""

    kind: int
    entries: list[Entry]
    disposition: Disposition | None = None
    """None: they had not become active yet."""


class Kept(Struct):
    """As `Removed`, but they stay readable for cursors (D14)."""

    kind: int
    entries: list[Entry]
    disposition: Disposition


class Cleared(Struct):
    """Entries that were `Kept` go. Positions ascend; keys of bodies in their order."""

    kind: int
    positions: list[int]
    bodies: list[int]


class RetainedCounted(Struct):
    """So many entries, and bytes of them, are `Kept` now."""

    kind: int
    messages: int
    size_bytes: int


class CursorSet(Struct):
    """A cursor is what it is now."""

    kind: int
    cursor: Cursor


class CursorDropped(Struct):
    """A cursor is gone."""

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
    """State, delivery count, due time or body of entries are what they are now."""

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
    """Nothing of a delivery batch is locked any more."""

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
    """Sequence counters were given to somebody without an entry: the counter is to be durable all the same."""


class SessionStateSet(Struct):
    """The holder of a session has set its state; None clears it."""

    session: str
    state: bytes | None
    updated_ms: int


class SessionLocked(Struct):
    """Somebody holds a session, where several brokers share the stores (D21). Of a renewal somebody waits for that."""

    session: str
    lock_id: int
    until_ms: int
    holder: str
    is_renewed: bool


class SessionUnlocked(Struct):
    """Nobody holds a session any more whose lock was stored."""

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
    """Rows of a sink are stored, or were: their ids are kept, as those of this batch (row D5)."""

    sink: int
    batch: int
    ids: list[bytes]
    are_new: bool = False
    """No batch has any of them."""


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
