"""What a partition answers.

Plain values, as the commands are. ``request`` and ``receiver`` are the numbers of the command that is answered.
"""

from dataclasses import dataclass

from partibus.partition.commands import Command
from partibus.partition.entry import Entry
from partibus.partition.ports import EntryRow


@dataclass(slots=True)
class Accepted:
    """The messages have the sequence counters ``first_sequence``, ``first_sequence + 1``, and so on. A duplicate that
    was dropped has taken a number, too."""

    request: int
    first_sequence: int


@dataclass(slots=True)
class Refused:
    """Nothing was stored: the partition is full (row P21)."""

    request: int
    size_bytes: int
    size_bytes_max: int


@dataclass(slots=True)
class Granted:
    """Entries for a receiver. ``lock_id`` is 0 where they were deleted, the reservation's id where reserved."""

    receiver: int
    kind: int
    lock_id: int
    until_ms: int
    entries: list[Entry]
    asked: int
    """Of a `LockReserved`, how many tokens it named; else the number of entries."""
    ended: bool
    """The receiver waits for nothing any more: its count or its bytes are used up."""


@dataclass(slots=True)
class Cancelled:
    """Nothing more will be granted; ``count`` had been waited for."""

    request: int
    count: int


@dataclass(slots=True)
class Settled:
    """All tokens were settled but those at the indexes in ``lost``: their lock had ended."""

    request: int
    lost: list[int]


@dataclass(slots=True)
class Done:
    """The request was carried out."""

    request: int


@dataclass(slots=True)
class NotFound:
    """Nothing was done: these sequence counters name no message that the request could be about."""

    request: int
    sequences: list[int]


@dataclass(slots=True)
class LocksRenewed:
    """Deadlines in the order of the tokens."""

    request: int
    until_ms: list[int]


@dataclass(slots=True)
class DeferredGranted:
    """Deferred messages in the order asked for; ``lock_id`` is 0 where they were deleted."""

    request: int
    lock_id: int
    until_ms: int
    entries: list[Entry]


@dataclass(slots=True)
class Purged:
    """So many messages were removed; fewer than asked for does not say that none is left."""

    request: int
    count: int


@dataclass(slots=True)
class SessionAccepted:
    """A session is held. ``lock_id`` names the lock in all further commands and in the lock tokens of its messages."""

    request: int
    session: str
    lock_id: int
    until_ms: int


@dataclass(slots=True)
class SessionHeld:
    """Somebody else holds the session until then."""

    request: int
    until_ms: int


@dataclass(slots=True)
class NoSession:
    """No session has messages and is free."""

    request: int


@dataclass(slots=True)
class SessionRenewed:
    """The session's lock, and that of every message handed out under it, ends then."""

    request: int
    until_ms: int


@dataclass(slots=True)
class SessionLost:
    """The session's lock has ended; nothing was done."""

    request: int


@dataclass(slots=True)
class SessionEnded:
    """Told to the receiver that held a session: its lock ran out."""

    receiver: int
    lock_id: int


@dataclass(slots=True)
class SessionState:
    """What the session's holders last set."""

    request: int
    state: bytes | None


@dataclass(slots=True)
class Sessions:
    """Names of sessions."""

    request: int
    sessions: list[str]


@dataclass(slots=True)
class Transacted:
    """Everything was done."""

    request: int


@dataclass(slots=True)
class TransactionRefused:
    """Nothing was done, because of the command at ``index``."""

    request: int
    index: int
    because: "Settled | Refused"
    """What that command alone would have been answered."""


@dataclass(slots=True)
class Rows:
    """What a peek or browse found."""

    request: int
    rows: list[EntryRow]


@dataclass(slots=True)
class SubqueueInfo:
    """Counts of one sub-queue of one partition."""

    messages: int
    size_bytes: int
    locked: int


@dataclass(slots=True)
class Inspected:
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


@dataclass(slots=True)
class Failed:
    """The store could not do it. ``executed`` is False when surely nothing happened, None when nobody can tell."""

    request: int
    executed: bool | None
    full: bool
    message: str


Reply = (
    Accepted
    | Refused
    | Granted
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
    | Inspected
    | Failed
)


def request_of(command: Command) -> int:
    """The number by which somebody waits for the answer to a command; 0: nobody does."""
    return getattr(command, "request", 0)


def refused(command: Command, message: str) -> Failed:
    """The answer to a command of which surely nothing was done."""
    return Failed(request_of(command), False, False, message)
