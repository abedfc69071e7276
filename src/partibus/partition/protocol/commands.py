"""What a partition can be asked.

All of it is plain values that can be written down and sent to another broker (D3), as are the answers (`replies`).
``request`` and ``receiver`` are numbers that the asker chose; answers carry them back.
"""

from enum import Enum

from msgspec import Struct, field

from partibus.message import Message
from partibus.partition.protocol.fan_out import Planned, Unfiltered

LockToken = tuple[int, int]
"""(lock id, position): names one delivery of one entry."""


class Outcome(Enum):
    """How a receiver settles a message that it holds under lock."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    """Back to its place, counted as a delivery."""
    RELEASE = "release"
    """Back to its place, not counted: it was prefetched and never looked at."""
    DEAD_LETTER = "dead-letter"
    DEFER = "defer"
    """Left alone until somebody asks for it by its sequence number."""


class Enqueue(Struct):
    """Store messages in order, all or none."""

    request: int
    messages: list[Message]
    first_sequence: int | None = None
    """Their sequence counters, taken with `TakeNumbers` before; None: the next ones."""
    origin: tuple[int, list[int]] | None = None
    """Of forwarded messages (D15): key of the sub-queue that they come from, and the position of each there. Those at
    or below the highest that came from there before are dropped. A sink whose rows are the ascending rows of one source
    gives a negative key of its own making."""
    sink: tuple[int, list[bytes]] | None = None
    """Of a sink whose rows come in no order (row D5): its key, and a 16-byte id for each message. An id that the sink
    has stored since its last batch but one was committed is a duplicate, which is dropped."""
    via: bool = False
    """They are for other entities, which they name (`partibus.message.with_destination`), and go there from here."""
    planned: list[Planned] | None = None
    """Of a topic's: who gets which of the messages; what is scheduled is not in it. Made by the owner of the partition
    when the command comes in, so it does not travel."""


class Arrive(Struct):
    """Messages of a topic for one of its subscriptions. Not answered."""

    bodies: list[int]
    """The keys of the messages' bodies, which are stored with the same commit."""
    messages: list[Message]
    ttl_max_ms: int | None = None
    """Their time to live ends after that at the latest: the topic says so."""
    unfiltered: list[Unfiltered] = field(default_factory=list)
    express_ms: int = 0
    """Above 0: of an express topic with this loss bound. Then bodies are not stored, and their keys mean nothing."""


class TakeNumbers(Struct):
    """Take sequence counters for messages that a transaction will store later. Answered with `Accepted`."""

    request: int
    count: int


class CancelScheduled(Struct):
    """Remove scheduled messages by their sequence counters, all or none. Answered with `Done` or `NotFound`."""

    request: int
    kind: int
    sequences: list[int]


class Receive(Struct):
    """Hand out up to ``count`` more messages to a receiver, now or when they come.

    Several add up. ``max_bytes`` bounds what this receiver gets before it asks again.
    """

    kind: int
    receiver: int
    count: int
    max_bytes: int
    delete: bool = False
    """Receive-and-delete: removed durably before the hand-out, never locked."""
    reserve: bool = False
    """Reserve for a front end's cache (D10): no lock and no count until `LockReserved`."""
    session: int = 0
    """The lock id of a session that the receiver holds: it gets that session's messages."""
    forward: bool = False
    """For the one who forwards the sub-queue: reserved until `Forwarded`, strictly in order of position. What another
    one had reserved so goes back first."""


class Forwarded(Struct):
    """Messages that were reserved to be forwarded are stored elsewhere, and go. With a ``reason`` they can't be, and
    become transfer dead letters. Answered with `Done`; with request 0 nobody waits."""

    request: int
    kind: int
    tokens: list[LockToken]
    reason: str | None = None
    description: str | None = None


class CancelReceive(Struct):
    """Forget what a receiver still waits for. Answered, so that a drain knows that nothing more will come."""

    request: int
    kind: int
    receiver: int


class LockReserved(Struct):
    """Turn reservations into locks. Answer: `Locked`, without those that lapsed in between."""

    request: int
    kind: int
    tokens: list[LockToken]
    delete: bool = False


class ReturnReserved(Struct):
    """Give reservations back to their place."""

    kind: int
    tokens: list[LockToken]


class Settle(Struct):
    """Apply one outcome to messages under lock. With request 0 nobody waits for the answer."""

    request: int
    kind: int
    outcome: Outcome
    tokens: list[LockToken]
    reason: str | None = None
    description: str | None = None
    properties: dict[str, object] | None = None
    """Application properties to set."""
    delay_ms: int = 0
    """Of an abandon: how long the message stays away. 0: as the entity's policy says."""


class RenewLocks(Struct):
    """Lock messages for another LockDuration from now on, all or none. Answered with `LocksRenewed`, or with `Settled`
    whose ``lost`` names the tokens that are not held any more."""

    request: int
    kind: int
    tokens: list[LockToken]


class ReceiveDeferred(Struct):
    """Lock deferred messages by their sequence counters, all or none; with ``delete``, remove them. Answered with
    `DeferredGranted`, `NotFound` (unknown, not deferred, or held by somebody), or `SessionLost`."""

    request: int
    kind: int
    sequences: list[int]
    delete: bool = False
    session: int = 0
    """The lock id of the session that they belong to: needed on an entity that requires sessions."""


class Purge(Struct):
    """Remove the oldest active messages that nobody holds (batch delete). Answered with `Purged`."""

    request: int
    kind: int
    count: int
    enqueued_before_ms: int
    session: str | None = None
    """Only of this session."""


class AcceptSession(Struct):
    """Lock a session for a receiver (row K4). Answered with `SessionAccepted`, now or when there is one; with
    `SessionHeld` when the named one is held by somebody else; with `NoSession` when ``wait`` is False and no session
    has messages."""

    request: int
    receiver: int
    """Gets the session's messages, and `SessionEnded` when its lock has run out."""
    session: str | None
    """None: any that has messages and is held by nobody."""
    wait: bool = True
    resumes: int = 0
    """The lock id under which the receiver holds the named session already, as far as it knows: it has lost the owner
    of the partition, or the way there, and goes on with the next one (D21). Answered with `SessionAccepted`, the lock
    unchanged, or with `SessionLost`."""
    held: list[int] = field(default_factory=list)
    """With ``resumes``: positions of the messages that it was given and has not settled."""
    holder: str = ""
    """The run of the broker that the receiver is connected to, as its owner knows it; empty: the owner's own."""


class CancelAccept(Struct):
    """Wait for a session no longer. ``accept`` is the request that waits; a `SessionAccepted` that has left already
    must be followed by `ReleaseSession`. Answered with `Done`."""

    request: int
    accept: int


class RenewSession(Struct):
    """Hold a session for another LockDuration. Answered with `SessionRenewed` or `SessionLost`."""

    request: int
    session: int


class ReleaseSession(Struct):
    """The holder is gone: the session is free, what was handed out goes back uncounted. Not answered."""

    session: int


class GetSessionState(Struct):
    """Answered with `SessionState` or `SessionLost`."""

    request: int
    session: int


class SetSessionState(Struct):
    """None clears it. Answered with `Done`, `Refused` (full) or `SessionLost`."""

    request: int
    session: int
    state: bytes | None


class ListSessions(Struct):
    """See `partition.protocol.ports.Store.list_sessions`. Answered with `Sessions`."""

    request: int
    skip: int
    top: int
    updated_after_ms: int | None = None


class Transact(Struct):
    """Do all or nothing (D16), in this order. Answered with `Transacted` or `TransactionRefused`."""

    request: int
    commands: list["Enqueue | Settle"]


class Peek(Struct):
    """Read entries in any state from a sequence counter on, without effect (rows P16, A8-A10)."""

    request: int
    kind: int
    from_sequence: int
    count: int
    session: str | None = None
    """Only entries of this session."""


class ReadRange(Struct):
    """Read entries by position, packed, as `partition.protocol.ports.Store.read_range` says: for readers of whole
    partitions. A ``to_pos`` above the sub-queue's end is taken for that end, so an empty answer's ``next_pos`` may be
    below it. Answered with `RangeRead`, or with `CursorLost` when there is no such cursor."""

    request: int
    kind: int
    from_pos: int
    to_pos: int
    max_bytes: int
    finished: bool = False
    cursor: str | None = None
    """The answer says from which position on this cursor's messages are all there."""


class ReadFates(Struct):
    """Read the log of fates. Answered with `FatesRead`, or `CursorLost`."""

    request: int
    kind: int
    cursor: str
    from_number: int
    most: int


EARLIEST = 0
LATEST = -1


class OpenCursor(Struct):
    """Make a named reader, or find it again (D14). While a cursor stands below a message, the message stays readable
    after it has left its sub-queue.

    An exclusive cursor locks its sub-queue for its reader: nobody else is handed a message until the lease ends, and
    its `AdvanceCursor` completes what it has passed. Taking it ends the locks that there are (``revoke``), or stops
    hand-outs and is answered with `CursorBusy` until those have been settled or have run out.

    Answered with `CursorOpened`, `CursorHeld`, `CursorBusy`, `CursorRefused` (there may be no such cursor) or, when a
    lease is to be renewed that has ended, `CursorLost`."""

    request: int
    kind: int
    name: str
    start: int = EARLIEST
    """Of a new cursor: `EARLIEST`, `LATEST`, or a position. One that exists stays where it is."""
    fates: bool = False
    """It reads the log of fates, too, which is kept from now on."""
    bound_bytes: int = 1 << 30
    """Of finished messages; 0: none are kept for it, which is what a reader needs that only consumes."""
    lease_ms: int = 0
    """Above 0: exclusive, for so long; asking again with the epoch renews it."""
    epoch: int = 0
    """Of the lease that is renewed; 0: a new one. The name's own earlier lease gives way to a new one."""
    revoke: bool = False


class AdvanceCursor(Struct):
    """The reader has everything below these positions. Lower ones than it had are passed over, so that asking twice, or
    late, changes nothing. An exclusive cursor completes what it passes, if it was readable when it was granted or came
    later. Answered with `CursorOpened`, when that is durable, or `CursorLost`."""

    request: int
    kind: int
    name: str
    position: int
    fate_position: int = -1
    epoch: int = 0
    """Needed of an exclusive one."""
    only: list[int] = field(default_factory=list)
    """Of an exclusive one: it stays where it is, and what is active at these positions, which rise, is completed and
    nothing else."""


class CloseCursor(Struct):
    """End its exclusive lease; with ``drop``, remove it and what was kept for it alone. Answered with `Done`, also when
    there is none, or `CursorLost` when somebody else holds the lease."""

    request: int
    kind: int
    name: str
    epoch: int = 0
    """0 with ``drop``: whoever holds it."""
    drop: bool = False


SINK_ENDS = (1 << 63) - 1


class CommitSink(Struct):
    """A sink's batch is committed, so that earlier ones can't come again: their ids are forgotten (row D5). Answered
    with `Done`. Batches rise; one that is not above the last changes nothing."""

    request: int
    sink: int
    batch: int
    """`SINK_ENDS`: nothing of the sink comes again, and all of its ids are forgotten."""


class Inspect(Struct):
    """Ask for counts and positions."""

    request: int
    count_scheduled: bool = False
    """Also how many messages wait for their time, which only the store knows."""


class Tick(Struct):
    """Time has passed: let run out what is due."""


Command = (
    Enqueue
    | Arrive
    | TakeNumbers
    | CancelScheduled
    | Receive
    | CancelReceive
    | LockReserved
    | ReturnReserved
    | Forwarded
    | Settle
    | RenewLocks
    | ReceiveDeferred
    | Purge
    | AcceptSession
    | CancelAccept
    | RenewSession
    | ReleaseSession
    | GetSessionState
    | SetSessionState
    | ListSessions
    | Transact
    | Peek
    | ReadRange
    | ReadFates
    | OpenCursor
    | AdvanceCursor
    | CloseCursor
    | CommitSink
    | Inspect
    | Tick
)
