"""What a partition asks of its store in turn: a machine does no IO (D3). `partition.runtime.reading` says which call
of the store answers which of these; the answer comes back as a `Loaded`.
"""

from typing import Any

from msgspec import Struct

from partibus.partition.protocol.commands import (
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
from partibus.partition.protocol.fan_out import Planned


class PageLoad(Struct):
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


class BodyLoad(Struct):
    """Bodies that were let go while their entries were locked."""

    kind: int
    positions: list[int]
    bodies: list[int]
    """Body keys, in the order of the positions."""
    then: Settle | Transact | None = None
    """The command that waits for them."""
    holder: int = 0
    """The lock id of the session that they are for, if they are for one."""


class DueSweep(Struct):
    """Entries in a state whose time has come: to expire, to activate, to return."""

    state: int
    until_ms: int


class Consume(Struct):
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


class SweepLoad(Struct):
    """Rows for a sweep."""

    kind: int
    sweep: Sweep
    max_entries: int
    max_bytes: int


class DeferredLoad(Struct):
    """Rows for a `ReceiveDeferred`."""

    command: ReceiveDeferred


class ScheduledCount(Struct):
    """The number of scheduled entries, for an `Inspect`."""

    command: Inspect


class SessionScan(Struct):
    """Sessions that have messages, behind a name."""

    after: str | None
    max_sessions: int


class SessionStateLoad(Struct):
    """The state of a session that is held."""

    command: GetSessionState | SetSessionState
    session: str


class SessionResume(Struct):
    """Rows of the messages that the holder of a session has, which it goes on with at another owner."""

    command: AcceptSession
    sequences: list[int]
    """Of the next ones."""


class SessionListLoad(Struct):
    """Names for a `ListSessions`."""

    command: ListSessions


class DuplicateLoad(Struct):
    """Which of these ids were accepted in the window, as far as only the store knows."""

    first_bucket: int
    ids: list[bytes]


class DuplicateScan(Struct):
    """Ids accepted before the partition was loaded, behind one of them."""

    after: tuple[int, bytes]
    max_ids: int


class SinkLoad(Struct):
    """Which of these rows a sink has stored, and, where that is asked for, how many ids the store has of the sink."""

    sink: int
    ids: list[bytes]
    counts: bool = False


class SinkCount(Struct):
    """How many ids a sink has of that batch and earlier ones."""

    sink: int
    batch: int


class PeekLoad(Struct):
    """Rows for a `Peek`."""

    request: int
    kind: int
    from_sequence: int
    max_entries: int
    max_bytes: int
    session: str | None = None


class RangeLoad(Struct):
    """A part of a range for a `ReadRange`, below ``end_pos``: all that is there is durable when the load runs."""

    kind: int
    command: ReadRange
    end_pos: int


class FatesLoad(Struct):
    """Lines of the log for a `ReadFates`."""

    command: ReadFates


class ClearLoad(Struct):
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


class Loaded(Struct):
    """The answer to a load."""

    load: "Load"
    found: Any
    """What the store answered; its type goes with the load's (`partition.runtime.reading`)."""
    planned: Planned | None = None
    """Of a topic's scheduled messages whose time has come: who gets them."""


Input = Command | Loaded
"""What a machine takes."""
