"""The commits of one store, one after the other (D11).

`CommitQueue` holds the pending commit and its waiters, `CommitSchedule` decides when it begins. One commit goes
through:

```text
 record ─▶ start ─▶ take ─▶ Store.commit (a writer thread) ─▶ ended: waiters are answered; the next one is planned
                                                          ─▶ failed: so is the store
```

`ExecutedNotes` are about requests of other brokers, one number each (D15, ADR 0012). A broker that has lost an owner
before its reply came makes the reply from the note.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from partibus.clock import Clock, SystemClock
from partibus.limits import StoreLimits
from partibus.partition.core.express import Express, Pool
from partibus.partition.core.journal import record
from partibus.partition.core.machine import Partition
from partibus.partition.core.meters import CommitMeter, Meters
from partibus.partition.core.step import Step
from partibus.partition.core.write_behind import write_all
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.host import Host
from partibus.partition.protocol.ports import Store, StoreError, StoreFull, Writes
from partibus.partition.runtime.commit_queue import CommitQueue, CommitSchedule, Waiter
from partibus.partition.runtime.dispatcher import ReplyDispatcher
from partibus.partition.runtime.lifecycle import StoreLifecycle
from partibus.partition.runtime.slot import Slot

KEPT_MS: Final = 60_000
"""How long a store keeps notes; a broker asks for them within a third of that (`partibus.cluster.in_doubt`)."""
FORGET_MS: Final = 5_000
"""The pause between two deletions of older notes."""
AskerOf = Callable[[int], tuple[str, int] | None]
"""Finds the run of another broker that a request belongs to, and its number there; None: it is this broker's own."""
OnFound = Callable[[Mapping[int, int | None] | None], None]
"""Gets the note of each request, or None when it was surely not executed.

A missing request can't be told about any longer. None in place of the mapping: the store can't be asked now.
"""

LOST_MAX: Final = 62
"""The most tokens of which a note can name the lost ones: it has 64 bits."""
_SOME_LOST: Final = -1


def note_of(reply: r.Reply) -> int | None:
    """Return the note about a request with this reply; None: nothing was done."""
    kind = type(reply)
    if kind is r.Accepted:
        return reply.first_sequence  # type: ignore[union-attr]
    if kind is r.Settled:
        lost = reply.lost  # type: ignore[union-attr]
        if lost and lost[-1] >= LOST_MAX:
            return _SOME_LOST
        return sum([1 << index for index in lost])
    return 0 if kind is r.Transacted else None


def answer_of(kind: type, request: int, note: int) -> r.Reply:
    """Make the reply to a command of this kind from its note."""
    if kind is c.Enqueue:
        return r.Accepted(request, note)
    if kind is c.Transact:
        return r.Transacted(request)
    if note == _SOME_LOST:
        return r.Failed(request, None, False, "it was settled, but it is not known which of the locks had ended")
    return r.Settled(request, [index for index in range(note.bit_length()) if note >> index & 1])


def known_of(requests: Sequence[int], notes: Mapping[int, int], *, forgets: bool) -> dict[int, int | None]:
    """Return the note of each request; None when it was surely not executed.

    A missing request may have been executed and forgotten.
    """
    return {request: notes.get(request) for request in requests if request in notes or not forgets}


class ExecutedNotes:
    """The notes of one store: each commit says which requests of other brokers it executes."""

    def __init__(self) -> None:
        self.asker_of: AskerOf | None = None
        """Finds the asker of a request; None while there is no other broker."""
        self._since_ms = 0
        """When the first note was made; 0: never."""
        self._forgot_ms = 0
        """When notes were last deleted; 0: never."""

    @property
    def forgets(self) -> bool:
        """Whether notes may have been deleted."""
        return self._forgot_ms > 0

    def note(self, replies: Iterable[r.Reply], writes: Writes) -> None:
        """Note the requests whose replies wait for the commit of ``writes``."""
        assert self.asker_of is not None, "there is another broker"
        for reply in replies:
            note = note_of(reply)
            if note is not None and (known := self.asker_of(r.request_of(reply))) is not None:
                asker, number = known
                writes.executed.setdefault(asker, []).extend((number, note))

    def date(self, writes: Writes, now_ms: int) -> None:
        """Date the notes of a commit, and delete old ones."""
        writes.executed_ms = now_ms
        self._since_ms = self._since_ms or now_ms
        # Notes of an earlier owner are of use for a while, whatever its clock showed.
        if now_ms - self._since_ms > KEPT_MS and now_ms - self._forgot_ms > FORGET_MS:
            self._forgot_ms = now_ms
            writes.forgotten_executed_ms = now_ms - KEPT_MS


_HANDS_OUT = (r.Granted, r.Locked, r.GroupsGranted, r.DeferredGranted, r.SessionAccepted)
"""Replies after which a client holds messages or a session."""


class Commits:
    """Decisions of partitions on their way to the store."""

    def __init__(
        self,
        lifecycle: StoreLifecycle,
        host: Host,
        clock: Clock,
        limits: StoreLimits,
        answers: ReplyDispatcher,
        meters: Meters,
        slots: Mapping[int, Slot],
        *,
        ended: Callable[[], None],
        is_awaited: Callable[[], bool],
    ) -> None:
        """Prepare for commits.

        ``slots`` are the partitions in use, by row. ``ended`` is called at the end of a commit, after its waiters.
        ``is_awaited``: whether the store must not close yet, since commands wait for its loads.
        """
        self.queue = CommitQueue()
        self.schedule = CommitSchedule(host, limits, self.queue, self.start)
        self.executed = ExecutedNotes()
        """Notes about executed requests of other brokers."""
        self.express = Pool(meters.express)
        """Express messages that are only in memory (D18)."""
        self.meter = CommitMeter(meters.elapsed_s)
        self.recorder = None if meters.recorder is None else meters.recorder.of_store()
        self._lifecycle = lifecycle
        self._host = host
        self._clock = clock
        self._keeps_time = isinstance(clock, SystemClock)
        self._answers = answers
        self._meters = meters
        self._slots = slots
        self._ended = ended
        self._is_awaited = is_awaited
        self._untold: deque[tuple[Waiter, bool | None]] = deque()
        """Waiters to tell of a failure, and the outcome of what they wait for."""

    def record(self, slot: Slot, machine: Partition, step: Step, holdable: bool, *, unconfirmed: bool) -> None:
        """Add the decisions of a step to the pending commit.

        ``holdable``: it may wait a little for company (rows C13, C14). ``unconfirmed``: it has no waiter.
        """
        queue = self.queue
        writes, tally = queue.pending, machine.state.tally
        if slot.written != queue.number:
            tally.since_s = self._meters.elapsed_s()
        tally.operations -= writes.operations
        waited_for = record(slot.row, step.events, writes) and not unconfirmed
        tally.operations += writes.operations
        writes.rows[slot.row] = None
        queue.is_pending = True
        if (counters := machine.counters) != slot.counters:
            slot.counters = writes.counters[slot.row] = counters
        for subqueue, messages, size_bytes in machine.counts():
            if slot.counts.get(subqueue) != (messages, size_bytes):
                slot.counts[subqueue] = writes.counts[subqueue] = (messages, size_bytes)
        slot.wrote(queue.number, waited_for=waited_for)
        if (express := machine.state.express) is not None:
            self._note_express(slot, express, step)
        if slot.subscriptions is not None:
            slot.subscriptions.note(slot.row, machine.state.size_bytes)
        self.schedule.plan(waited_for=waited_for, holdable=holdable)

    def _note_express(self, slot: Slot, express: Express, step: Step) -> None:
        if step.reserves:
            slot.reserved = self.queue.number
        if express.written_ms is not None:
            self.express.writing(self.queue.number, express.written_ms)
            express.written_ms = None

    def start(self) -> None:
        """Begin the pending commit, unless one is under way.

        With no pending commit, close a store that was asked to close.
        """
        queue, lifecycle = self.queue, self._lifecycle
        store, generation = lifecycle.store, lifecycle.generation
        try:
            if queue.under_way is not None or queue.held or store is None:
                self.schedule.not_begun()
                return
            if lifecycle.is_closing:
                self._write_behind()
            if not queue.is_pending:
                self.schedule.not_begun()
                if lifecycle.is_closing and not self._is_awaited():
                    lifecycle.end()
                return
            if queue.pending.executed:
                self.executed.date(queue.pending, self._clock.now_ms())
            writes = queue.take()
            self.schedule.begun()
            self._meters.begun(self.meter, writes.rows)
            if self._keeps_time:  # a clock that is moved by hand begins anew with each run
                writes.now_ms = self._clock.now_ms()
            commit = partial(self.meter.timed, store, writes)
            self._host.write(commit, partial(self._committed, store, generation, writes))
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            self.schedule.not_begun()
            lifecycle.broke(error, "the begin of a commit", of_commit=queue.under_way is not None)

    def _committed(self, store: Store, generation: int, writes: Writes, result: Any) -> None:
        """End a commit, and go on with the next one; ``result`` is the seconds that it took, or its error."""
        queue, lifecycle = self.queue, self._lifecycle
        if generation != lifecycle.generation:  # a load failed meanwhile; it could not be closed under a commit
            lifecycle.discard(store)
            return
        if isinstance(result, BaseException):
            self.meter.failures += 1
            lifecycle.fail(result, of_commit=True)
            return
        try:
            self.meter.committed(writes.operations, writes.size_bytes, result)
            if self.recorder is not None:
                row, number = next(iter(writes.rows), 0), queue.number - 1
                self.recorder.committed(row, number, writes.operations, writes.size_bytes, result, self._clock.now_ms())
            is_held = lifecycle.store is None or lifecycle.store.is_held
            passing = queue.end()
            # First of all: they are answered, also if something fails here.
            try:
                self._answers.outbox.extend(passing if is_held else self._without_locks(passing))
            except Exception:
                self._untold.extend((waiter, True) for waiter in passing)
                raise
            if self.express.under_way:
                self.express.written(queue.durable)
            if lifecycle.is_closing:
                self.start()
            elif queue.is_pending:
                self.schedule.plan()
            self._answers.deliver()
            self._ended()
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            is_told = queue.under_way is not writes
            lifecycle.broke(error, "the end of a commit", of_commit=not is_told, executed=not is_told)

    def _write_behind(self) -> None:
        """Write everything that is only in memory (D18)."""
        for slot in self._slots.values():
            if slot.machine is not None and (step := write_all(slot.machine.state, self._clock.now_ms())) is not None:
                self.record(slot, slot.machine, step, True, unconfirmed=True)

    def _without_locks(self, passing: list[Waiter]) -> list[Waiter]:
        """Replace replies that hand out locked messages, after the lease has expired (D20).

        The process may have been stopped between the commit and this moment, so another owner may have handed out the
        same messages: the rows of the locks were not all in the commit. Other replies tell of what is durable, deleted
        messages among them, and leave. The store then fails, which tells every receiver.
        """
        why = self._lifecycle.trouble or ""
        kept: list[Waiter] = []
        for call, value in passing:
            if not isinstance(value, _HANDS_OUT) or not value.lock_id:
                kept.append((call, value))
            elif not isinstance(value, r.Granted):
                kept.append((call, r.Failed(value.request, None, False, why)))
        self._host.call_soon(self._lifecycle.check_held)
        return kept

    def go_on(self) -> None:
        """Go on with an open store, perhaps one that was opened again."""
        if self.queue.pending.dropped_partitions:  # dropped while there was no store to tell
            self.start()
        else:
            self._lifecycle.end()

    def fail(self, error: BaseException, why: str, *, of_commit: bool) -> None:
        """Give up everything that is not durable after a failure of the store, and tell the waiters.

        If a load has failed, the outcome of a commit under way is unknown.
        """
        touched, untouched = self.queue.fail()
        self.schedule.begun()
        executed = error.executed if of_commit and isinstance(error, StoreError) else None
        full = isinstance(error, StoreFull)
        untold = self._untold
        untold.extend((waiter, executed) for waiter in touched)
        untold.extend((waiter, False) for waiter in untouched)
        if self.recorder is not None:
            self.recorder.failed()
        while untold:
            (call, value), outcome = untold.popleft()
            request = getattr(value, "request", None)  # grants and loads have none: their askers are told apart
            if request is not None:
                self._answers.put(call, r.Failed(request, outcome, full, why))
        self.express.clear()


ENDING: Final = frozenset((c.Settle, c.Forwarded))
"""Commands that may be unconfirmed: they end messages at their receivers."""


def is_unconfirmed(command: w.Input) -> bool:
    """Tell whether one of `ENDING` without a request is a completion, which its receiver takes for granted.

    If a crash loses it, the message comes again when its lock ends, as a receiver that asks for no confirmation has to
    expect. A message that was forwarded is forwarded again, and its destination knows it.
    """
    return type(command) is c.Forwarded or (type(command) is c.Settle and command.outcome is c.Outcome.COMPLETE)


def deletes(reply: r.Reply) -> bool:
    """Tell whether a reply grants messages that are deleted as they leave."""
    return type(reply) is r.Granted and not reply.lock_id and bool(reply.entries)


def described(command: w.Input) -> str:
    """Name a command and its numbers for the log, without messages and without names that a client has chosen."""
    shown = command.load if isinstance(command, w.Loaded) else command
    numbers = [
        f"{name}={value}"
        for name in getattr(type(shown), "__struct_fields__", ())
        if isinstance(value := getattr(shown, name), int)
    ]
    return f"{type(shown).__name__}({', '.join(numbers)})"
