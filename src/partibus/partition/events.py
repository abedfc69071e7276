"""What happened to entries, in the past tense: the record of a step that `journal` turns into rows.

Memory has already changed when an event is seen; a store that fails before the rows are durable makes the partition
forget its memory and load again (D11). There is no replay: the store holds the image, not the history.
"""

from dataclasses import dataclass

from partibus.partition.cursors import Cursor
from partibus.partition.entry import Entry
from partibus.partition.keys import SubqueueKind
from partibus.partition.ports import Fate


@dataclass(slots=True)
class Enqueued:
    """New entries, in order of position."""

    entries: list[Entry]
    kind: int = SubqueueKind.ACTIVE
    with_bodies: bool = True
    """False: their bodies are stored by another event of the same commit."""


@dataclass(slots=True)
class Written:
    """Express messages are no longer in memory only (D18). Nobody waits for it."""

    entries: list[Entry]
    """Of the active sub-queue, as they are now."""
    locks: list[tuple[int, list[tuple[int, list[int]]]]]
    """Lock ids that the store does not know, and what is locked under each: as `LockChanged.parts`."""


@dataclass(slots=True)
class Published:
    """Messages of a topic are stored, for the subscriptions to name."""

    bodies: list[int | bytes]
    """Flat: body key, stored form."""
    are_new: bool = True
    """False: they take the place of what was stored before, so they are not refused for lack of room."""


@dataclass(slots=True)
class Locked:
    """One delivery batch went out under one lock. Written lazily: nobody waits for it (D12)."""

    kind: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


@dataclass(slots=True)
class Removed:
    """Entries are gone: completed, received-and-deleted, expired."""

    kind: int
    entries: list[Entry]
    fate: Fate | None = None
    """None: they had not become active yet."""


@dataclass(slots=True)
class Kept:
    """As `Removed`, but they stay readable for cursors (D14)."""

    kind: int
    entries: list[Entry]
    fate: Fate


@dataclass(slots=True)
class Cleared:
    """Entries that were `Kept` go. Positions ascend; keys of bodies in their order."""

    kind: int
    positions: list[int]
    bodies: list[int]


@dataclass(slots=True)
class RetainedCounted:
    """So many entries, and bytes of them, are `Kept` now."""

    kind: int
    messages: int
    size_bytes: int


@dataclass(slots=True)
class CursorSet:
    """A cursor is what it is now."""

    kind: int
    cursor: Cursor


@dataclass(slots=True)
class CursorDropped:
    """A cursor is gone."""

    kind: int
    name: str


@dataclass(slots=True)
class FatesLogged:
    """Messages have left. Flat: number of the line, and the other columns of `partibus.partition.ports.FateRow`."""

    kind: int
    rows: list[int]


@dataclass(slots=True)
class FatesForgotten:
    """The lines of the log from one number to another, both included, go."""

    kind: int
    first: int
    last: int


@dataclass(slots=True)
class Updated:
    """State, delivery count, due time or body of entries are what they are now."""

    kind: int
    entries: list[Entry]


@dataclass(slots=True)
class Rewritten:
    """Entries have got new bodies: pairs of (old body key, entry as it is). Another event says where they are."""

    pairs: list[tuple[int, Entry]]


@dataclass(slots=True)
class LockChanged:
    """A delivery batch is locked otherwise than before: part of it went back, or was renewed."""

    kind: int
    lock_id: int
    parts: list[tuple[int, list[int]]]
    """(until ms, positions) of all that is still locked."""


@dataclass(slots=True)
class Unlocked:
    """Nothing of a delivery batch is locked any more."""

    kind: int
    lock_id: int


@dataclass(slots=True)
class Moved:
    """Entries went from one sub-queue to another; pairs of (as it was, as it is)."""

    kind: int
    to_kind: int
    pairs: list[tuple[Entry, Entry]]
    kept: bool = False
    """Dead-lettered, and as they were they stay readable for cursors; each new one has a body of its own."""


@dataclass(slots=True)
class NumbersTaken:
    """Sequence counters were given to somebody without an entry: the counter is to be durable all the same."""


@dataclass(slots=True)
class SessionStateSet:
    """The holder of a session has set its state; None clears it."""

    session: str
    state: bytes | None
    updated_ms: int


@dataclass(slots=True)
class SessionLocked:
    """Somebody holds a session, where several brokers share the stores (D21). Of a renewal somebody waits for that."""

    session: str
    lock_id: int
    until_ms: int
    holder: str
    is_renewed: bool


@dataclass(slots=True)
class SessionUnlocked:
    """Nobody holds a session any more whose lock was stored."""

    session: str


@dataclass(slots=True)
class IdsRemembered:
    """Message ids were accepted, for the duplicate detection."""

    bucket: int
    accepted_ms: int
    ids: list[bytes]


@dataclass(slots=True)
class IdsForgotten:
    """Up to ``most`` ids of buckets below this one are out of the window."""

    bucket: int
    most: int


@dataclass(slots=True)
class MarkRaised:
    """Messages have come from a sub-queue that forwards, up to this position there (D15)."""

    source: int
    pos: int


@dataclass(slots=True)
class SinkIdsKept:
    """Rows of a sink are stored, or were: their ids are kept, as those of this batch (row D5)."""

    sink: int
    batch: int
    ids: list[bytes]
    are_new: bool = False
    """No batch has any of them."""


@dataclass(slots=True)
class SinkCommitted:
    """A sink has committed a batch."""

    sink: int
    batch: int


@dataclass(slots=True)
class SinkIdsForgotten:
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
    | FatesLogged
    | FatesForgotten
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
