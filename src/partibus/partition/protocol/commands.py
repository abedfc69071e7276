"""Commands to a partition.

They are plain values that can be encoded and sent to another broker (D3), as the replies are (`replies`). The asker
chooses the numbers ``request`` and ``receiver``; replies carry them back.
"""

from enum import Enum
from typing import Final

from msgspec import Struct, field

from partibus.message import Message
from partibus.partition.protocol.fan_out import Planned, Unfiltered
from partibus.partition.protocol.generations import History

LockToken = tuple[int, int]
"""(lock id, position): names one delivery of one entry."""


class Outcome(Enum):
    """The outcome that a receiver gives to a message under its lock."""

    __hash__ = object.__hash__  # members are single objects; `Enum` hashes their names in Python

    COMPLETE = "complete"
    ABANDON = "abandon"
    """Return the message to its place and count a delivery."""
    RELEASE = "release"
    """Return the message to its place uncounted: it was prefetched and never processed."""
    DEAD_LETTER = "dead-letter"
    DEFER = "defer"
    """Set the message aside until a receiver asks for its sequence number."""


class Enqueue(Struct):
    """Store messages in order, all or none."""

    request: int
    messages: list[Message]
    first_sequence: int | None = None
    """Their sequence counters, taken by an earlier `TakeNumbers`; None: the next ones."""
    origin: tuple[int, list[int]] | None = None
    """The origin of forwarded messages (D15): the key of the source sub-queue and the position of each message there.

    The partition drops messages at or below the highest position from that source. A sink whose rows are the ascending
    rows of one source gives a negative key of its own making.
    """
    sink: tuple[int, list[bytes]] | None = None
    """The key of a sink whose rows come in no order (row D5), and a 16-byte id for each message.

    An id that the sink has stored since its last batch but one was committed is a duplicate, which the partition drops.
    """
    screened: list[int] | None = None
    """The indexes of messages that a former owner of their slots knows already, which are duplicates; None: no former
    owner was asked (`CheckIds`)."""
    announced: int = 0
    """The announcement (`IdsKnown`) of ids that are unique in all partitions; 0: there was none."""
    via: bool = False
    """Whether the messages name other entities as destinations (`partibus.message.with_destination`), and go on from
    here.
    """
    history: History | None = None
    """The history of the source, if it has one, where there is an ``origin``."""
    numbered_by: int = 0
    """The row of the partition that gave the ``first_sequence`` out. The numbers are good in no other one."""
    planned: list[Planned] | None = None
    """The fan-out of a topic's messages, without scheduled ones.

    The owner of the partition makes it when the command arrives, so it never travels.
    """


class Arrive(Struct):
    """Messages of a topic for one of its subscriptions. It has no reply."""

    bodies: list[int]
    """The keys of the messages' bodies, which the same commit stores."""
    messages: list[Message]
    ttl_max_ms: int | None = None
    """The longest time to live that the topic allows."""
    unfiltered: list[Unfiltered] = field(default_factory=list)
    express_ms: int = 0
    """The loss bound of an express topic; 0: not express.

    With it, bodies are not stored and their keys mean nothing.
    """


class TakeNumbers(Struct):
    """Take sequence counters for messages that a transaction stores later. Reply: `Accepted`."""

    request: int
    count: int


class CancelScheduled(Struct):
    """Remove scheduled messages by their sequence counters, all or none. Reply: `Done` or `NotFound`."""

    request: int
    kind: int
    sequences: list[int]


class Receive(Struct):
    """Grant up to ``count`` more messages to a receiver, now or when they arrive.

    Several demands add up. ``max_bytes`` bounds what this receiver gets before it asks again.
    """

    kind: int
    receiver: int
    count: int
    max_bytes: int
    delete: bool = False
    """Receive-and-delete: the messages are removed durably before the grant, and never locked."""
    reserve: bool = False
    """Reserve for a front end's cache (D10): no lock and no count until `LockReserved`."""
    session: int = 0
    """The lock id of a session that the receiver holds: it gets that session's messages."""
    lock_ms: int = 0
    """How long the locks of these messages last; 0: the entity's LockDuration."""
    forward: bool = False
    """Grant to the forwarder of the sub-queue: reserved until `Forwarded`, strictly in order of position.

    Reservations of an earlier forwarder go back first.
    """
    once: bool = False
    """End the demand with its first grant, however many messages that has."""


class Forwarded(Struct):
    """Remove reserved messages that are stored at their destination.

    With a ``reason`` they can't be forwarded, and become transfer dead letters. Reply: `Done`; none with request 0.
    """

    request: int
    kind: int
    tokens: list[LockToken]
    reason: str | None = None
    description: str | None = None


class CancelReceive(Struct):
    """Forget a receiver's demand. The reply tells a drain that nothing more will come."""

    request: int
    kind: int
    receiver: int


class LockReserved(Struct):
    """Turn reservations into locks. Reply: `Locked`, without reservations that have lapsed."""

    request: int
    kind: int
    tokens: list[LockToken]
    delete: bool = False


class ReturnReserved(Struct):
    """Return reservations to their place."""

    kind: int
    tokens: list[LockToken]


class Settle(Struct):
    """Apply one outcome to messages under lock. With request 0 there is no reply."""

    request: int
    kind: int
    outcome: Outcome
    tokens: list[LockToken]
    reason: str | None = None
    description: str | None = None
    properties: dict[str, object] | None = None
    """Application properties to set."""
    delay_ms: int = 0
    """How long an abandoned message stays away; 0: as the entity's policy says."""
    late: bool = False
    """Whether to complete also messages whose lock has ended, or that another receiver holds."""
    explain: bool = False
    """Whether the reply tells which lost tokens are of messages that do not exist."""


class ChangeLocks(Struct):
    """End the lock of each message so many ms from now; 0: the message is back in its place, its delivery counted.

    Reply: `Settled`, whose ``gone`` tells messages that do not exist from locks that have ended.
    """

    request: int
    kind: int
    tokens: list[LockToken]
    lock_ms: list[int]
    late: bool = False
    """Lock a message again whose lock has ended, if no receiver holds it."""


class ReceiveGroups(Struct):
    """Grant up to ``count`` messages of an entity with message groups, each under a lock of its own.

    They come from one group as far as it can give, then from others. With ``wait`` the reply `GroupsGranted` leaves
    when there is a message, else at once.
    """

    request: int
    count: int
    max_bytes: int
    lock_ms: int
    """0: the messages are counted and stay visible."""
    wait: bool = False
    attempt: str | None = None
    """An id under which the grant is remembered among the ids of duplicate detection: `CheckIds` gives its lock id, and
    what `pack_attempt` has packed."""


class CancelReceiveGroups(Struct):
    """End a waiting `ReceiveGroups`; ``receive`` is its request. Reply: `Done`."""

    request: int
    receive: int


class PurgeAll(Struct):
    """Remove every message, also locked and scheduled ones, and forget ids of duplicate detection. Reply: `Done`."""

    request: int
    kind: int


class DelayScheduled(Struct):
    """Let messages that were delayed by ``former_ms`` become active ``delay_ms`` after they were sent.

    Other scheduled messages keep their time: their senders have chosen it. Reply: `Done`, once the delayed messages
    whose time has come by that are active.
    """

    request: int
    kind: int
    former_ms: int
    delay_ms: int


class RenewLocks(Struct):
    """Lock messages for another LockDuration from now on, all or none.

    Reply: `LocksRenewed`, or `Settled` whose ``lost`` names the tokens without a lock.
    """

    request: int
    kind: int
    tokens: list[LockToken]


class ReceiveDeferred(Struct):
    """Lock deferred messages by their sequence counters, all or none; with ``delete``, remove them.

    Reply: `DeferredGranted`, `NotFound` (unknown, not deferred, or locked), or `SessionLost`.
    """

    request: int
    kind: int
    sequences: list[int]
    delete: bool = False
    session: int = 0
    """The lock id of the messages' session, on an entity that requires sessions."""


class Purge(Struct):
    """Remove the oldest active messages that are not locked (batch delete). Reply: `Purged`."""

    request: int
    kind: int
    count: int
    enqueued_before_ms: int
    session: str | None = None
    """Restricts the removal to one session."""


class AcceptSession(Struct):
    """Lock a session for a receiver (row K4).

    Reply: `SessionAccepted`, now or when a session is available; `SessionHeld` when another receiver holds the named
    one; `NoSession` when ``wait`` is False and no session has messages.
    """

    request: int
    receiver: int
    """The receiver of the session's messages, and of `SessionEnded` when the lock has expired."""
    session: str | None
    """The session's name; None: any free session with messages."""
    wait: bool = True
    resumes: int = 0
    """The lock id under which the receiver believes to hold the named session.

    It has lost the partition's owner, or the way there, and goes on with the next one (D21). Reply: `SessionAccepted`
    with the lock unchanged, or `SessionLost`.
    """
    held: list[int] = field(default_factory=list)
    """Positions of messages that the receiver was granted and has not settled, with ``resumes``."""
    resident: bool = False
    """Whether the named session may have moved away and is wanted for the messages that it still has here."""
    holder: str = ""
    """The run of the broker that the receiver is connected to, as its owner knows it; empty: the owner's own."""


class CancelAccept(Struct):
    """Cancel a pending `AcceptSession`; ``accept`` is its request. Reply: `Done`.

    If a `SessionAccepted` has left already, the asker must send `ReleaseSession`.
    """

    request: int
    accept: int


class RenewSession(Struct):
    """Hold a session for another LockDuration. Reply: `SessionRenewed` or `SessionLost`."""

    request: int
    session: int


class ReleaseSession(Struct):
    """Free a session whose holder has ended. Granted messages go back uncounted. No reply."""

    session: int


class GetSessionState(Struct):
    """Read a session's state. Reply: `SessionState` or `SessionLost`."""

    request: int
    session: int


class SetSessionState(Struct):
    """Set a session's state; None clears it. Reply: `Done`, `Refused` (full) or `SessionLost`."""

    request: int
    session: int
    state: bytes | None


class ListSessions(Struct):
    """List sessions (`queries.SessionList`). Reply: `Sessions`."""

    request: int
    skip: int
    top: int
    updated_after_ms: int | None = None
    after: str | None = None


class Transact(Struct):
    """Carry out commands in order, all or none (D16). Reply: `Transacted` or `TransactionRefused`."""

    request: int
    commands: list["Enqueue | Settle"]


class Peek(Struct):
    """Read entries in any state from a sequence counter on, without effect (rows P16, A8-A10)."""

    request: int
    kind: int
    from_sequence: int
    count: int
    session: str | None = None
    """Restricts the peek to one session."""


class ReadRange(Struct):
    """Read entries by position, packed (`queries.Range`), for readers of whole partitions.

    A ``to_pos`` above the sub-queue's end counts as that end, so the ``next_pos`` of an empty answer may be below it.
    Reply: `RangeRead`, or `CursorLost` when the cursor does not exist.
    """

    request: int
    kind: int
    from_pos: int
    to_pos: int
    max_bytes: int
    finished: bool = False
    cursor: str | None = None
    """The cursor for whose messages the reply tells from which position on they are complete."""


class ReadDispositions(Struct):
    """Read the log of dispositions. Reply: `DispositionsRead` or `CursorLost`."""

    request: int
    kind: int
    cursor: str
    from_number: int
    most: int


EARLIEST = 0
LATEST = -1


class OpenCursor(Struct):
    """Make a named reader, or find it again (D14).

    While a cursor stands below a message, the message stays readable after it has left its sub-queue.

    An exclusive cursor locks its sub-queue for its reader. Until the lease ends, other receivers get no messages, and
    the reader's `AdvanceCursor` completes what it passes. Taking the lease ends existing locks (``revoke``); without it
    the partition stops granting and replies `CursorBusy` until the locks are settled or have expired.

    Reply: `CursorOpened`, `CursorHeld`, `CursorBusy`, `CursorRefused` (the cursor is not allowed), or `CursorLost` when
    the lease to renew has ended.
    """

    request: int
    kind: int
    name: str
    start: int = EARLIEST
    """The start of a new cursor: `EARLIEST`, `LATEST`, or a position. An existing cursor stays where it is."""
    dispositions: bool = False
    """Whether it also reads the log of dispositions, which is kept from now on."""
    bound_bytes: int = 1 << 30
    """The most bytes of finished messages kept for it; 0: none, for a reader that only consumes."""
    lease_ms: int = 0
    """The length of an exclusive lease; 0: not exclusive. Asking again with the epoch renews the lease."""
    epoch: int = 0
    """The epoch of the lease to renew; 0: a new lease. The cursor's own earlier lease gives way to a new one."""
    revoke: bool = False


class AdvanceCursor(Struct):
    """Record that the reader has everything below these positions.

    Positions below the recorded ones are ignored, so a repeated or late command changes nothing. An exclusive cursor
    completes what it passes, if that was readable when the lease was granted or came later. Reply: `CursorOpened` when
    that is durable, or `CursorLost`.
    """

    request: int
    kind: int
    name: str
    position: int
    disposition_position: int = -1
    epoch: int = 0
    """The epoch of an exclusive lease."""
    only: list[int] = field(default_factory=list)
    """Ascending positions whose active messages an exclusive cursor completes, and nothing else; the cursor stays in
    place.
    """


class CloseCursor(Struct):
    """End an exclusive lease; with ``drop``, remove the cursor and the messages kept for it alone.

    Reply: `Done`, also when the cursor does not exist, or `CursorLost` when another reader holds the lease.
    """

    request: int
    kind: int
    name: str
    epoch: int = 0
    """The epoch of the lease; 0 with ``drop``: whatever the lease is."""
    drop: bool = False


SINK_ENDS = (1 << 63) - 1


class CommitSink(Struct):
    """Commit a sink's batch, so that earlier ones can't come again and their ids are forgotten (row D5).

    Reply: `Done`. Batch numbers rise; a batch at or below the last one changes nothing.
    """

    request: int
    sink: int
    batch: int
    """The batch; `SINK_ENDS`: nothing of the sink comes again, and all of its ids are forgotten."""


UNTIL_GIVEN: Final = 1 << 62
"""`TakeSlots.until_ms` before the source has given the slots away."""


class TakeSlots(Struct):
    """Take slots of another partition: store their messages from now on, and hold back their groups.

    Repeated commands of the same version change nothing but ``until_ms``, which can only become earlier. Reply: `Done`,
    durable.
    """

    request: int
    source: int
    version: int
    runs: list[tuple[int, int]]
    until_ms: int
    """The time until which the source is asked for duplicates; `UNTIL_GIVEN`: it may still store messages."""
    first_sequence: int
    """The sequence counters that are given out from now on are at least this."""


class GiveSlots(Struct):
    """Give slots to another partition: refuse their messages from now on with `Moved`.

    Repeated commands of the same version change nothing. Reply: `SlotsGiven`, durable.
    """

    request: int
    target: int
    version: int
    runs: list[tuple[int, int]]
    sequence_max: int
    """The partition changes nothing if it has assigned higher sequence counters."""


class FinishSlots(Struct):
    """Offer the groups of a move's slots: the source has none of them. Reply: `Done`, durable."""

    request: int
    version: int


class AwaitHeld(Struct):
    """Name groups that are held back, now or when there are some.

    A group is named once, until a request with ``anew``. A later request replaces an open one, which gets an empty
    reply. Reply: `GroupsHeld`.
    """

    request: int
    anew: bool = False


class AskGroups(Struct):
    """Ask the source of a move which groups it has nothing of.

    It ends the locks of their sessions that have no messages. Reply: `GroupsGone`.
    """

    request: int
    names: list[str]


class OpenGroups(Struct):
    """Answer for groups that the target of a move holds back. Reply: `Done`, durable."""

    request: int
    gone: list[str]
    """Groups to offer: the source has nothing of them."""
    there: list[str] = field(default_factory=list)
    """Groups that the source has; receivers that named them are sent there."""


class SetStates(Struct):
    """Set the states of sessions without a holder, for a move; None removes one. Reply: `Done`, durable."""

    request: int
    states: list[tuple[str, bytes | None]]
    removed_bytes: int = 0
    """The size of the states that are removed."""


class ScanSlots(Struct):
    """Look for groups of slots, in order of name, behind a name. Reply: `SlotsScanned`."""

    request: int
    runs: list[tuple[int, int]]
    after: str | None = None


FORMER, SAME, LOWER, HIGHER = range(4)
"""Askers for ids: `FORMER` is a partition that got slots. The others ask for a message whose id is unique in all
partitions of the entity: the partition itself, a lower one or a higher one (`partition.core.intents`)."""


class CheckIds(Struct):
    """Ask which messages a partition has accepted. Reply: `IdsKnown`."""

    request: int
    messages: list[Message]
    """The messages with their ids and keys; their data is not needed."""
    origin: tuple[int, list[int]] | None = None
    history: History | None = None
    asker: int = FORMER
    """The partition that the messages go to, by its order to this one."""


class Inspect(Struct):
    """Ask for counts and positions."""

    request: int
    count_scheduled: bool = False
    """Whether to count scheduled messages too, which only the store can."""


class Tick(Struct):
    """Process every deadline that has passed."""


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
    | ChangeLocks
    | ReceiveGroups
    | CancelReceiveGroups
    | PurgeAll
    | DelayScheduled
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
    | ReadDispositions
    | OpenCursor
    | AdvanceCursor
    | CloseCursor
    | CommitSink
    | TakeSlots
    | GiveSlots
    | FinishSlots
    | AwaitHeld
    | AskGroups
    | OpenGroups
    | SetStates
    | ScanSlots
    | CheckIds
    | Inspect
    | Tick
)
