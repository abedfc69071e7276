"""Express messages: in memory only, until they are consumed or old (D18, ADR 0016).

A partition of an express entity acknowledges a message when it has taken it. The message is *unwritten* then: it is in
memory only. It is written when it is nearly as old as the entity's loss bound. A receiver that completes it before that
spares the store all work. `partition.core.write_behind` delays the rows.

The age of a message counts from the time at which the broker took it.
"""

from collections.abc import Iterable
from itertools import islice, takewhile

from partibus.limits import StoreLimits
from partibus.partition.core.subqueue import NEVER
from partibus.partition.protocol.keys import Entry

NUMBERS_AHEAD = 1 << 16
"""Numbers reserved by one commit. A client that saw the number of a message that was lost in a crash must never see
another message with it. So numbers are durable before a client sees them: 65,536 messages, or locks, for one row."""
_RENEWED_AT = NUMBERS_AHEAD // 2
SLICE_MAX = 512
"""Messages that one step writes because of their age, or for want of memory: about half a millisecond. The next
ones follow after the other commands that have arrived, so an old burst of sends does not hold up other clients."""


class Room:
    """The bound of the unwritten messages of all stores of a broker."""

    __slots__ = ("bytes_max", "size_bytes")

    def __init__(self, bytes_max: int = StoreLimits().express_bytes) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0


class Pool:
    """The unwritten messages of all partitions of one store."""

    __slots__ = ("_room", "messages", "size_bytes", "under_way")

    def __init__(self, room: Room) -> None:
        self._room = room
        self.messages = 0
        self.size_bytes = 0
        self.under_way: dict[int, int] = {}
        """Commit that is not durable yet -> when the oldest message was taken that it writes behind."""

    @property
    def is_full(self) -> bool:
        """More is unwritten than may be."""
        return self._room.size_bytes > self._room.bytes_max

    def count(self, messages: int, size_bytes: int) -> None:
        """Count unwritten messages and bytes; negative numbers for fewer."""
        self.messages += messages
        self.size_bytes += size_bytes
        self._room.size_bytes += size_bytes

    def writing(self, commit: int, oldest_ms: int) -> None:
        """Note that a commit writes unwritten messages."""
        self.under_way[commit] = min(oldest_ms, self.under_way.get(commit, oldest_ms))

    def written(self, commit: int) -> None:
        """Take note that all commits up to this one are durable."""
        self.under_way = {number: ms for number, ms in self.under_way.items() if number > commit}

    def lags(self, now_ms: int, bound_ms: int) -> bool:
        """Tell whether the store is slower than a loss bound.

        Rows given to it in time are then older than the bound and not durable yet.
        """
        return bool(self.under_way) and now_ms - min(self.under_way.values()) > bound_ms

    def clear(self) -> None:
        """Forget all messages: memory was dropped."""
        self._room.size_bytes -= self.size_bytes
        self.messages = self.size_bytes = 0
        self.under_way.clear()


class Express:
    """The unwritten messages of one partition, and the numbers that it may give."""

    __slots__ = (
        "_first_due_ms",
        "_is_in_order",
        "_last_ms",
        "_pool",
        "_reserved_number",
        "_reserved_sequence",
        "bound_ms",
        "came",
        "locks",
        "size_bytes",
        "stored_to",
        "unwritten",
        "write_ms",
        "written_ms",
    )

    def __init__(self, pool: Pool, bound_ms: int, stored_to: int) -> None:
        self._pool = pool
        self.stored_to = stored_to
        """The position above which waiting entries are unwritten."""
        self.bound_ms = bound_ms
        """A message that is older is durable, as long as the store keeps up."""
        self.unwritten: dict[int, Entry] = {}
        """Unwritten entries of the active sub-queue by position, ascending; the same objects as in its ready lists."""
        self.size_bytes = 0
        self.locks: set[int] = set()
        """Lock ids of delivery batches of which the store knows nothing: of unwritten messages only."""
        self.write_ms: int | None = None
        """Not before then something is old; None: nothing is unwritten."""
        self.written_ms: int | None = None
        """When the oldest message was taken of those that the last step wrote behind."""
        self.came = 0
        """Entries in this step."""
        self._first_due_ms = NEVER
        """None of them expires before, perhaps later."""
        self._last_ms = 0
        self._is_in_order = True
        """Whether the order is that of age, too: the clock was not set back."""
        self._reserved_sequence = 0
        self._reserved_number = 0

    def hold(self, entries: list[Entry], size_bytes: int, due_ms: int | None, now_ms: int) -> None:
        """Take new entries. ``due_ms``: when the first of them expires."""
        self.unwritten.update([(entry.pos, entry) for entry in entries])
        self.size_bytes += size_bytes
        self._pool.count(len(entries), size_bytes)
        self.came += len(entries)
        self._is_in_order = self._is_in_order and now_ms >= self._last_ms
        self._last_ms = now_ms
        if due_ms is not None and due_ms < self._first_due_ms:
            self._first_due_ms = due_ms
        self._look_at(now_ms + self._write_age_ms if due_ms is None else min(due_ms, now_ms + self._write_age_ms))

    def let_go(self, entries: Iterable[Entry]) -> list[Entry]:
        """Forget entries that were removed, or are about to be written; return those that were unwritten."""
        unwritten = self.unwritten
        found = [entry for entry in entries if unwritten.pop(entry.pos, None) is not None]
        if found:
            size_bytes = sum([entry.size_bytes for entry in found])
            self.size_bytes -= size_bytes
            self._pool.count(-len(found), -size_bytes)
            if not unwritten:
                self._is_empty()
        return found

    def _is_empty(self) -> None:
        self.write_ms = None
        self._first_due_ms = NEVER
        self._is_in_order = True

    def page(self, from_pos: int, end_pos: int, max_entries: int, max_bytes: int) -> list[Entry] | None:
        """Return a page as `queries.Page` describes; None when the store has to be asked."""
        if from_pos <= self.stored_to:
            return None
        found: list[Entry] = []
        for entry in self.unwritten.values():
            if entry.pos >= end_pos or len(found) == max_entries or max_bytes <= 0:
                break
            if entry.pos >= from_pos:
                found.append(entry)
                max_bytes -= entry.size_bytes
        return found

    def resized(self, entry: Entry, by: int) -> None:
        """Note that an entry has got another body."""
        if self.unwritten.get(entry.pos) is entry:
            self.size_bytes += by
            self._pool.count(0, by)

    def take_old(self, now_ms: int) -> list[Entry]:
        """Take the entries that must be written now, or the first of them.

        Entries that are nearly old go along. So a partition asks for about four commits a second, or more when it
        writes more, instead of one for each message.
        """
        taken_ms = now_ms - self.bound_ms * 3 // 4
        due_ms = now_ms + self.bound_ms // 12
        entries = self.unwritten.values()
        looked_at_all = self._first_due_ms <= due_ms or not self._is_in_order
        if looked_at_all:
            old = [
                entry
                for entry in entries
                if entry.enqueued_ms <= taken_ms or (entry.due_ms is not None and entry.due_ms <= due_ms)
            ]
        else:
            old = list(takewhile(lambda entry: entry.enqueued_ms <= taken_ms, islice(entries, SLICE_MAX)))
        self.let_go(old)
        if not self.unwritten:
            return old
        oldest_ms = next(iter(entries)).enqueued_ms
        if looked_at_all:
            oldest_ms = min([entry.enqueued_ms for entry in entries])
            self._first_due_ms = min([entry.due_ms for entry in entries if entry.due_ms is not None], default=NEVER)
        self.write_ms = min(oldest_ms + self._write_age_ms, self._first_due_ms)
        return old

    def make_room(self, now_ms: int) -> list[Entry]:
        """Take the oldest entries when the bound is exceeded: more than this step brought, so that the total falls."""
        taken = self.let_go(list(islice(self.unwritten.values(), self.came + SLICE_MAX)))
        if self.unwritten and self.is_over:
            self.write_ms = now_ms
        return taken

    def release(self) -> None:
        """Release the memory of a deleted entity."""
        self.let_go(list(self.unwritten.values()))

    @property
    def is_over(self) -> bool:
        """Whether the memory for unwritten messages is full."""
        return self._pool.is_full

    @property
    def _write_age_ms(self) -> int:
        """The age at which a message is written: the last sixth of its bound is for the commit."""
        return self.bound_ms * 5 // 6

    def _look_at(self, time_ms: int) -> None:
        if self.write_ms is None or time_ms < self.write_ms:
            self.write_ms = time_ms

    # -- numbers -----------------------------------------------------------------------------------------------------

    def counters(self, next_sequence: int, next_number: int) -> tuple[int, int]:
        """Return the next numbers that the store is to hold."""
        return max(next_sequence, self._reserved_sequence), max(next_number, self._reserved_number)

    def reserve(self, next_sequence: int, next_number: int) -> bool | None:
        """Reserve more numbers, if they run low.

        Returns True when some were given out unreserved, so that a reply must wait; None when there are enough.
        """
        left = min(self._reserved_sequence - next_sequence, self._reserved_number - next_number)
        if left >= _RENEWED_AT:
            return None
        self._reserved_sequence = next_sequence + NUMBERS_AHEAD
        self._reserved_number = next_number + NUMBERS_AHEAD
        return left < 0
