"""The cache between a front end's receivers and the partitions of one sub-queue (D10, rows P13, P14).

```text
 receiver asks ─▶ every partition is asked ─▶ the first messages win, the rest are cached here
 next receiver asks ───────────────────────▶ gets cached messages, no partition is asked
```

Cached messages are *reserved*: held back by their owner for five seconds at most, without lock or count. Handing one
out turns the reservation into a lock at the owner. A lapsed reservation is simply missing from the answer, and the
receiver continues to wait. So the death of a front end loses no messages. The service itself locks the messages in its
cache, and such locks can expire unnoticed; ``lock_kept`` restores that for tests against it.

Partitions take turns. Every eighth hand-out goes to the partition with the oldest cached message, so that busy
partitions do not starve one with little traffic. A partition whose store fails is skipped until it is back. A partition
with an exclusive reader refuses. All have one or will, so the cache tells every receiver.

Beside other front ends, cached messages return to their partitions when this front end has had no demand for a while
(``call_idle``). Receivers of other front ends could otherwise wait until the reservations lapse.
"""

from collections import OrderedDict, deque
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
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.replies import Failed, Granted, Locked, ReceiveRefused
from partibus.routing.partitions import Numbers, PartitionHandle, error_of
from partibus.routing.receive import CachedSource, OnFailed, OnGranted

ASK_MAX = 256
"""The number of messages that one partition is asked to reserve at a time."""
ASK_BYTES = 64 * 1024
"""Bytes that one partition may send ahead per request: sixteen requests fill 1 MB."""
OLDEST_EVERY = 8

CallIdle = Callable[[Callable[[], None]], Any]
"""A function that calls another one after the time for which an idle front end keeps reservations."""


class _Kept:
    """The cached messages of one partition, and the outstanding request to it."""

    __slots__ = ("asked", "awaited", "entries", "in_doubt", "partition", "receiver")

    def __init__(self, partition: PartitionHandle, numbers: Numbers) -> None:
        self.partition = partition
        self.receiver = numbers.next()
        """The receiver number for messages that the partition sends ahead."""
        self.asked = 0
        self.awaited = False
        """Whether the store is away and will report its return."""
        self.entries: deque[tuple[int, int, Entry]] = deque()
        """(reservation or lock id, until ms, entry), oldest first."""
        self.in_doubt: list[LockToken] = []
        """Reservations that the owner may still hold since the way to it failed."""

    def take(self, source: CachedSource) -> list[tuple[int, int, Entry]]:
        """Remove and return the messages that the source wants."""
        taken = []
        while source.wanted and self.entries:
            taken.append(self.entries.popleft())
            source.hand_out(taken[-1][2].size_bytes)
        return taken


class FrontEndCache:
    """The cache of one sub-queue of a partitioned entity in one broker process."""

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
        """Build a cache.

        ``call_idle`` is set where there are other front ends. Locked messages stay cached in spite of them, as in the
        service.
        """
        self._call_idle = None if lock_kept else call_idle
        self._entity = entity
        self._idle_since: int | None = None
        """The number of hand-outs at the start of the idle check; None if no check is pending."""
        self._kind = kind
        self._numbers = numbers
        self._lock_kept = lock_kept
        self._kept = [_Kept(partition, numbers) for partition in partitions]
        self._sources: dict[CachedSource, None] = {}
        self._demand: OrderedDict[CachedSource, None] = OrderedDict()
        """The receivers with demand, the next one first."""
        self._turn = 0
        self._hand_outs = 0
        self._pumping = False
        for kept in self._kept:
            self._register(kept)

    def grow(self, partitions: list[PartitionHandle]) -> None:
        """Ask new partitions of the entity, too."""
        for partition in partitions:
            kept = _Kept(partition, self._numbers)
            self._kept.append(kept)
            self._register(kept)
        self.pump()

    def forget(self, partitions: list[PartitionHandle]) -> None:
        """Stop asking partitions that were removed; they were empty."""
        for kept in [kept for kept in self._kept if kept.partition in partitions]:
            self._kept.remove(kept)
            kept.partition.unregister(kept.receiver)
        self._turn = 0

    def source(self, *, delete: bool, on_granted: OnGranted, on_failed: OnFailed) -> CachedSource:
        """Add a receiver. ``on_failed`` reports an exclusive reader of the sub-queue (`ReadExclusively`)."""
        source = CachedSource(self._demand, self.pump, self._leave, on_granted, on_failed, delete=delete)
        self._sources[source] = None
        return source

    def _leave(self, source: CachedSource) -> None:
        del self._sources[source]
        if not self._demand:  # a departure changes nothing for the others
            self.pump()

    def pump(self) -> None:
        """Hand out cached messages to receivers with demand, then ask the partitions for the rest."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while (source := self._next_source()) is not None and (kept := self._next_kept()) is not None:
                self._hand_out(source, kept)
        finally:
            self._pumping = False
        wanted = 0
        for source in self._demand:
            wanted += source.wanted
            if wanted >= ASK_MAX:
                break
        if wanted:
            self._ask(min(wanted, ASK_MAX))
        else:
            self._ask_no_more()
            if self._call_idle is not None and self._idle_since is None:
                self._watch(self._call_idle)

    def _watch(self, call_idle: CallIdle) -> None:
        """Return the cached messages after the idle time, unless a receiver takes some meanwhile."""
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
        """Return the next receiver with demand; receivers take turns."""
        if not self._demand:
            return None
        source = next(iter(self._demand))
        self._demand.move_to_end(source)
        return source

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
        if not source.wanted:
            del self._demand[source]
        if self._lock_kept:
            for lock_id, batch in groupby(taken, key=itemgetter(0)):
                self._hand_out_locked(source, kept, lock_id, list(batch))
            return

        def answered(reply: Any) -> None:
            if isinstance(reply, Failed):
                self._doubt(kept, tokens)
                self._end_doubt(kept)
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
        """Hand out messages that were locked on caching; delete them first for a receiver that deletes."""
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
        """Ask every partition for all of the demand: the first with messages serves first.

        The last one to serve is asked last. A receiver that wants few messages, as a request of SQS does, would get all
        of them from one busy partition otherwise.
        """
        after = self._turn + 1
        for kept in (*self._kept[after:], *self._kept[:after]):
            if not kept.partition.available:
                self._await(kept)
            elif 2 * kept.asked <= wanted:
                if kept.in_doubt:
                    self._end_doubt(kept)
                missing = wanted - kept.asked
                kept.asked = wanted
                kept.partition.submit(
                    Receive(self._kind, kept.receiver, missing, ASK_BYTES, reserve=not self._lock_kept)
                )

    def _await(self, kept: _Kept) -> None:
        """Ask a partition again when its store is back, because receivers with demand do not repeat it."""
        if kept.awaited:
            return
        kept.awaited = True

        def usable() -> None:
            kept.awaited = False
            self._end_doubt(kept)  # also when no receiver asks
            self.pump()

        kept.partition.when_usable(usable)

    def _ask_no_more(self) -> None:
        """Withdraw the requests to partitions; without receivers, also return the cached messages."""
        for kept in self._kept:
            if kept.asked:
                kept.asked = 0
                kept.partition.submit(CancelReceive(0, self._kind, kept.receiver))
        if not self._sources:
            self.give_back()

    def give_back(self) -> None:
        """Return the cached messages, when there is no receiver or an operation needs all unreceived ones."""
        for kept in self._kept:
            self._give_back(kept)

    def _give_back(self, kept: _Kept) -> None:
        if not kept.entries:
            return
        tokens: list[LockToken] = [(reservation, entry.pos) for reservation, _, entry in kept.entries]
        kept.entries.clear()
        if self._lock_kept:
            kept.partition.submit(Settle(0, self._kind, Outcome.RELEASE, tokens))
        else:
            kept.partition.submit(ReturnReserved(self._kind, tokens))

    def _doubt(self, kept: _Kept, handed_out: list[LockToken]) -> None:
        """Hand out no cached message of a partition: those that were to be handed out before may still be reserved."""
        kept.in_doubt += handed_out
        kept.in_doubt += [(reservation, entry.pos) for reservation, _, entry in kept.entries]
        kept.entries.clear()

    def _end_doubt(self, kept: _Kept) -> None:
        """Return the reservations from before a failure, ahead of any new request.

        An owner whose store has failed knows none of them. One that only could not be reached gives no message of them
        until they lapse, but later ones of the same key.
        """
        if kept.in_doubt and kept.partition.available:
            tokens, kept.in_doubt = kept.in_doubt, []
            kept.partition.submit(ReturnReserved(self._kind, tokens))

    def _refuse(self, kept: _Kept, refused: ReceiveRefused) -> None:
        """Tell all receivers that a cursor reads the sub-queue exclusively; its cached messages are void."""
        kept.asked = 0
        kept.entries.clear()
        self.give_back()
        told = list(self._sources)
        for source in told:
            source.wanted = 0
        self._demand.clear()
        error = error_of(refused, self._entity)
        for source in told:
            source.refused(error)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _register(self, kept: _Kept) -> None:
        def sent_ahead(reply: Any) -> None:
            if isinstance(reply, Failed):
                # The partition's reservations and requests are void. Receivers continue with the other partitions, and
                # with this one when its store is back.
                kept.partition.register(kept.receiver, sent_ahead)
                kept.asked = 0
                if self._lock_kept:
                    self._give_back(kept)
                else:
                    self._doubt(kept, [])
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
