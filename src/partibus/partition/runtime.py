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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from partibus.clock import Clock, SystemClock
from partibus.limits import StoreLimits
from partibus.partition import commands as c
from partibus.partition import load_requests as w
from partibus.partition import replies as r
from partibus.partition.answers import Answers, OnReply
from partibus.partition.backlog import Backlog, needs_room
from partibus.partition.commit_queue import CommitQueue
from partibus.partition.commit_schedule import CommitSchedule
from partibus.partition.deadlines import Deadlines
from partibus.partition.executed import ExecutedNotes, known_of
from partibus.partition.express import Express, Pool
from partibus.partition.fan_out import Subscribers
from partibus.partition.glance import AT_ONCE, Glance, look
from partibus.partition.host import Host
from partibus.partition.journal import record
from partibus.partition.keys import SubqueueKind, subqueue_key
from partibus.partition.machine import Partition
from partibus.partition.meters import CommitMeter, Meters
from partibus.partition.options import PartitionOptions
from partibus.partition.ports import Store, StoreError, StoreFull
from partibus.partition.reading import read
from partibus.partition.slot import Slot
from partibus.partition.step import Step
from partibus.partition.topic import Topics, publishes
from partibus.partition.write_behind import hold_back, write_all

REOPEN_DELAY_MS = 200.0
OnFound = Callable[[Mapping[int, int | None] | None], None]
"""Gets, by request: what is remembered of it (`partibus.partition.executed`), or None when it was surely not executed;
what is not there can't be told any more. None: the store can't be asked now."""
_LEASE_OVER = "the lease has run out, so another broker may have the store"
T = TypeVar("T")
_DROPPED_MAX = 100_000
"""Rows that were dropped and are remembered: some MB."""


class StoreRuntime:
    """The partitions of one store."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        host: Host,
        clock: Clock,
        limits: StoreLimits | None = None,
        store: Store | None = None,
        wake: Callable[[list[int]], None] | None = None,
        forward: Callable[[int, bool], None] | None = None,
        subscribers: Subscribers | None = None,
        meters: Meters | None = None,
    ) -> None:
        """``store``: the store if it is open already; ``open_store`` opens it, now or again after a failure. ``wake``
        gets the rows of partitions that have something to do although nobody uses them: entries that fall due.
        ``forward`` gets the row of each partition in use whose messages go on to another entity, and whether some of
        them were sent through it.
        ``subscribers`` knows the subscriptions of topics. ``meters``: what is counted in this process."""
        self.executed = ExecutedNotes()
        """Which requests of other brokers were executed."""
        self.run = ""
        """Of this broker, where several share the stores: session locks name their holders' (D21)."""
        self.is_present: Callable[[str], bool] = lambda run: run == self.run
        """Whether a run of a broker is there."""
        self._meters = meters or Meters()
        self.meter = CommitMeter(self._meters.elapsed_s)
        self._recorder = None if self._meters.recorder is None else self._meters.recorder.of_store()
        self._forward = forward
        self._topics = Topics(subscribers)
        self._wake = wake
        self._open_store = open_store
        self._host = host
        self._clock = clock
        self._keeps_time = isinstance(clock, SystemClock)
        self._store = store
        self._slots: dict[int, Slot] = {}
        self._dropped: dict[int, None] = {}
        """The last rows that were dropped, an ordered set: who used them may not know yet. No row is given twice."""
        self._glances: list[Glance] = []
        self._glancing = False
        self._answers = Answers()
        self._queue = CommitQueue()
        limits = limits or StoreLimits()
        self._schedule = CommitSchedule(host, limits, self._queue, self._start_commit)
        self._backlog = Backlog(limits, self._queue)
        self._meters.express.bytes_max = limits.express_bytes
        self.express = Pool(self._meters.express)
        """Express messages that only memory has (D18)."""
        self._deadlines = Deadlines(host, self.run_due)
        self._generation = 0
        self._closing: Callable[[], None] | None = None
        self.failure: str | None = None
        """Why the store can't be used right now; None when it can."""

    # -- life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store; blocks. Raises `StoreError`."""
        self._store = self._open_store()

    def begin(self, begun: Callable[[], None]) -> None:
        """Open the store off the loop; call when that was tried. If it failed, `failure` says why, and it is tried
        again from time to time."""
        self.failure = "the store is being opened"

        def tried(result: Any) -> None:
            self._reopened(result)
            begun()

        self._host.write(self._open_store, tried)

    def wake_timed(self) -> None:
        """Find the partitions in which something falls due, once the store is open."""
        store, wake, generation = self._store, self._wake, self._generation
        if store is None or wake is None:
            return

        def found(result: Any) -> None:
            if generation != self._generation:
                return
            if isinstance(result, BaseException):
                self._fail(result)
            else:
                wake(result)

        self._host.read(store.timed_partitions, found)

    def find_filled(self, rows: list[int], found: Callable[[list[int] | None], None]) -> None:
        """Tell which of these partitions hold anything, without loading them; None when the store could not say."""

        def sized(sizes: Mapping[int, int] | None) -> None:
            if sizes is None:
                found(None)
                return
            filled = {row for row, size_bytes in sizes.items() if size_bytes}
            filled.update(row for row, _ in self._unwritten())
            found([row for row in rows if row in filled])

        self._ask(lambda store: store.load_sizes(rows), sized, vital=True)

    def close(self, done: Callable[[], None]) -> None:
        """Commit what is pending, then close the store and call ``done``. Nothing new is taken, or there might be
        something pending for ever."""
        self._closing = done
        self.failure = self.failure or "the store is being closed"
        if self._queue.under_way is None:
            self._start_commit()

    def _write_behind(self) -> None:
        """Nothing is to be in memory only any more (D18)."""
        for slot in self._slots.values():
            if slot.machine is not None and (step := write_all(slot.machine.state, self._clock.now_ms())) is not None:
                self._record(slot, slot.machine, step, True, unconfirmed=True)

    @property
    def store(self) -> Store | None:
        """The store while it is open."""
        return self._store

    @property
    def trouble(self) -> str | None:
        """Why sends or receives do not work right now; None when both do."""
        store = self._store
        if self.failure is None and store is not None:
            if not store.is_held:  # the next command will find that out
                return f"{store.name}: {_LEASE_OVER}"
            if not store.has_room:
                return f"{store.name}: no room on the disk for new messages; what is stored can be received"
        return self.failure

    @property
    def commits(self) -> int:
        """How many are durable since this runtime was made."""
        return self.meter.commits

    @property
    def queued(self) -> tuple[int, int]:
        """(operations, bytes) that wait for the store, as `overloaded` counts them."""
        return self._backlog.queued

    def count_messages(self, most: int, counted: Callable[[Mapping[int, tuple[int, int]] | None], None]) -> None:
        """Tell what waits in the store, by sub-queue key, as of its last commit, and in memory only: see
        `Store.load_counts`. None when the store could not say."""
        self._ask(
            lambda store: store.load_counts(most),
            lambda found: counted(None if found is None else self._with_unwritten(found)),
        )

    def _with_unwritten(self, counts: Mapping[int, tuple[int, int]]) -> Mapping[int, tuple[int, int]]:
        if not self.express.messages:
            return counts
        found = dict(counts)
        for row, express in self._unwritten():
            key = subqueue_key(row, SubqueueKind.ACTIVE)
            messages, size_bytes = found.get(key, (0, 0))
            found[key] = (messages + len(express.unwritten), size_bytes + express.size_bytes)
        return found

    def _unwritten(self) -> Iterator[tuple[int, Express]]:
        """Rows of partitions with messages in memory only."""
        for row, slot in self._slots.items():
            if slot.machine is not None and (express := slot.machine.state.express) is not None and express.unwritten:
                yield row, express

    def find_timed(self, found: Callable[[list[int] | None], None]) -> None:
        """Tell in which partitions something falls due: see `Store.timed_partitions`. None when the store could not
        say."""
        self._ask(lambda store: store.timed_partitions(), found)

    def find_cursors(self, most: int, found: Callable[[list[int] | None], None]) -> None:
        """Tell which partitions have cursors: see `Store.cursor_partitions`. None when the store could not say."""
        self._ask(lambda store: store.cursor_partitions(most), found)

    def find_executed(self, asker: str, requests: Sequence[int], found: OnFound) -> None:
        """See `partibus.routing.store_access.Remembers`."""
        forgets = self.executed.forgets
        self._ask(
            lambda store: store.load_executed(asker),
            lambda notes: found(None if notes is None else known_of(requests, notes, forgets=forgets)),
        )

    def _ask(
        self, question: Callable[[Store], T], answered: Callable[[T | None], None], *, vital: bool = False
    ) -> None:
        """Have the store say something off the loop; None when it can't now. To be curious is no reason to fail, unless
        the answer is ``vital``: who asks again at once is to wait until the store has been opened anew."""
        store, generation = self._store, self._generation
        if store is None or self.failure is not None:
            self._host.call_soon(lambda: answered(None))
            return

        def read(result: Any) -> None:
            is_current = generation == self._generation
            if is_current and isinstance(result, BaseException):
                is_current = False
                if vital:
                    self._fail(result)
            answered(result if is_current else None)

        self._host.read(lambda: question(store), read)

    def held_bytes(self) -> Iterator[tuple[int, int]]:
        """Stored bytes in memory of what is under lock or reserved, of each partition in use, by row."""
        for row, slot in self._slots.items():
            if slot.machine is not None:
                yield row, slot.machine.state.held_bytes

    @property
    def overloaded(self) -> bool:
        """More waits for the store than the limits allow: no more credit until it has caught up (D24)."""
        return self._backlog.overloaded

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the store has caught up or can be used again; never before this returns."""
        self._backlog.when_less(call)

    def retire(self, why: str) -> list[Callable[[], None]]:
        """The store gets another owner: receivers are told and forgotten; requests are still answered. Gives the calls
        that `when_usable` has not made: they wait for the next owner."""
        self._answers.fail_receivers(why)
        self._answers.deliver()
        return self._backlog.take_calls()

    def _tell_usable(self) -> None:
        if self._backlog.awaited and self.failure is None and not self.overloaded:
            self._release_waiting()

    def _release_waiting(self) -> None:
        for call in self._backlog.take_calls():
            self._host.call_soon(call)

    # -- the way in --------------------------------------------------------------------------------------------------

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Say where grants for a receiver go."""
        self._answers.register(receiver, on_granted)

    def unregister(self, receiver: int) -> None:
        """The receiver is gone; what is still granted to it goes back."""
        self._answers.unregister(receiver)

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to a request any more; a session that it accepts is released."""
        self._answers.forget(request)

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
        self._check_held()
        if on_reply is not None:
            self._answers.expect(r.request_of(command), on_reply)
        store = self._store
        if store is None or self.failure is not None:
            self._refuse(command)
            self._answers.deliver()
            return
        if not store.has_room and needs_room(command):
            # Refused before it is in memory: what is there already can go on to be received and completed.
            self._answers.refuse(command, "no room on the disk", full=True)
            self._answers.deliver()
            return
        slot = self._slots.get(row)
        if slot is None:
            if row in self._dropped:
                # Loaded again it would be in the store again, for good.
                self._answers.refuse(command, "the entity was deleted")
                self._answers.deliver()
                return
            if type(command) is c.Inspect:
                self._glance(row, options, command)
                return
            slot = self._begin_slot(row, options)
        elif slot.options is not options:  # the entity was updated
            slot.follow(options)
            self._see_forwarded(row, options)
        if slot.machine is None or slot.waiting:
            slot.waiting.append((command, holdable))
            self._backlog.count(command, 1)
        elif options.topic:
            self._publish(slot, command, holdable)
            self._answers.deliver()
        else:
            self._handle(slot, command, holdable)
            self._answers.deliver()

    def _glance(self, row: int, options: PartitionOptions, command: c.Inspect) -> None:
        subscriptions = self._topics.subscriptions_of(row) if options.topic else ()
        self._glances.append(Glance(row, options, command, subscriptions))
        if not self._glancing:
            self._look()

    def _look(self) -> None:
        """Have some of the partitions looked at that are asked for counts and not in use, then the others."""
        asked, self._glances = self._glances[:AT_ONCE], self._glances[AT_ONCE:]
        store, generation, now_ms = self._store, self._generation, self._clock.now_ms()
        self._glancing = bool(asked) and store is not None
        if not asked or store is None:
            return

        def seen(result: Any) -> None:
            if generation != self._generation:  # who asked has been told
                return
            if isinstance(result, BaseException):
                self._fail(result)
                return
            for one, inspected in zip(asked, result, strict=True):
                if one.row in self._slots:  # since then; it knows better
                    self.submit(one.row, self._slots[one.row].options, one.command)
                elif (callback := self._answers.whose(inspected)) is not None:
                    self._answers.put(callback, inspected)
            self._answers.deliver()
            if generation == self._generation:
                self._look()

        self._host.read(lambda: look(store, asked, now_ms), seen)

    def _begin_slot(self, row: int, options: PartitionOptions) -> Slot:
        slot = self._slots[row] = Slot(row, options)
        self._topics.joins(slot)
        self._load_partition(slot)
        self._see_forwarded(row, options)
        return slot

    def _see_forwarded(self, row: int, options: PartitionOptions) -> None:
        forward = self._forward
        if options.forwards and forward is not None:
            self._host.call_soon(lambda: forward(row, False))

    def _see_transfers(self, slot: Slot, machine: Partition) -> None:
        """Somebody has to move what was sent through the partition, unless somebody does."""
        forward = self._forward
        transfers = machine.state.subqueues[SubqueueKind.TRANSFER]
        if transfers.messages and not transfers.forwarder and forward is not None:
            self._host.call_soon(lambda: forward(slot.row, True))

    def _check_held(self) -> None:
        """Without a lease nothing is decided: another broker may decide otherwise (D20). What is in memory is
        forgotten, and the store opened anew, which shows whose it is. Asked before each command, and when the store
        has read something: this process may have been stopped for a while since that was asked for."""
        store = self._store
        if store is not None and not store.is_held:
            self._fail(StoreError(f"{store.name}: {_LEASE_OVER}"))

    def _no_more_waiting(self, slot: Slot) -> list[tuple[w.Input, bool]]:
        """Take the commands that waited for partitions to be loaded."""
        waiting, slot.waiting = slot.waiting, []
        for command, _ in waiting:
            self._backlog.count(command, -1)
        return waiting

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Forget a partition and delete its rows: the entity was deleted. ``on_dropped`` gets the row when that is
        durable; should the store fail before, it is never called, and the next start tries again."""
        self._dropped[row] = None
        if len(self._dropped) > _DROPPED_MAX:
            del self._dropped[next(iter(self._dropped))]
        slot = self._slots.pop(row, None)
        # Before a topic that waited for it goes on with what was planned when it was there.
        self._topics.dropped(row)
        if slot is not None:
            for command, _ in self._no_more_waiting(slot):
                self._answers.refuse(command, "the entity was deleted")
            self._woken(slot)
        if slot is not None and slot.machine is not None and slot.machine.state.express is not None:
            slot.machine.state.express.release()
        self._meters.tallies.pop(row, None)
        self._queue.pending.dropped_partitions.append(row)
        self._queue.wait(self._queue.number, on_dropped, row)
        self._schedule.add(waited_for=True, holdable=True)

    def release_gone(self) -> None:
        """Brokers have gone: who was connected to them holds no session any more."""
        for slot in list(self._slots.values()):
            self._release_gone(slot)
        self._answers.deliver()

    def _release_gone(self, slot: Slot) -> None:
        if slot.machine is not None and (sessions := slot.machine.state.sessions) is not None and sessions.resuming:
            for lock_id, holder in sessions.away():
                if not self.is_present(holder):
                    self._handle(slot, c.ReleaseSession(lock_id), True)

    def run_due(self) -> None:
        """Let every partition whose deadline has passed run out what is due; the clock's hand moves this one too."""
        self._check_held()
        now_ms = self._clock.now_ms()
        for deadline_ms, row in self._deadlines.due(now_ms):
            slot = self._slots.get(row)
            if slot is not None and slot.machine is not None and slot.deadline_ms == deadline_ms:
                slot.deadline_ms = None
                self._handle(slot, c.Tick(), True)
        self._deadlines.arm(now_ms)
        self._answers.deliver()

    @property
    def catching_up(self) -> bool:
        """Something that has fallen due has not been decided yet: another `run_due` or a load has to come first. False
        while the store can't be used: nothing falls due in partitions that are not there."""
        if self.failure is not None or self._store is None:
            return False
        return self._deadlines.is_due(self._clock.now_ms()) or any(
            slot.machine is None or slot.machine.catching_up for slot in self._slots.values()
        )

    @property
    def decided(self) -> int:
        """Number of the commit that makes durable all that was decided until now: see `is_durable`."""
        writes = self._queue.pending
        return self._queue.number - (not (writes.counters or writes.dropped_partitions))

    def is_durable(self, commit: int) -> bool:
        """That commit has ended: well, or with the store's failure."""
        return self._queue.durable >= commit

    # -- deciding ----------------------------------------------------------------------------------------------------

    def _handle(self, slot: Slot, command: w.Input, holdable: bool) -> None:
        machine = slot.machine
        assert machine is not None, "loaded"
        now_ms = self._clock.now_ms()
        step = machine.handle(command, now_ms)
        if machine.state.express is not None:
            hold_back(machine.state, step)
        if step.events:
            self._record(slot, machine, step, holdable, unconfirmed=_is_unconfirmed(command))
        if self._recorder is not None:
            if step.notes:
                self._recorder.noted(slot.row, step.notes, now_ms, self._queue.number if step.events else 0)
            if step.refusals is not None:
                self._recorder.refused(slot.row, step.refusals, now_ms)
        queue = self._queue
        durable = slot.waited <= queue.durable
        if self.executed.asker_of is not None and step.events:
            self.executed.note(step.replies, queue.pending)
        for reply in step.replies:
            callback = self._answers.whose(reply)
            if callback is None:
                self._give_back(slot, reply)
                continue
            if durable or (step.at_once and type(reply) is r.Accepted and slot.reserved <= queue.durable):
                self._answers.put(callback, reply)
            elif step.at_once and type(reply) is r.Accepted:
                queue.wait(slot.reserved, callback, reply)
            else:
                queue.wait(slot.waited, callback, reply)
        for load in step.loads:
            number = slot.needed_by(load, queue.durable)
            if number <= queue.durable:
                self._run_load((slot, load, self._generation))
                continue
            queue.wait(number, self._run_load, (slot, load, self._generation))
            if number == queue.number:
                self._schedule.add(waited_for=True, holdable=False)
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is not None and (slot.deadline_ms is None or deadline_ms < slot.deadline_ms):
            slot.deadline_ms = deadline_ms
            self._deadlines.add(deadline_ms, slot.row, now_ms)

        if step.arrivals is not None:
            for row, arrive in step.arrivals.items():
                self._handle(self._slots[row], arrive, holdable)

    # -- publishing --------------------------------------------------------------------------------------------------

    def _publish(self, topic: Slot, command: w.Input, holdable: bool) -> None:
        """Have a topic take a command, once the subscriptions that it is for are loaded: what it stores and what they
        get are in one commit (D17)."""
        if publishes(command):
            asleep = self._topics.prepare(topic, command, self._slots, self._clock.now_ms())
            if asleep is None:
                self._answers.refuse(command, "the topic was deleted")
                return
            if asleep:
                topic.asleep.update(asleep)
                topic.waiting.append((command, holdable))
                self._backlog.count(command, 1)
                for row, options in asleep.items():
                    slot = self._slots.get(row) or self._begin_slot(row, options)
                    slot.wakes.append(topic)
                return
        self._handle(topic, command, holdable)

    def _woken(self, slot: Slot) -> None:
        """A subscription is loaded, or gone: who waited for it goes on."""
        topics, slot.wakes = slot.wakes, []
        for topic in topics:
            if self._slots.get(topic.row) is topic:
                topic.asleep.discard(slot.row)
                if not topic.asleep:
                    self._go_on(topic, prepared=True)

    def _go_on(self, slot: Slot, *, prepared: bool = False) -> None:
        """Handle what waited, as far as that can be. ``prepared``: the first command has its plan, and nothing is
        missing for it any more."""
        for command, holdable in self._no_more_waiting(slot):
            if slot.waiting:
                slot.waiting.append((command, holdable))
                self._backlog.count(command, 1)
            elif prepared or not slot.options.topic:
                self._handle(slot, command, holdable)
                prepared = False
            else:
                self._publish(slot, command, holdable)

    # -- recording ---------------------------------------------------------------------------------------------------

    def _record(self, slot: Slot, machine: Partition, step: Step, holdable: bool, *, unconfirmed: bool) -> None:
        writes, tally = self._queue.pending, machine.state.tally
        if slot.written != self._queue.number:
            tally.since_s = self._meters.elapsed_s()
        tally.operations -= writes.operations
        waited_for = record(slot.row, step.events, writes) and not unconfirmed
        tally.operations += writes.operations
        writes.counters[slot.row] = machine.counters
        for subqueue, messages, size_bytes in machine.counts():
            writes.counts[subqueue] = (messages, size_bytes)
        slot.wrote(self._queue.number, waited_for=waited_for)
        if (express := machine.state.express) is not None:
            self._note_express(slot, express, step)
        if slot.subscriptions is not None:
            slot.subscriptions.note(slot.row, machine.state.size_bytes)
        if SubqueueKind.TRANSFER in machine.state.subqueues:
            self._see_transfers(slot, machine)
        self._schedule.add(waited_for=waited_for, holdable=holdable)

    def _note_express(self, slot: Slot, express: Express, step: Step) -> None:
        if step.reserves:
            slot.reserved = self._queue.number
        if express.written_ms is not None:
            self.express.writing(self._queue.number, express.written_ms)
            express.written_ms = None

    def _give_back(self, slot: Slot, reply: r.Reply) -> None:
        """Nobody is there to take it: what was locked must not wait for the lock to end, nor be granted again."""
        match reply:
            case r.Granted():
                self._handle(slot, c.CancelReceive(0, reply.kind, reply.receiver), True)
                tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
                # Locked or reserved: no message is both, and what the other command names is not found.
                self._handle(slot, c.Settle(0, reply.kind, c.Outcome.RELEASE, tokens), True)
                self._handle(slot, c.ReturnReserved(reply.kind, tokens), True)
            case r.Locked():
                tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
                self._handle(slot, c.Settle(0, reply.kind, c.Outcome.RELEASE, tokens), True)
            case r.SessionAccepted():
                self._handle(slot, c.ReleaseSession(reply.lock_id), True)

    # -- committing --------------------------------------------------------------------------------------------------

    def _start_commit(self) -> None:
        self._schedule.started()
        queue = self._queue
        if queue.under_way is not None or self._store is None:
            return
        if self._closing is not None:
            self._write_behind()
        writes = queue.pending
        if not (writes.counters or writes.dropped_partitions):
            self._finish_closing()
            return
        if writes.executed:
            self.executed.date(writes, self._clock.now_ms())
        queue.take()
        self._meters.begun(self.meter, writes.counters)
        if self._keeps_time:  # a clock that is moved by hand begins anew with each run
            writes.now_ms = self._clock.now_ms()
        self._schedule.begun()
        store = self._store
        generation = self._generation

        def committed(result: Any) -> None:
            if generation != self._generation:  # a load failed meanwhile; the store could not be closed under a commit
                self._close_and_reopen(store)
            elif isinstance(result, BaseException):
                self.meter.failures += 1
                self._fail(result, of_commit=True)
            else:
                self.meter.committed(writes.operations, writes.size_bytes, result)
                if self._recorder is not None:
                    row = next(iter(writes.counters), 0)
                    self._recorder.committed(
                        row, queue.number - 1, writes.operations, writes.size_bytes, result, self._clock.now_ms()
                    )
                self._committed()

        self._host.write(lambda: self.meter.timed(lambda: store.commit(writes)), committed)

    def _committed(self) -> None:
        queue = self._queue
        writes = queue.under_way
        assert writes is not None, "a commit was under way"
        passing = queue.end()
        self.express.written(queue.durable)
        if self._closing is not None:
            self._start_commit()
        elif queue.pending.counters or queue.pending.dropped_partitions:
            self._schedule.plan()
        for call, value in passing:
            self._answers.put(call, value)
        self._answers.deliver()
        self._tell_usable()

    def _finish_closing(self) -> None:
        if self._closing is not None and self._store is not None:
            store, done = self._store, self._closing
            self._store, self._closing = None, None
            self.failure = "the store is closed"
            self._answers.fail_requests(self.failure)
            self._answers.fail_receivers(self.failure)
            self._generation += 1
            self._host.write(store.close, lambda _: done())
            self._answers.deliver()
            self._release_waiting()  # it will not be usable here again: somewhere else, perhaps

    # -- failing -----------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException, *, of_commit: bool = False) -> None:
        """A commit or load failed: memory may be ahead of the store, so forget it and begin again (D11).

        Requests that still wait for a load have done nothing yet. Nobody can tell the outcome of a commit that is under
        way when a load fails.
        """
        self.failure = str(error) or type(error).__name__
        self._release_waiting()  # nothing is in the way of who uses other stores besides
        self._generation += 1
        if self._recorder is not None:
            self._recorder.failed()
        committing = self._queue.under_way is not None and not of_commit
        touched, untouched = self._queue.fail()
        self._schedule.begun()
        executed = error.executed if of_commit and isinstance(error, StoreError) else None
        full = isinstance(error, StoreFull)
        for waiters, outcome in ((touched, executed), (untouched, False)):
            for call, value in waiters:
                request = getattr(value, "request", None)  # grants and loads have none: their askers are told below
                if request is not None:
                    self._answers.put(call, r.Failed(request, outcome, full, self.failure))
        for slot in self._slots.values():
            for command, _ in self._no_more_waiting(slot):
                self._refuse(command)
        self._answers.fail_requests(self.failure, full=full)
        self._answers.fail_receivers(self.failure, full=full)
        self._slots.clear()
        self.express.clear()
        self._glances.clear()
        self._glancing = False
        self._topics.clear()
        self._deadlines.clear()
        store, self._store = self._store, None
        self._answers.deliver()
        if store is not None and not committing:
            self._close_and_reopen(store)

    def _close_and_reopen(self, store: Store) -> None:
        self._host.write(store.close, lambda _: self._reopen())

    def _reopen(self) -> None:
        if self._closing is not None:
            done, self._closing = self._closing, None
            self._release_waiting()
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
        self.wake_timed()

    def _refuse(self, command: w.Input | w.Load) -> None:
        self._answers.refuse(command, self.failure or "the store is closed")

    # -- loading -----------------------------------------------------------------------------------------------------

    def _load_partition(self, slot: Slot) -> None:
        store, generation = self._store, self._generation
        assert store is not None, "open"

        def loaded(result: Any) -> None:
            self._check_held()
            if generation != self._generation or self._slots.get(slot.row) is not slot:
                return
            if isinstance(result, BaseException):
                self._fail(result)
                return
            snapshot, sizes = result
            slot.machine = Partition(slot.row, slot.options, snapshot, store.epoch)
            slot.machine.state.tally = self._meters.tally_of(slot.row)
            slot.machine.state.pool = self.express
            slot.machine.state.run = self.run
            if slot.machine.state.sessions is not None:
                slot.machine.state.sessions.await_holders(self._clock.now_ms())
                self._release_gone(slot)
            if SubqueueKind.TRANSFER in slot.machine.state.subqueues:
                self._see_transfers(slot, slot.machine)
            if slot.subscriptions is not None:
                slot.subscriptions.note(slot.row, slot.machine.state.size_bytes)
            if slot.options.topic:
                self._topics.loaded(slot, dict.fromkeys(subscriptions, 0) | sizes, self._slots)
            self._go_on(slot)
            self._woken(slot)
            self._answers.deliver()
            self._tell_usable()

        subscriptions = self._topics.subscriptions_of(slot.row) if slot.options.topic else ()
        self._host.read(
            lambda: (store.load_partition(slot.row), store.load_sizes(subscriptions) if subscriptions else {}), loaded
        )

    def _run_load(self, request: tuple[Slot, w.Load, int]) -> None:
        slot, load, generation = request
        store = self._store
        if store is None or generation != self._generation:
            return
        row = slot.row

        def loaded(result: Any) -> None:
            self._check_held()
            if generation != self._generation or self._slots.get(row) is not slot:
                # Whoever asked must not wait for ever.
                self._refuse(load)
                self._answers.deliver()
                return
            if isinstance(result, BaseException):
                self._fail(result)
                return
            answer = w.Loaded(load, result)
            if not (slot.options.topic and publishes(answer)):
                self._handle(slot, answer, True)
            elif slot.waiting:
                slot.waiting.append((answer, True))
                self._backlog.count(answer, 1)
            else:
                self._publish(slot, answer, True)
            self._answers.deliver()

        self._host.read(lambda: read(store, row, load), loaded)


def _is_unconfirmed(command: w.Input) -> bool:
    """A completion that its receiver takes for granted. Lost in a crash, the message comes again when its lock ends:
    what a receiver that asks for no confirmation has to expect. A message that was forwarded is forwarded again, and
    its destination knows it."""
    if type(command) is c.Forwarded:
        return not command.request
    return type(command) is c.Settle and not command.request and command.outcome is c.Outcome.COMPLETE
