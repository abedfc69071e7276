"""The memory of partitions in use is bounded, and what went cold goes on where it was (D25)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import pytest

from partibus.limits import KIB, MIB, PartitionLimits, StoreLimits
from partibus.message import Message, pack
from partibus.partition.core.loads import FIRST_PAGE_BYTES
from partibus.partition.core.machine import MACHINE_BYTES, MARK_BYTES
from partibus.partition.core.meters import Meters
from partibus.partition.core.residency import COLD_MAX, STEPS, Cold, ColdPartitions, Residency
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import Outcome
from partibus.partition.protocol.keys import SubqueueKind, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import EntryState, Query, Store, Writes
from partibus.partition.runtime.decider import NOTED_MAX
from partibus.partition.runtime.slot import Slot
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.partition.runtime.waking import SLICE, by_due_time
from tests.contract.stores import enqueue
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.stores.memory import MemoryDisk, MemoryStore
from tests.unit.partition.one_partition import OnePartition

BODY = bytes(KIB)
LIMITS = StoreLimits(partition_bytes=256 * KIB)
OPTIONS = PartitionOptions(limits=PartitionLimits(window_entries=32, page_entries=32))


T = TypeVar("T")


class CountingStore(MemoryStore):
    """Counts what is loaded, and is lost when a test says so."""

    loads = 0
    lease_is_over = False

    @property
    def is_held(self) -> bool:
        return not self.lease_is_over

    def read(self, query: Query[T]) -> T:
        CountingStore.loads += isinstance(query, q.Partition)
        return super().read(query)


class Broker:
    """A runtime on a timeline, with room for some partitions."""

    def __init__(self, limits: StoreLimits = LIMITS, disk: MemoryDisk | None = None) -> None:
        self.timeline = Timeline()
        self.disk = disk or MemoryDisk()
        self.meters = Meters()
        self.residency = self.meters.residency
        self.woken: list[int] = []
        self.runtime = StoreRuntime(
            self.open,
            SimulatedHost(self.timeline, Random(1)),
            self.timeline,
            limits,
            wake=self.wake,
            meters=self.meters,
        )
        self.runtime.open()
        self.answers: list[Any] = []
        self.options = OPTIONS
        self._number = 0

    def open(self) -> Store:
        self.store = CountingStore(self.disk)
        return self.store

    def wake(self, rows: list[int]) -> None:
        self.woken += rows
        for row in rows:
            self.runtime.submit(row, self.options, c.Tick())

    def ask(self, row: int, command: Callable[[int], c.Command]) -> Any:
        self._number += 1
        number = self._number
        self.runtime.submit(row, self.options, command(number), self.answers.append)
        return self.run_until(lambda: [a for a in self.answers if getattr(a, "request", None) == number])[0]

    def send(self, row: int, count: int = 1, **more: Any) -> None:
        self.ask(row, lambda request: c.Enqueue(request, [Message(pack(rest=BODY), **more) for _ in range(count)]))

    def receive(self, row: int, count: int = 1, **more: Any) -> r.Granted:
        self._number += 1
        number = self._number
        self.runtime.register(number, self.answers.append)
        self.runtime.submit(row, self.options, c.Receive(0, number, count, 1 << 20, False, **more))
        found = self.run_until(lambda: [a for a in self.answers if getattr(a, "receiver", None) == number])
        granted: r.Granted = found[0]
        return granted

    def settle(self, row: int, granted: r.Granted, outcome: Outcome = Outcome.COMPLETE) -> Any:
        tokens = [(granted.lock_id, entry.pos) for entry in granted.entries]
        return self.ask(row, lambda request: c.Settle(request, 0, outcome, tokens))

    def run_until(self, done: Callable[[], list[Any]]) -> list[Any]:
        while not (found := done()):
            assert self.timeline, "nothing is left to happen"
            self.timeline.run_next()
        return found

    def rest(self, most_ms: float = 1_000.0) -> None:
        end_ms = self.timeline.time_ms + most_ms
        self.timeline.call_later(most_ms, lambda: None)
        while self.timeline and self.timeline.time_ms < end_ms:
            self.timeline.run_next()

    def slot(self, row: int) -> Slot | None:
        return self.runtime.slots.get(row)


def test_memory_is_bounded_however_many_partitions_were_used() -> None:
    broker = Broker()
    for row in range(200):
        broker.send(row, 16)
    broker.rest()
    assert broker.residency.size_bytes <= LIMITS.partition_bytes
    assert broker.residency.went_cold > 150
    assert len(broker.runtime.slots) == len(broker.residency) < 50
    for row in (0, 100, 199):
        granted = broker.receive(row, 16)
        assert [entry.sequence for entry in granted.entries] == list(range(1, 17))
        assert broker.settle(row, granted).lost == []


def test_what_is_used_stays() -> None:
    broker = Broker()
    broker.send(0, 8)
    for row in range(1, 200):
        broker.send(0)
        broker.settle(0, broker.receive(0))
        broker.send(row, 16)
    first = broker.slot(0)
    assert first is not None
    assert len(first.machine.state.subqueues[0].ready) == 8  # type: ignore[union-attr]


def test_who_holds_a_message_keeps_its_partition_but_not_the_window() -> None:
    broker = Broker()
    broker.send(0, 16)
    granted = broker.receive(0)
    for row in range(1, 100):
        broker.send(row, 16)
    broker.rest()
    slot = broker.slot(0)
    assert slot is not None
    assert slot.size_bytes == MACHINE_BYTES
    assert broker.settle(0, granted).lost == []
    assert [entry.sequence for entry in broker.receive(0, 15).entries] == list(range(2, 17))


def test_a_message_is_handed_out_once_whatever_window_was_dropped() -> None:
    """Locked, given back, and completed entries lie between those that are dropped."""
    broker = Broker(StoreLimits(partition_bytes=0))
    broker.send(0, 24)
    seen: list[int] = []
    while len(seen) < 24:
        granted = broker.receive(0, 4)
        numbers = [entry.sequence for entry in granted.entries]
        if numbers[0] % 2 and broker.residency.windows_dropped % 3:
            broker.settle(0, granted, Outcome.RELEASE)
            continue
        broker.settle(0, granted)
        seen += numbers
    assert sorted(seen) == list(range(1, 25))


def test_what_waits_for_its_time_wakes_a_partition_that_went_cold() -> None:
    broker = Broker(StoreLimits(partition_bytes=0))
    due_ms = broker.timeline.now_ms() + 5_000
    broker.send(0, scheduled_ms=due_ms)
    broker.rest()
    assert broker.slot(0) is None
    broker.rest(6_000)
    assert broker.woken == [0]
    assert [entry.enqueued_ms >= due_ms for entry in broker.receive(0).entries] == [True]


def test_ids_out_of_their_window_are_removed_from_a_partition_that_went_cold() -> None:
    broker = Broker(StoreLimits(partition_bytes=0))
    broker.options = PartitionOptions(duplicate_window_ms=1_000)
    for number in range(4):
        broker.send(0, message_id=str(number))
    broker.rest(100)
    assert broker.slot(0) is None
    assert broker.runtime.store is not None
    assert len(broker.runtime.store.read(q.DuplicatesBehind(0, (-1, b""), 10))) == 4
    broker.rest(10_000)
    assert broker.runtime.store.read(q.DuplicatesBehind(0, (-1, b""), 10)) == []
    assert broker.slot(0) is None


def test_duplicates_are_told_by_a_partition_that_went_cold() -> None:
    broker = Broker(StoreLimits(partition_bytes=0))
    broker.options = PartitionOptions(duplicate_window_ms=60_000)
    for _ in range(3):
        broker.send(0, message_id="1")
        broker.rest()
        assert broker.slot(0) is None
    assert len(broker.receive(0, 10).entries) == 1


@pytest.mark.parametrize("reserve", [True, False])
def test_no_number_is_given_twice_however_often_a_partition_goes_cold(reserve: bool) -> None:
    broker = Broker(StoreLimits(partition_bytes=0))
    given: list[int] = []
    for _ in range(4):
        broker.send(0)
        granted = broker.receive(0, reserve=reserve)
        given.append(granted.lock_id)
        tokens = [(granted.lock_id, entry.pos) for entry in granted.entries]
        if reserve:
            broker.runtime.submit(0, broker.options, c.ReturnReserved(0, tokens))
        else:
            broker.settle(0, granted)
        broker.rest()
        assert broker.slot(0) is None
    assert given == sorted(set(given))
    assert given[-1] - given[0] < 100, "no numbers are passed over: a partition may go cold more often than there are"


def test_what_waits_keeps_its_partition() -> None:
    broker = Broker(StoreLimits(partition_bytes=0))
    broker.runtime.register(9, broker.answers.append)
    broker.runtime.submit(0, OPTIONS, c.Receive(0, 9, 5, 1 << 20, False))
    broker.rest()
    assert broker.slot(0) is not None
    broker.send(0)
    assert broker.run_until(lambda: [a for a in broker.answers if isinstance(a, r.Granted)])


def test_a_deleted_partition_and_a_lost_store_count_no_longer() -> None:
    broker = Broker()
    for row in range(5):
        broker.send(row, 4)
    broker.runtime.drop(0, lambda _: None)
    assert len(broker.residency) == 4
    broker.store.lease_is_over = True
    broker.runtime.run_due()
    assert len(broker.residency) == 0
    assert broker.residency.size_bytes == 0
    broker.rest()
    broker.send(1)
    assert len(broker.residency) == 1


def test_the_hand_moves_by_some_partitions_in_a_turn() -> None:
    residency = Residency(0)
    turns: list[Callable[[], None]] = []
    asked: list[Slot] = []
    for row in range(10 * STEPS):
        slot = Slot(row, OPTIONS)
        residency.join(slot, asked.append)
        residency.weigh(slot, 1)
    residency.ask(turns.append)
    residency.ask(turns.append)
    done = 0
    while turns:
        turns.pop()()
        done += 1
        assert len(asked) <= max(0, done - 10) * STEPS
    assert done == 11, "one turn for each mark that was taken away, and one that has helped nobody"


def test_of_many_cold_partitions_the_first_are_forgotten() -> None:
    cold = ColdPartitions()
    for row in range(COLD_MAX + 10):
        cold.add(row, Cold(100 + row, row, 1 + row, None))
    assert [row for row in range(COLD_MAX + 10) if not cold.activated_ms(row)] == [*range(10)]
    assert cold.take(5) == Cold(0, COLD_MAX + 9, 0, None), "reservations go on above all that were made"
    assert cold.take(20) == Cold(120, 20, 21, None)


def test_a_cold_partition_hands_its_first_message_out_before_it_has_read_a_whole_page() -> None:
    """A quarter of a page: 4 messages of 60 KB. The rest of the window follows."""
    partition = OnePartition()
    message = Message(pack(rest=bytes(60 * 1024)))
    for request in range(1, 11):
        partition.give(c.Enqueue(request, [message] * 5))
    partition.settle_down()
    partition.load()
    partition.give(c.Receive(0, 99, 1, 1 << 20))
    assert partition.run_load()
    (first,) = [load for _, load in partition.loads]
    assert isinstance(first, w.PageLoad)
    state = partition.machine.state
    assert state.subqueues[0].ready.size_bytes < FIRST_PAGE_BYTES
    assert first.max_bytes == MIB
    partition.settle_down()
    assert state.subqueues[0].ready.size_bytes > MIB


def test_marks_of_sources_count_as_memory() -> None:
    broker = Broker(StoreLimits(partition_bytes=1 << 30))
    for source in range(1, 201):
        command = c.Enqueue(0, [Message(pack(rest=BODY))], origin=(source << 40, [1]))
        broker.runtime.submit(0, broker.options, command)
    broker.rest()
    broker.settle(0, broker.receive(0, 200))
    slot = broker.slot(0)
    assert slot is not None
    assert slot.machine is not None
    assert len(slot.machine.state.inbound_marks) == 200
    assert slot.size_bytes - slot.machine.state.window_bytes == MACHINE_BYTES + 200 * MARK_BYTES


class Restarted(Broker):
    """A broker that finds partitions with one scheduled message each, and notes the slices in which they are woken."""

    def __init__(self, due_ms: int, rows: int, limits: StoreLimits | None = None) -> None:
        disk = MemoryDisk()
        writes = Writes()
        for row in range(rows):
            subqueue = subqueue_key(row, SubqueueKind.ACTIVE)
            enqueue(writes, 1, pack(rest=BODY), subqueue=subqueue, state=EntryState.SCHEDULED, due_ms=due_ms)
            writes.counts[subqueue] = (1, len(pack(rest=BODY)))
        MemoryStore(disk).commit(writes)
        super().__init__(limits or StoreLimits(), disk)
        self.slices: list[int] = []
        self.runtime.wake_timed()

    def wake(self, rows: list[int]) -> None:
        assert all(slot.machine is not None for slot in self.runtime.slots.values()), "the last ones are being loaded"
        self.slices.append(len(rows))
        super().wake(rows)

    @property
    def scheduled(self) -> int:
        return sum(entry.state == EntryState.SCHEDULED for entry in self.disk.durable.entries.values())


def test_a_start_loads_no_partition_before_something_in_it_is_due() -> None:
    broker = Restarted(due_ms=10_000, rows=2 * NOTED_MAX + 1)
    broker.rest(8_000)
    assert (broker.woken, len(broker.runtime.slots)) == ([], 0)
    broker.rest(5_000)
    assert sorted(broker.woken) == list(range(2 * NOTED_MAX + 1))
    assert broker.scheduled == 0


@pytest.mark.parametrize("due_ms", [0, 5_000], ids=["at the start", "later"])
def test_partitions_that_are_due_together_are_loaded_in_slices(due_ms: int) -> None:
    broker = Restarted(due_ms, 3 * SLICE + 1)
    broker.rest(10_000)
    assert sorted(broker.woken) == list(range(3 * SLICE + 1))
    assert max(broker.slices) == SLICE
    assert (broker.scheduled, broker.runtime.catching_up) == (0, False)


def test_partitions_that_are_due_go_cold_and_make_room_for_the_next_slices() -> None:
    broker = Restarted(0, 3 * SLICE, StoreLimits(partition_bytes=0))
    broker.rest(10_000)
    assert broker.scheduled == 0
    assert not broker.runtime.slots


def test_what_is_due_is_caught_up_with_when_the_last_slice_is_done() -> None:
    """A clock that is moved by hand waits for that."""
    broker = Restarted(due_ms=10_000, rows=2 * SLICE)
    broker.rest(1_000)
    assert broker.woken == []
    broker.timeline.time_ms = 10_000
    broker.runtime.run_due()
    while broker.runtime.catching_up:
        broker.timeline.run_next()
    assert len(broker.woken) == 2 * SLICE


def test_a_partition_that_is_dropped_while_it_is_woken_keeps_no_others_waiting() -> None:
    broker = Restarted(0, 2 * SLICE)
    broker.run_until(lambda: broker.woken)
    for row in range(SLICE):
        broker.runtime.drop(row, lambda _: None)
    broker.rest()
    assert (len(broker.woken), broker.scheduled) == (2 * SLICE, 0)


def test_a_client_that_is_faster_than_a_slice_finds_the_due_time_noted() -> None:
    broker = Restarted(0, 2 * SLICE)
    broker.run_until(lambda: broker.woken)
    row = next(row for row in range(2 * SLICE) if row not in broker.woken)
    broker.ask(row, lambda request: c.Peek(request, 0, 0, 1))
    broker.rest()
    assert row not in broker.woken
    assert broker.scheduled == 0


def test_a_store_that_fails_between_two_slices_begins_anew() -> None:
    broker = Restarted(0, 3 * SLICE)
    broker.run_until(lambda: broker.woken)
    broker.runtime._lifecycle.fail(RuntimeError("the disk is gone"))
    broker.rest(5_000)
    assert set(broker.woken) == set(range(3 * SLICE))
    assert broker.scheduled == 0


def test_messages_on_their_way_to_another_entity_are_due_at_once() -> None:
    keys = {subqueue_key(7, 0): 50, subqueue_key(7, 1): 40, subqueue_key(8, 0): 30, subqueue_key(9, 3): 99}
    assert by_due_time(keys) == [(0, 9), (30, 8), (40, 7)]
