"""What a partition can be asked, what it answers, and what it asks for in turn.

All of it is plain values that can be written down and sent to another broker (D3). ``request`` and ``receiver`` are
numbers that the asker chose; answers carry them back.
"""

from dataclasses import dataclass
from enum import Enum

from partibus.message import Message
from partibus.partition.entry import Entry
from partibus.partition.ports import EntryRow

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


@dataclass(slots=True)
class Enqueue:
    """Store messages in order, all or none."""

    request: int
    messages: list[Message]


@dataclass(slots=True)
class Receive:
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


@dataclass(slots=True)
class CancelReceive:
    """Forget what a receiver still waits for. Answered, so that a drain knows that nothing more will come."""

    request: int
    kind: int
    receiver: int


@dataclass(slots=True)
class LockReserved:
    """Turn reservations into locks held by a receiver; those that lapsed in between are left out of the grant."""

    kind: int
    receiver: int
    tokens: list[LockToken]
    delete: bool = False


@dataclass(slots=True)
class ReturnReserved:
    """Give reservations back to their place."""

    kind: int
    tokens: list[LockToken]


@dataclass(slots=True)
class Settle:
    """Apply one outcome to messages under lock. With request 0 nobody waits for the answer."""

    request: int
    kind: int
    outcome: Outcome
    tokens: list[LockToken]
    reason: str | None = None
    description: str | None = None


@dataclass(slots=True)
class Peek:
    """Read entries in any state from a sequence counter on, without effect (rows P16, A8-A10)."""

    request: int
    kind: int
    from_sequence: int
    count: int


@dataclass(slots=True)
class Browse:
    """Read entries in any state by position: what the Spark source pages through."""

    request: int
    kind: int
    from_pos: int
    to_pos: int
    max_bytes: int


@dataclass(slots=True)
class Inspect:
    """Ask for counts and positions."""

    request: int


@dataclass(slots=True)
class Tick:
    """Time has passed: let run out what is due."""


@dataclass(slots=True)
class Loaded:
    """The answer to a load."""

    load: "Load"
    rows: list[EntryRow] | list[bytes | None]


Command = (
    Enqueue | Receive | CancelReceive | LockReserved | ReturnReserved | Settle | Peek | Browse | Inspect | Tick | Loaded
)


# Answers ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Accepted:
    """The messages have the sequence counters ``first_sequence``, ``first_sequence + 1``, and so on."""

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


@dataclass(slots=True)
class Failed:
    """The store could not do it. ``executed`` is False when surely nothing happened, None when nobody can tell."""

    request: int
    executed: bool | None
    full: bool
    message: str


Reply = Accepted | Refused | Granted | Cancelled | Settled | Rows | Inspected | Failed


# Loads --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PageLoad:
    """The next waiting entries of a sub-queue."""

    kind: int
    from_pos: int
    end_pos: int
    """Everything below this position is durable when the load runs; nothing found up to it means nothing there."""
    max_entries: int
    max_bytes: int


@dataclass(slots=True)
class BodyLoad:
    """Bodies that were let go while their entries were locked."""

    kind: int
    positions: list[int]
    bodies: list[int]
    """Body keys, in the order of the positions."""
    then: Settle | None = None
    """The command that waits for them."""


@dataclass(slots=True)
class PeekLoad:
    """Rows for a `Peek`."""

    request: int
    kind: int
    from_sequence: int
    max_entries: int
    max_bytes: int


@dataclass(slots=True)
class BrowseLoad:
    """Rows for a `Browse`."""

    request: int
    kind: int
    from_pos: int
    to_pos: int
    max_bytes: int


Load = PageLoad | BodyLoad | PeekLoad | BrowseLoad
