"""Duplicate detection: which message ids were accepted inside of the window (rows K7-K9).

Every accepted id goes to the store, in buckets of an eighth of the window or 32,768 ids. So expired ids can be removed
by range, and the ids of a commit fall on few pages. Memory has the latest ids, and a filter over all of them that says
"surely not" for nearly every new id. The filter has one byte per cell and two cells per id; a cell holds the eighth of
a window in which it was used last. So the filter forgets by itself, and it grows by repeating itself, without knowing
the ids. Only when it says "perhaps" is the store asked, for a batch of ids at a time; later commands keep their order.

The filter's size is bounded. Past some 3 million ids in the window of one partition it says "perhaps" for more than one
id in ten, and detection costs a look-up in the store for those (docs/benchmarks.md).
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from partibus.message import WIDE_ID, Message
from partibus.partition.core.events import IdsForgotten
from partibus.partition.core.intents import Intents
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import CheckIds, Enqueue, Transact
from partibus.partition.protocol.load_requests import DuplicateScan

ID_BYTES = 16
GENERATIONS_PER_WINDOW = 8
BUCKET_IDS = 1 << 15
RECENT_MAX = 1 << 15
"""Ids in memory, beside those of the last command: some 6 MB."""
RECENT_BYTES = 190
"""The memory of one id: its bytes, the time, its place in the dictionary and in the list behind that."""
CELLS_MIN = 1 << 16
CELLS_MAX = 1 << 24
CELLS_PER_ID = 16
GROWTH = 4
"""The growth factor of the filter. Old cells stay in every copy until they leave the window, so few large steps are
better than many small ones.
"""
GENERATIONS = 251
"""Eighths of a window are numbered modulo this, plus one: 0 is an unused cell."""
TRIM_IDS = 2_000
TRIM_PAUSE_MS = 20

_CELLS = Struct(">II")


class Waiting(NamedTuple):
    """A command with messages, and the id of each; None for a message that has none."""

    command: Enqueue | Transact | CheckIds
    ids: list[bytes | None]


def note_of(sequence: int, tag: bytes) -> bytes:
    """Return what is remembered of an accepted message, beside its id."""
    return sequence.to_bytes(8, "big") + tag


def original_of(note: bytes) -> tuple[int, bytes]:
    """Return the sequence counter and the tag in a note."""
    return int.from_bytes(note[:8], "big"), note[8:]


class DuplicateIds:
    """The ids of one partition."""

    __slots__ = (
        "_bucket",
        "_cells",
        "_counts",
        "_forgetting",
        "_forgotten_to",
        "_generation_ms",
        "_longest_ms",
        "_mask",
        "_recent",
        "_stored",
        "_to_trim",
        "_window_ms",
        "answered",
        "intents",
        "is_known",
        "is_stale",
        "loading",
        "originals",
        "scanning",
        "trim_ms",
        "waiting",
    )

    def __init__(self, window_ms: int, *, is_known: bool) -> None:
        """``is_known``: nothing was accepted before."""
        self._recent: OrderedDict[bytes, int] = OrderedDict()
        self._cells = bytearray(CELLS_MIN)
        self._mask = CELLS_MIN - 1
        self._counts: dict[int, int] = {}
        """Bucket -> ids that it has in the store."""
        self._stored = 0
        """Ids in all of them."""
        self._bucket = 0
        """The one that ids go to now."""
        self._forgotten_to = 0
        """Ids in buckets before this one were forgotten by a purge."""
        self._forgetting = False
        """The store may still have forgotten ids. Only memory knows that they are forgotten."""
        self._to_trim = 0
        """Ids in the store whose bucket is out of the window."""
        self.trim_ms: int | None = None
        """When the first bucket leaves the window."""
        self._longest_ms = 0
        """The longest time between the begin of a bucket and an id in it. A bucket may be older than the window of now:
        only a scan knows."""
        self._follow(window_ms)
        self.is_known = is_known
        """The filter knows every id in the store."""
        self.scanning = False
        self.is_stale = False
        """The window has changed since the scan began: ids that it has read are in no filter."""
        self.intents = Intents()
        """Sends under way of messages whose ids are unique in all partitions."""
        self.waiting: deque[Waiting] = deque()
        """Commands in their order; the first perhaps waits for the store."""
        self.loading = False
        self.originals: dict[bytes, bytes] = {}
        """Notes about accepted messages that have a tag (`note_of`), of ids in memory."""
        self.answered: dict[bytes, int | None] = {}
        """The store's answers about ids that commands wait for: when they were accepted."""

    def _follow(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._generation_ms = max(1, window_ms // GENERATIONS_PER_WINDOW)
        self._longest_ms = max(self._longest_ms, self._generation_ms)

    def change_window(self, window_ms: int) -> None:
        """Empty the filter after an update of the entity: its cells count eighths of another window.

        A scan of all ids fills it again; a running scan begins anew.
        """
        if window_ms != self._window_ms:
            self._follow(window_ms)
            self._cells = bytearray(len(self._cells))
            self.is_known = False
            self.is_stale = self.scanning

    @property
    def is_idle(self) -> bool:
        """Whether no command waits, and the store is not being asked."""
        is_busy = self.waiting or self.loading or self.scanning or self._forgetting
        return not is_busy and self.intents.is_idle

    @property
    def memory_bytes(self) -> int:
        """The memory of the filter and of the ids."""
        return len(self._cells) + RECENT_BYTES * (len(self._recent) + len(self.answered) + len(self.originals))

    def begin_scan(self, step: Step, most: int) -> None:
        """Have all ids in the store read, ``most`` at a time."""
        step.loads.append(DuplicateScan((-1, b""), most))
        self.scanning = True
        self.is_stale = False
        self._counts.clear()
        self._stored = 0

    def end_scan(self, now_ms: int) -> None:
        """Note that all ids in the store have been read."""
        self.scanning = False
        self.is_known = True
        self.trim_ms = self._out_of_window_ms(min(self._counts)) if self._counts else None
        if self._forgetting:
            self.trim_ms = now_ms

    def first_bucket(self, now_ms: int) -> int:
        """Return a bucket before which none has ids inside of the window."""
        return (
            max(self._forgotten_to, now_ms - self._window_ms - self._longest_ms)
            if self.is_known
            else self._forgotten_to
        )

    def unknown(self, ids: Iterable[bytes | None], now_ms: int) -> list[bytes]:
        """Return the ids of which only the store can tell whether they were accepted."""
        recent, answered = self._recent, self.answered
        new = [item for item in ids if item is not None and item not in recent and item not in answered]
        if not self.is_known:
            return new
        cells, mask = self._cells, self._mask
        current = now_ms // self._generation_ms
        oldest = current - max(0, now_ms - self._window_ms) // self._generation_ms
        found = []
        for item in new:
            first, second = _CELLS.unpack_from(item)
            one, other = cells[first & mask], cells[second & mask]
            if (
                one
                and other
                and (current - one + 1) % GENERATIONS <= oldest
                and (current - other + 1) % GENERATIONS <= oldest
            ):
                found.append(item)
        return found

    def drop_oldest(self) -> None:
        """Drop the oldest ids from memory above `RECENT_MAX`.

        Between two commands only: the parts of a transaction are accepted one by one, after `unknown` has said that
        memory can tell about all of them.
        """
        recent = self._recent
        while len(recent) > RECENT_MAX:
            oldest, _ = recent.popitem(last=False)
            self.originals.pop(oldest, None)

    def accept(self, ids: Iterable[bytes | None], now_ms: int) -> tuple[list[bool], list[bytes]]:
        """Accept ids that are all decided: return for each whether it is a duplicate, and the new ones."""
        recent, answered = self._recent, self.answered
        after_ms = now_ms - self._window_ms
        duplicate: list[bool] = []
        accepted: list[bytes] = []
        for item in ids:
            if item is None:
                duplicate.append(False)
                continue
            accepted_ms = recent.get(item)
            if accepted_ms is None and answered:
                accepted_ms = answered.get(item)
            if accepted_ms is not None and accepted_ms > after_ms:
                duplicate.append(True)
                continue
            duplicate.append(False)
            accepted.append(item)
            recent[item] = now_ms
            recent.move_to_end(item)
            if item in answered:  # which outlives it here while commands wait
                answered[item] = now_ms
        self._mark(accepted, now_ms, now_ms)
        return duplicate, accepted

    def remember(self, item: bytes, note: bytes, now_ms: int) -> None:
        """Note an id that is of no message, in place of what was known of it."""
        self._recent.pop(item, None)
        self.accept([item], now_ms)
        self.drop_oldest()
        self.originals[item] = note

    def known(self, ids: Iterable[bytes | None], now_ms: int) -> list[int]:
        """Return the indexes of ids that were accepted in the window. `unknown` has said that all can be told."""
        recent, answered = self._recent, self.answered
        after_ms = now_ms - self._window_ms
        found = []
        for index, item in enumerate(ids):
            if item is not None:
                accepted_ms = recent.get(item)
                if accepted_ms is None:
                    accepted_ms = answered.get(item)
                if accepted_ms is not None and accepted_ms > after_ms:
                    found.append(index)
        return found

    def has_forgotten(self, bucket: int) -> bool:
        """Tell whether a purge has forgotten the ids of a bucket."""
        return bucket < self._forgotten_to

    def take_answers(self, ids: Iterable[bytes], found: Mapping[bytes, tuple[int, bytes]]) -> None:
        """Take what the store knows of ids."""
        for item in ids:
            accepted_ms, note = found.get(item, (None, b""))
            self.answered[item] = accepted_ms
            if note:
                self.originals[item] = note

    def forget_answers(self) -> None:
        """Forget what the store has said, once no command needs it."""
        for item in self.answered:
            if item not in self._recent:
                self.originals.pop(item, None)
        self.answered.clear()

    def forget_all(self, now_ms: int) -> None:
        """Forget every id; `trim` has the store remove its own in slices, once a scan has counted them."""
        self._recent.clear()
        self._cells = bytearray(len(self._cells))
        self.forget_answers()
        self.originals.clear()
        self._forgotten_to = max(now_ms, self._bucket) + 1
        self._bucket = self._forgotten_to
        self._forgetting = not self.is_known or bool(self._counts)
        if self.is_known:
            self.trim_ms = now_ms if self._counts else None

    def bucket_for(self, count: int, now_ms: int) -> int:
        """Return the bucket in which ``count`` ids are stored now, as its start in ms."""
        bucket = self._bucket
        if now_ms - bucket >= self._generation_ms or self._counts.get(bucket, 0) >= BUCKET_IDS:
            bucket = self._bucket = max(now_ms, bucket + 1)
        self._count(bucket, count)
        return bucket

    def take_scanned(self, rows: list[tuple[int, bytes, int]], now_ms: int) -> None:
        """Take ids that were accepted before: (bucket, id, accepted ms)."""
        for bucket, message_id, accepted_ms in rows:
            self._count(bucket, 1)
            if bucket < self._forgotten_to:
                continue
            if accepted_ms - bucket >= self._longest_ms:
                self._longest_ms = accepted_ms - bucket + 1
            if now_ms - accepted_ms < self._window_ms:
                self._mark([message_id], accepted_ms, now_ms)

    def _count(self, bucket: int, count: int) -> None:
        counts = self._counts
        counts[bucket] = counts.get(bucket, 0) + count
        self._stored += count
        if self.trim_ms is None:
            self.trim_ms = self._out_of_window_ms(bucket)
        while CELLS_PER_ID * self._stored > len(self._cells) < CELLS_MAX:
            self._grow()

    def _mark(self, ids: list[bytes], accepted_ms: int, now_ms: int) -> None:
        """Note the latest generation in the ids' cells."""
        number = accepted_ms // self._generation_ms
        generation = number % GENERATIONS + 1
        age = now_ms // self._generation_ms - number
        newest = generation + age
        cells, mask = self._cells, self._mask
        for item in ids:
            first, second = _CELLS.unpack_from(item)
            first &= mask
            second &= mask
            if not age:
                cells[first] = cells[second] = generation
                continue
            for cell in (first, second):
                known = cells[cell]
                if not known or (newest - known) % GENERATIONS > age:
                    cells[cell] = generation

    def _grow(self) -> None:
        """Enlarge the filter. An id's cell stays, or moves behind by a multiple of the old number of cells."""
        self._cells = self._cells * min(GROWTH, CELLS_MAX // len(self._cells))
        self._mask = len(self._cells) - 1

    def _out_of_window_ms(self, bucket: int) -> int:
        return bucket + self._longest_ms + self._window_ms + 1

    # -- removing what is out of the window --------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return when `trim` has work, or an announcement ends."""
        deadlines = (self.intents.next_deadline_ms(), None if self.scanning else self.trim_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def trim(self, now_ms: int, step: Step, scan_ids: int) -> None:
        """Have some of the expired ids removed, after a scan of the store's ids if necessary."""
        if self.trim_ms is None or now_ms < self.trim_ms or self.scanning:
            return
        if not self.is_known:
            self.begin_scan(step, scan_ids)
            return
        first = self.first_bucket(now_ms)
        for bucket in [bucket for bucket in self._counts if bucket < first]:
            count = self._counts.pop(bucket)
            self._stored -= count
            self._to_trim += count
        if self._to_trim > 0:
            step.events.append(IdsForgotten(first, TRIM_IDS))
            self._to_trim -= TRIM_IDS
        if self._to_trim > 0:
            self.trim_ms = now_ms + TRIM_PAUSE_MS
        else:
            self._to_trim = 0
            self._forgetting = False
            self.trim_ms = max(now_ms + 1, self._out_of_window_ms(min(self._counts))) if self._counts else None


def id_of(message: Message) -> bytes | None:
    """Return the identity of a message for duplicate detection: its id with its key. None without an id.

    An id that begins with `WIDE_ID` stands by itself.
    """
    if message.message_id is None:
        return None
    if message.message_id.startswith(WIDE_ID):
        return blake2b(message.message_id.encode("utf-8", "surrogatepass"), digest_size=ID_BYTES).digest()
    key = message.session_id if message.session_id is not None else message.partition_key
    text = f"{'' if key is None else len(key)}:{key or ''}{message.message_id}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=ID_BYTES).digest()
