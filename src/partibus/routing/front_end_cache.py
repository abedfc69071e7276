"""The cache between a front end's receivers and the partitions of one sub-queue (D10, rows P13, P14).

```text
 receiver asks ─▶ every partition is asked ─▶ the first messages win, the rest are kept here
 next receiver asks ───────────────────────▶ gets what is kept, no partition is asked
```

What is kept is *reserved*: held back by its owner for five seconds at most, without lock or count. Handing it out turns
the reservation into a lock at the owner; a reservation that has lapsed is simply missing from the answer, and the
receiver goes on waiting. So a front end that dies takes nothing with it. The service itself locks what it caches, and
such locks can run out unseen; ``lock_kept`` restores that for who tests against it.

Partitions take turns. Every eighth hand-out goes to the one whose oldest kept message is the oldest of all, so that a
partition with little traffic is not starved by busy ones. A partition whose store fails is passed over until it is
back. One that has an exclusive reader refuses: all have, or will have, so every receiver is told.

Beside other front ends, what is kept goes back as soon as nobody has asked this one for a while (``call_idle``): their
receivers may be hungry, and would otherwise wait until the reservations lapse.
"""

from collections import deque
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import Any

from partibus.partition.protocol.commands import (
    CancelReceive,
    LockReserved,
    LockToken,
    Outcome,
    Receive,
    ReturnReserved,
    Settle,
)
from partibus.partition.protocol.entry import Entry
from partibus.partition.protocol.replies import Failed, Granted, Locked, ReceiveRefused
from partibus.routing.cached_source import CachedSource
from partibus.routing.partitions import Numbers, PartitionHandle, error_of
from partibus.routing.receive import OnFailed, OnGranted

ASK_MAX = 256
"""Messages that one partition is asked to reserve at a time."""
ASK_BYTES = 64 * 1024
"""Bytes that one partition may send ahead per ask: sixteen of them fill 1 MB."""
OLDEST_EVERY = 8

CallIdle = Callable[[Callable[[], None]], Any]
"""Calls after the time for which an idle front end keeps what others could have."""


class _Kept:
    """What is kept of one partition, and what it was asked for."""

    __slots__ = ("asked", "awaited", "entries", "partition", "receiver")

    def __init__(self, partition: PartitionHandle, numbers: Numbers) -> None:
        self.partition = partition
        self.receiver = numbers.next()
        """Gets what the partition sends ahead."""
        self.asked = 0
        self.awaited = False
        """Its store is away, and will tell when it is back."""
        self.entries: deque[tuple[int, int, Entry]] = deque()
        """(reservation or lock id, until ms, entry), oldest first."""

    def take(self, source: CachedSource) -> list[tuple[int, int, Entry]]:
        """Take out what the source wants."""
        taken = []
        while source.wanted and self.entries:
            taken.append(self.entries.popleft())
            source.hand_out(taken[-1][2].size_bytes)
        return taken


class FrontEndCache:
    """One per sub-queue of a partitioned entity and broker process."""

    def __init__(
        self,
        entity: str,
        partitions: list[PartitionHandle],
        kind: int,
        numbers: Numbers,
        *,
        lock_kept: bool = False,
        call_idle: CallIdle | None = None,
    ) -> None:
        """``call_idle``: where there are other front ends. Locked messages are kept in spite of them, as the service
        does it."""
        self._call_idle = None if lock_kept else call_idle
        self._entity = entity
        self._idle_since: int | None = None
        """Hand-outs until the look at whether anybody asks; None: nobody looks."""
        self._kind = kind
        self._numbers = numbers
        self._lock_kept = lock_kept
        self._kept = [_Kept(partition, numbers) for partition in partitions]
        self._sources: deque[CachedSource] = deque()
        self._turn = 0
        self._hand_outs = 0
        self._pumping = False
        for kept in self._kept:
            self._register(kept)

    def source(self, *, delete: bool, on_granted: OnGranted, on_failed: OnFailed) -> CachedSource:
        """A new receiver. ``on_failed`` tells that somebody else reads the sub-queue alone (`ReadExclusively`)."""
        source = CachedSource(self.pump, self._leave, on_granted, on_failed, delete=delete)
        self._sources.append(source)
        return source

    def _leave(self, source: CachedSource) -> None:
        self._sources.remove(source)
        self.pump()

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
        wanted = min(sum([source.wanted for source in self._sources]), ASK_MAX)
        if wanted:
            self._ask(wanted)
        else:
            self._ask_no_more()
            if self._call_idle is not None and self._idle_since is None:
                self._watch(self._call_idle)

    def _watch(self, call_idle: CallIdle) -> None:
        """Return what is kept, unless somebody asks for some of it before."""
        if any(kept.entries for kept in self._kept):
            self._idle_since = self._hand_outs
            call_idle(self._look)

    def _look(self) -> None:
        since, self._idle_since = self._idle_since, None
        if since == self._hand_outs:
            self.give_back()
        elif self._call_idle is not None:
            self._watch(self._call_idle)

    # -- handing out -------------------------------------------------------------------------------------------------

    def _next_source(self) -> CachedSource | None:
        """Receivers take turns, too."""
        for _ in range(len(self._sources)):
            self._sources.rotate(-1)
            if self._sources[-1].wanted > 0:
                return self._sources[-1]
        return None

    def _next_kept(self) -> _Kept | None:
        filled = [kept for kept in self._kept if kept.entries]
        if not filled:
            return None
        self._hand_outs += 1
        if self._hand_outs % OLDEST_EVERY == 0:
            return min(filled, key=lambda kept: kept.entries[0][2].enqueued_ms)
        for _ in self._kept:
            self._turn = (self._turn + 1) % len(self._kept)
            if self._kept[self._turn].entries:
                break
        return self._kept[self._turn]

    def _hand_out(self, source: CachedSource, kept: _Kept) -> None:
        taken = kept.take(source)
        if self._lock_kept:
            for lock_id, batch in groupby(taken, key=itemgetter(0)):
                self._hand_out_locked(source, kept, lock_id, list(batch))
            return

        def answered(reply: Any) -> None:
            if isinstance(reply, Failed):
                source.failed(kept.partition, self._kind, len(taken))
                self.pump()
                return
            source.locked(kept.partition, reply, len(taken))
            if len(reply.entries) < len(taken):
                self.pump()

        tokens = [(reservation, entry.pos) for reservation, _, entry in taken]
        command = LockReserved(self._numbers.next(), self._kind, tokens, delete=source.delete)
        kept.partition.submit(command, answered)

    def _hand_out_locked(
        self, source: CachedSource, kept: _Kept, lock_id: int, batch: list[tuple[int, int, Entry]]
    ) -> None:
        """Hand out what has been locked since it was kept; to a receiver that deletes once it is deleted."""
        entries = [entry for _, _, entry in batch]
        locked = Locked(0, self._kind, lock_id, batch[0][1], entries)
        if not source.delete:
            source.locked(kept.partition, locked, len(entries))
            return

        def deleted(reply: Any) -> None:
            if isinstance(reply, Failed):
                source.failed(kept.partition, self._kind, len(entries))
            else:
                locked.entries = [entry for i, entry in enumerate(entries) if i not in reply.lost]
                source.locked(kept.partition, locked, len(entries))

        tokens = [(lock_id, entry.pos) for entry in entries]
        kept.partition.submit(Settle(self._numbers.next(), self._kind, Outcome.COMPLETE, tokens), deleted)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _ask(self, wanted: int) -> None:
        """Every partition owes as much as is wanted: whichever has messages first serves first."""
        for kept in self._kept:
            if not kept.partition.available:
                self._await(kept)
            elif 2 * kept.asked <= wanted:
                missing = wanted - kept.asked
                kept.asked = wanted
                kept.partition.submit(
                    Receive(self._kind, kept.receiver, missing, ASK_BYTES, reserve=not self._lock_kept)
                )

    def _await(self, kept: _Kept) -> None:
        """Ask a partition when its store is back: receivers that have asked already do not ask again."""
        if kept.awaited:
            return
        kept.awaited = True

        def usable() -> None:
            kept.awaited = False
            self.pump()

        kept.partition.when_usable(usable)

    def _ask_no_more(self) -> None:
        """Nobody waits: take back what partitions were asked for; with no receiver left, give back what is kept."""
        for kept in self._kept:
            if kept.asked:
                kept.asked = 0
                kept.partition.submit(CancelReceive(0, self._kind, kept.receiver))
        if not self._sources:
            self.give_back()

    def give_back(self) -> None:
        """Return what is kept: nobody is there for it, or somebody wants all that no receiver has."""
        for kept in self._kept:
            if kept.entries:
                self._give_back(kept)

    def _give_back(self, kept: _Kept) -> None:
        tokens: list[LockToken] = [(reservation, entry.pos) for reservation, _, entry in kept.entries]
        kept.entries.clear()
        if self._lock_kept:
            kept.partition.submit(Settle(0, self._kind, Outcome.RELEASE, tokens))
        else:
            kept.partition.submit(ReturnReserved(self._kind, tokens))

    def _refuse(self, kept: _Kept, refused: ReceiveRefused) -> None:
        """A cursor reads the sub-queue alone: what is kept of it is void, and receivers wait for nothing."""
        kept.asked = 0
        kept.entries.clear()
        self.give_back()
        told = list(self._sources)
        for source in told:
            source.wanted = 0
        error = error_of(refused, self._entity)
        for source in told:
            source.refused(error)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _register(self, kept: _Kept) -> None:
        def sent_ahead(reply: Any) -> None:
            if isinstance(reply, Failed):
                # What the partition reserved is void and what it was asked for forgotten. Receivers go on with the
                # others, and with this one when its store is back.
                kept.partition.register(kept.receiver, sent_ahead)
                kept.asked = 0
                if kept.entries:
                    # Void when the store has failed; when only the way to it is cut, others need not wait.
                    self._give_back(kept)
                self._await(kept)
                return
            if isinstance(reply, ReceiveRefused):
                self._refuse(kept, reply)
                return
            granted: Granted = reply
            kept.asked = 0 if granted.ended else max(0, kept.asked - len(granted.entries))
            kept.entries.extend([(granted.lock_id, granted.until_ms, entry) for entry in granted.entries])
            self.pump()

        kept.partition.register(kept.receiver, sent_ahead)
