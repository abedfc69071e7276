"""A runtime whose store's lease has run out decides nothing until the store is opened anew (D20)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Writes
from partibus.partition.runtime.store_runtime import StoreRuntime
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.stores.memory import MemoryDisk, MemoryStore

OPTIONS = PartitionOptions(lock_duration_ms=1_000)
ROW = 3


class LeasedStore(MemoryStore):
    held = True
    commits = 0

    def commit(self, writes: Writes) -> None:
        super().commit(writes)
        self.commits += 1

    @property
    def is_held(self) -> bool:
        return self.held


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


class Broker:
    def __init__(self, timeline: Timeline, disk: MemoryDisk | None = None) -> None:
        self.timeline = timeline
        self.disk = disk or MemoryDisk()
        self.stores: list[LeasedStore] = []
        self.runtime = StoreRuntime(self.open, SimulatedHost(timeline, Random(1)), self)
        self.runtime.open()
        self.answers: list[Any] = []

    def now_ms(self) -> int:
        return self.timeline.now_ms()

    def open(self) -> LeasedStore:
        self.stores.append(LeasedStore(self.disk))
        return self.stores[-1]

    def send(self, request: int) -> None:
        messages = [Message(pack(rest=b"body"))]
        self.runtime.submit(ROW, OPTIONS, c.Enqueue(request, messages), self.answers.append)

    def receive(self, receiver: int) -> None:
        self.runtime.register(receiver, self.answers.append)
        self.runtime.submit(ROW, OPTIONS, c.Receive(0, receiver, 10, 1 << 20, False))

    def awaited(self, kind: type[Any]) -> Any:
        """The next answer of a kind."""
        while not (found := [answer for answer in self.answers if isinstance(answer, kind)]):
            assert self.timeline, "nothing is left to happen"
            self.timeline.run_next()
        self.answers.clear()
        return found[0]


def test_nothing_is_handed_out_from_memory_and_the_next_opening_goes_on(timeline: Timeline) -> None:
    broker = Broker(timeline)
    broker.send(1)
    broker.awaited(r.Accepted)
    broker.stores[0].held = False

    broker.receive(7)
    assert [type(answer) for answer in broker.answers] == [r.Failed]
    assert "the lease has run out" in str(broker.runtime.failure)
    broker.answers.clear()
    usable: list[bool] = []
    broker.runtime.when_usable(lambda: usable.append(True))
    while not usable:
        timeline.run_next()

    assert (len(broker.stores), broker.runtime.failure) == (2, None)
    broker.receive(8)
    assert len(broker.awaited(r.Granted).entries) == 1


def test_what_falls_due_is_not_decided_either(timeline: Timeline) -> None:
    broker = Broker(timeline)
    broker.send(1)
    broker.receive(7)
    broker.awaited(r.Granted)
    broker.stores[0].held = False
    # The lock ends and the message would be granted again.
    failed = broker.awaited(r.Failed)
    assert "the lease has run out" in failed.message
    assert timeline.now_ms() >= OPTIONS.lock_duration_ms


def test_what_was_read_before_is_not_handed_out(timeline: Timeline) -> None:
    """A process that was stopped while its store read for it."""
    broker = Broker(timeline)
    broker.send(1)
    broker.awaited(r.Accepted)
    other = Broker(timeline, broker.disk)
    other.receive(7)  # the partition has to be loaded first
    other.stores[0].held = False
    while not other.answers:
        timeline.run_next()
    assert {type(answer) for answer in other.answers} == {r.Failed}


def test_a_send_is_refused_and_not_stored(timeline: Timeline) -> None:
    broker = Broker(timeline)
    broker.stores[0].held = False
    broker.send(1)
    assert broker.awaited(r.Failed).executed is False
    assert broker.disk.durable.entries == {}


def test_what_waited_for_a_commit_hands_nothing_out_after_the_lease(timeline: Timeline) -> None:
    """A process that was stopped past its lease, between a commit and the answers that wait for it."""
    broker = Broker(timeline)
    broker.receive(7)
    broker.send(1)  # it is granted at once, and the grant waits for the commit
    while not broker.stores[0].commits:
        timeline.run_next()
    assert not broker.answers
    broker.stores[0].held = False
    while not any(isinstance(answer, r.Failed) for answer in broker.answers):
        timeline.run_next()
    assert [type(answer) for answer in broker.answers] == [r.Accepted, r.Failed]

    usable: list[bool] = []
    broker.runtime.when_usable(lambda: usable.append(True))
    while not usable:
        timeline.run_next()
    broker.receive(8)
    assert len(broker.awaited(r.Granted).entries) == 1


def test_what_was_deleted_for_its_receiver_leaves_all_the_same(timeline: Timeline) -> None:
    """Its removal is durable, so no other owner hands it out, and it would be lost."""
    broker = Broker(timeline)
    broker.runtime.register(7, broker.answers.append)
    broker.runtime.submit(ROW, OPTIONS, c.Receive(0, 7, 10, 1 << 20, True))
    broker.send(1)
    while not broker.stores[0].commits:
        timeline.run_next()
    broker.stores[0].held = False
    assert len(broker.awaited(r.Granted).entries) == 1


class FifoBroker(Broker):
    """One that has handed out a message of group ``a``, and has one of group ``b`` in memory."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(timeline)
        self.send_to("a", 1)
        self.send_to("b", 2)
        self.ask(c.ReceiveGroups(3, 1, 1 << 20, 30_000))
        granted = self.awaited(r.GroupsGranted)
        self.tokens = [(granted.lock_id, entry.pos) for entry in granted.entries]
        self.timeline.run_for(100)  # until the other group is read

    def ask(self, command: c.Command) -> None:
        self.runtime.submit(ROW, PartitionOptions(requires_session=True), command, self.answers.append)

    def send_to(self, group: str, request: int) -> None:
        self.ask(c.Enqueue(request, [Message(pack(rest=b"body"), session_id=group)]))

    def expire_during_commit(self) -> dict[int, Any]:
        """Lose the lease before the end of the next commit is known; return the answers by request."""
        store = self.stores[0]
        commits = store.commits
        while store.commits == commits:
            self.timeline.run_next()
        assert not self.answers
        store.held = False
        while len(self.answers) < 2:
            self.timeline.run_next()
        return {answer.request: answer for answer in self.answers}


def test_messages_of_groups_are_not_handed_out_after_the_lease(timeline: Timeline) -> None:
    """Another owner may have handed them out: the rows of the locks were not in the commit."""
    broker = FifoBroker(timeline)
    broker.send_to("c", 4)
    broker.ask(c.ReceiveGroups(5, 1, 1 << 20, 30_000))  # granted at once, and the grant waits for the commit
    answers = broker.expire_during_commit()
    assert [type(answers[request]) for request in (4, 5)] == [r.Accepted, r.Failed]


def test_an_answer_without_messages_of_groups_leaves_after_the_lease(timeline: Timeline) -> None:
    broker = FifoBroker(timeline)
    broker.ask(c.ReceiveGroups(4, 1, 1 << 20, 30_000))
    broker.awaited(r.GroupsGranted)
    broker.ask(c.Settle(5, 0, c.Outcome.COMPLETE, broker.tokens))
    broker.ask(c.ReceiveGroups(6, 1, 1 << 20, 30_000))
    answers = broker.expire_during_commit()
    assert answers[5].lost == []
    assert answers[6].entries == []
