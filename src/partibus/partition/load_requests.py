"""What a partition asks of its store in turn: a machine does no IO (D3). `partibus.partition.reading` says which call
of the store answers which of these; the answer comes back as a `Loaded`.
"""

from dataclasses import dataclass
from typing import Any

from partibus.partition.commands import (
    AcceptSession,
    AdvanceCursor,
    CancelScheduled,
    Command,
    GetSessionState,
    Inspect,
    ListSessions,
    Purge,
    ReadFates,
    ReadRange,
    ReceiveDeferred,
    SetSessionState,
    Settle,
    Transact,
)
from partibus.partition.fan_out import Planned


@dataclass(slots=True)
class PageLoad:
    """The next waiting entries of a sub-queue, or of one session in it."""

    kind: int
    from_pos: int
    end_pos: int
    """Everything below this position is durable when the load runs; nothing found up to it means nothing there."""
    max_entries: int
    max_bytes: int
    session: str | None = None
    holder: int = 0
    """The lock id under which the session is held."""
    edited: bool = False
    """What memory does not hold was changed: the load is to see all that was written before."""


@dataclass(slots=True)
class BodyLoad:
    """Bodies that were let go while their entries were locked."""

    kind: int
    positions: list[int]
    bodies: list[int]
    """Body keys, in the order of the positions."""
    then: Settle | Transact | None = None
    """The command that waits for them."""
    holder: int = 0
    """The lock id of the session that they are for, if they are for one."""


@dataclass(slots=True)
class DueSweep:
    """Entries in a state whose time has come: to expire, to activate, to return."""

    state: int
    until_ms: int


@dataclass(slots=True)
class Consume:
    """What an exclusive cursor passes is to be completed; the next slice of it."""

    command: AdvanceCursor
    from_pos: int
    to_pos: int

    @property
    def request(self) -> int:
        """Who asked."""
        return self.command.request


Sweep = DueSweep | CancelScheduled | Purge | Consume
"""What goes over a sub-queue in the store, whatever part of it memory holds: one at a time."""


@dataclass(slots=True)
class SweepLoad:
    """Rows for a sweep."""

    kind: int
    sweep: Sweep
    max_entries: int
    max_bytes: int


@dataclass(slots=True)
class DeferredLoad:
    """Rows for a `ReceiveDeferred`."""

    command: ReceiveDeferred


@dataclass(slots=True)
class ScheduledCount:
    """The number of scheduled entries, for an `Inspect`."""

    command: Inspect


@dataclass(slots=True)
class SessionScan:
    """Sessions that have messages, behind a name."""

    after: str | None
    max_sessions: int


@dataclass(slots=True)
class SessionStateLoad:
    """The state of a session that is held."""

    command: GetSessionState | SetSessionState
    session: str


@dataclass(slots=True)
class SessionResume:
    """Rows of the messages that the holder of a session has, which it goes on with at another owner."""

    command: AcceptSession
    sequences: list[int]
    """Of the next ones."""


@dataclass(slots=True)
class SessionListLoad:
    """Names for a `ListSessions`."""

    command: ListSessions


@dataclass(slots=True)
class DuplicateLoad:
    """Which of these ids were accepted in the window, as far as only the store knows."""

    first_bucket: int
    ids: list[bytes]


@dataclass(slots=True)
class DuplicateScan:
    """Ids accepted before the partition was loaded, behind one of them."""

    after: tuple[int, bytes]
    max_ids: int


@dataclass(slots=True)
class SinkLoad:
    """Which of these rows a sink has stored, and, where that is asked for, how many ids the store has of the sink."""

    sink: int
    ids: list[bytes]
    counts: bool = False


@dataclass(slots=True)
class SinkCount:
    """How many ids a sink has of that batch and earlier ones."""

    sink: int
    batch: int


@dataclass(slots=True)
class PeekLoad:
    """Rows for a `Peek`."""

    request: int
    kind: int
    from_sequence: int
    max_entries: int
    max_bytes: int
    session: str | None = None


@dataclass(slots=True)
class RangeLoad:
    """A part of a range for a `ReadRange`, below ``end_pos``: all that is there is durable when the load runs."""

    kind: int
    command: ReadRange
    end_pos: int


@dataclass(slots=True)
class FatesLoad:
    """Lines of the log for a `ReadFates`."""

    command: ReadFates


@dataclass(slots=True)
class ClearLoad:
    """What a janitor may find to take away: rows of a range, which may be empty, and, from a number on, lines of the
    log of fates."""

    kind: int
    from_pos: int
    to_pos: int
    fates_from: int | None
    most: int


Load = (
    PageLoad
    | BodyLoad
    | SweepLoad
    | DeferredLoad
    | ScheduledCount
    | SessionScan
    | SessionStateLoad
    | SessionResume
    | SessionListLoad
    | DuplicateLoad
    | DuplicateScan
    | SinkLoad
    | SinkCount
    | PeekLoad
    | RangeLoad
    | FatesLoad
    | ClearLoad
)


@dataclass(slots=True)
class Loaded:
    """The answer to a load."""

    load: "Load"
    found: Any
    """What the store answered; its type goes with the load's (`partibus.partition.reading`)."""
    planned: Planned | None = None
    """Of a topic's scheduled messages whose time has come: who gets them."""


Input = Command | Loaded
"""What a machine takes."""
