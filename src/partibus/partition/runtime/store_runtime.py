"""The runtime of one store's partitions: decide, append to the next commit, answer when durable (D3, D11).

```text
 submit ─▶ Partition.handle ─▶ events ─▶ journal ─▶ CommitQueue.pending ─▶ Store.commit   (a writer thread)
                │                                        │ durable
                ├─▶ replies ────────── commit waiters ───┴─▶ callbacks
                └─▶ loads ──────────── commit waiters ───┴─▶ Store.read     (a reader thread) ─▶ Loaded ─▶ handle
```

Everything but the store's own calls happens on one thread: the host's loop in production, the simulation's in tests.
This module does not know which.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from partibus.clock import Clock
from partibus.limits import StoreLimits
from partibus.partition.core.machine import Partition
from partibus.partition.core.meters import Meters
from partibus.partition.core.residency import ColdPartitions
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.fan_out import Subscribers
from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.host import Host
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store, StoreFull
from partibus.partition.protocol.queries import TimedSubqueues
from partibus.partition.runtime.commits import Commits, OnFound
from partibus.partition.runtime.decider import Decider
from partibus.partition.runtime.dispatcher import DELETED, OnReply, ReplyDispatcher
from partibus.partition.runtime.lifecycle import BEING_OPENED, StoreLifecycle
from partibus.partition.runtime.loading import STORING, Backlog, Loading, brings_data
from partibus.partition.runtime.queries import ColdInspect, ColdInspects, StoreQueries
from partibus.partition.runtime.slot import Forwards, Slot
from partibus.partition.runtime.topic import Topics
from partibus.partition.runtime.waking import by_due_time

CLOSING_MS_MAX: Final = 1_000.0
"""How long a store that is asked to close stays open for commands that wait for loads."""
_DROPPED_MAX: Final = 100_000
"""Remembered rows of dropped partitions: some MB."""


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
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Make a runtime.

        ``store``: the store if it is open already; ``open_store`` opens it, now or again after a failure. ``wake`` gets
        the rows of unused partitions in which something is due. ``forward`` gets the row of each partition in use that
        forwards, and whether messages were sent through it. ``subscribers`` knows the subscriptions of topics.
        ``meters`` counts in this process. ``failed`` is called each time the store has failed, before memory is
        forgotten and waiters are told.
        """
        self.run = ""
        """The run of this broker, where several share the stores: session locks name their holders' (D21)."""
        self.is_present: Callable[[str], bool] = lambda run: run == self.run
        """Tells whether a run of a broker is there."""
        limits, meters = limits or StoreLimits(), meters or Meters()
        meters.express.bytes_max = limits.express_bytes
        meters.residency.bytes_max = limits.partition_bytes
        self._clock = clock
        self._wake = wake
        self._failed = failed
        self._forwards = Forwards(host, forward)
        self._meters = meters
        self.slots: dict[int, Slot] = {}
        """The partitions in use, by row; only this runtime adds and removes them."""
        self._residency = meters.residency
        self._cold = ColdPartitions()
        self._call_soon = host.call_soon
        self._call_later = host.call_later
        self._awaits_loads = True
        self._dropped: dict[int, None] = {}
        """The last dropped rows, an ordered set: their users may not know yet. No row is given twice."""
        self._refuses_soon = False
        self._answers = ReplyDispatcher(host.call_soon)
        self._lifecycle = StoreLifecycle(
            open_store,
            host,
            store,
            is_committing=self._is_committing,
            lost=self._forget_all,
            opened=self._go_by_store,
            closed=self._tell_closed,
        )
        self._commits = commits = Commits(
            self._lifecycle,
            host,
            clock,
            limits,
            self._answers,
            meters,
            self.slots,
            ended=self._tell_usable,
            is_awaited=self._is_awaited,
        )
        self._queue, self._schedule = commits.queue, commits.schedule
        self.executed, self.express, self.meter = commits.executed, commits.express, commits.meter
        self.questions = StoreQueries(self._lifecycle, self.slots, self.executed, self.express)
        self._cold_inspects = ColdInspects(self._lifecycle, clock, self._seen)
        self._topics = Topics(subscribers)
        self._backlog = Backlog(limits, self._queue, host.call_soon)
        self._loading = Loading(self._lifecycle, self.slots, self._topics, meters, self.express, self._dropped)
        self._decider = Decider(
            self.slots,
            self._lifecycle,
            commits,
            self._loading,
            self._topics,
            self._backlog,
            self._forwards,
            self._residency,
            self._answers,
            host,
            clock,
            begin=self._begin_slot,
            wake=wake,
            loads_ended=self._go_on_closing,
            planned=self._tell_usable,
        )
        self._deadlines, self._waiting = self._decider.deadlines, self._decider.waiting
        self._waking = self._decider.waking

    # -- life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store; blocks. Raises `StoreError`."""
        self._lifecycle.open()

    def begin(self, begun: Callable[[], None], why_not: str = BEING_OPENED) -> None:
        """Open the store off the loop (`StoreLifecycle.begin`)."""
        self._lifecycle.begin(begun, why_not)

    def wake_timed(self) -> None:
        """Find the partitions with due times, once the store is open. They are loaded when something is due."""
        if self._lifecycle.store is not None and self._wake is not None:
            self._lifecycle.read(lambda store: by_due_time(store.read(TimedSubqueues())), self._decider.await_due)

    def close(self, done: Callable[[], None]) -> None:
        """Commit what is pending, then close the store and call ``done``.

        Commands that wait for loads go on before, for `CLOSING_MS_MAX` at most: the holder of a lock is not refused
        because the store gets another owner (D21).
        """
        self._lifecycle.begin_closing(done)
        if self._is_awaited():
            self._call_later(CLOSING_MS_MAX, self._close_now)
        self._go_on_closing()

    def _close_now(self) -> None:
        self._awaits_loads = False
        self._go_on_closing()

    def _go_on_closing(self) -> None:
        """Close the store if it was asked to close, and no commit or load is in the way."""
        if self._lifecycle.is_closing and self._queue.under_way is None:
            self._commits.start()

    def _is_awaited(self) -> bool:
        """Tell whether commands wait for loads, so that a store that is asked to close stays open."""
        return self._awaits_loads and any(slot.has_plans for slot in self.slots.values())

    def _is_committing(self) -> bool:
        return self._queue.under_way is not None

    @property
    def store(self) -> Store | None:
        """The store while it is open."""
        return self._lifecycle.store

    @property
    def generations(self) -> Sequence[Generation]:
        """The generations of the store while it is open."""
        store = self._lifecycle.store
        return () if store is None else store.generations

    @property
    def failure(self) -> str | None:
        """Why the store can't be used now; None when it can."""
        return self._lifecycle.failure

    @failure.setter
    def failure(self, why: str | None) -> None:
        """Set the reason, for tests."""
        self._lifecycle.failure = why

    @property
    def trouble(self) -> str | None:
        """Why sends or receives do not work now; None when both do."""
        return self._lifecycle.trouble

    @property
    def commits(self) -> int:
        """The number of durable commits since this runtime was made."""
        return self.meter.commits

    @property
    def breaks(self) -> int:
        """The number of unexpected exceptions since this runtime was made."""
        return self._lifecycle.breaks + self._answers.breaks

    @property
    def queued(self) -> tuple[int, int]:
        """(operations, bytes) that wait for the store, as `overloaded` counts them."""
        return self._backlog.queued

    def find_executed(self, asker: str, requests: Sequence[int], found: OnFound) -> None:
        """Look up executed requests (`partibus.routing.store_access.Remembers`)."""
        self.questions.find_executed(asker, requests, found)

    def held_bytes(self) -> Iterator[tuple[int, int]]:
        """Iterate over the bytes in memory under lock or reserved, of each partition in use, by row."""
        for row, slot in self.slots.items():
            if slot.machine is not None:
                yield row, slot.machine.state.held_bytes

    @property
    def overloaded(self) -> bool:
        """Whether more waits for the store than the limits allow: no further credit until it has caught up (D24)."""
        return self._backlog.overloaded

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the store has caught up or can be used again; never before this returns.

        A store that is usable and idle calls soon: no commit of its own may follow that would tell the caller.
        """
        self._backlog.when_less(call)
        if self.failure is None and not self.overloaded:
            self._call_soon(self._tell_usable)

    def retire(self, why: str) -> list[Callable[[], None]]:
        """Let receivers go before the store gets another owner; requests are still answered.

        Returns the calls that `when_usable` has not made: they wait for the next owner.
        """
        self._answers.fail_receivers(why)
        self._answers.deliver()
        return self._backlog.take_calls()

    def _tell_usable(self) -> None:
        if self._backlog.is_listed:
            self._backlog.look()
        if self._backlog.awaiting and self.failure is None and not self.overloaded:
            self._backlog.release()
        if self._residency.size_bytes > self._residency.bytes_max:
            self._residency.ask(self._call_soon)

    # -- the way in --------------------------------------------------------------------------------------------------

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Register the callback for grants to a receiver."""
        self._answers.register(receiver, on_granted)

    def unregister(self, receiver: int) -> None:
        """Remove a receiver; further grants to it go back."""
        self._answers.unregister(receiver)

    def forget(self, request: int) -> None:
        """Forget a request whose asker has stopped waiting; a session that it accepts is released."""
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
        """Give a command to a partition.

        ``on_reply`` gets the reply to ``command.request``, perhaps before this returns. ``holdable``: its rows may wait
        a little for company (rows C13, C14).
        """
        lifecycle = self._lifecycle
        store = lifecycle.store
        if store is not None and not store.is_held:
            lifecycle.check_held()
            store = lifecycle.store
        if on_reply is not None:
            self._answers.requests[getattr(command, "request", 0)] = row, on_reply
        if store is None or lifecycle.failure is not None:
            self._decider.refuse(command)
            self._answers.deliver()
            return
        if type(command) in STORING and not store.has_room and brings_data(command):
            # Refused before it is in memory: messages that are there can still be received and completed.
            self._answers.refuse(command, "no room on the disk", full=True)
            self._answers.deliver()
            return
        slot = self.slots.get(row)
        if slot is None:
            if row in self._dropped:
                # Loading would create the deleted partition in the store again.
                self._answers.refuse(command, DELETED)
                self._answers.deliver()
                return
            if type(command) is c.Inspect:
                self._cold_inspects.add(
                    ColdInspect(row, options, command, self._loading.subscriptions_of(row, options))
                )
                return
            slot = self._begin_slot(row, options)
        try:
            if slot.options is not options:  # the entity was updated
                slot.follow(options)
                self._forwards.see_options(row, options)
            if slot.machine is None or slot.waiting or slot.rest is not None:
                self._backlog.park(slot, command, holdable)
                return
            if options.topic:
                self._waiting.publish(slot, command, holdable)
            else:
                self._decider.decide(slot, command, holdable)
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            self._decider.broke(error, slot, command)
        if self._answers.outbox:  # most replies wait for a commit
            self._answers.deliver()

    def _seen(self, seen: Sequence[tuple[ColdInspect, r.Inspected]]) -> None:
        """Reply to requests for counts of partitions that are not in use."""
        for asked, inspected in seen:
            if asked.row in self.slots:  # since then; it knows better
                self.submit(asked.row, self.slots[asked.row].options, asked.command)
            elif (callback := self._answers.whose(inspected)) is not None:
                inspected.activated_ms = self._cold.activated_ms(asked.row)
                self._answers.put(callback, inspected)
        self._answers.deliver()

    def _begin_slot(self, row: int, options: PartitionOptions) -> Slot:
        slot = self.slots[row] = Slot(row, options)
        self._topics.joins(slot)
        self._loading.load(slot, self.run, self._loaded, self._cold.take)
        self._residency.join(slot, self._go_cold)
        self._forwards.see_options(row, options)
        return slot

    def _go_cold(self, slot: Slot) -> None:
        """Drop an unused partition from memory as far as the store has it: all of it, or its windows.

        Its due times wake it.
        """
        try:
            self._try_cold(slot)
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            self._lifecycle.broke(error, f"partition {slot.row}, which was to leave memory")

    def _try_cold(self, slot: Slot) -> None:
        machine = slot.machine
        if machine is None or slot.is_awaited or self._loading.topics:
            return
        deadline_ms = machine.next_deadline_ms()
        if not (
            max(slot.written, slot.reserved) <= self._queue.durable
            and machine.may_go_cold
            and (deadline_ms is None or self._wake is not None)
        ):
            before = slot.size_bytes
            machine.drop_windows()
            self._residency.weigh(slot, machine.memory_bytes)
            self._residency.windows_dropped += slot.size_bytes < before
            return
        self._cold.add(slot.row, machine.go_cold())
        if slot.options.topic:
            self._topics.went_cold(slot)
        del self.slots[slot.row]
        self._residency.leave(slot)
        self._residency.went_cold += 1
        if deadline_ms is None:
            self._deadlines.discard(slot.row)
        else:
            self._deadlines.add(deadline_ms, slot.row, self._clock.now_ms())

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Forget a partition and delete its rows: the entity was deleted.

        ``on_dropped`` gets the row when that is durable. If the store fails before, it is never called, and the next
        start tries again.
        """
        self._dropped[row] = None
        if len(self._dropped) > _DROPPED_MAX:
            del self._dropped[next(iter(self._dropped))]
        slot = self.slots.pop(row, None)
        self._deadlines.discard(row)
        self._waking.ended(row)
        self._cold.discard(row)
        self._queue.held.discard(row)
        # Before a topic that waited for it goes on with a plan from when it was there.
        self._topics.dropped(row)
        if slot is not None:
            self._residency.leave(slot)
            self._waiting.dropped(slot)
            if slot.machine is not None and slot.machine.state.express is not None:
                slot.machine.state.express.release()
            if not self._refuses_soon:
                self._refuses_soon = True
                self._call_soon(self._refuse_dropped)
        self._meters.tallies.pop(row, None)
        self._queue.pending.dropped_partitions.append(row)
        self._queue.is_pending = True
        self._queue.wait(self._queue.number, on_dropped, row)
        self._schedule.plan(waited_for=True)

    def _refuse_dropped(self) -> None:
        """Refuse what waited inside of dropped partitions, of all that were dropped together."""
        self._refuses_soon = False
        self._answers.fail_requests(DELETED, rows=self._dropped)
        self._answers.deliver()

    def release_gone(self) -> None:
        """Release the sessions of receivers at brokers that have ended."""
        for slot in list(self.slots.values()):
            self._decider.release_gone(slot, self.is_present)
        self._answers.deliver()

    def run_due(self) -> None:
        """Run what is due in every partition; with a manual clock, this is called after each move."""
        self._decider.run_due()

    @property
    def catching_up(self) -> bool:
        """Whether something due is not decided yet: another `run_due` or a load has to come first.

        False while the store can't be used: nothing is due in partitions that are not there.
        """
        return self._decider.catching_up

    @property
    def decided(self) -> int:
        """The number of the commit that makes everything decided so far durable (`is_durable`)."""
        return self._queue.number - (not self._queue.is_pending)

    def is_durable(self, commit: int) -> bool:
        """Tell whether that commit has ended: well, or with the store's failure."""
        return self._queue.durable >= commit

    # -- the store comes and goes ------------------------------------------------------------------------------------

    def _go_by_store(self) -> None:
        """Go on with an open store, perhaps one that was opened again."""
        self._commits.go_on()
        self._tell_usable()
        self.wake_timed()

    def _forget_all(self, error: BaseException, of_commit: bool) -> None:
        """Forget everything after a failure (`StoreLifecycle`).

        Requests that still wait for a load had no effect. The order matters if one of these calls raises: replies that
        a failed commit would have released must not leave, whatever else happens.
        """
        if self._failed is not None:
            self._failed()
        self._backlog.release()  # links that also use other stores may go on
        why, full = self.failure or "", isinstance(error, StoreFull)
        self._commits.fail(error, why, of_commit=of_commit)
        for slot in self.slots.values():
            self._waiting.refuse(slot, why)
        self._answers.fail_requests(why, full=full)
        self._answers.fail_receivers(why, full=full)
        for slot in self.slots.values():
            self._residency.leave(slot)
        self.slots.clear()
        self._cold.clear()
        self._loading.topics.clear()
        self._cold_inspects.clear()
        self._topics.clear()
        self._deadlines.clear()
        self._waking.clear()
        self._backlog.look()
        self._answers.deliver()

    def _tell_closed(self, why: str) -> None:
        for slot in self.slots.values():
            self._residency.leave(slot)
        self._answers.fail_requests(why)
        self._answers.fail_receivers(why)
        self._answers.deliver()
        self._backlog.release()  # it will not be usable here again: somewhere else, perhaps
        self._backlog.look()

    # -- loading -----------------------------------------------------------------------------------------------------

    def _loaded(self, slot: Slot, machine: Partition) -> None:
        state = machine.state
        if state.sessions is not None:
            state.sessions.await_holders(self._clock.now_ms())
            self._decider.release_gone(slot, self.is_present)
        if SubqueueKind.TRANSFER in state.subqueues:
            self._forwards.see_transfers(machine)
        if slot.subscriptions is not None:
            slot.subscriptions.note(slot.row, state.size_bytes)
        self._waiting.loaded(slot)
        self._decider.watch(slot)
        self._answers.deliver()
        self._tell_usable()
        self._go_on_closing()
