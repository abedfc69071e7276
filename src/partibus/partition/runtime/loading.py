"""Loads of partitions and of their machines, and the commands that wait for them.

A command to a partition that is not in memory waits until the partition is loaded. A load of a machine waits until the
commits that it must see are durable.
"""

from collections.abc import Callable, Container, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final

from partibus.clock import Clock
from partibus.limits import StoreLimits
from partibus.message import Message
from partibus.partition.core.express import Pool
from partibus.partition.core.machine import Partition
from partibus.partition.core.meters import Meters
from partibus.partition.core.residency import Cold
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.fan_out import COPIES_MAX
from partibus.partition.protocol.host import overloaded_stores
from partibus.partition.protocol.load_requests import Input
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Snapshot, Store
from partibus.partition.runtime.commit_queue import CommitQueue
from partibus.partition.runtime.dispatcher import DELETED, ReplyDispatcher
from partibus.partition.runtime.lifecycle import StoreLifecycle
from partibus.partition.runtime.queries import read
from partibus.partition.runtime.slot import Planning, Slot
from partibus.partition.runtime.topic import TooManyCopies, Topics, publishes


class Backlog:
    """Rows that are not durable yet, and commands that wait for their partition to be loaded."""

    __slots__ = ("_bytes", "_call_soon", "_limits", "_operations", "_queue", "awaiting", "is_listed")

    def __init__(
        self, limits: StoreLimits, queue: CommitQueue, call_soon: Callable[[Callable[[], None]], None]
    ) -> None:
        """Make an empty backlog; ``call_soon`` defers a call until the current event is handled."""
        self._limits = limits
        self._queue = queue
        self._call_soon = call_soon
        self._operations = 0
        self._bytes = 0
        """Bytes of commands that wait."""
        self.awaiting: list[Callable[[], None]] = []
        self.is_listed = False
        """Whether this store is one of the overloaded ones (`partibus.partition.protocol.host`)."""

    def park(self, slot: Slot, command: Input, holdable: bool) -> None:
        """Add a command that waits for partitions to be loaded."""
        slot.waiting.append((command, holdable))
        self._count(command, 1)
        self.look()

    def take_parked(self, slot: Slot) -> list[tuple[Input, bool]]:
        """Remove and return the commands that waited, in their order."""
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
        """Whether more waits than the limits allow. Clients then get no credit until the store has caught up."""
        self.look()
        return self.is_listed

    def look(self) -> None:
        """Join or leave the overloaded stores: called when the queue has grown, and while it is listed, shrunk."""
        pending, under_way = self._queue.pending, self._queue.under_way
        operations, size_bytes = self._operations + pending.operations, self._bytes + pending.size_bytes
        if under_way is not None:
            operations += under_way.operations
            size_bytes += under_way.size_bytes
        is_over = operations > self._limits.queued_operations or size_bytes > self._limits.queued_bytes
        if is_over is not self.is_listed:
            self.is_listed = is_over
            (overloaded_stores.add if is_over else overloaded_stores.discard)(self)

    def when_less(self, call: Callable[[], None]) -> None:
        """Register a call to make once the backlog has shrunk."""
        self.awaiting.append(call)

    def take_calls(self) -> list[Callable[[], None]]:
        """Return the calls registered by `when_less`, and forget them."""
        calls, self.awaiting = self.awaiting, []
        return calls

    def release(self) -> None:
        """Make the calls that wait for a smaller backlog: it has shrunk, or the callers must look elsewhere."""
        for call in self.take_calls():
            self._call_soon(call)


class Loading:
    """Loads of one store. It drops a result when its partition is no longer in use."""

    __slots__ = ("_dropped", "_express", "_lifecycle", "_meters", "_slots", "_topics", "topics")

    def __init__(
        self,
        lifecycle: StoreLifecycle,
        slots: Mapping[int, Slot],
        topics: Topics,
        meters: Meters,
        express: Pool,
        dropped: Container[int],
    ) -> None:
        """``slots``: the partitions in use, by row. ``dropped``: the rows of deleted partitions."""
        self._dropped = dropped
        self._lifecycle = lifecycle
        self._slots = slots
        self._topics = topics
        self._meters = meters
        self._express = express
        self.topics: set[Slot] = set()
        """Topics that are being loaded: the state of their subscriptions must not be dropped meanwhile."""

    def subscriptions_of(self, row: int, options: PartitionOptions) -> Sequence[int]:
        """Return the rows of a topic's subscriptions; none for another partition."""
        return self._topics.subscriptions_of(row) if options.topic else ()

    def load(
        self, slot: Slot, run: str, loaded: Callable[[Slot, Partition], None], cold: Callable[[int], Cold]
    ) -> None:
        """Read the snapshot of a partition, and make its machine.

        ``run``: the run of this broker. ``cold``: gives the state that memory kept of the partition.
        """
        row, subscriptions = slot.row, self.subscriptions_of(slot.row, slot.options)
        store = self._lifecycle.store
        assert store is not None, "open"
        epoch = store.epoch

        def ask(store: Store) -> tuple[Snapshot | None, Mapping[int, int]]:
            return store.read(q.Partition(row)), store.read(q.Sizes(subscriptions)) if subscriptions else {}

        def found(answer: tuple[Snapshot | None, Mapping[int, int]]) -> None:
            snapshot, sizes = answer
            self.topics.discard(slot)
            machine = slot.machine = Partition(row, slot.options, snapshot, epoch, cold(row))
            state = machine.state
            state.tally = self._meters.tally_of(row)
            state.pool = self._express
            state.run = run
            if slot.options.topic:
                # No event removes a subscription that was dropped meanwhile: it would count in the quota for good.
                left = [row for row in subscriptions if row not in self._dropped]
                self._topics.loaded(slot, {row: sizes.get(row, 0) for row in left}, self._slots)
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
        """Read the rows that a machine asks for.

        ``given_up`` is called instead of ``found`` when the partition can't use them.
        """
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
    """The commands of one store that can't be handled yet, each partition's in the order of arrival."""

    __slots__ = (
        "_answers",
        "_backlog",
        "_begin",
        "_broke",
        "_call_soon",
        "_clock",
        "_handle",
        "_planned",
        "_slots",
        "_topics",
    )

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
        planned: Callable[[], None],
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """Make a queue without waiting commands.

        ``slots``: the partitions in use, by row. ``begin`` begins to use one more. ``handle`` gives a command to a
        loaded one, and tells whether its rows may be held for a moment (rows C13, C14). ``broke`` fails the store after
        an unexpected exception. ``planned`` is called when commands wait no longer for the plan of the first one.
        """
        self._slots = slots
        self._topics = topics
        self._backlog = backlog
        self._answers = answers
        self._clock = clock
        self._begin = begin
        self._handle = handle
        self._broke = broke
        self._planned = planned
        self._call_soon = call_soon

    def publish(self, topic: Slot, command: w.Input, holdable: bool) -> None:
        """Have a topic take a command once the subscriptions that get copies are loaded.

        The topic's rows and theirs are in one commit (D17).
        """
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
        try:
            pauses = planning is not None and _pauses(planning)
        except TooManyCopies as error:
            self._refuse_copies(command, error)
            return False
        if pauses:
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
        except TooManyCopies as error:
            topic.planning = None
            (refused, _), *others = self._backlog.take_parked(topic)
            self._refuse_copies(refused, error)
            for command, holdable in others:
                self._backlog.park(topic, command, holdable)
            self.go_on(topic)
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            self._broke(error, topic, planning.command)
        else:
            if pending_loads:
                self._wake(topic, pending_loads)
            else:  # without the topic, all that waits is refused
                self.go_on(topic, prepared=pending_loads is not None)
        self._answers.deliver()
        self._planned()

    def _refuse_copies(self, command: Input, error: TooManyCopies) -> None:
        assert isinstance(command, c.Enqueue | c.Transact), "of a client"
        copies, index = error.args
        refused = r.Refused(command.request, copies, COPIES_MAX, copies=True)
        reply: r.Reply = refused
        if isinstance(command, c.Transact):
            reply = r.TransactionRefused(command.request, index, refused)
        if (callback := self._answers.whose(reply)) is not None:
            self._answers.put(callback, reply)

    def _wake(self, topic: Slot, pending_loads: Mapping[int, PartitionOptions]) -> None:
        topic.pending_loads.update(pending_loads)
        for row, options in pending_loads.items():
            slot = self._slots.get(row) or self._begin(row, options)
            slot.dependents.append(topic)

    def loaded(self, slot: Slot) -> None:
        """Handle the commands that waited for a partition, which is loaded."""
        self.go_on(slot)
        self._woken(slot)

    def dropped(self, slot: Slot) -> None:
        """Refuse the commands for a dropped partition; a topic that waited for it goes on with its plan."""
        self.refuse(slot, DELETED)
        self._woken(slot)

    def refuse(self, slot: Slot, why: str) -> None:
        """Refuse all commands that wait at a partition."""
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
        """Handle waiting commands until one can't be handled.

        ``prepared``: the first command has its plan, and every partition that it needs is loaded.
        """
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


STORING: Final = frozenset((c.Enqueue, c.Transact, c.SetSessionState))
"""Commands that may need room in the store."""


def brings_data(command: Input) -> bool:
    """Tell whether one of `STORING` brings new data: messages, or the state of a session."""
    return bool(stored_by(command)) or (isinstance(command, c.SetSessionState) and command.state is not None)


def stored_by(command: Input) -> list[Message]:
    """Return the messages that a command stores."""
    if isinstance(command, c.Enqueue):
        return command.messages
    if isinstance(command, c.Transact):
        return [message for part in command.commands if isinstance(part, c.Enqueue) for message in part.messages]
    return []
