"""The decisions of one store's partitions: commands go to machines, and what each step asks for is carried out."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from partibus.clock import Clock
from partibus.partition.core.deadlines import Deadlines
from partibus.partition.core.residency import Residency
from partibus.partition.core.write_behind import hold_back
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.host import Host
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.commit_queue import Waiter
from partibus.partition.runtime.commits import ENDING, Commits, deletes, described, is_unconfirmed
from partibus.partition.runtime.dispatcher import ReplyDispatcher, given_back
from partibus.partition.runtime.lifecycle import StoreLifecycle
from partibus.partition.runtime.loading import Backlog, Loading, Waiting
from partibus.partition.runtime.slot import Forwards, Slot
from partibus.partition.runtime.topic import Topics, publishes
from partibus.partition.runtime.waking import SLICE, Waking

NOTED_MAX: Final = 1_000
"""The due times that are noted together; some 1 ms of the loop."""


class Decider:
    """Gives commands to the machines of partitions in use.

    A step's events go to the next commit, its replies to those who asked, once what they saw is durable, its loads to
    the store, and its deadline to the timer. An unexpected exception fails the store, since half of a change may be in
    memory; the callers go on, with partitions that are not in use any longer.
    """

    def __init__(
        self,
        slots: MutableMapping[int, Slot],
        lifecycle: StoreLifecycle,
        commits: Commits,
        loading: Loading,
        topics: Topics,
        backlog: Backlog,
        forwards: Forwards,
        residency: Residency,
        answers: ReplyDispatcher,
        host: Host,
        clock: Clock,
        *,
        begin: Callable[[int, PartitionOptions], Slot],
        wake: Callable[[list[int]], None] | None,
        loads_ended: Callable[[], None],
        planned: Callable[[], None],
    ) -> None:
        """Make the decider of a store whose partitions in use are ``slots``, by row.

        ``begin`` begins to use a partition. ``wake`` gets the rows of unused partitions in which something is due.
        ``loads_ended`` is called after each load, ``planned`` when commands wait no longer for a topic's plan.
        """
        self._slots = slots
        self._lifecycle = lifecycle
        self._commits = commits
        self._queue, self._schedule, self._recorder = commits.queue, commits.schedule, commits.recorder
        self._executed = commits.executed
        self._loading = loading
        self._backlog = backlog
        self._forwards = forwards
        self._residency = residency
        self._answers = answers
        self._clock = clock
        self._call_soon = host.call_soon
        self._loads_ended = loads_ended
        self.deadlines = Deadlines(host, self.run_due)
        self.waking = Waking(slots, wake, host.call_soon, self.run_due)
        self.waiting = Waiting(
            slots,
            topics,
            backlog,
            answers,
            clock,
            begin=begin,
            handle=self.handle,
            broke=self.broke,
            planned=planned,
            call_soon=host.call_soon,
        )

    # -- commands ----------------------------------------------------------------------------------------------------

    def handle(self, slot: Slot, command: w.Input, holdable: bool) -> None:
        """Decide a command of a partition, if it is in use still."""
        if self._slots.get(slot.row) is not slot:
            self.refuse(command)
            return
        try:
            self.decide(slot, command, holdable)
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            self.broke(error, slot, command)

    def broke(self, error: Exception, slot: Slot, command: w.Input) -> None:
        """Fail the store after an unexpected exception in a command."""
        self._lifecycle.broke(error, f"{described(command)} of partition {slot.row}")

    def refuse(self, command: w.Input | w.Load) -> None:
        """Tell the asker of a command that the store can't be used."""
        self._answers.refuse(command, self._lifecycle.failure or "the store is closed")

    def decide(self, slot: Slot, command: w.Input, holdable: bool) -> None:
        """Give a command to a loaded partition, and carry out what its step asks for. Hot path."""
        machine = slot.machine
        assert machine is not None, "loaded"
        now_ms = self._clock.now_ms()
        step = machine.handle(command, now_ms)
        if machine.state.express is not None:
            hold_back(machine.state, step)
        if step.events:
            if SubqueueKind.TRANSFER in machine.state.subqueues:
                self._forwards.see_transfers(machine)
            # Its step may delete messages that it grants to others, which wait for that.
            unconfirmed = (
                type(command) in ENDING
                and not command.request  # type: ignore[union-attr]
                and is_unconfirmed(command)
                and not any(map(deletes, step.replies))
            )
            self._commits.record(slot, machine, step, holdable, unconfirmed=unconfirmed)
            self._backlog.look()
        if self._recorder is not None:
            if step.notes:
                self._recorder.noted(slot.row, step.notes, now_ms, self._queue.number if step.events else 0)
            if step.refusals is not None:
                self._recorder.refused(slot.row, step.refusals, now_ms)
        queue = self._queue
        durable = slot.waited <= queue.durable
        if self._executed.asker_of is not None and step.events:
            self._executed.note(step.replies, queue.pending)
        waiting: list[Waiter] = []
        receivers = self._answers.receivers
        for reply in step.replies:
            # With many sessions most replies of a step are grants.
            callback = receivers.get(reply.receiver) if type(reply) is r.Granted else self._answers.whose(reply)
            if callback is None:
                if waiting:
                    queue.wait_all(slot.waited, waiting)
                    waiting = []
                for undoing in given_back(reply):
                    self.decide(slot, undoing, True)
                continue
            if durable or (step.at_once and type(reply) is r.Accepted and slot.reserved <= queue.durable):
                self._answers.put(callback, reply)
            elif step.at_once and type(reply) is r.Accepted:
                queue.wait(slot.reserved, callback, reply)
            else:
                waiting.append((callback, reply))
        if waiting:
            queue.wait_all(slot.waited, waiting)
        if step.loads:
            self._load(slot, step.loads)
        deadline_ms = machine.next_deadline_ms()
        if deadline_ms is not None and (slot.deadline_ms is None or deadline_ms < slot.deadline_ms):
            slot.deadline_ms = deadline_ms
            self.deadlines.add(deadline_ms, slot.row, now_ms)
        slot.is_used = True
        if (size_bytes := machine.memory_bytes) != slot.size_bytes:
            self._residency.weigh(slot, size_bytes)
        if self._residency.size_bytes > self._residency.bytes_max:
            self._residency.ask(self._call_soon)
        if step.arrivals is not None:
            for row, arrive in step.arrivals.items():
                self.decide(self._slots[row], arrive, holdable)
        if step.rest is not None:
            slot.rest = step.rest
            self._queue.held.add(slot.row)
            self._call_soon(partial(self._publish_rest, slot, holdable))

    def _publish_rest(self, slot: Slot, holdable: bool) -> None:
        """Do another part of a large publish; then other events have a turn. The commit begins after the last part."""
        rest, slot.rest = slot.rest, None
        if rest is None or self._slots.get(slot.row) is not slot:
            return
        self.handle(slot, rest, holdable)
        if slot.rest is None and self._slots.get(slot.row) is slot:
            self._queue.held.discard(slot.row)
            self._schedule.plan()
            self.waiting.go_on(slot)
        self._answers.deliver()

    # -- loads -------------------------------------------------------------------------------------------------------

    def _load(self, slot: Slot, loads: Sequence[w.Load]) -> None:
        """Run each load once the commit is durable that it has to see."""
        queue = self._queue
        slot.loads += len(loads)
        for load in loads:
            number = slot.needed_by(load, queue.durable)
            if number <= queue.durable:
                self._run_load((slot, load, self._lifecycle.generation))
                continue
            queue.wait(number, self._run_load, (slot, load, self._lifecycle.generation))
            if number == queue.number:
                self._schedule.plan(waited_for=True, holdable=False)

    def _run_load(self, request: tuple[Slot, w.Load, int]) -> None:
        slot, load, generation = request
        if self._lifecycle.store is None or generation != self._lifecycle.generation:
            return

        def found(answer: w.Loaded) -> None:
            slot.loads -= 1
            if not (slot.options.topic and publishes(answer)):
                self.handle(slot, answer, True)
            elif slot.waiting or slot.rest is not None:
                self._backlog.park(slot, answer, True)
            else:
                self.waiting.publish(slot, answer, True)
            self._answers.deliver()
            self._loads_ended()

        def given_up() -> None:  # the asker must not wait for ever
            self.refuse(load)
            self._answers.deliver()

        self._loading.read(slot, load, found, given_up)

    # -- time --------------------------------------------------------------------------------------------------------

    def watch(self, slot: Slot) -> None:
        """Note the due time and the memory of a partition that was loaded: perhaps no command did that."""
        self.waking.ended(slot.row)
        machine = slot.machine
        if machine is None or self._slots.get(slot.row) is not slot:
            return
        if slot.deadline_ms is None and (deadline_ms := machine.next_deadline_ms()) is not None:
            slot.deadline_ms = deadline_ms
            self.deadlines.add(deadline_ms, slot.row, self._clock.now_ms())
        self._residency.weigh(slot, machine.memory_bytes)

    def release_gone(self, slot: Slot, is_present: Callable[[str], bool]) -> None:
        """Release the sessions of receivers at brokers that have ended; ``is_present`` tells whether a run is there."""
        if slot.machine is not None and (sessions := slot.machine.state.sessions) is not None and sessions.resuming:
            for lock_id, holder in sessions.away():
                if not is_present(holder):
                    self.handle(slot, c.ReleaseSession(lock_id), True)

    def await_due(self, timed: Sequence[tuple[int, int]]) -> None:
        """Note the (due time, row) of partitions that are not in use, the earliest first. They are loaded then.

        A partition that was in use since the store told has got its due time from its machine.
        """
        self._await_due(iter(timed), self._lifecycle.generation)

    def _await_due(self, timed: Iterator[tuple[int, int]], generation: int) -> None:
        if generation != self._lifecycle.generation:
            return
        now_ms, some = self._clock.now_ms(), list(islice(timed, NOTED_MAX))
        for due_ms, row in some:
            if row not in self._slots and row not in self.deadlines:
                self.deadlines.add(due_ms, row, now_ms)
        if len(some) == NOTED_MAX:
            self._call_soon(partial(self._await_due, timed, generation))

    def run_due(self) -> None:
        """Run what is due in some partitions, and soon in others; with a manual clock, this is called after each move.

        The loop has other work besides: see `catching_up`.
        """
        try:
            self._run_due()
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            self._lifecycle.broke(error, "what is due")
        self._answers.deliver()

    def _run_due(self) -> None:
        self._lifecycle.check_held()
        now_ms = self._clock.now_ms()
        cold: list[int] = []
        for deadline_ms, row in self.deadlines.due(now_ms, SLICE):
            slot = self._slots.get(row)
            if slot is None:
                cold.append(row)
            elif slot.machine is not None and slot.deadline_ms == deadline_ms:
                slot.deadline_ms = None
                self.handle(slot, c.Tick(), True)
        self.deadlines.arm(now_ms)
        self.waking.add(cold)
        self.waking.wake_some()

    @property
    def catching_up(self) -> bool:
        """Whether something due is not decided yet: another `run_due` or a load has to come first.

        False while the store can't be used: nothing is due in partitions that are not there.
        """
        if self._lifecycle.failure is not None or self._lifecycle.store is None:
            return False
        return (
            self.deadlines.is_due(self._clock.now_ms())
            or len(self.waking) > 0
            or any(slot.machine is None or slot.machine.catching_up for slot in self._slots.values())
        )
