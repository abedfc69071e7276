"""Message locks of one sub-queue, kept by delivery batch (D12).

All messages granted in one step share a lock id and a deadline; a lock token names the batch and the position in it. A
renewal moves the deadline of single messages. An expired or settled lock is removed from the table. So a late
settlement can't touch a later delivery of the same message, which has another lock id.
"""

from collections.abc import Collection, Iterable, Iterator

from partibus.partition.core.deadlines import DeadlineHeap
from partibus.partition.protocol.keys import Entry


class LockBatch:
    """The entries of one delivery batch that are still locked, by position."""

    __slots__ = ("entries", "lock_id", "receiver", "renewed", "until_ms")

    def __init__(self, lock_id: int, until_ms: int, entries: Iterable[Entry], receiver: int = 0) -> None:
        self.lock_id = lock_id
        self.receiver = receiver
        """The number of the front end's receiver that has reserved the entries; 0: they are locked."""
        self.until_ms = until_ms
        """When the lock of every entry that was not renewed ends."""
        held: dict[int, Entry] = {}
        for entry in entries:
            held[entry.pos] = entry
        self.entries = held
        self.renewed: dict[int, int] = {}
        """Position -> when its lock ends."""

    def held(self, positions: Iterable[int], now_ms: int) -> list[int]:
        """Return the positions whose lock holds."""
        entries = self.entries
        if not self.renewed:
            return list(filter(entries.__contains__, positions)) if self.until_ms > now_ms else []
        renewed, until_ms = self.renewed, self.until_ms
        return [pos for pos in positions if pos in entries and renewed.get(pos, until_ms) > now_ms]

    def parts(self) -> list[tuple[int, list[int]]]:
        """Return (until ms, ascending positions) of all locked entries."""
        parts: dict[int, list[int]] = {}
        for pos in sorted(self.entries):
            parts.setdefault(self.renewed.get(pos, self.until_ms), []).append(pos)
        return sorted(parts.items())

    def over(self, now_ms: int) -> list[Entry]:
        """Return the entries whose lock has ended."""
        renewed, until_ms = self.renewed, self.until_ms
        return [entry for pos, entry in self.entries.items() if renewed.get(pos, until_ms) <= now_ms]

    def next_deadline_ms(self) -> int:
        """Return when the first of its locks ends."""
        if not self.renewed:
            return self.until_ms
        return min(self.renewed.get(pos, self.until_ms) for pos in self.entries)


class LockTable:
    """Lock id -> batch, and the deadlines in order."""

    __slots__ = ("_holders", "batches", "deadlines")

    def __init__(self) -> None:
        self.batches: dict[int, LockBatch] = {}
        """The batches by lock id."""
        self.deadlines = DeadlineHeap()
        """A time for each batch before which none of its locks ends."""
        self._holders: dict[int, LockBatch] | None = None
        """Position -> batch, from the first `holders` until the table is empty."""

    def __len__(self) -> int:
        return sum(len(batch.entries) for batch in self.batches.values())

    def __bool__(self) -> bool:
        return bool(self.batches)

    def held(self, now_ms: int) -> int:
        """Return the number of entries whose lock holds.

        A partition that is only looked at in its store has locks that ended long ago: no tick has removed them.
        """
        return sum(
            len(batch.entries) - len(batch.over(now_ms)) if batch.renewed else len(batch.entries)
            for batch in self.batches.values()
            if batch.renewed or batch.until_ms > now_ms
        )

    def __iter__(self) -> Iterator[LockBatch]:
        return iter(self.batches.values())

    def add(self, batch: LockBatch) -> None:
        """Lock the entries of a batch."""
        self.batches[batch.lock_id] = batch
        if self._holders is not None:
            self._holders.update(dict.fromkeys(batch.entries, batch))
        self.deadlines.set(batch.lock_id, batch.until_ms)

    def find(self, lock_id: int) -> LockBatch | None:
        """Return the batch of a lock id; `LockBatch.held` tells whether its locks still hold."""
        return self.batches.get(lock_id)

    def holders(self, wanted: Collection[int]) -> dict[int, LockBatch]:
        """Return the batches that hold some of the wanted positions, by position. `add` has added all batches."""
        if not wanted or not self.batches:
            return {}
        holders = self._holders
        if holders is None:
            holders = self._holders = {pos: batch for batch in self.batches.values() for pos in batch.entries}
        return {pos: holders[pos] for pos in wanted if pos in holders}

    def renew(self, batch: LockBatch, positions: Iterable[int], until_ms: int) -> None:
        """Move the end of some of a batch's locks."""
        if len(batch.entries) == 1:
            batch.until_ms = until_ms
            batch.renewed.clear()
            self.deadlines.set(batch.lock_id, until_ms)
        else:
            batch.renewed.update((pos, until_ms) for pos in positions)
            earliest_ms = self.deadlines.of(batch.lock_id)
            if earliest_ms is None or until_ms < earliest_ms:  # the entity's lock duration has become shorter
                self.deadlines.set(batch.lock_id, until_ms)

    def unlock(self, lock_id: int, positions: Iterable[int]) -> bool:
        """Take positions out of a batch; True when that was the last of it."""
        batch = self.batches[lock_id]
        entries = batch.entries
        for pos in positions:
            del entries[pos]
        if batch.renewed:
            for pos in positions:
                batch.renewed.pop(pos, None)
        if self._holders is not None:
            for pos in positions:
                del self._holders[pos]
        if entries:
            return False
        del self.batches[lock_id]
        if not self.batches:
            self._holders = None
        self.deadlines.discard(lock_id)
        return True

    def expired(self, now_ms: int) -> list[LockBatch]:
        """Return the batches with locks whose deadline has passed, earliest first; they stay until `unlock`."""
        over = [self.batches[lock_id] for _, lock_id in self.deadlines.take_due(now_ms)]
        for batch in over:
            if len(batch.entries) > len(batch.over(now_ms)):  # the rest has another deadline
                later_ms = min(
                    until_ms for pos in batch.entries if (until_ms := batch.renewed.get(pos, batch.until_ms)) > now_ms
                )
                self.deadlines.set(batch.lock_id, later_ms)
        return over


def by_lock(tokens: Collection[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    """Group lock tokens (lock id, position) by their lock; a token that is named twice counts once."""
    if len(tokens) == 1:
        ((lock_id, pos),) = tokens
        return [(lock_id, [pos])]
    groups: dict[int, list[int]] = {}
    for lock_id, pos in tokens:
        if lock_id in groups:
            groups[lock_id].append(pos)
        else:
            groups[lock_id] = [pos]
    # Not by pairs: a client that makes tokens up can choose thousands of pairs with one hash, but not of numbers.
    return [
        (lock_id, list(dict.fromkeys(positions)) if len(positions) > 1 else positions)
        for lock_id, positions in groups.items()
    ]
