"""Duplicate detection: which message ids were accepted inside of the window (rows K7-K9).

Every accepted id goes to the store, in time buckets of an eighth of the window, so that what is out of it can be
removed by range. Memory has the latest ids, and a filter over all of them that says "surely not" for nearly every new
id: one byte per cell, two cells per id, each with the number of the latest bucket that used it. So the filter forgets
by itself, and it grows by repeating itself, without knowing the ids. Only when it says "perhaps" the store is asked,
for a batch of ids at a time; commands behind keep their order.

The filter's size is bounded. Past some 1.5 million ids in the window of one partition it says "perhaps" more often than
for one id in ten, and detection costs a look-up in the store for those (docs/benchmarks.md).
"""

from collections import deque
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from partibus.message import Message
from partibus.partition.commands import Enqueue, Transact
from partibus.partition.events import IdsForgotten
from partibus.partition.step import Step

ID_BYTES = 16
BUCKETS = 8
RECENT_MAX = 1 << 15
"""Ids in memory: some 3 MB."""
CELLS_MIN = 1 << 16
CELLS_MAX = 1 << 23
CELLS_PER_ID = 16
GROWTH = 4
"""What is in the filter stays in every copy of it until it is out of the window, so few large steps beat many small."""
GENERATIONS = 251
"""Bucket numbers in a cell are taken modulo this, and one is added: 0 is a cell that nobody used."""
SCAN_IDS = 5_000
TRIM_IDS = 2_000
TRIM_PAUSE_MS = 20

_CELLS = Struct(">II")


class Waiting(NamedTuple):
    """A command with messages, and the id of each; None for a message that has none."""

    command: Enqueue | Transact
    ids: list[bytes | None]


class DuplicateIds:
    """The ids of one partition."""

    __slots__ = (
        "_bucket_ms",
        "_cells",
        "_counts",
        "_longest_ms",
        "_mask",
        "_recent",
        "_to_trim",
        "_trim_ms",
        "_window_ms",
        "answered",
        "is_known",
        "loading",
        "scanning",
        "waiting",
    )

    def __init__(self, window_ms: int, *, is_known: bool) -> None:
        """``is_known``: nothing was accepted before."""
        self._recent: dict[bytes, int] = {}
        self._cells = bytearray(CELLS_MIN)
        self._mask = CELLS_MIN - 1
        self._counts: dict[int, int] = {}
        """Bucket -> ids that it has in the store."""
        self._to_trim = 0
        """Ids in the store whose bucket is out of the window."""
        self._trim_ms: int | None = None
        self._longest_ms = 0
        """The longest buckets that there may be."""
        self._follow(window_ms)
        self.is_known = is_known
        """The filter knows every id in the store."""
        self.scanning = False
        self.waiting: deque[Waiting] = deque()
        """Commands in their order; the first perhaps waits for the store."""
        self.loading = False
        self.answered: dict[bytes, int | None] = {}
        """What the store said of ids that commands wait for: when they were accepted."""

    def _follow(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._bucket_ms = max(1, window_ms // BUCKETS)
        self._longest_ms = max(self._longest_ms, self._bucket_ms)

    def change_window(self, window_ms: int) -> None:
        """The entity was updated: the filter's bucket numbers mean other times, so it is made anew."""
        if window_ms != self._window_ms:
            self._follow(window_ms)
            self._cells = bytearray(len(self._cells))
            self.is_known = False

    def bucket(self, at_ms: int) -> int:
        """The bucket of a time: when it began, in ms. Buckets made for another window stay comparable that way."""
        return at_ms - at_ms % self._bucket_ms

    def first_bucket(self, now_ms: int) -> int:
        """No bucket before this one has ids inside of the window."""
        return max(0, now_ms - self._window_ms - self._longest_ms)

    def needs_look(self, message_id: bytes, now_ms: int) -> bool:
        """Only the store can say whether this id was accepted."""
        if message_id in self._recent or message_id in self.answered:
            return False
        if not self.is_known:
            return True
        first, second = _CELLS.unpack_from(message_id)
        one: int = self._cells[first & self._mask]
        other: int = self._cells[second & self._mask]
        if not one or not other:
            return False
        current = now_ms // self._bucket_ms
        oldest = current - max(0, now_ms - self._window_ms) // self._bucket_ms
        return (current - one + 1) % GENERATIONS <= oldest and (current - other + 1) % GENERATIONS <= oldest

    def is_duplicate(self, message_id: bytes, now_ms: int) -> bool:
        """Accepted inside of the window."""
        accepted_ms = self._recent.get(message_id)
        if accepted_ms is None:
            accepted_ms = self.answered.get(message_id)
        return accepted_ms is not None and now_ms - accepted_ms < self._window_ms

    def remember(self, message_id: bytes, now_ms: int) -> int:
        """An id is accepted; its bucket."""
        bucket = self.bucket(now_ms)
        recent = self._recent
        recent.pop(message_id, None)
        recent[message_id] = now_ms
        if len(recent) > RECENT_MAX:
            del recent[next(iter(recent))]
        self._count(bucket)
        self._mark(message_id, now_ms, now_ms)
        return bucket

    def take_scanned(self, rows: list[tuple[int, bytes, int]], now_ms: int) -> None:
        """Ids that were accepted before: (bucket, id, accepted ms)."""
        for bucket, message_id, accepted_ms in rows:
            self._count(bucket)
            if now_ms - accepted_ms < self._window_ms:
                self._mark(message_id, accepted_ms, now_ms)

    def _count(self, bucket: int) -> None:
        counts = self._counts
        counts[bucket] = count = counts.get(bucket, 0) + 1
        if self._trim_ms is None:
            self._trim_ms = self._out_of_window_ms(bucket)
        if not count & 0x3FF and CELLS_PER_ID * sum(counts.values()) > len(self._cells):
            self._grow()

    def _mark(self, message_id: bytes, accepted_ms: int, now_ms: int) -> None:
        """Note the latest bucket in an id's cells."""
        number = accepted_ms // self._bucket_ms
        generation = number % GENERATIONS + 1
        current = now_ms // self._bucket_ms
        first, second = _CELLS.unpack_from(message_id)
        cells, mask = self._cells, self._mask
        for cell in (first & mask, second & mask):
            known = cells[cell]
            if not known or (current - known + 1) % GENERATIONS > current - number:
                cells[cell] = generation

    def _grow(self) -> None:
        """More cells: an id's cell is where it was, or behind it by a multiple of what the number of cells was."""
        if len(self._cells) < CELLS_MAX:
            self._cells = self._cells * min(GROWTH, CELLS_MAX // len(self._cells))
            self._mask = len(self._cells) - 1

    def _out_of_window_ms(self, bucket: int) -> int:
        return bucket + self._longest_ms + self._window_ms + 1

    # -- removing what is out of the window --------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When `trim` has something to do."""
        return self._trim_ms

    def trim(self, now_ms: int, step: Step) -> None:
        """Have some of the ids removed that are out of the window."""
        if self._trim_ms is None or now_ms < self._trim_ms:
            return
        first = self.first_bucket(now_ms)
        for bucket in [bucket for bucket in self._counts if bucket < first]:
            self._to_trim += self._counts.pop(bucket)
        if self._to_trim > 0:
            step.events.append(IdsForgotten(first, TRIM_IDS))
            self._to_trim -= TRIM_IDS
        if self._to_trim > 0:
            self._trim_ms = now_ms + TRIM_PAUSE_MS
        else:
            self._to_trim = 0
            self._trim_ms = max(now_ms + 1, self._out_of_window_ms(min(self._counts))) if self._counts else None


def id_of(message: Message) -> bytes | None:
    """What makes two messages duplicates: the id, and the key beside it. None for a message without an id."""
    if message.message_id is None:
        return None
    key = message.session_id if message.session_id is not None else message.partition_key
    text = f"{'' if key is None else len(key)}:{key or ''}{message.message_id}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=ID_BYTES).digest()
