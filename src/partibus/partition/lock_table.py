"""Message locks of one sub-queue, kept by delivery batch (D12).

All messages handed out in one step share a lock id and a deadline; a lock token names the batch and the position in it.
An expired or settled lock is simply not found any more, so a late settlement can't touch a later delivery of the same
message: that one has another lock id.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from partibus.partition.entry import Entry


class LockBatch:
    """What is still locked of one delivery batch, by position."""

    __slots__ = ("entries", "lock_id", "until_ms")

    def __init__(self, lock_id: int, until_ms: int, entries: Iterable[Entry]) -> None:
        self.lock_id = lock_id
        self.until_ms = until_ms
        self.entries = {entry.pos: entry for entry in entries}


class LockTable:
    """Lock id -> batch, and the deadlines in order."""

    __slots__ = ("_batches", "_deadlines")

    def __init__(self) -> None:
        self._batches: dict[int, LockBatch] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return sum(len(batch.entries) for batch in self._batches.values())

    def __iter__(self) -> Iterator[LockBatch]:
        return iter(self._batches.values())

    def add(self, batch: LockBatch) -> None:
        """Lock the entries of a batch."""
        self._batches[batch.lock_id] = batch
        heappush(self._deadlines, (batch.until_ms, batch.lock_id))

    def find(self, lock_id: int, now_ms: int) -> LockBatch | None:
        """The batch, while its lock holds."""
        batch = self._batches.get(lock_id)
        return batch if batch is not None and batch.until_ms > now_ms else None

    def unlock(self, lock_id: int, positions: Iterable[int]) -> bool:
        """Take positions out of a batch; True when that was the last of it."""
        entries = self._batches[lock_id].entries
        for pos in positions:
            del entries[pos]
        if entries:
            return False
        del self._batches[lock_id]
        return True

    def next_deadline_ms(self) -> int | None:
        """When the earliest lock ends."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._batches:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def expired(self, now_ms: int) -> list[LockBatch]:
        """The batches whose deadline has passed, earliest first; they stay until `unlock`."""
        over = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            batch = self._batches.get(heappop(deadlines)[1])
            if batch is not None:
                over.append(batch)
        return over


def by_lock(tokens: Iterable[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """Group lock tokens (lock id, position) by their lock; a token that is named twice counts once."""
    groups: dict[int, list[int]] = {}
    for lock_id, pos in dict.fromkeys(tokens):
        if lock_id in groups:
            groups[lock_id].append(pos)
        else:
            groups[lock_id] = [pos]
    return list(groups.items())
