"""One sub-queue: all entries of one kind in a partition, whatever their state."""

from collections import deque

from partibus.partition.core.cursors import Cursors
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.load_requests import DueScan, RangeScan

NEVER = 1 << 62
"""Later than every deadline."""


class Subqueue(ReadyList):
    """A ready list with the counts and the scans of its whole sub-queue.

    On an entity that requires sessions, each session has a ready list, and this one stays empty: all entries are in the
    gap.
    """

    __slots__ = (
        "claimed",
        "cursors",
        "messages",
        "next_due",
        "of_sessions",
        "pending_dead_letters",
        "range_scan",
        "range_scans",
        "released",
        "size_bytes",
        "stale",
        "was_claimed",
    )

    def __init__(self, kind: int, *, messages: int, size_bytes: int, end_pos: int, next_due: dict[int, int]) -> None:
        super().__init__(kind, end_pos=end_pos, is_empty=messages == 0)
        self.of_sessions = False
        """Its sessions page apart: see above."""
        self.messages = messages
        """All entries, whatever their state."""
        self.size_bytes = size_bytes
        self.pending_dead_letters: dict[int, Entry] = {}
        """Entries to be dead-lettered as soon as their body is read again."""
        self.claimed: set[int] = set()
        """Sequence counters of deferred entries that a receiver holds or has asked for."""
        self.cursors: Cursors | None = None
        """Its named readers, if it has some or something is left of them."""
        self.next_due = next_due
        """State -> when the first entry in it is due; nothing is due before."""
        self.range_scan: RangeScan | None = None
        """The scan whose rows are being read."""
        self.range_scans: deque[RangeScan] = deque()
        """The scans that wait for it."""
        self.stale = False
        """Whether memory has dropped state that the rows of `range_scan` must be compared with: they have to be read
        again.
        """
        self.released: set[str] = set()
        """Sessions that were released, or whose messages were settled, since `range_scan` began: rows read of them may
        be deleted.
        """
        self.was_claimed: set[int] = set()
        """Sequence counters that have been claimed since a slice of a purge began: rows read of them may be old."""

    @property
    def is_idle(self) -> bool:
        """Whether the sub-queue has no holders, no waiting receivers and no load under way."""
        cursors = self.cursors
        return not (
            self.locks
            or self.reservations
            or self.demands
            or self.forwarder
            or self.pending_dead_letters
            or self.claimed
            or self.range_scan is not None
            or self.range_scans
            or (self.kind == SubqueueKind.TRANSFER and self.messages)
            or (
                cursors is not None
                and (cursors.exclusive is not None or cursors.paused_until_ms or cursors.clearing or cursors.unbegun)
            )
        )

    @property
    def has_more(self) -> bool:
        """Whether the store may have entries that memory has not."""
        return self.messages > 0 and not self.of_sessions

    @property
    def is_read_alone(self) -> bool:
        """Whether a cursor has the exclusive lease."""
        return self.cursors is not None and self.cursors.exclusive is not None

    @property
    def catching_up(self) -> bool:
        """Whether due entries are not handled yet: their rows or bodies are being read."""
        return bool(self.pending_dead_letters) or any(
            isinstance(range_scan, DueScan) for range_scan in (self.range_scan, *self.range_scans)
        )

    def waits_for(self, state: int) -> bool:
        """Tell whether entries in that state wait for their time, or may, while their rows are being read."""
        return state in self.next_due or any(
            isinstance(range_scan, DueScan) and range_scan.state == state
            for range_scan in (self.range_scan, *self.range_scans)
        )

    def requeue(self, entry: Entry) -> None:
        """Return a reserved entry to its place. A scan may have passed it when its time to live ended."""
        self.ready.requeue(entry)
        if entry.due_ms is not None:
            self.note_due(entry.state, entry.due_ms)

    def note_due(self, state: int, due_ms: int) -> None:
        """Note that an entry in that state has a due time."""
        if due_ms < self.next_due.get(state, NEVER):
            self.next_due[state] = due_ms
