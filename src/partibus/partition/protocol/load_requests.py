"""Loads that a partition asks of its store: a machine does no IO (D3).

`partition.runtime.queries` maps each to a call of the store; the answer comes back as a `Loaded`.
"""

from collections import deque
from typing import Any

from msgspec import Struct

from partibus.partition.protocol.commands import (
    AcceptSession,
    AdvanceCursor,
    AskGroups,
    CancelScheduled,
    ChangeLocks,
    Command,
    DelayScheduled,
    GetSessionState,
    Inspect,
    ListSessions,
    Purge,
    PurgeAll,
    ReadDispositions,
    ReadRange,
    ReceiveDeferred,
    ScanSlots,
    SetSessionState,
    Settle,
    Transact,
)
from partibus.partition.protocol.fan_out import Planned
from partibus.partition.protocol.replies import Accepted, Transacted


class PageLoad(Struct):
    """The next waiting entries of a sub-queue, or of one session in it."""

    kind: int
    from_pos: int
    end_pos: int
    """Everything below this position is durable when the load runs, so an empty result up to it means that nothing is
    there.
    """
    max_entries: int
    max_bytes: int
    session: str | None = None
    holder: int = 0
    """The lock id under which the session is held."""
    edited: bool = False
    """Whether entries outside of memory have changed; the load then has to see all that was written before."""


class QuietLoad(Struct):
    """The first waiting entries of tenants of a fair queue that are not noisy."""

    kind: int
    number: int
    from_pos: int
    end_pos: int
    held: frozenset[int]
    """Positions that memory has."""
    noisy: list[str]
    after: str | None
    """The last tenant that was looked at before."""
    version: int
    """The version of the tenants at the time of the request."""
    max_tenants: int
    max_entries: int
    """Entries of each tenant."""
    max_bytes: int


class BodyLoad(Struct):
    """Bodies that were dropped from memory while their entries were locked."""

    kind: int
    positions: list[int]
    bodies: list[int]
    """Body keys, in the order of the positions."""
    then: Settle | Transact | None = None
    """The command that waits for them."""
    holder: int = 0
    """The lock id of their session, if any."""


class DueScan(Struct):
    """Entries in a state that are due: to expire, to activate, to return."""

    state: int
    until_ms: int


class Consume(Struct):
    """The next slice of entries that an exclusive cursor passes and completes."""

    command: AdvanceCursor
    from_pos: int
    to_pos: int

    @property
    def request(self) -> int:
        """The request of the cursor's reader."""
        return self.command.request


class LostTokens(Struct):
    """The messages of tokens whose locks have ended, for a command that asks for them."""

    command: Settle | ChangeLocks
    lost: list[int]
    """Indexes of the tokens."""

    @property
    def request(self) -> int:
        """The number of the request."""
        return self.command.request


class PurgeSlice(Struct):
    """The next slice of entries that a `PurgeAll` removes."""

    command: PurgeAll
    sent_before: int
    """The first sequence number of messages that are sent after the command, and stay."""
    from_pos: int = 0
    to_pos: int = 0
    """The end of the positions when the purge begins: earlier scans move entries to the end until then. 0: it waits."""

    @property
    def request(self) -> int:
        """The request of the purge."""
        return self.command.request


class DelaySlice(Struct):
    """The next slice of entries among which a `DelayScheduled` finds scheduled ones."""

    command: DelayScheduled
    from_pos: int
    to_pos: int

    @property
    def request(self) -> int:
        """The request of the change."""
        return self.command.request


RangeScan = DueScan | CancelScheduled | Purge | Consume | LostTokens | PurgeSlice | DelaySlice
"""A scan over a sub-queue in the store, whatever part of it memory holds: one at a time."""


class RangeScanLoad(Struct):
    """Rows for a scan."""

    kind: int
    range_scan: RangeScan
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
    """The state of a held session."""

    command: GetSessionState | SetSessionState
    session: str


class SessionResume(Struct):
    """Rows of the messages that a session's holder has, for going on at another owner."""

    command: AcceptSession
    sequences: list[int]
    """Sequence counters of the next messages."""


class SessionListLoad(Struct):
    """Names for a `ListSessions`."""

    command: ListSessions


class DuplicateLoad(Struct):
    """The ids among these that were accepted in the window, as far as only the store knows."""

    first_bucket: int
    ids: list[bytes]


class DuplicateScan(Struct):
    """Ids accepted before the partition was loaded, behind one of them."""

    after: tuple[int, bytes]
    max_ids: int


class SinkLoad(Struct):
    """The rows among these that a sink has stored and, if requested, the number of its ids in the store."""

    sink: int
    ids: list[bytes]
    counts: bool = False


class SinkCount(Struct):
    """The number of ids that a sink has of that batch and earlier ones."""

    sink: int
    batch: int


class GroupsLoad(Struct):
    """The groups that have no entries in any state, with the states of their sessions."""

    command: AskGroups
    names: list[str]


class SlotScan(Struct):
    """Groups with entries in any state, behind a name, for a `ScanSlots`."""

    command: ScanSlots
    max_sessions: int


class PeekLoad(Struct):
    """Rows for a `Peek`."""

    request: int
    kind: int
    from_sequence: int
    max_entries: int
    max_bytes: int
    session: str | None = None


class RangeLoad(Struct):
    """A part of a range for a `ReadRange`, below ``end_pos``: all of it is durable when the load runs."""

    kind: int
    command: ReadRange
    end_pos: int


class DispositionsLoad(Struct):
    """Lines of the log for a `ReadDispositions`."""

    command: ReadDispositions


class ClearLoad(Struct):
    """Rows that the janitor may remove.

    They are those of a range, which may be empty, and lines of the log of dispositions from a number on.
    """

    kind: int
    from_pos: int
    to_pos: int
    dispositions_from: int | None
    most: int


Load = (
    PageLoad
    | QuietLoad
    | BodyLoad
    | RangeScanLoad
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
    | GroupsLoad
    | SlotScan
    | PeekLoad
    | RangeLoad
    | DispositionsLoad
    | ClearLoad
)


class Loaded(Struct):
    """The answer to a load."""

    load: "Load"
    found: Any
    """The store's answer; its type depends on the load (`partition.runtime.queries`)."""
    planned: list[Planned] | None = None
    """The fan-out of a topic's scheduled messages that are due."""


class PublishRest(Struct):
    """Give the rest of the messages of a large publish to the subscriptions, in the commit of its first part.

    The partition makes it when a publish is more work than the loop may do without a pause. Its reply is that of the
    publish.
    """

    request: int
    shares: deque[tuple[Planned, dict[int, int]]]
    """The fan-out of messages, and the keys of their bodies by `id`."""
    are_stored: bool = False
    """Whether the bodies are in the store: the messages were scheduled."""
    at_once: bool = False
    """Whether the messages are express: the reply does not wait for the commit."""
    reply: Accepted | Transacted | None = None


Input = Command | Loaded | PublishRest
"""The input of a machine."""
