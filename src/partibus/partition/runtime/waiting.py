"""Commands that wait for partitions to be loaded: their own, or, at a topic, the subscriptions that they are for."""

from collections.abc import Callable, MutableMapping

from partibus.clock import Clock
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.answers import Answers
from partibus.partition.runtime.backlog import Backlog
from partibus.partition.runtime.slot import Slot
from partibus.partition.runtime.topic import Topics, publishes

Handle = Callable[[Slot, w.Input, bool], None]


class Waiting:
    """What cannot be handled yet, of one store; each partition's in the order in which it came."""

    __slots__ = ("_answers", "_backlog", "_begin", "_broke", "_clock", "_handle", "_slots", "_topics")

    def __init__(
        self,
        slots: MutableMapping[int, Slot],
        topics: Topics,
        backlog: Backlog,
        answers: Answers,
        clock: Clock,
        *,
        begin: Callable[[int, PartitionOptions], Slot],
        handle: Handle,
        broke: Callable[[Exception, Slot, w.Input], None],
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
        if publishes(command):
            asleep = self._topics.prepare(topic, command, self._slots, self._clock.now_ms())
            if asleep is None:
                self._answers.refuse(command, "the topic was deleted")
                return False
            if asleep:
                topic.asleep.update(asleep)
                self._backlog.park(topic, command, holdable)
                for row, options in asleep.items():
                    slot = self._slots.get(row) or self._begin(row, options)
                    slot.wakes.append(topic)
                return False
        return True

    def loaded(self, slot: Slot) -> None:
        """A partition is loaded: what waited for it goes on."""
        self._go_on(slot)
        self._woken(slot)

    def dropped(self, slot: Slot) -> None:
        """A partition is gone: what was for it is refused; a topic that waited for it goes on with what was planned."""
        self.refuse(slot, "the entity was deleted")
        self._woken(slot)

    def refuse(self, slot: Slot, why: str) -> None:
        """Nothing that waits at a partition will be done."""
        for command, _ in self._backlog.take_parked(slot):
            self._answers.refuse(command, why)

    def _woken(self, slot: Slot) -> None:
        topics, slot.wakes = slot.wakes, []
        for topic in topics:
            if self._slots.get(topic.row) is topic:
                topic.asleep.discard(slot.row)
                if not topic.asleep:
                    self._go_on(topic, prepared=True)

    def _go_on(self, slot: Slot, *, prepared: bool = False) -> None:
        """Handle what waited, as far as that can be. ``prepared``: the first command has its plan, and nothing is
        missing for it any more."""
        for command, holdable in self._backlog.take_parked(slot):
            if self._slots.get(slot.row) is not slot:
                # The store has failed at a command before. Its requests and receivers were told.
                continue
            if slot.waiting:
                self._backlog.park(slot, command, holdable)
            elif prepared or not slot.options.topic:
                self._handle(slot, command, holdable)
                prepared = False
            else:
                self.publish(slot, command, holdable)
