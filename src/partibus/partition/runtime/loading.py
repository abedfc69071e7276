"""Loading of partitions and of what they ask for: the machines of a store's partitions, and the commands that wait.

A command to a partition that is not in memory waits until the partition is loaded. A load that a machine asks for waits
until the commits that it must see are durable.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from partibus.clock import Clock
from partibus.limits import StoreLimits
from partibus.message import Message
from partibus.partition.core.express import Pool
from partibus.partition.core.machine import Partition
from partibus.partition.core.meters import Meters
from partibus.partition.core.residency import Cold
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol.load_requests import Input
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Snapshot, Store
from partibus.partition.runtime.commit_queue import CommitQueue
from partibus.partition.runtime.dispatcher import ReplyDispatcher
from partibus.partition.runtime.lifecycle import StoreLifecycle
from partibus.partition.runtime.queries import read
from partibus.partition.runtime.slot import Planning, Slot
from partibus.partition.runtime.topic import Topics, publishes


class Backlog:
    """Rows that are not durable yet, and commands that wait for their partition to be loaded."""

    __slots__ = ("_awaiting", "_bytes", "_call_soon", "_limits", "_operations", "_queue")

    def __init__(
        self, limits: StoreLimits, queue: CommitQueue, call_soon: Callable[[Callable[[], None]], None]
    ) -> None:
        """``call_soon`` makes a call when what is being handled now has been."""
        self._limits = limits
        self._queue = queue
        self._call_soon = call_soon
        self._operations = 0
        self._bytes = 0
        """Of commands that wait."""
        self._awaiting: list[Callable[[], None]] = []

    def park(self, slot: Slot, command: Input, holdable: bool) -> None:
        """A command begins to wait for partitions to be loaded."""
        slot.waiting.append((command, holdable))
        self._count(command, 1)

    def take_parked(self, slot: Slot) -> list[tuple[Input, bool]]:
        """The commands that waited, in their order; they do no longer."""
        waiting, slot.waiting = slot.waiting, []
        for command, _ in waiting:
            self._count(command, -1)
        return waiting

    def _count(self, command: Input, sign: int) -> None:
        messages = stored_by(command)
        self._operations += sign * (len(messages) or 1)
        self._bytes += sign * sum([len(message.data) for message in messages])

    @property
    def queued(self) -> tuple[int, int]:
        """(operations, bytes) that wait."""
        return self._queue.operations + self._operations, self._queue.size_bytes + self._bytes

    @property
    def overloaded(self) -> bool:
        """More waits than the limits allow: no more credit until the store has caught up."""
        operations, size_bytes = self.queued
        return operations > self._limits.queued_operations or size_bytes > self._limits.queued_bytes

    def when_less(self, call: Callable[[], None]) -> None:
        """Have a call made by whoever takes them."""
        self._awaiting.append(call)

    @property
    def awaited(self) -> bool:
        """Somebody waits for it to become less."""
        return bool(self._awaiting)

    def take_calls(self) -> list[Callable[[], None]]:
        """All calls of `when_less`, once."""
        calls, self._awaiting = self._awaiting, []
        return calls

    def release(self) -> None:
        """It has become less, or who waits is to look elsewhere: make the calls."""
        for call in self.take_calls():
            self._call_soon(call)


class Loading:
    """Of one store. What was read for a partition that is not in use any more is given up."""

    __slots__ = ("_express", "_lifecycle", "_meters", "_slots", "_topics", "topics")

    def __init__(
        self, lifecycle: StoreLifecycle, slots: Mapping[int, Slot], topics: Topics, meters: Meters, express: Pool
    ) -> None:
        """``slots``: the partitions in use, by row."""
        self._lifecycle = lifecycle
        self._slots = slots
        self._topics = topics
        self._meters = meters
        self._express = express
        self.topics: set[Slot] = set()
        """Topics that are being loaded: what their subscriptions hold must not be forgotten meanwhile."""

    def subscriptions_of(self, row: int, options: PartitionOptions) -> Sequence[int]:
        """The rows of its subscriptions, if it is a topic's."""
        return self._topics.subscriptions_of(row) if options.topic else ()

    def load(
        self, slot: Slot, run: str, loaded: Callable[[Slot, Partition], None], cold: Callable[[int], Cold]
    ) -> None:
        """Read what a partition begins with, and make its machine. ``run``: of this broker. ``cold``: gives what is
        left of it in memory."""
        row, subscriptions = slot.row, self.subscriptions_of(slot.row, slot.options)
        store = self._lifecycle.store
        assert store is not None, "open"
        epoch = store.epoch

        def ask(store: Store) -> tuple[Snapshot | None, Mapping[int, int]]:
            return store.load_partition(row), store.load_sizes(subscriptions) if subscriptions else {}

        def found(answer: tuple[Snapshot | None, Mapping[int, int]]) -> None:
            snapshot, sizes = answer
            self.topics.discard(slot)
            machine = slot.machine = Partition(row, slot.options, snapshot, epoch, cold(row))
            state = machine.state
            state.tally = self._meters.tally_of(row)
            state.pool = self._express
            state.run = run
            if slot.options.topic:
                self._topics.loaded(slot, dict.fromkeys(subscriptions, 0) | dict(sizes), self._slots)
            loaded(slot, machine)

        if slot.options.topic:
            self.topics.add(slot)
        self._lifecycle.read(
            ask,
            found,
            wanted=lambda: self._slots.get(row) is slot,
            given_up=lambda: self.topics.discard(slot),
        )

    def read(self, slot: Slot, load: w.Load, found: Callable[[w.Loaded], None], given_up: Callable[[], None]) -> None:
        """Read what a machine asks for. ``given_up`` is called instead of ``found`` when nobody can use it any more."""
        row = slot.row

        def answered(answer: Any) -> None:
            found(w.Loaded(load, answer))

        self._lifecycle.read(
            lambda store: read(store, row, load),
            answered,
            wanted=lambda: self._slots.get(row) is slot,
            given_up=given_up,
        )


Handle = Callable[[Slot, w.Input, bool], None]


class Waiting:
    """What cannot be handled yet, of one store; each partition's in the order in which it came."""

    __slots__ = ("_answers", "_backlog", "_begin", "_broke", "_call_soon", "_clock", "_handle", "_slots", "_topics")

    def __init__(
        self,
        slots: MutableMapping[int, Slot],
        topics: Topics,
        backlog: Backlog,
        answers: ReplyDispatcher,
        clock: Clock,
        *,
        begin: Callable[[int, PartitionOptions], Slot],
        handle: Handle,
        broke: Callable[[Exception, Slot, w.Input], None],
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """``slots``: the partitions in use, by row. ``begin`` begins to use one more; ``handle`` gives a command to one
        that is loaded, and says whether its rows may wait a little for company (rows C13, C14). ``broke`` fails the
        store after an unexpected exception."""
        self._slots = slots
        self._topics = topics
        self._backlog = backlog
        self._answers = answers
        self._clock = clock
        self._begin = begin
        self._handle = handle
        self._broke = broke
        self._call_soon = call_soon

    def publish(self, topic: Slot, command: w.Input, holdable: bool) -> None:
        """Have a topic take a command, once the subscriptions that it is for are loaded: what it stores and what they
        get are in one commit (D17)."""
        try:
            is_ready = self._prepare(topic, command, holdable)
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            self._broke(error, topic, command)
            return
        if is_ready:
            self._handle(topic, command, holdable)

    def _prepare(self, topic: Slot, command: w.Input, holdable: bool) -> bool:
        if not publishes(command):
            return True
        planning = self._topics.begin(topic, command, self._clock.now_ms())
        if planning is not None and _pauses(planning):
            topic.planning = planning
            self._backlog.park(topic, command, holdable)
            self._call_soon(partial(self._plan_on, topic))
            return False
        pending_loads = None if planning is None else self._topics.prepare(topic, planning, self._slots)
        if pending_loads is None:
            self._answers.refuse(command, "the topic was deleted")
            return False
        if pending_loads:
            self._backlog.park(topic, command, holdable)
            self._wake(topic, pending_loads)
        return not pending_loads

    def _plan_on(self, topic: Slot) -> None:
        """Plan another slice of the command that waits first; hand it over when its plan is complete."""
        planning = topic.planning
        if planning is None or self._slots.get(topic.row) is not topic:
            return
        try:
            if _pauses(planning):
                self._call_soon(partial(self._plan_on, topic))
                return
            topic.planning = None
            pending_loads = self._topics.prepare(topic, planning, self._slots)
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            self._broke(error, topic, planning.command)
        else:
            if pending_loads:
                self._wake(topic, pending_loads)
            else:  # without the topic, all that waits is refused
                self.go_on(topic, prepared=pending_loads is not None)
        self._answers.deliver()

    def _wake(self, topic: Slot, pending_loads: Mapping[int, PartitionOptions]) -> None:
        topic.pending_loads.update(pending_loads)
        for row, options in pending_loads.items():
            slot = self._slots.get(row) or self._begin(row, options)
            slot.dependents.append(topic)

    def loaded(self, slot: Slot) -> None:
        """A partition is loaded: what waited for it goes on."""
        self.go_on(slot)
        self._woken(slot)

    def dropped(self, slot: Slot) -> None:
        """A partition is gone: what was for it is refused; a topic that waited for it goes on with what was planned."""
        self.refuse(slot, "the entity was deleted")
        if slot.rest is not None:
            self._answers.refuse(slot.rest, "the entity was deleted")
        self._woken(slot)

    def refuse(self, slot: Slot, why: str) -> None:
        """Nothing that waits at a partition will be done."""
        for command, _ in self._backlog.take_parked(slot):
            self._answers.refuse(command, why)

    def _woken(self, slot: Slot) -> None:
        topics, slot.dependents = slot.dependents, []
        for topic in topics:
            if self._slots.get(topic.row) is topic:
                topic.pending_loads.discard(slot.row)
                if not topic.pending_loads:
                    self.go_on(topic, prepared=True)

    def go_on(self, slot: Slot, *, prepared: bool = False) -> None:
        """Handle what waited, as far as that can be. ``prepared``: the first command has its plan, and nothing is
        missing for it any more."""
        for command, holdable in self._backlog.take_parked(slot):
            if self._slots.get(slot.row) is not slot:
                # The store has failed at a command before. Its requests and receivers were told.
                continue
            if slot.waiting or slot.rest is not None:
                self._backlog.park(slot, command, holdable)
            elif prepared or not slot.options.topic:
                self._handle(slot, command, holdable)
                prepared = False
            else:
                self.publish(slot, command, holdable)


def _pauses(planning: Planning) -> bool:
    """Plan one slice; tell whether work is left."""
    for _ in planning.slices:
        return True
    return False


_STORING = frozenset((c.Enqueue, c.Transact, c.SetSessionState))
"""Commands that may need room in the store."""


def needs_room(command: Input) -> bool:
    """It brings what is not stored yet: messages, or the state of a session."""
    if type(command) not in _STORING:
        return False
    return bool(stored_by(command)) or (isinstance(command, c.SetSessionState) and command.state is not None)


def stored_by(command: Input) -> list[Message]:
    """The messages that a command stores."""
    if isinstance(command, c.Enqueue):
        return command.messages
    if isinstance(command, c.Transact):
        return [message for part in command.commands if isinstance(part, c.Enqueue) for message in part.messages]
    return []
