"""Runs the partitions of one store: decide, append to the next commit, answer when durable (D3, D11).

```text
 submit ─▶ Partition.handle ─▶ events ─▶ journal ─▶ CommitQueue.pending ─▶ Store.commit   (a writer thread)
                │                                        │ durable
                ├─▶ replies ────────────── gate ─────────┴─▶ callbacks
                └─▶ loads ──────────────── gate ─────────┴─▶ Store.load_*   (a reader thread) ─▶ Loaded ─▶ handle
```

Everything but the store's own calls happens on one thread: the host's loop in production, the simulation's in tests.
Nothing here knows which.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Protocol

from partibus.clock import Clock
from partibus.limits import StoreLimits
from partibus.partition import commands as c
from partibus.partition.commit_queue import CommitQueue
from partibus.partition.journal import record
from partibus.partition.keys import SubqueueKind, subqueue_key
from partibus.partition.machine import Partition
from partibus.partition.options import PartitionOptions
from partibus.partition.pacing import CommitPacing
from partibus.partition.ports import Store, StoreError, StoreFull
from partibus.partition.step import Step

OnReply = Callable[[Any], None]
REOPEN_DELAY_MS = 200.0
BROWSE_ENTRIES_MAX = 10_000


class Timer(Protocol):
    """What `Host.call_later` gives."""

    def cancel(self) -> None:
        """Idempotent."""
        ...


class Host(Protocol):
    """The loop and the threads that a runtime lives on."""

    def write(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a blocking job off the loop; ``done`` gets its result, or the exception it raised, on the loop."""
        ...

    def read(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Like `write`, beside it."""
        ...

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call when what is being handled now has been."""
        ...

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        """Call after a time."""
        ...


class _Slot:
    """One partition in use."""

    __slots__ = ("deadline_ms", "ends", "machine", "options", "row", "waited", "waiting", "written")

    def __init__(self, row: int, options: PartitionOptions) -> None:
        self.row = row
        self.options = options
        self.machine: Partition | None = None
        self.waiting: list[tuple[c.Command, bool]] = []
        """Commands that came before the partition was loaded."""
        self.waited = 0
        """The last commit with rows of this partition that somebody has to wait for."""
        self.written = 0
        """The last commit with rows of this partition."""
        self.ends: dict[int, int] = {}
        """Commit -> the end of the active sub-queue that it makes durable; the last durable one and those to come."""
        self.deadline_ms: int | None = None

    def needed_by(self, load: c.Load, durable: int) -> int:
        """The commit that has to be durable before a load can run.

        A page only needs the entries below its end: those of a backlog are durable for long, however busy its senders
        are. Who looks at everything is to see the end of what nobody waited for, too.
        """
        if isinstance(load, c.PageLoad) and load.kind == SubqueueKind.ACTIVE:
            while len(self.ends) > 1 and next(islice(self.ends, 1, None)) <= durable:
                del self.ends[next(iter(self.ends))]
            return next((number for number, end in self.ends.items() if end >= load.end_pos), 0)
        if isinstance(load, c.PeekLoad | c.BrowseLoad):
            return self.written
        return self.waited


class StoreRuntime:
    """The partitions of one store."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        host: Host,
        clock: Clock,
        limits: StoreLimits | None = None,
        store: Store | None = None,
    ) -> None:
        """``store``: the store if it is open already; ``open_store`` opens it, now or again after a failure."""
        self._open_store = open_store
        self._host = host
        self._clock = clock
        self._limits = limits or StoreLimits()
        self._store = store
        self._slots: dict[int, _Slot] = {}
        self._requests: dict[int, OnReply] = {}
        self._receivers: dict[int, OnReply] = {}
        self._queue = CommitQueue()
        self._outbox: deque[tuple[OnReply, Any]] = deque()
        self._delivering = False
        self._commit_timer: Timer | None = None
        self._commit_delay_ms = 0.0
        self._pacing = CommitPacing(self._limits)
        self._scheduled = False
        self._deadlines: list[tuple[int, int]] = []
        self._deadline_timer: Timer | None = None
        self._deadline_armed_ms: int | None = None
        self._generation = 0
        self._closing: Callable[[], None] | None = None
        self._awaiting_relief: list[Callable[[], None]] = []
        self._waiting_operations = 0
        self._waiting_bytes = 0
        """Of commands that wait for their partition to be loaded."""
        self.failure: str | None = None
        """Why the store can't be used right now; None when it can."""
        self.commits = 0
        self.committed_operations = 0

    # -- life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store; blocks. Raises `StoreError`."""
        self._store = self._open_store()

    def close(self, done: Callable[[], None]) -> None:
        """Commit what is pending, then close the store and call ``done``."""
        self._closing = done
        if self._queue.under_way is None:
            self._start_commit()

    @property
    def trouble(self) -> str | None:
        """Why sends or receives do not work right now; None when both do."""
        if self.failure is None and self._store is not None and not self._store.has_room:
            return f"{self._store.name}: no room on the disk for new messages; what is stored can be received"
        return self.failure

    @property
    def overloaded(self) -> bool:
        """More waits for the store than the limits allow: no more credit until it has caught up (D24)."""
        limits = self._limits
        queue = self._queue
        return (
            queue.operations + self._waiting_operations > limits.queued_operations
            or queue.size_bytes + self._waiting_bytes > limits.queued_bytes
        )

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the store has caught up or can be used again; never before this returns."""
        self._awaiting_relief.append(call)

    def _tell_usable(self) -> None:
        if self._awaiting_relief and self.failure is None and not self.overloaded:
            calls, self._awaiting_relief = self._awaiting_relief, []
            for call in calls:
                self._host.call_soon(call)

    # -- the way in --------------------------------------------------------------------------------------------------

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Say where grants for a receiver go."""
        self._receivers[receiver] = on_granted

    def unregister(self, receiver: int) -> None:
        """The receiver is gone; what is still granted to it goes back."""
        self._receivers.pop(receiver, None)

    def submit(
        self,
        row: int,
        options: PartitionOptions,
        command: c.Command,
        on_reply: OnReply | None = None,
        *,
        holdable: bool = False,
    ) -> None:
        """Give a command to a partition. ``on_reply`` gets the reply to ``command.request``, perhaps before this
        returns. ``holdable``: its rows may wait a little for company (rows C13, C14)."""
        if on_reply is not None:
            self._requests[command.request] = on_reply  # type: ignore[union-attr]
        store = self._store
        if store is None or self.failure is not None:
            self._refuse(command)
            self._deliver()
            return
        if type(command) is c.Enqueue and not store.has_room:
            # Refused before it is in memory: what is there already can go on to be received and completed.
            self._refuse(command, full=True)
            self._deliver()
            return
        slot = self._slots.get(row)
        if slot is None:
            slot = self._slots[row] = _Slot(row, options)
            self._load_partition(slot)
        if slot.machine is None:
            slot.waiting.append((command, holdable))
            self._count_waiting(command, 1)
        else:
            self._handle(slot, command, holdable)
            self._deliver()

    def _count_waiting(self, command: c.Command, sign: int) -> None:
        if isinstance(command, c.Enqueue):
            self._waiting_operations += sign * len(command.messages)
            self._waiting_bytes += sign * sum([len(message.data) for message in command.messages])
        else:
            self._waiting_operations += sign

    def _no_more_waiting(self, slot: _Slot) -> list[tuple[c.Command, bool]]:
        """Take the commands that waited for a partition to be loaded."""
        waiting, slot.waiting = slot.waiting, []
        for command, _ in waiting:
            self._count_waiting(command, -1)
        return waiting

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Forget a partition and delete its rows: the entity was deleted. ``on_dropped`` gets the row when that is
        durable; should the store fail before, it is never called, and the next start tries again."""
        slot = self._slots.pop(row, None)
        for command, _ in self._no_more_waiting(slot) if slot is not None else ():
            self._refuse(command)
        self._queue.pending.dropped_partitions.append(row)
        self._queue.wait(self._queue.number, on_dropped, row)
        self._pacing.add(waited_for=True, holdable=True)
        self._schedule()

    def run_due(self) -> None:
        """Let every partition whose deadline has passed run out what is due; the clock's hand moves this one too."""
        now_ms = self._clock.now_ms()
        if self._deadline_timer is not None:  # its delay was reckoned before the clock was moved
            self._deadline_timer.cancel()
            self._deadline_timer = None
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            deadline_ms, row = heappop(deadlines)
            slot = self._slots.get(row)
            if slot is not None and slot.machine is not None and slot.deadline_ms == deadline_ms:
                slot.deadline_ms = None
                self._handle(slot, c.Tick(), True)
        self._arm(now_ms)
        self._deliver()

    def _arm(self, now_ms: int) -> None:
        if not self._deadlines:
            return
        earliest_ms = self._deadlines[0][0]
        if self._deadline_timer is not None:
            if self._deadline_armed_ms is not None and self._deadline_armed_ms <= earliest_ms:
                return
            self._deadline_timer.cancel()
        self._deadline_armed_ms = earliest_ms
        self._deadline_timer = self._host.call_later(max(0, earliest_ms - now_ms), self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline_timer = None
        self.run_due()

    # -- deciding ----------------------------------------------------------------------------------------------------

    def _handle(self, slot: _Slot, command: c.Command, holdable: bool) -> None:
        machine = slot.machine
        assert machine is not None, "loaded"
        now_ms = self._clock.now_ms()
        step = machine.handle(command, now_ms)
        if step.events:
            self._record(slot, machine, step, holdable, unconfirmed=_is_unconfirmed(command))
        queue = self._queue
        durable = slot.waited <= queue.durable
        for reply in step.replies:
            callback = self._callback(reply)
            if callback is None:
                if type(reply) is c.Granted:
                    self._give_back(slot, reply)
                continue
            if durable:
                self._outbox.append((callback, reply))
            else:
                queue.wait(slot.waited, callback, reply)
        for load in step.loads:
            number = slot.needed_by(load, queue.durable)
            if number <= queue.durable:
                self._run_load((slot, load, self._generation))
                continue
            queue.wait(number, self._run_load, (slot, load, self._generation))
            if number == queue.number:
                self._pacing.add(waited_for=True, holdable=False)
                self._schedule()
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is not None and (slot.deadline_ms is None or deadline_ms < slot.deadline_ms):
            slot.deadline_ms = deadline_ms
            heappush(self._deadlines, (deadline_ms, slot.row))
            self._arm(now_ms)

    def _record(self, slot: _Slot, machine: Partition, step: Step, holdable: bool, *, unconfirmed: bool) -> None:
        writes = self._queue.pending
        waited_for = record(slot.row, step.events, writes) and not unconfirmed
        writes.counters[slot.row] = machine.counters
        for subqueue, messages, size_bytes in machine.counts():
            writes.counts[subqueue] = (messages, size_bytes)
        slot.written = self._queue.number
        slot.ends[self._queue.number] = machine.counters[0]
        if waited_for:
            slot.waited = self._queue.number
        self._pacing.add(waited_for=waited_for, holdable=holdable)
        self._schedule()

    def _give_back(self, slot: _Slot, granted: c.Granted) -> None:
        """Nobody is there to take a grant: what it locked must not wait for the lock to end, nor be granted again."""
        self._handle(slot, c.CancelReceive(0, granted.kind, granted.receiver), True)
        tokens = [(granted.lock_id, entry.pos) for entry in granted.entries]
        self._handle(slot, c.Settle(0, granted.kind, c.Outcome.RELEASE, tokens), True)

    def _callback(self, reply: c.Reply) -> OnReply | None:
        if type(reply) is c.Granted:
            return self._receivers.get(reply.receiver)
        return self._requests.pop(reply.request, None)  # type: ignore[union-attr]

    def _deliver(self) -> None:
        """Hand out replies. What they lead to is queued, not nested: a grant asks for the next one."""
        if self._delivering:
            return
        self._delivering = True
        try:
            outbox = self._outbox
            while outbox:
                callback, reply = outbox.popleft()
                callback(reply)
        finally:
            self._delivering = False

    # -- committing --------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Start the pending commit now or see to it that it starts in time."""
        queue = self._queue
        if queue.under_way is not None or self._scheduled:
            return
        delay_ms = self._pacing.delay_ms(queue)
        if self._commit_timer is not None:
            if self._commit_delay_ms <= delay_ms:
                return
            self._commit_timer.cancel()
            self._commit_timer = None
        if delay_ms:
            self._commit_delay_ms = delay_ms
            self._commit_timer = self._host.call_later(delay_ms, self._start_commit)
        else:
            self._scheduled = True
            self._host.call_soon(self._start_commit)

    def _start_commit(self) -> None:
        self._scheduled = False
        if self._commit_timer is not None:
            self._commit_timer.cancel()
            self._commit_timer = None
        queue = self._queue
        if queue.under_way is not None or self._store is None:
            return
        writes = queue.pending
        if not (writes.counters or writes.dropped_partitions):
            self._finish_closing()
            return
        queue.take()
        self._pacing.begun()
        store = self._store
        generation = self._generation

        def committed(result: Any) -> None:
            if generation != self._generation:  # a load failed meanwhile; the store could not be closed under a commit
                self._close_and_reopen(store)
            elif isinstance(result, BaseException):
                self._fail(result, of_commit=True)
            else:
                self._committed()

        self._host.write(lambda: store.commit(writes), committed)

    def _committed(self) -> None:
        queue = self._queue
        writes = queue.under_way
        assert writes is not None, "a commit was under way"
        self.commits += 1
        self.committed_operations += writes.operations
        passing = queue.end()
        if self._closing is not None:
            self._start_commit()
        elif queue.pending.counters or queue.pending.dropped_partitions:
            self._schedule()
        self._outbox.extend(passing)
        self._deliver()
        self._tell_usable()

    def _finish_closing(self) -> None:
        if self._closing is not None and self._store is not None:
            store, done = self._store, self._closing
            self._store, self._closing = None, None
            self.failure = "the store is closed"
            for request, callback in self._requests.items():  # they wait for a load that nobody will answer
                self._outbox.append((callback, c.Failed(request, False, False, self.failure)))
            self._requests.clear()
            self._generation += 1
            self._host.write(store.close, lambda _: done())
            self._deliver()

    # -- failing -----------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException, *, of_commit: bool = False) -> None:
        """A commit or load failed: memory may be ahead of the store, so forget it and begin again (D11).

        Requests that still wait for a load have done nothing yet. Nobody can tell the outcome of a commit that is under
        way when a load fails.
        """
        self.failure = str(error) or type(error).__name__
        self._generation += 1
        committing = self._queue.under_way is not None and not of_commit
        touched, untouched = self._queue.fail()
        self._pacing.begun()
        executed = error.executed if of_commit and isinstance(error, StoreError) else None
        full = isinstance(error, StoreFull)
        for waiters, outcome in ((touched, executed), (untouched, False)):
            for call, value in waiters:
                request = getattr(value, "request", None)  # grants and loads have none: their askers are told below
                if request is not None:
                    self._outbox.append((call, c.Failed(request, outcome, full, self.failure)))
        for slot in self._slots.values():
            for command, _ in self._no_more_waiting(slot):
                self._refuse(command)
        for request, callback in self._requests.items():
            self._outbox.append((callback, c.Failed(request, False, full, self.failure)))
        for receiver, callback in self._receivers.items():
            self._outbox.append((callback, c.Failed(receiver, False, full, self.failure)))
        self._requests.clear()
        self._receivers.clear()
        self._slots.clear()
        self._deadlines.clear()
        store, self._store = self._store, None
        self._deliver()
        if store is not None and not committing:
            self._close_and_reopen(store)

    def _close_and_reopen(self, store: Store) -> None:
        self._host.write(store.close, lambda _: self._reopen())

    def _reopen(self) -> None:
        if self._closing is not None:
            done, self._closing = self._closing, None
            done()
            return
        self._host.write(self._open_store, self._reopened)

    def _reopened(self, result: Any) -> None:
        if isinstance(result, BaseException):
            self.failure = str(result)
            self._host.call_later(REOPEN_DELAY_MS, self._reopen)
            return
        self._store = result
        self.failure = None
        if self._queue.pending.dropped_partitions:  # dropped while there was no store to tell
            self._start_commit()
        else:
            self._finish_closing()
        self._tell_usable()

    def _refuse(self, command: c.Command | c.Load, *, full: bool = False) -> None:
        """Nothing of the command was done."""
        message = "no room on the disk" if full else self.failure or "the store is closed"
        if isinstance(command, c.Receive | c.LockReserved):
            callback = self._receivers.get(command.receiver)
            number = command.receiver
        else:
            number = getattr(command, "request", 0)
            callback = self._requests.pop(number, None)
        if callback is not None:
            self._outbox.append((callback, c.Failed(number, False, full, message)))

    # -- loading -----------------------------------------------------------------------------------------------------

    def _load_partition(self, slot: _Slot) -> None:
        store, generation = self._store, self._generation
        assert store is not None, "open"

        def loaded(result: Any) -> None:
            if generation != self._generation or self._slots.get(slot.row) is not slot:
                return
            if isinstance(result, BaseException):
                self._fail(result)
                return
            slot.machine = Partition(slot.row, slot.options, result)
            for command, holdable in self._no_more_waiting(slot):
                self._handle(slot, command, holdable)
            self._deliver()
            self._tell_usable()

        self._host.read(lambda: store.load_partition(slot.row), loaded)

    def _run_load(self, request: tuple[_Slot, c.Load, int]) -> None:
        slot, load, generation = request
        store = self._store
        if store is None or generation != self._generation:
            return
        row = slot.row

        def loaded(result: Any) -> None:
            if generation != self._generation or self._slots.get(row) is not slot:
                # Whoever asked must not wait for ever.
                self._refuse(load.then if isinstance(load, c.BodyLoad) and load.then is not None else load)
                self._deliver()
                return
            if isinstance(result, BaseException):
                self._fail(result)
                return
            self._handle(slot, c.Loaded(load, result), True)
            self._deliver()

        self._host.read(lambda: read(store, row, load), loaded)


def _is_unconfirmed(command: c.Command) -> bool:
    """A completion that its receiver takes for granted. Lost in a crash, the message comes again when its lock ends:
    what a receiver that asks for no confirmation has to expect."""
    return type(command) is c.Settle and not command.request and command.outcome is c.Outcome.COMPLETE


def read(store: Store, row: int, load: c.Load) -> Any:
    """Do a load; blocks."""
    match load:
        case c.PageLoad():
            return store.load_page(subqueue_key(row, load.kind), load.from_pos, load.max_entries, load.max_bytes)
        case c.BodyLoad():
            return store.load_bodies(load.bodies)
        case c.PeekLoad():
            return store.peek(subqueue_key(row, load.kind), load.from_sequence, load.max_entries, load.max_bytes)
        case c.BrowseLoad():
            return store.browse(
                subqueue_key(row, load.kind), load.from_pos, load.to_pos, BROWSE_ENTRIES_MAX, load.max_bytes
            )
