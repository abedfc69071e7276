"""The cache between a front end's receivers and the partitions of one sub-queue (D10, rows P13, P14).

```text
 receiver asks ─▶ every partition is asked ─▶ the first messages win, the rest are kept here
 next receiver asks ───────────────────────▶ gets what is kept, no partition is asked
```

What is kept is *reserved*: held back by its owner for five seconds at most, without lock or count. Handing it out turns
the reservation into a lock at the owner; a reservation that has lapsed is simply missing from the answer, and the
receiver goes on waiting. So a front end that dies takes nothing with it.

Partitions take turns. Every eighth hand-out goes to the one whose oldest kept message is the oldest of all, so that a
partition with little traffic is not starved by busy ones.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from partibus.partition.commands import (
    CancelReceive,
    Failed,
    Granted,
    LockReserved,
    LockToken,
    Receive,
    ReturnReserved,
)
from partibus.partition.entry import Entry
from partibus.routing.partitions import Numbers, PartitionHandle, error_of
from partibus.routing.receive import OnFailed, OnGranted

ASK_MAX = 256
"""Messages that one partition is asked to reserve at a time."""
ASK_BYTES = 64 * 1024
"""Bytes that one partition may send ahead per ask: sixteen of them fill 1 MB."""
OLDEST_EVERY = 8


class _Kept:
    """What is kept of one partition, and what it was asked for."""

    __slots__ = ("asked", "entries", "partition", "receiver")

    def __init__(self, partition: PartitionHandle, receiver: int) -> None:
        self.partition = partition
        self.receiver = receiver
        self.entries: deque[tuple[int, Entry]] = deque()
        """(reservation, entry), oldest first."""
        self.asked = 0


class CachedSource:
    """One receiver behind the cache."""

    __slots__ = ("_cache", "by_receiver", "delete", "handing_out", "on_failed", "on_granted", "stopping", "wanted")

    def __init__(self, cache: "FrontEndCache", *, delete: bool, on_granted: OnGranted, on_failed: OnFailed) -> None:
        self._cache = cache
        self.delete = delete
        self.on_granted = on_granted
        self.on_failed = on_failed
        self.wanted = 0
        self.handing_out = 0
        """Hand-outs that the owners have not answered yet."""
        self.stopping: Callable[[], None] | None = None
        self.by_receiver: list[int] = []
        """This receiver's number at each partition."""

    def ask(self, count: int, max_bytes: int) -> None:
        self.wanted += count
        self._cache.pump()

    def stop(self, on_stopped: Callable[[], None]) -> None:
        self.wanted = 0
        self._cache.settle_demand()
        if self.handing_out:
            self.stopping = on_stopped
        else:
            on_stopped()

    def close(self) -> None:
        self.wanted = 0
        self._cache.leave(self)


class FrontEndCache:
    """One per sub-queue of a partitioned entity and broker process."""

    def __init__(self, entity: str, partitions: list[PartitionHandle], kind: int, numbers: Numbers) -> None:
        self._entity = entity
        self._kind = kind
        self._numbers = numbers
        self._kept = [_Kept(partition, numbers.next()) for partition in partitions]
        self._sources: list[CachedSource] = []
        self._turn = 0
        self._hand_outs = 0
        self._pumping = False
        for kept in self._kept:
            self._register(kept)

    def source(self, *, delete: bool, on_granted: OnGranted, on_failed: OnFailed) -> CachedSource:
        """A new receiver."""
        source = CachedSource(self, delete=delete, on_granted=on_granted, on_failed=on_failed)
        for kept in self._kept:
            receiver = self._numbers.next()
            source.by_receiver.append(receiver)
            kept.partition.register(receiver, self._on_locked(source, kept))
        self._sources.append(source)
        return source

    def leave(self, source: CachedSource) -> None:
        """A receiver is gone."""
        self._sources.remove(source)
        for kept, receiver in zip(self._kept, source.by_receiver, strict=True):
            kept.partition.unregister(receiver)
        self.settle_demand()

    # -- handing out -------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Hand out what is kept to who wants it, then ask the partitions for the rest."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while (source := self._next_source()) is not None and (kept := self._next_kept()) is not None:
                self._hand_out(source, kept)
        finally:
            self._pumping = False
        self._ask()

    def _next_source(self) -> CachedSource | None:
        """Receivers take turns, too."""
        for _ in self._sources:
            source = self._sources.pop(0)
            self._sources.append(source)
            if source.wanted > 0:
                return source
        return None

    def _next_kept(self) -> _Kept | None:
        filled = [kept for kept in self._kept if kept.entries]
        if not filled:
            return None
        self._hand_outs += 1
        if self._hand_outs % OLDEST_EVERY == 0:
            return min(filled, key=lambda kept: kept.entries[0][1].enqueued_ms)
        for _ in self._kept:
            self._turn = (self._turn + 1) % len(self._kept)
            if self._kept[self._turn].entries:
                break
        return self._kept[self._turn]

    def _hand_out(self, source: CachedSource, kept: _Kept) -> None:
        count = min(source.wanted, len(kept.entries))
        tokens: list[LockToken] = []
        for _ in range(count):
            reservation, entry = kept.entries.popleft()
            tokens.append((reservation, entry.pos))
        source.wanted -= count
        source.handing_out += count
        receiver = source.by_receiver[self._kept.index(kept)]
        kept.partition.submit(LockReserved(self._kind, receiver, tokens, delete=source.delete))

    def _on_locked(self, source: CachedSource, kept: _Kept) -> Callable[[Any], None]:
        def locked(reply: Any) -> None:
            if isinstance(reply, Failed):
                source.on_failed(error_of(reply, self._entity))
                return
            asked = reply.asked
            source.handing_out -= asked
            lapsed = asked - len(reply.entries)
            if source.stopping is None:
                source.wanted += lapsed
            if reply.entries:
                source.on_granted(kept.partition, reply)
            if source.stopping is not None and not source.handing_out:
                stopped, source.stopping = source.stopping, None
                stopped()
            if lapsed:
                self.pump()

        return locked

    # -- asking ------------------------------------------------------------------------------------------------------

    def _wanted(self) -> int:
        return sum(source.wanted for source in self._sources)

    def _ask(self) -> None:
        """Every partition owes as much as is wanted: whichever has messages first serves first."""
        wanted = min(self._wanted(), ASK_MAX)
        if not wanted:
            self.settle_demand()
            return
        for kept in self._kept:
            if 2 * kept.asked <= wanted and kept.asked < wanted and kept.partition.available:
                missing = wanted - kept.asked
                kept.asked = wanted
                kept.partition.submit(Receive(self._kind, kept.receiver, missing, ASK_BYTES, reserve=True))

    def settle_demand(self) -> None:
        """Nobody waits: take back what partitions were asked for; with no receiver left, give back what is kept."""
        if self._wanted():
            return
        for kept in self._kept:
            if kept.asked:
                kept.asked = 0
                kept.partition.submit(CancelReceive(0, self._kind, kept.receiver))
            if kept.entries and not self._sources:
                tokens = [(reservation, entry.pos) for reservation, entry in kept.entries]
                kept.entries.clear()
                kept.partition.submit(ReturnReserved(self._kind, tokens))

    def _register(self, kept: _Kept) -> None:
        def reserved(reply: Any) -> None:
            if isinstance(reply, Failed):
                kept.asked = 0
                kept.entries.clear()
                kept.partition.register(kept.receiver, reserved)
                return
            granted: Granted = reply
            kept.asked = 0 if granted.ended else max(0, kept.asked - len(granted.entries))
            kept.entries.extend([(granted.lock_id, entry) for entry in granted.entries])
            self.pump()

        kept.partition.register(kept.receiver, reserved)
