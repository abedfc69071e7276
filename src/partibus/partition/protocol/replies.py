"""Replies of a partition.

They are plain values, as the commands are. ``request`` and ``receiver`` are the numbers of the command.
"""

from collections.abc import Sequence
from struct import error, unpack

from msgspec import Struct, field

from partibus.partition.protocol.commands import Command
from partibus.partition.protocol.generations import LeftOff
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.ports import DispositionRow, EntryRow


class Accepted(Struct):
    """The messages have the sequence counters from ``first_sequence`` on.

    A dropped duplicate has taken a number, too.
    """

    request: int
    first_sequence: int
    duplicates: int = 0
    """The number of known messages of a sink or of a forwarder. The request is carried out all the same."""
    known: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """The sequence counter and tag of the original, by the index of each duplicate in the command."""


class Refused(Struct):
    """A refusal: the partition is full and stored no message (row P21)."""

    request: int
    size_bytes: int
    size_bytes_max: int
    numbers: bool = False
    """Whether the partition has run out of numbers, not of bytes."""
    copies: bool = False
    """Whether the messages would make too many copies for subscriptions; the sizes are numbers of copies."""


class Granted(Struct):
    """Entries for a receiver. ``lock_id`` is 0 for deleted entries, and the reservation's id for reserved ones."""

    receiver: int
    kind: int
    lock_id: int
    until_ms: int
    entries: list[Entry]
    ended: bool
    """Whether the receiver's demand has ended: it has got its count or its bytes."""
    series: int = 0
    """The packed `partition.protocol.generations.Series` of the sub-queue, for a forwarder."""
    refusals: int = 0
    """The number of times that messages of the sub-queue became transfer dead letters, for a forwarder."""


class Locked(Struct):
    """The entries of a `LockReserved` that had not lapsed. ``lock_id`` is 0 where they were deleted."""

    request: int
    kind: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


class Cancelled(Struct):
    """The receiver's demand has ended; ``count`` messages of it were open."""

    request: int
    count: int


class Settled(Struct):
    """All tokens were settled except those at the indexes in ``lost``, whose locks had ended."""

    request: int
    lost: list[int]
    gone: list[int] = field(default_factory=list)
    """The part of ``lost`` whose messages do not exist, where the command asks for it."""


class GroupsGranted(Struct):
    """Messages of message groups, under locks that end at ``until_ms``."""

    request: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


class Done(Struct):
    """The request was carried out."""

    request: int


class NotFound(Struct):
    """A refusal: no message that the request could be about has these sequence counters."""

    request: int
    sequences: list[int]


class LocksRenewed(Struct):
    """The new deadlines in the order of the tokens."""

    request: int
    until_ms: list[int]


class DeferredGranted(Struct):
    """Deferred messages in the order of the request; ``lock_id`` is 0 where they were deleted."""

    request: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


class Purged(Struct):
    """The number of removed messages. Fewer than requested does not mean that none is left."""

    request: int
    count: int


class SessionAccepted(Struct):
    """A session is held. ``lock_id`` names the lock in all further commands and in the lock tokens of its messages."""

    request: int
    session: str
    lock_id: int
    until_ms: int
    is_stored: bool = False
    """Whether the lock outlives the partition's owner. If so, a holder that loses the owner asks the next one
    (`AcceptSession.resumes`).
    """


class SessionHeld(Struct):
    """Another receiver holds the session until ``until_ms``."""

    request: int
    until_ms: int


class NoSession(Struct):
    """A refusal: no free session has messages."""

    request: int


class SessionRenewed(Struct):
    """The new deadline of the session's lock, and of every message granted under it."""

    request: int
    until_ms: int


class SessionLost(Struct):
    """A refusal: the session's lock has ended."""

    request: int


class SessionEnded(Struct):
    """Tells the holder of a session that its lock has expired."""

    receiver: int
    lock_id: int


class SessionState(Struct):
    """The state that the session's holders set last."""

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
    """A refused transaction: the command at ``index`` is the reason."""

    request: int
    index: int
    because: "Settled | Refused"
    """The reply that this command alone would have got."""


class Rows(Struct):
    """The entries that a peek or browse found."""

    request: int
    rows: list[EntryRow]


class RangeRead(Struct):
    """A part of a range, packed (`partition.protocol.ports.RangeFrame`)."""

    request: int
    count: int
    next_pos: int
    data: bytes
    complete_from: int = 0
    """The position below which finished messages of the named cursor may be missing."""


class DispositionsRead(Struct):
    """A part of the log of dispositions; an empty one marks its current end."""

    request: int
    rows: list[DispositionRow]


class CursorOpened(Struct):
    """The position of a cursor."""

    request: int
    epoch: int
    """The epoch of its exclusive lease; 0: it has none."""
    until_ms: int
    position: int
    disposition_position: int
    complete_from: int
    end_pos: int
    """A position above every one in the sub-queue."""
    made: bool = False
    """Whether the cursor is new."""


class CursorHeld(Struct):
    """Another cursor reads the sub-queue exclusively."""

    request: int
    name: str
    until_ms: int
    paused: bool = False
    """Whether that cursor still waits for locks to end; grants are stopped meanwhile."""


class CursorBusy(Struct):
    """Messages are under lock, and grants are stopped for a while. Ask again soon, at ``until_ms`` at the latest."""

    request: int
    locked: int
    until_ms: int


class CursorRefused(Struct):
    """The cursor can't be opened like this, however often it is requested."""

    request: int
    forwards: bool
    """Whether the reason is exclusive reading of a sub-queue that forwards, whose messages may be stored elsewhere
    already.

    Otherwise the sub-queue has as many cursors as it may.
    """


class CursorLost(Struct):
    """A refusal: the cursor does not exist, or its lease has ended."""

    request: int
    reason: str


class ReceiveRefused(Struct):
    """Tells a receiver, waiting or new, that a cursor reads the sub-queue exclusively. Its demand has ended."""

    receiver: int
    kind: int
    cursor: str
    until_ms: int


class CursorInfo(Struct):
    """A cursor in the reply `Inspected`."""

    kind: int
    name: str
    position: int
    disposition_position: int
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
    """Counts by sub-queue kind.

    Positions of the active sub-queue are below ``end_pos``, those of a dead-letter sub-queue below ``end_number``.
    """

    request: int
    end_pos: int
    end_number: int
    subqueues: dict[int, SubqueueInfo]
    has_scheduled: bool = False
    """Whether scheduled messages wait."""
    activated_ms: int = 0
    """When a scheduled message last became active since the partition was loaded; 0: never."""
    scheduled: int = 0
    """The number of scheduled messages, if the request asked for it."""
    subscriptions_bytes: int = 0
    """The bytes of this partition's messages that the subscriptions of a topic hold."""
    cursors: list[CursorInfo] = field(default_factory=list)
    retained: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Finished messages kept for cursors, and their bytes, by sub-queue kind."""
    left_off: list[LeftOff] = field(default_factory=list)
    """The numbers that were passed over when generations of the store began."""


class Moved(Struct):
    """A refusal: slots of some messages belong to other partitions (ADR 0026). No message was stored."""

    request: int
    places: dict[int, int]
    """The partition by the index of a message; the others belong here. Without any, another partition has given out the
    sequence counters of the messages.
    """


class ScreenFirst(Struct):
    """A request to ask other partitions for duplicates first (`CheckIds`). No message was stored."""

    request: int
    sources: dict[int, list[int]]
    """Indexes of messages by former owner of their slots. Empty: their ids, which are unique in all partitions, have to
    be announced here, and every partition asked."""


class SessionElsewhere(Struct):
    """A referral of a named session to another partition."""

    request: int
    partition: int
    resident: bool
    """Whether that partition had the session before and still has messages of it."""


class SlotsGiven(Struct):
    """The answer to `GiveSlots`."""

    request: int
    given: bool
    """Whether the slots are given; else the partition has given out too high sequence counters."""
    next_sequence: int


class GroupsHeld(Struct):
    """Groups that a target holds back; empty: another request has replaced this one."""

    request: int
    names: list[str]


class GroupsGone(Struct):
    """The groups of an `AskGroups` of which the source has nothing, with the states of their sessions."""

    request: int
    gone: list[tuple[str, bytes | None]]


class SlotsScanned(Struct):
    """Groups of a `ScanSlots` that have something here."""

    request: int
    names: list[str]
    after: str | None
    """The name to go on behind; None: all were seen."""


class IdsKnown(Struct):
    """The answer to `CheckIds`."""

    request: int
    known: list[int]
    """The indexes of messages that were accepted here."""
    sources: list[int]
    """Partitions that had the slots before, and may know others."""
    originals: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """The sequence counter and tag of the original, by the index of a known message that has a tag."""
    token: int = 0
    """The announcement of the ids that are not known, for the partition's own asker."""


class Failed(Struct):
    """The store failed. ``executed`` is False when surely nothing happened, and None when the outcome is unknown."""

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
    | GroupsGranted
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
    | DispositionsRead
    | CursorOpened
    | CursorHeld
    | CursorBusy
    | CursorRefused
    | CursorLost
    | ReceiveRefused
    | Inspected
    | Moved
    | ScreenFirst
    | SessionElsewhere
    | SlotsGiven
    | GroupsHeld
    | GroupsGone
    | SlotsScanned
    | IdsKnown
    | Failed
)


def request_of(command: "Command | Reply") -> int:
    """Return the number that ties a command to its reply; 0: there is no reply."""
    return getattr(command, "request", 0)


def refused(command: Command, message: str) -> Failed:
    """Make the reply to a command of which surely nothing was done."""
    return Failed(request_of(command), False, False, message)


def pack_attempt(granted_ms: int, positions: Sequence[int]) -> bytes:
    """Pack the time of a grant and its positions, in the order of the answer."""
    return b"".join(number.to_bytes(8, "big") for number in (granted_ms, *positions))


def unpack_attempt(packed: bytes) -> tuple[int, list[int]]:
    """Return what `pack_attempt` has packed; no positions for any other bytes."""
    try:
        granted_ms, *positions = unpack(f">{len(packed) // 8}Q", packed)
    except (error, ValueError):
        return 0, []
    return granted_ms, positions
