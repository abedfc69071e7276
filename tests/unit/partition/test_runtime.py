"""Commits, answers, failures and the end of a store's runtime. A timeline decides when its blocking jobs happen."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import pytest

from partibus.limits import StoreLimits
from partibus.message import Message, pack
from partibus.partition.core import fair_queue, sessions
from partibus.partition.core.machine import Partition
from partibus.partition.core.meters import Meters
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import Outcome
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Query, Store, StoreError, StoreFull, Writes
from partibus.partition.runtime.store_runtime import CLOSING_MS_MAX, StoreRuntime
from partibus.routing.partitions import PartitionHandle
from tests.kit.simulated_host import IO_MS_MAX, SimulatedHost, Timeline
from tests.kit.stores.memory import MemoryDisk, MemoryStore

OPTIONS = PartitionOptions(lock_duration_ms=1_000)
LIMITS = StoreLimits(hold_ms=20.0, lazy_ms=50.0)
ROW = 3


T = TypeVar("T")


class CountingStore(MemoryStore):
    """Keeps the commits, and fails when told to."""

    def __init__(self, disk: MemoryDisk, commits: list[Writes]) -> None:
        super().__init__(disk)
        self.commits = commits
        self.commit_fails: StoreError | None = None
        self.load_fails: StoreError | None = None

    def commit(self, writes: Writes) -> None:
        if self.commit_fails is not None:
            raise self.commit_fails
        super().commit(writes)
        self.commits.append(writes)

    def read(self, query: Query[T]) -> T:
        if self.load_fails is not None:
            raise self.load_fails
        return super().read(query)


class Broker:
    """A runtime on a timeline of its own."""

    def __init__(self, seed: int = 1) -> None:
        self.timeline = Timeline()
        self.disk = MemoryDisk()
        self.commits: list[Writes] = []
        self.stores: list[CountingStore] = []
        self.meters = Meters(lambda: self.timeline.time_ms / 1000)
        self.host = SimulatedHost(self.timeline, Random(seed))
        self.runtime = StoreRuntime(self.open, self.host, self, LIMITS, meters=self.meters)
        self.runtime.open()
        self.answers: list[Any] = []
        self.offset_ms = 0
        """How far the clock was moved by hand."""
        self._request = 0

    def now_ms(self) -> int:
        return self.timeline.now_ms() + self.offset_ms

    def open(self) -> Store:
        self.stores.append(CountingStore(self.disk, self.commits))
        return self.stores[-1]

    def ask(self, command: Callable[[int], c.Command], *, row: int = ROW, holdable: bool = False) -> int:
        self._request += 1
        self.runtime.submit(row, OPTIONS, command(self._request), self.answers.append, holdable=holdable)
        return self._request

    def send(self, count: int = 1, *, row: int = ROW, holdable: bool = False) -> int:
        messages = [Message(pack(rest=b"body")) for _ in range(count)]
        return self.ask(lambda request: c.Enqueue(request, messages), row=row, holdable=holdable)

    def receive(self, receiver: int, count: int = 10, *, row: int = ROW, delete: bool = False) -> None:
        self.runtime.register(receiver, self.answers.append)
        self.runtime.submit(row, OPTIONS, c.Receive(0, receiver, count, 1 << 20, delete))

    def settle(self, outcome: Outcome, grant: r.Granted, *, holdable: bool = False) -> int:
        tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
        return self.ask(lambda request: c.Settle(request, 0, outcome, tokens), holdable=holdable)

    def run_until(self, done: Callable[[], Any]) -> None:
        while not done():
            assert self.timeline, "nothing is left to happen"
            self.timeline.run_next()

    def rest(self) -> None:
        self.run_until(lambda: not self.timeline)

    def failure(self) -> str | None:
        return self.runtime.failure

    def wait(self, ms: float) -> None:
        end_ms = self.timeline.time_ms + ms
        self.timeline.call_later(ms, lambda: None)
        self.run_until(lambda: self.timeline.time_ms >= end_ms)

    def granted(self) -> r.Granted:
        """The next grant."""
        self.run_until(lambda: any(isinstance(answer, r.Granted) for answer in self.answers))
        grant = next(answer for answer in self.answers if isinstance(answer, r.Granted))
        self.answers.remove(grant)
        return grant

    def answered(self, *requests: int) -> list[Any]:
        """The answers, once all are there."""
        self.run_until(lambda: {*requests} <= {getattr(answer, "request", None) for answer in self.answers})
        return [answer for answer in self.answers if getattr(answer, "request", None) in requests]


# -- no row that says nothing ------------------------------------------------------------------------------------------


def test_lock_that_ends_within_its_commit_is_never_written() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1)
    broker.answered(broker.settle(Outcome.COMPLETE, broker.granted()))
    assert [commit.lock_batches for commit in broker.commits] == [{}] * 2
    assert [commit.deleted_locks for commit in broker.commits] == [[]] * 2


def test_lock_of_an_earlier_commit_is_deleted() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1)
    grant = broker.granted()
    broker.wait(LIMITS.lazy_ms + 2 * IO_MS_MAX)
    broker.answered(broker.settle(Outcome.COMPLETE, grant))
    (locked,), deleted = broker.commits[1].lock_batches, broker.commits[2].deleted_locks
    assert deleted == [locked]


def test_counters_are_written_where_they_changed() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1)
    grant = broker.granted()
    broker.wait(LIMITS.lazy_ms + 2 * IO_MS_MAX)
    broker.answered(broker.settle(Outcome.COMPLETE, grant))
    assert [[*commit.counters] for commit in broker.commits] == [[ROW], [ROW], []]
    assert [[*commit.rows] for commit in broker.commits] == [[ROW]] * 3


# -- batched store access ----------------------------------------------------------------------------------------------


@pytest.mark.row("C13")
def test_held_writes_and_deletes_share_a_commit() -> None:
    broker = Broker()
    broker.answered(broker.send(3))
    broker.receive(1)
    grant = broker.granted()
    broker.wait(LIMITS.lazy_ms + 2 * IO_MS_MAX)
    started_ms, before = broker.timeline.time_ms, len(broker.commits)
    requests = [broker.settle(Outcome.COMPLETE, grant, holdable=True)]
    for at_ms in (3, 9, 15):
        broker.timeline.call_later(at_ms, lambda: requests.append(broker.send(holdable=True)))
    broker.run_until(lambda: len(requests) == 4)
    assert len(broker.commits) == before, "still held"
    broker.answered(*requests)
    assert len(broker.commits) == before + 1
    assert broker.timeline.time_ms <= started_ms + LIMITS.hold_ms + 2 * IO_MS_MAX


@pytest.mark.row("C14")
@pytest.mark.parametrize(("batched", "commits"), [(True, 1), (False, 2)])
def test_entity_without_batched_store_access_holds_nothing(batched: bool, commits: int) -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.commits.clear()
    handle = PartitionHandle(0, ROW, broker.runtime, OPTIONS, batched=batched)
    for request in (901, 902):
        handle.submit(c.Enqueue(request, [Message(pack())]), broker.answers.append, more=True)
        broker.wait(LIMITS.hold_ms - 1)
    broker.answered(901, 902)
    assert len(broker.commits) == commits


@pytest.mark.row("C14")
@pytest.mark.parametrize(
    ("outcome", "is_held"), [(Outcome.COMPLETE, True), (Outcome.DEFER, False), (Outcome.DEAD_LETTER, False)]
)
def test_batched_store_access_is_about_send_and_complete_only(outcome: Outcome, is_held: bool) -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1)
    grant = broker.granted()
    broker.wait(LIMITS.lazy_ms + 2 * IO_MS_MAX)
    broker.commits.clear()
    handle = PartitionHandle(0, ROW, broker.runtime, OPTIONS, batched=True)
    tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
    handle.submit(c.Settle(903, 0, outcome, tokens), broker.answers.append, more=True)
    broker.wait(LIMITS.hold_ms - 1)
    assert len(broker.commits) == (0 if is_held else 1)
    broker.answered(903)


@pytest.mark.row("C13")
def test_commits_messages_and_waits_are_counted_of_each_partition() -> None:
    broker = Broker()
    broker.answered(broker.send(3))
    tally, meter = broker.meters.tally_of(ROW), broker.runtime.meter
    assert (tally.commits, tally.operations) == (1, 3)
    requests = [broker.send(2, holdable=True)]
    broker.timeline.call_later(LIMITS.hold_ms / 2, lambda: requests.append(broker.send(holdable=True)))
    broker.run_until(lambda: len(requests) == 2)
    broker.answered(*requests)
    assert (tally.commits, tally.operations) == (2, 6)
    assert meter.commits == 2
    assert tally.waited_s * 1000 == pytest.approx(LIMITS.hold_ms, abs=IO_MS_MAX)
    assert meter.waited_s == pytest.approx(tally.waited_s)


def test_client_that_waits_for_each_answer_is_never_held() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.send(holdable=False)
    before_ms = broker.timeline.time_ms
    broker.run_until(lambda: len(broker.commits) == 2)
    assert broker.timeline.time_ms < before_ms + IO_MS_MAX


def test_commands_that_come_during_a_commit_share_the_next() -> None:
    broker = Broker()
    broker.answered(broker.send())
    first = broker.send()
    broker.run_until(lambda: len(broker.commits) == 2)
    later = [broker.send() for _ in range(5)]
    broker.answered(first, *later)
    assert len(broker.commits) == 3


def test_lock_rows_travel_with_the_next_commit_and_nobody_waits_for_them() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1)
    granted_ms = broker.timeline.time_ms
    broker.granted()
    assert len(broker.commits) == 1, "handed out before the lock is written"
    assert broker.timeline.time_ms == granted_ms
    broker.run_until(lambda: len(broker.commits) == 2)
    assert broker.commits[1].lock_batches
    assert broker.timeline.time_ms >= granted_ms + LIMITS.lazy_ms


# -- the gate ----------------------------------------------------------------------------------------------------------


@pytest.mark.row("R14")
def test_no_answer_before_the_commit() -> None:
    broker = Broker()
    broker.receive(1)
    broker.send()
    broker.run_until(lambda: broker.answers)
    assert len(broker.commits) >= 1
    assert broker.disk.durable.entries


def test_removal_is_durable_before_receive_and_delete_hands_out() -> None:
    broker = Broker()
    broker.answered(broker.send(2))
    broker.receive(1, 2, delete=True)
    assert len(broker.granted().entries) == 2
    assert broker.disk.durable.entries == {}


def test_release_of_a_whole_lock_is_durable_before_its_answer() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1, 1)
    grant = broker.granted()
    broker.answered(broker.settle(Outcome.RELEASE, grant))
    assert not any(broker.disk.durable.lock_batches.values())


def test_answers_of_a_partition_keep_their_order_beside_a_busy_one() -> None:
    broker = Broker()
    broker.answered(broker.send(), broker.send(row=9))
    first = broker.send()
    broker.run_until(lambda: len(broker.commits) > 2 or not broker.timeline)
    other = broker.send(row=9)
    inspected = broker.ask(c.Inspect)
    broker.answered(first, other, inspected)
    late = broker.ask(c.Inspect)
    order = [answer.request for answer in broker.answered(first, inspected, late)]
    assert order == [first, inspected, late]


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.row("A7")
def test_lock_runs_out_by_itself() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1, 1)
    first = broker.granted()
    broker.receive(2, 1)
    again = broker.granted()
    assert again.receiver == 2
    assert [entry.delivery_count for entry in again.entries] == [1]
    assert broker.timeline.now_ms() >= first.until_ms


def test_deadline_follows_a_clock_that_is_moved_by_hand() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1, 1)
    first = broker.granted()
    broker.receive(2, 1)
    broker.offset_ms = OPTIONS.lock_duration_ms - 10
    broker.runtime.run_due()
    moved_ms = broker.timeline.time_ms
    again = broker.granted()
    assert again.lock_id > first.lock_id
    assert broker.timeline.time_ms <= moved_ms + 10 + LIMITS.lazy_ms + 4 * IO_MS_MAX


def test_more_than_the_limits_is_overload_until_it_is_durable() -> None:
    broker = Broker()
    broker.answered(broker.send())
    seen = [broker.runtime.overloaded]
    request = broker.send(LIMITS.queued_operations + 1)
    seen.append(broker.runtime.overloaded)
    broker.answered(request)
    seen.append(broker.runtime.overloaded)
    assert seen == [False, True, False]


def test_grants_to_a_receiver_that_is_gone_go_to_others() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1, 100_000)
    broker.granted()
    broker.runtime.unregister(1)
    broker.receive(2)
    broker.send(3)
    granted: list[int] = []
    while len(granted) < 3:
        granted += [entry.sequence for entry in broker.granted().entries]
    assert sorted(granted) == [2, 3, 4]


# -- failure -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executed", [False, None])
def test_failed_commit_is_told_with_what_is_known_of_it(executed: bool | None) -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.stores[-1].commit_fails = StoreError("disk on fire", executed=executed)
    tried = broker.send()
    (answer,) = broker.answered(tried)
    assert (answer.executed, answer.full, answer.message) == (executed, False, "disk on fire")


def test_full_store_says_so() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.stores[-1].commit_fails = StoreFull("no room")
    (answer,) = broker.answered(broker.send())
    assert (answer.executed, answer.full) == (False, True)


def test_receivers_are_told_and_the_store_is_opened_again() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(7, row=9)
    broker.stores[-1].commit_fails = StoreError("disk on fire", executed=False)
    broker.send()
    broker.run_until(lambda: any(isinstance(a, r.Failed) and a.request == 7 for a in broker.answers))
    assert broker.failure() == "disk on fire"
    (refused,) = broker.answered(broker.send())
    assert refused.executed is False
    broker.rest()
    assert broker.failure() is None
    assert len(broker.stores) == 2
    (accepted,) = broker.answered(broker.send())
    assert accepted.first_sequence == 2, "what failed took no number"


def test_an_idle_store_calls_at_once_whoever_waits_until_it_is_usable() -> None:
    """Such as the holder of requests for the next owner, which is this broker: no other event would tell it."""
    broker = Broker()
    broker.rest()
    usable: list[bool] = []
    broker.runtime.when_usable(lambda: usable.append(True))
    assert usable == [], "not before it returns"
    broker.run_until(lambda: usable)


def test_who_waits_for_relief_is_told_of_a_failure_and_who_waits_for_the_store_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    broker.answered(broker.send())
    monkeypatch.setattr(type(broker.runtime), "overloaded", True)
    relieved: list[str | None] = []
    back: list[str | None] = []
    broker.runtime.when_usable(lambda: relieved.append(broker.failure()))
    broker.runtime.register(9, lambda _: broker.runtime.when_usable(lambda: back.append(broker.failure())))
    broker.stores[-1].commit_fails = StoreError("disk on fire", executed=False)
    broker.send()
    broker.run_until(lambda: relieved)
    assert (relieved, back) == (["disk on fire"], [])
    monkeypatch.undo()
    broker.rest()
    assert (relieved, back) == (["disk on fire"], [None])


def test_a_receiver_that_waits_for_its_partition_is_told_of_a_failure_once() -> None:
    broker = Broker()
    broker.receive(9)
    assert broker.runtime.queued[0] == 1, "it waits for its partition"
    broker.stores[-1].load_fails = StoreError("the disk is sick", executed=False)
    broker.rest()
    assert broker.answers == [r.Failed(9, False, False, "the disk is sick")]


def test_failed_load_does_not_vouch_for_the_commit_beside_it() -> None:
    outcomes = []
    for seed in range(20):
        broker = Broker(seed)
        broker.answered(broker.send())
        broker.stores[-1].load_fails = StoreError("a bad block", executed=False)
        peeked = broker.ask(lambda request: c.Peek(request, 0, 0, 10))
        sent = broker.send()
        answers = {answer.request: answer for answer in broker.answered(peeked, sent)}
        assert answers[peeked].executed is False
        outcomes.append(getattr(answers[sent], "executed", "accepted"))
        broker.rest()
        assert broker.failure() is None, "the commit's own end, later, harms nobody"
        broker.answered(broker.send())
    assert {None, "accepted"} <= {*outcomes} <= {None, False, "accepted"}, (
        "under way when the load failed, done before, or not begun"
    )


# -- the end -----------------------------------------------------------------------------------------------------------


def test_close_commits_what_is_pending_and_answers_everything() -> None:
    broker = Broker()
    broker.answered(broker.send())
    requests = [broker.send(holdable=True), broker.ask(lambda request: c.Peek(request, 0, 0, 1))]
    closed: list[float] = []
    broker.runtime.close(lambda: closed.append(broker.timeline.time_ms))
    broker.rest()
    assert len(closed) == 1
    assert isinstance(broker.answered(requests[0])[0], r.Accepted)
    assert broker.answered(requests[1])
    assert len(broker.disk.durable.entries) == 2


def test_close_lets_commands_go_on_that_wait_for_a_load() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.receive(1)
    grant = broker.granted()
    broker.runtime.close(lambda: None)
    broker.run_until(lambda: broker.runtime.store is None)
    again = Broker()
    again.disk = broker.disk
    again.runtime.open()
    settled = again.settle(Outcome.COMPLETE, grant)
    closed: list[bool] = []
    again.runtime.close(lambda: closed.append(True))
    again.rest()
    assert [type(answer) for answer in again.answered(settled)] == [r.Settled]
    assert closed == [True]
    assert not broker.disk.durable.entries


def test_close_waits_for_a_load_that_never_ends_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    monkeypatch.setattr(broker.host, "read", lambda job, done: None)
    settled = broker.ask(lambda request: c.Settle(request, 0, Outcome.COMPLETE, [(1, 1)]))
    begun_ms, closed = broker.timeline.time_ms, list[float]()
    broker.runtime.close(lambda: closed.append(broker.timeline.time_ms - begun_ms))
    broker.rest()
    (answer,) = broker.answered(settled)
    assert (answer.executed, answer.message) == (False, "the store is closed")
    assert CLOSING_MS_MAX <= closed[0] <= CLOSING_MS_MAX + IO_MS_MAX


def test_closed_store_refuses() -> None:
    broker = Broker()
    broker.runtime.close(lambda: None)
    broker.rest()
    (answer,) = broker.answered(broker.send())
    assert (answer.executed, answer.message) == (False, "the store is closed")


def test_close_of_a_store_that_is_being_opened_again_ends() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.stores[-1].commit_fails = StoreError("disk on fire", executed=False)
    broker.answered(broker.send())
    closed: list[bool] = []
    broker.runtime.close(lambda: closed.append(True))
    broker.rest()
    assert closed == [True]


def test_who_has_not_heard_that_a_partition_was_dropped_does_not_bring_it_back() -> None:
    broker = Broker()
    broker.answered(broker.send(2))
    broker.runtime.drop(ROW, lambda _: None)
    requests = [broker.send(), broker.ask(lambda request: c.Peek(request, 0, 0, 10))]
    broker.receive(1)
    broker.rest()
    requests.append(broker.send())
    broker.rest()
    assert [a.request for a in broker.answers if isinstance(a, r.Failed) and a.request in requests] == requests
    assert (broker.disk.durable.partitions, broker.disk.durable.counts, broker.disk.durable.entries) == ({}, {}, {})


def test_partition_that_is_dropped_while_the_store_is_opened_again_goes_too() -> None:
    broker = Broker()
    broker.answered(broker.send(2), broker.send(row=9))
    broker.stores[-1].commit_fails = StoreError("disk on fire", executed=False)
    broker.answered(broker.send())
    dropped: list[int] = []
    broker.runtime.drop(ROW, dropped.append)
    broker.rest()
    assert dropped == [ROW]
    assert len(broker.disk.durable.entries) == 1


# -- looking at what nobody uses ---------------------------------------------------------------------------------------


def test_counts_of_partitions_that_nobody_uses_load_none_of_them() -> None:
    broker = Broker()
    broker.answered(broker.send(3), broker.send(2, row=9))
    broker.runtime.close(lambda: None)
    broker.run_until(lambda: broker.runtime.store is None)
    again = Broker()
    again.disk = broker.disk
    again.runtime.open()
    asked = {row: again.ask(c.Inspect, row=row) for row in (ROW, 9, *range(100, 400))}
    answers = {answer.request: answer for answer in again.answered(*asked.values())}
    found = {row: answers[request].subqueues[SubqueueKind.ACTIVE].messages for row, request in asked.items()}
    assert {row: messages for row, messages in found.items() if messages} == {ROW: 3, 9: 2}
    assert answers[asked[ROW]].end_pos == 4
    assert not again.runtime.slots, "nothing is in use"


def test_a_partition_that_is_begun_to_be_used_answers_for_itself() -> None:
    broker = Broker()
    early = broker.ask(c.Inspect)
    sent = broker.send(2)
    late = broker.ask(c.Inspect)
    answers = {answer.request: answer for answer in broker.answered(early, sent, late)}
    counts = [answers[request].subqueues[SubqueueKind.ACTIVE].messages for request in (early, late)]
    assert counts in ([0, 2], [2, 2])


def test_who_asks_for_counts_is_told_that_the_store_failed() -> None:
    broker = Broker()
    broker.answered(broker.send())
    broker.stores[-1].commit_fails = StoreError("the disk is gone", executed=False)
    broker.send()
    asked = [broker.ask(c.Inspect, row=row) for row in range(100, 300)]
    answers = broker.answered(*asked)
    assert {type(answer) for answer in answers} <= {r.Failed, r.Inspected}
    assert len(answers) == len(asked)
    late = broker.ask(c.Inspect, row=100)
    assert broker.answered(late)


def test_owners_that_are_lost_before_a_lock_is_stored_give_no_lock_twice() -> None:
    """A token that an earlier owner gave must not settle what a later one has locked for somebody else."""
    broker = Broker()
    broker.answered(broker.send())
    lock_ids = set()
    for _ in range(4):
        broker.runtime = StoreRuntime(broker.open, SimulatedHost(broker.timeline, Random(1)), broker, LIMITS)
        broker.runtime.open()
        stored = len(broker.commits)
        broker.receive(1)
        lock_ids.add(broker.granted().lock_id)
        assert len(broker.commits) == stored, "nothing of the lock is stored when its owner is lost"
    assert len(lock_ids) == 4


def test_a_command_that_waits_inside_a_dropped_partition_is_refused() -> None:
    """A send waits for the ids of its time after a restart; the entity is deleted meanwhile."""
    broker = Broker()
    options = PartitionOptions(duplicate_window_ms=60_000)
    message = Message(pack(rest=b"body"), message_id="1")
    broker.runtime.submit(ROW, options, c.Enqueue(100, [message]), broker.answers.append)
    broker.answered(100)
    broker.runtime = StoreRuntime(broker.open, broker.host, broker, LIMITS)
    broker.runtime.open()
    broker.runtime.submit(ROW, options, c.Enqueue(101, [message]), broker.answers.append)
    broker.run_until(lambda: broker.runtime.slots[ROW].loads)
    assert not broker.runtime.slots[ROW].waiting, "it waits inside of the machine"
    broker.runtime.drop(ROW, lambda _: None)
    (answer,) = broker.answered(101)
    assert (answer.executed, answer.message) == (False, "the entity was deleted")


def test_what_an_unconfirmed_completion_makes_room_for_is_durable_before_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fair queue with all its messages in flight gives the next one to a receive that deletes it."""
    monkeypatch.setattr(fair_queue, "IN_FLIGHT_MAX", 1)
    broker = Broker()
    options = PartitionOptions(fair=True, lock_duration_ms=60_000)
    messages = [Message(pack(rest=b"body")) for _ in range(2)]
    broker.runtime.submit(ROW, options, c.Enqueue(100, messages), broker.answers.append)
    broker.runtime.register(1, broker.answers.append)
    broker.runtime.submit(ROW, options, c.Receive(0, 1, 1, 1 << 20, False))
    grant = broker.granted()
    broker.runtime.register(2, broker.answers.append)
    broker.runtime.submit(ROW, options, c.Receive(0, 2, 1, 1 << 20, True))
    broker.wait(200)
    assert len(broker.disk.durable.entries) == 2
    broker.runtime.submit(ROW, options, c.Settle(0, 0, Outcome.COMPLETE, [(grant.lock_id, grant.entries[0].pos)]))
    deleted = broker.granted()
    assert deleted.receiver == 2
    assert not broker.disk.durable.entries, "the delete is durable before the message is given"


SESSIONS = PartitionOptions(lock_duration_ms=60_000, requires_session=True)


class SessionBroker(Broker):
    """A broker with sessions, each of which has one message and a holder at first."""

    def __init__(self, names: str) -> None:
        super().__init__()
        self.receiver = 1_000
        self.request = 100
        messages = [Message(pack(rest=b"body"), session_id=name) for name in names]
        self.give(c.Enqueue(self.next(), messages))
        self.wait(100)
        self.held = {name: self.take(name) for name in names}
        self.wait(100)

    def next(self) -> int:
        self.request += 1
        return self.request

    def give(self, command: c.Command) -> None:
        self.runtime.submit(ROW, SESSIONS, command, self.answers.append)

    def ask_for(self, name: str) -> None:
        """Accept a session and ask for its messages."""
        self.receiver += 1
        self.runtime.register(self.receiver, self.answers.append)
        self.give(c.AcceptSession(self.next(), self.receiver, name))
        lock_id = self.state.sessions.held[name].lock_id
        self.runtime.submit(ROW, SESSIONS, c.Receive(0, self.receiver, 10, 1 << 20, session=lock_id))

    def take(self, name: str) -> r.Granted:
        self.ask_for(name)
        return self.granted()

    def end(self, name: str, outcome: Outcome) -> None:
        """Settle without a confirmation, and release the session."""
        grant = self.held[name]
        tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
        self.runtime.submit(ROW, SESSIONS, c.Settle(0, 0, outcome, tokens))
        self.runtime.submit(ROW, SESSIONS, c.ReleaseSession(grant.lock_id))

    @property
    def state(self) -> Any:
        return self.machine.state

    @property
    def machine(self) -> Partition:
        machine = self.runtime.slots[ROW].machine
        assert machine is not None
        return machine

    def granted_again(self) -> list[Any]:
        self.wait(100)
        return [answer for answer in self.answers if isinstance(answer, r.Granted) and answer.kind == 0]


def test_a_completed_message_does_not_come_again_though_many_sessions_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first session's next page waits for its rows; the last one is too many to be remembered."""
    monkeypatch.setattr(sessions, "CHANGED_MAX", 2)
    broker = SessionBroker("abc")
    for name in "abc":
        broker.end(name, Outcome.COMPLETE)
    broker.ask_for("a")
    broker.ask_for("c")
    assert broker.granted_again() == []
    assert broker.state.subqueues[0].messages == 0


def test_a_page_of_dead_letters_forgets_no_session_that_has_changed() -> None:
    broker = SessionBroker("abd")
    broker.end("d", Outcome.DEAD_LETTER)
    broker.wait(100)
    broker.machine.drop_windows()
    broker.end("a", Outcome.COMPLETE)
    broker.runtime.register(1, broker.answers.append)
    broker.runtime.submit(ROW, SESSIONS, c.Receive(SubqueueKind.DEAD_LETTER, 1, 1, 1 << 20))
    broker.end("b", Outcome.COMPLETE)
    broker.ask_for("b")
    broker.ask_for("a")
    assert broker.granted_again() == []
    assert broker.state.subqueues[0].messages == 0


@pytest.mark.parametrize("fails", [False, True])
def test_whoever_asks_for_a_close_hears_of_its_end(fails: bool) -> None:
    broker = Broker()
    broker.answered(broker.send())
    if fails:
        broker.stores[-1].commit_fails = StoreError("disk on fire", executed=False)
        broker.answered(broker.send())
    closed: list[int] = []
    broker.runtime.close(lambda: closed.append(1))
    broker.runtime.close(lambda: closed.append(2))
    broker.run_until(lambda: broker.runtime.store is None)
    broker.runtime.close(lambda: closed.append(3))
    broker.rest()
    assert closed == [1, 2, 3]
    broker.runtime.close(lambda: closed.append(4))
    broker.rest()
    assert closed == [1, 2, 3, 4]
