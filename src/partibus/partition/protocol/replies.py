"""What a partition answers.

Plain values, as the commands are. ``request`` and ``receiver`` are the numbers of the command that is answered.
"""

from msgspec import Struct, field

from partibus.partition.protocol.commands import Command
from partibus.partition.protocol.entry import Entry
from partibus.partition.protocol.generations import LeftOff
from partibus.partition.protocol.ports import EntryRow, FateRow


class Accepted(Struct):
    """The messages have the sequence counters ``first_sequence``, ``first_sequence + 1``, and so on. A duplicate that
    was dropped has taken a number, too."""

    request: int
    first_sequence: int
    duplicates: int = 0
    """Of a sink, and of what is forwarded: so many had come before. The request is carried out all the same."""


class Refused(Struct):
    """Nothing was stored: the partition is full (row P21)."""

    request: int
    size_bytes: int
    size_bytes_max: int
    numbers: bool = False
    """The partition has given out so many of its numbers, not stored so many bytes."""


class Granted(Struct):
    """Entries for a receiver. ``lock_id`` is 0 where they were deleted, the reservation's id where reserved."""

    receiver: int
    kind: int
    lock_id: int
    until_ms: int
    entries: list[Entry]
    ended: bool
    """The receiver waits for nothing any more: its count or its bytes are used up."""


class Locked(Struct):
    """What became of a `LockReserved`: the entries that had not lapsed. ``lock_id`` is 0 where they were deleted."""

    request: int
    kind: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


class Cancelled(Struct):
    """Nothing more will be granted; ``count`` had been waited for."""

    request: int
    count: int


class Settled(Struct):
    """All tokens were settled but those at the indexes in ``lost``: their lock had ended."""

    request: int
    lost: list[int]


class Done(Struct):
    """The request was carried out."""

    request: int


class NotFound(Struct):
    """Nothing was done: these sequence counters name no message that the request could be about."""

    request: int
    sequences: list[int]


class LocksRenewed(Struct):
    """Deadlines in the order of the tokens."""

    request: int
    until_ms: list[int]


class DeferredGranted(Struct):
    """Deferred messages in the order asked for; ``lock_id`` is 0 where they were deleted."""

    request: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


class Purged(Struct):
    """So many messages were removed; fewer than asked for does not say that none is left."""

    request: int
    count: int


class SessionAccepted(Struct):
    """A session is held. ``lock_id`` names the lock in all further commands and in the lock tokens of its messages."""

    request: int
    session: str
    lock_id: int
    until_ms: int
    is_stored: bool = False
    """The lock outlives the owner of the partition: who loses that asks the next one (`AcceptSession.resumes`)."""


class SessionHeld(Struct):
    """Somebody else holds the session until then."""

    request: int
    until_ms: int


class NoSession(Struct):
    """No session has messages and is free."""

    request: int


class SessionRenewed(Struct):
    """The session's lock, and that of every message handed out under it, ends then."""

    request: int
    until_ms: int


class SessionLost(Struct):
    """The session's lock has ended; nothing was done."""

    request: int


class SessionEnded(Struct):
    """Told to the receiver that held a session: its lock ran out."""

    receiver: int
    lock_id: int


class SessionState(Struct):
    """What the session's holders last set."""

    request: int
    state: bytes | None


class Sessions(Struct):
    """Names of sessions."""

    request: int
    sessions: list[str]


class Transacted(Struct):
    """Everything was done."""

    request: int


class TransactionRefused(Struct):
    """Nothing was done, because of the command at ``index``."""

    request: int
    index: int
    because: "Settled | Refused"
    """What that command alone would have been answered."""


class Rows(Struct):
    """What a peek or browse found."""

    request: int
    rows: list[EntryRow]


class RangeRead(Struct):
    """A part of a range, packed (`partition.protocol.ports.RangeFrame`)."""

    request: int
    count: int
    next_pos: int
    data: bytes
    complete_from: int = 0
    """Of the cursor that was named: below it, finished messages may be missing."""


class FatesRead(Struct):
    """A part of the log of fates; an empty one says that this is its end now."""

    request: int
    rows: list[FateRow]


class CursorOpened(Struct):
    """Where a cursor stands."""

    request: int
    epoch: int
    """Of its exclusive lease; 0: it has none."""
    until_ms: int
    position: int
    fate_position: int
    complete_from: int
    end_pos: int
    """Above every position given so far in the sub-queue."""
    made: bool = False
    """There was no such cursor before."""


class CursorHeld(Struct):
    """Another cursor reads the sub-queue exclusively."""

    request: int
    name: str
    until_ms: int
    paused: bool = False
    """It does not yet: hand-outs are stopped until then, for locks to come to an end."""


class CursorBusy(Struct):
    """Messages are under lock. Nobody is handed more for a while: ask again soon, at ``until_ms`` at the latest."""

    request: int
    locked: int
    until_ms: int


class CursorRefused(Struct):
    """The cursor can't be opened so as it was asked for, however often it is."""

    request: int
    forwards: bool
    """It was to read alone what goes on to another entity, where some of it may be stored already. Otherwise the
    sub-queue has as many cursors as it may."""


class CursorLost(Struct):
    """Nothing was done: there is no such cursor, or its lease has ended."""

    request: int
    reason: str


class ReceiveRefused(Struct):
    """Told to a receiver, waiting or new: a cursor reads the sub-queue exclusively. It waits for nothing any more."""

    receiver: int
    kind: int
    cursor: str
    until_ms: int


class CursorInfo(Struct):
    """What an `Inspected` says of a cursor."""

    kind: int
    name: str
    position: int
    fate_position: int
    complete_from: int
    epoch: int
    until_ms: int
    moved_ms: int
    bound_bytes: int = 0


class SubqueueInfo(Struct):
    """Counts of one sub-queue of one partition."""

    messages: int
    size_bytes: int
    locked: int


class Inspected(Struct):
    """Counts by sub-queue kind. Positions of the active sub-queue are below ``end_pos``; a dead-letter sub-queue's are
    below ``end_number``."""

    request: int
    end_pos: int
    end_number: int
    subqueues: dict[int, SubqueueInfo]
    has_scheduled: bool = False
    """Messages wait for their time."""
    activated_ms: int = 0
    """When a scheduled message became active last, since the partition was loaded; 0: none did."""
    scheduled: int = 0
    """How many messages wait for their time, if that was asked for."""
    subscriptions_bytes: int = 0
    """Of a topic: what its subscriptions hold of this partition's messages."""
    cursors: list[CursorInfo] = field(default_factory=list)
    retained: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By sub-queue kind: finished messages that are kept for cursors, and their bytes."""
    left_off: list[LeftOff] = field(default_factory=list)
    """The numbers that were passed over when generations of the store began."""


class Failed(Struct):
    """The store could not do it. ``executed`` is False when surely nothing happened, None when nobody can tell."""

    request: int
    executed: bool | None
    full: bool
    message: str


Reply = (
    Accepted
    | Refused
    | Granted
    | Locked
    | Cancelled
    | Settled
    | Done
    | NotFound
    | LocksRenewed
    | DeferredGranted
    | Purged
    | SessionAccepted
    | SessionHeld
    | NoSession
    | SessionRenewed
    | SessionLost
    | SessionEnded
    | SessionState
    | Sessions
    | Transacted
    | TransactionRefused
    | Rows
    | RangeRead
    | FatesRead
    | CursorOpened
    | CursorHeld
    | CursorBusy
    | CursorRefused
    | CursorLost
    | ReceiveRefused
    | Inspected
    | Failed
)


def request_of(command: "Command | Reply") -> int:
    """The number by which somebody waits for the answer to a command, or gets this one; 0: nobody does."""
    return getattr(command, "request", 0)


def refused(command: Command, message: str) -> Failed:
    """The answer to a command of which surely nothing was done."""
    return Failed(request_of(command), False, False, message)
