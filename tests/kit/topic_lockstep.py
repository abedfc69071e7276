"""A topic's partition and its subscriptions', each subscription in lock-step with a model of its own, in one store.

Rows of all of them are in the same commits, and a crash takes all of them back to the same one: so the models say that
a message is in all of its subscriptions or in none. The receivers of each message are computed twice: by the plan that
the machine is given, and by the rules here.
"""

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from partibus.message import Message, as_scheduled
from partibus.partition.core.journal import record
from partibus.partition.core.machine import Partition
from partibus.partition.core.step import Step
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import POSITION_MAX, SubqueueKind, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import DueRows, EntryState, Writes
from partibus.partition.runtime.queries import read
from partibus.partition.runtime.slot import Slot
from partibus.partition.runtime.topic import plan, publishes
from tests.kit.invariants import i19_bodies_and_entries_belong_together
from tests.kit.lockstep import Lockstep
from tests.kit.simulated_topic import Rule, SimulatedFanOut
from tests.kit.stores.memory import MemoryStore

TOPIC = 30


@dataclass
class TopicModel:
    """The facts that a topic's partition has to know."""

    next_sequence: int = 1
    scheduled: dict[int, Message] = field(default_factory=dict)
    """Scheduled messages by sequence counter."""


class TopicLockstep:
    """The topic and its subscriptions, by their rows."""

    def __init__(
        self, store: MemoryStore, options: PartitionOptions, subscriptions: dict[int, tuple[Rule, PartitionOptions]]
    ) -> None:
        self.store = store
        self.options = options
        self.fan_out = SimulatedFanOut({row: rule for row, (rule, _) in subscriptions.items()})
        self.parts = {row: Lockstep(store, of, row=row) for row, (_, of) in subscriptions.items()}
        self.machine = Partition(TOPIC, options)
        self.slot = self._new_slot()
        self.model = TopicModel()
        self._durable_model = TopicModel()
        self._under_way: tuple[Writes, TopicModel] | None = None
        self.loads: list[tuple[int, w.Load]] = []
        self.answers: list[w.Loaded] = []
        self.refused = 0
        self._share_pending()

    @property
    def now_ms(self) -> int:
        """One clock for all."""
        return next(iter(self.parts.values())).now_ms

    @property
    def is_committing(self) -> bool:
        """Rows are under way."""
        return self._under_way is not None

    # -- commands ----------------------------------------------------------------------------------------------------

    def message(self, size: int, **keys: Any) -> Message:
        """A message with a body of its own."""
        return next(iter(self.parts.values())).message(size, **keys)

    def publish(self, messages: list[Message]) -> None:
        """Send to the topic."""
        now_ms = self.now_ms
        command = c.Enqueue(1, messages)
        deque(plan(command, self.fan_out, now_ms, one_by_one=False), maxlen=0)
        self._tell_sizes()
        step = self._step(command)
        (reply,) = step.replies
        size_bytes = sum(part.model.size_bytes for part in self.parts.values())
        if isinstance(reply, r.Refused):
            self.refused += 1
            size_bytes += sum(len(message.data) for message in self.model.scheduled.values())
            assert reply.size_bytes == size_bytes
            assert self.options.size_bytes_max is not None
            assert size_bytes >= self.options.size_bytes_max
            return
        assert reply == r.Accepted(1, self.model.next_sequence)
        later = [message.scheduled_ms is not None and message.scheduled_ms > now_ms for message in messages]
        for sequence, (message, waits) in enumerate(zip(messages, later, strict=True), self.model.next_sequence):
            if waits:
                self.model.scheduled[sequence] = message
        self.model.next_sequence += len(messages)
        self._deliver(step, [message for message, waits in zip(messages, later, strict=True) if not waits])

    def advance(self, ms: int) -> None:
        """Let time pass."""
        for part in self.parts.values():
            part.advance(ms)
        self.tick()

    # -- the store ---------------------------------------------------------------------------------------------------

    def begin_commit(self) -> None:
        """Take the pending rows, which are everybody's."""
        self._under_way = (self._pending, deepcopy(self.model))
        for part in self.parts.values():
            part.begin_commit()
        self._share_pending()

    def end_commit(self) -> None:
        """The rows taken are durable, and fit together."""
        assert self._under_way is not None
        writes, self._durable_model = self._under_way
        self._under_way = None
        self.store.commit(writes)
        for part in self.parts.values():
            assert part.under_way is not None
            _, part.durable_model, part.durable = part.under_way
            part.under_way = None
        tables = self.store.disk.durable
        i19_bodies_and_entries_belong_together({entry.body for entry in tables.entries.values()}, tables.bodies)

    def crash(self, *, commit_survives: bool) -> None:
        """Forget memory and begin again from the store."""
        if self.is_committing and commit_survives:
            self.end_commit()
        self._under_way = None
        for part in self.parts.values():
            part.crash(commit_survives=False)
        self._share_pending()
        self.loads.clear()
        self.answers.clear()
        self.model = deepcopy(self._durable_model)
        self.machine = Partition(TOPIC, self.options, self.store.read(q.Partition(TOPIC)))
        self.slot = self._new_slot()
        sizes = self.store.read(q.Sizes([*self.parts]))
        assert sizes == {row: part.model.size_bytes for row, part in self.parts.items() if row in sizes}
        self._tell_sizes()

    def run_load(self, index: int) -> None:
        """Read for one of all loads whose gate is open."""
        for part in self.parts.values():
            runnable = part.runnable()
            if index < len(runnable):
                part.run_load(runnable[index])
                return
            index -= len(runnable)
        _, load = self.loads.pop(self._runnable()[index])
        self.answers.append(w.Loaded(load, read(self.store, TOPIC, load)))

    def runnable(self) -> int:
        """How many loads could run."""
        return len(self._runnable()) + sum(len(part.runnable()) for part in self.parts.values())

    def answer(self, index: int) -> None:
        """Bring one of all answers to its machine."""
        for part in self.parts.values():
            if index < len(part.answers):
                part.answer(index)
                return
            index -= len(part.answers)
        answer = self.answers.pop(index)
        due: list[Message] = []
        if publishes(answer):
            deque(plan(answer, self.fan_out, self.now_ms, one_by_one=False), maxlen=0)
            assert isinstance(answer.found, DueRows)
            for row in answer.found.rows:
                message = self.model.scheduled.pop(row.sequence)
                assert message.scheduled_ms is not None
                assert message.scheduled_ms <= self.now_ms, "shared out too early"
                message.data = as_scheduled(message.data)
                assert (message.data, message.session_id) == (row.data, row.session)
                due.append(message)
        self._deliver(self._step(answer), due)

    def answerable(self) -> int:
        """How many answers wait."""
        return len(self.answers) + sum(len(part.answers) for part in self.parts.values())

    def check_at_rest(self) -> None:
        """Check the invariants that hold when nothing is under way."""
        for _ in range(2_000):
            if self.is_committing:
                self.end_commit()
            elif self._pending.counters:
                self.begin_commit()
            elif self.runnable():
                self.run_load(0)
            elif self.answerable():
                self.answer(0)
            elif not any([self.tick(), *[part.tick() for part in self.parts.values()]]):
                break
        else:
            raise AssertionError("the topic never comes to rest")
        for part in self.parts.values():
            part.check_at_rest()
        rows = self.store.read(q.Browse(subqueue_key(TOPIC, SubqueueKind.ACTIVE), 0, POSITION_MAX, 1 << 40, 1 << 40))
        stored = {row.sequence: (row.state, row.due_ms, row.data) for row in rows}
        assert stored == {
            sequence: (EntryState.SCHEDULED, message.scheduled_ms, as_scheduled(message.data))
            for sequence, message in self.model.scheduled.items()
        }
        late = [m for m in self.model.scheduled.values() if m.scheduled_ms is None or m.scheduled_ms <= self.now_ms]
        assert not late, f"nobody notices that messages are due: {late}"

    # -- one step ----------------------------------------------------------------------------------------------------

    @property
    def _pending(self) -> Writes:
        return next(iter(self.parts.values())).pending

    @property
    def _durable(self) -> int:
        return next(iter(self.parts.values())).durable

    def _share_pending(self) -> None:
        """All that is decided from now on is in one commit."""
        pending = Writes()
        for part in self.parts.values():
            part.pending = pending

    def _step(self, command: w.Input) -> Step:
        step = self.machine.handle(command, self.now_ms)
        if step.events:
            record(TOPIC, step.events, self._pending)
            self._pending.counters[TOPIC] = self.machine.counters
            for subqueue, messages, size_bytes in self.machine.counts():
                self._pending.counts[subqueue] = (messages, size_bytes)
            self.slot.wrote(next(iter(self.parts.values())).commit_number, waited_for=True)
        self.loads += [(self.slot.needed_by(load, self._durable), load) for load in step.loads]
        return step

    def _deliver(self, step: Step, published: list[Message]) -> None:
        """Give the subscriptions what the machine has for them, which must be what their rules say."""
        arrivals = step.arrivals or {}
        for row, part in self.parts.items():
            found = [self.fan_out.rules[row](message) for message in published]
            expected = [copy.data for copies in found if not isinstance(copies, str) for copy in copies]
            arrive = arrivals.pop(row, None)
            assert [message.data for message in ([] if arrive is None else arrive.messages)] == expected
            if arrive is not None:
                part.step(arrive)
        assert not arrivals, f"for nobody: {arrivals}"

    def tick(self) -> bool:
        """Give a tick if one is due, and tell whether."""
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is None or deadline_ms > self.now_ms:
            return False
        self._deliver(self._step(c.Tick()), [])
        return True

    def _tell_sizes(self) -> None:
        subscriptions = self.machine.state.subscriptions
        assert subscriptions is not None
        for row, part in self.parts.items():
            subscriptions.note(row, part.machine.state.size_bytes)

    def _runnable(self) -> list[int]:
        return [index for index, (number, _) in enumerate(self.loads) if number <= self._durable]

    def _new_slot(self) -> Slot:
        slot = Slot(TOPIC, self.options)
        slot.machine = self.machine
        return slot
