"""Express messages in a store's runtime: what is written, when, and what answers wait for (D18)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from partibus.limits import StoreLimits
from partibus.message import Message, pack
from partibus.partition.core.meters import Meters
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import Outcome
from partibus.partition.protocol.keys import SubqueueKind, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store, Writes
from partibus.partition.runtime.decider import Decider
from partibus.partition.runtime.store_runtime import StoreRuntime
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.stores.memory import MemoryDisk, MemoryStore

ROW = 3
ACTIVE = subqueue_key(ROW, SubqueueKind.ACTIVE)
BOUND_MS = 3_000
OPTIONS = PartitionOptions(lock_duration_ms=60_000, express_ms=BOUND_MS)


class Keeping(MemoryStore):
    """Keeps the commits, and takes its time when told to."""

    def __init__(self, disk: MemoryDisk, commits: list[Writes]) -> None:
        super().__init__(disk)
        self.commits = commits
        self.lease_is_over = False

    @property
    def is_held(self) -> bool:
        return not self.lease_is_over

    def commit(self, writes: Writes) -> None:
        super().commit(writes)
        self.commits.append(writes)


class SlowHost(SimulatedHost):
    """Jobs take as long as the test says."""

    delay_ms = 1.0

    def _delay_ms(self) -> float:
        return self.delay_ms


class Broker:
    """A runtime on a timeline."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self.timeline = Timeline()
        self.disk = MemoryDisk()
        self.commits: list[Writes] = []
        self.answers: list[Any] = []
        self.options = OPTIONS
        self.limits = limits or StoreLimits()
        self.meters = Meters()
        self._request = 0
        self.start()

    def start(self) -> None:
        self.host = SlowHost(self.timeline, Random(1))
        self.runtime = StoreRuntime(self.store, self.host, self.timeline, self.limits, meters=self.meters)
        self.runtime.open()

    def store(self) -> Store:
        self.opened = Keeping(self.disk, self.commits)
        return self.opened

    def ask(self, command: Callable[[int], c.Command]) -> None:
        self._request += 1
        self.runtime.submit(ROW, self.options, command(self._request), self.answers.append)

    def send(self, count: int = 1, *, forced: bool = False, ttl_ms: int | None = None, size: int = 10) -> None:
        data = pack(durable=forced, ttl_ms=ttl_ms, rest=bytes(size))
        self.ask(lambda request: c.Enqueue(request, [Message(data, ttl_ms=ttl_ms) for _ in range(count)]))

    def receive(self, count: int = 1, *, delete: bool = False) -> r.Granted:
        self.runtime.register(1, self.answers.append)
        self.runtime.submit(ROW, self.options, c.Receive(0, 1, count, 1 << 30, delete))
        granted: r.Granted = self.take(r.Granted)
        return granted

    def settle(self, outcome: Outcome, grant: r.Granted, **more: Any) -> r.Settled:
        tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
        self.ask(lambda request: c.Settle(request, 0, outcome, tokens, **more))
        settled: r.Settled = self.take(r.Settled)
        return settled

    def take(self, kind: type[Any]) -> Any:
        while not any(isinstance(answer, kind) for answer in self.answers):
            self.timeline.run_next()
        found = next(answer for answer in self.answers if isinstance(answer, kind))
        self.answers.remove(found)
        return found

    def rest(self, until_ms: float) -> None:
        """Let that much time pass."""
        ends_ms = self.timeline.time_ms + until_ms
        self.timeline.call_later(until_ms, lambda: None)
        while self.timeline.time_ms < ends_ms:
            self.timeline.run_next()

    def warm(self) -> None:
        """Numbers are reserved, and that is durable."""
        self.send()
        self.take(r.Accepted)
        self.settle(Outcome.COMPLETE, self.receive())
        self.rest(100)
        self.commits.clear()

    @property
    def rows(self) -> list[Any]:
        return [entry for writes in self.commits for entry in writes.entries]

    def stored(self) -> int:
        return sum(counts[0] for key, counts in self.disk.durable.counts.items() if key == ACTIVE)


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.warm()
    return broker


@pytest.mark.row("C23")
@pytest.mark.parametrize("delete", [False, True])
def test_consumed_in_time_there_is_no_commit(broker: Broker, delete: bool) -> None:
    for _ in range(5):
        broker.send(4)
        assert isinstance(broker.answers.pop(), r.Accepted), "answered before this returns"
        grant = broker.receive(4, delete=delete)
        if not delete:
            broker.settle(Outcome.ABANDON, grant)
            again = broker.receive(4)
            assert {entry.delivery_count for entry in again.entries} == {1}
            broker.settle(Outcome.COMPLETE, again)
    broker.rest(2 * BOUND_MS)
    assert broker.commits == []
    assert broker.runtime.express.messages == broker.runtime.express.size_bytes == 0


@pytest.mark.row("C22")
def test_written_with_lock_and_count_before_the_bound(broker: Broker) -> None:
    broker.send(2)
    broker.settle(Outcome.ABANDON, broker.receive(2))
    broker.receive(1)
    broker.rest(BOUND_MS * 5 / 6 - 10)
    assert broker.commits == []
    broker.rest(BOUND_MS / 6)
    (writes,) = broker.commits
    assert writes.entries[5::8] == [1, 1], "delivery counts"
    assert len(writes.lock_batches) == 1
    assert broker.stored() == 2


def test_a_young_message_goes_along_with_an_old_one_if_it_is_nearly_as_old(broker: Broker) -> None:
    broker.send()
    broker.rest(BOUND_MS / 12)
    broker.send()
    broker.rest(BOUND_MS / 2)
    broker.send()
    broker.rest(BOUND_MS * 5 / 12)
    assert (len(broker.commits), broker.stored(), broker.runtime.express.messages) == (1, 2, 1)


@pytest.mark.row("C24")
def test_a_forced_message_waits_for_the_store_and_nothing_else_does(broker: Broker) -> None:
    broker.send(forced=True)
    broker.send()
    (accepted,) = broker.answers
    assert accepted.first_sequence == broker.take(r.Accepted).first_sequence
    forced = broker.take(r.Accepted)
    assert forced.first_sequence < accepted.first_sequence
    assert (broker.stored(), broker.runtime.express.messages) == (1, 1)
    assert [entry.sequence for entry in broker.receive(2).entries] == [forced.first_sequence, accepted.first_sequence]


def test_numbers_are_durable_before_the_first_answer() -> None:
    broker = Broker()
    broker.send()
    assert broker.answers == []
    first = broker.take(r.Accepted)
    assert broker.disk.durable.partitions[ROW][0] > first.first_sequence
    broker.host.crash()
    broker.disk.crash()
    broker.start()
    broker.send()
    assert broker.take(r.Accepted).first_sequence > first.first_sequence + 60_000


def test_counts_tell_of_memory_and_the_store_of_itself(broker: Broker) -> None:
    broker.send(3)
    broker.send(forced=True)
    counted: list[Any] = []
    broker.rest(50)
    broker.runtime.questions.count_messages(10, counted.append)
    broker.runtime.questions.find_filled([ROW, ROW + 1], counted.append)
    broker.ask(c.Inspect)
    assert broker.take(r.Inspected).subqueues[0].messages == 4
    broker.rest(50)
    assert counted[0][ACTIVE][0] == 4
    assert counted[1] == [ROW]
    assert broker.stored() == 1


def test_an_expired_message_is_seen_to_be_so_before_it_is_old(broker: Broker) -> None:
    broker.options = replace(OPTIONS, dead_letter_on_expiration=True)
    broker.send(ttl_ms=500)
    broker.rest(600)
    broker.ask(c.Inspect)
    subqueues = broker.take(r.Inspected).subqueues
    assert (subqueues[0].messages, subqueues[1].messages) == (0, 1)


def test_what_is_set_aside_is_written(broker: Broker) -> None:
    broker.send(3)
    grant = broker.receive(3)
    one, two, three = ([(grant.lock_id, entry.pos)] for entry in grant.entries)
    for outcome, tokens in ((Outcome.DEFER, one), (Outcome.DEAD_LETTER, two)):
        broker.ask(lambda request, o=outcome, t=tokens: c.Settle(request, 0, o, t))  # type: ignore[misc]
    broker.ask(lambda request: c.Settle(request, 0, Outcome.ABANDON, three, delay_ms=100))
    broker.rest(60)
    assert len(broker.disk.durable.entries) == len(broker.disk.durable.bodies) == 3
    assert broker.runtime.express.messages == 0


def test_a_large_body_stays_while_its_message_is_locked(broker: Broker) -> None:
    broker.send(size=100_000)
    broker.settle(Outcome.RELEASE, broker.receive())
    data = broker.receive().entries[0].data
    assert data is not None
    assert len(data) > 100_000
    assert broker.commits == []


def test_past_the_bound_of_memory_a_partition_writes_what_it_has() -> None:
    broker = Broker(StoreLimits(express_bytes=1_000))
    broker.warm()
    broker.send(size=900)
    broker.rest(100)
    assert broker.commits == []
    broker.send(size=900)
    assert isinstance(broker.answers.pop(), r.Accepted), "its answer does not wait"
    broker.rest(100)
    assert broker.stored() == 2


def test_behind_a_store_that_is_slower_than_the_bound_messages_are_durable(broker: Broker) -> None:
    broker.send()
    broker.answers.clear()
    broker.rest(BOUND_MS * 5 / 6 - 1)
    broker.host.delay_ms = 2_000.0
    broker.rest(BOUND_MS / 6 + 30)
    broker.send()
    assert broker.answers == []
    broker.host.delay_ms = 1.0
    broker.take(r.Accepted)
    assert broker.stored() == 2
    broker.send()
    assert isinstance(broker.answers.pop(), r.Accepted), "it has caught up"


def test_an_entity_that_is_no_longer_express_writes_the_rest_in_time(broker: Broker) -> None:
    broker.send()
    broker.options = PartitionOptions()
    broker.answers.clear()
    broker.send()
    assert broker.answers == []
    broker.take(r.Accepted)
    broker.rest(BOUND_MS)
    assert broker.stored() == 2


@pytest.mark.parametrize("how", ["drop", "fail"])
def test_memory_is_given_back(broker: Broker, how: str) -> None:
    broker.send(5)
    assert broker.runtime.express.messages == 5
    if how == "drop":
        broker.runtime.drop(ROW, lambda _: None)
    else:
        broker.opened.lease_is_over = True
        broker.runtime.run_due()
    assert broker.runtime.express.messages == broker.runtime.express.size_bytes == 0
    assert not broker.meters.express.size_bytes


def test_a_cursor_finds_everything(broker: Broker) -> None:
    broker.send(2)
    broker.ask(lambda request: c.OpenCursor(request, 0, "reader"))
    broker.take(r.CursorOpened)
    broker.answers.clear()
    broker.send()
    assert broker.answers == [], "durable from now on"
    broker.take(r.Accepted)
    broker.ask(lambda request: c.ReadRange(request, 0, 0, 1 << 40, 1 << 20, cursor="reader"))
    assert broker.take(r.RangeRead).count == 3


@pytest.fixture
def slices_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partibus.partition.core.express.SLICE_MAX", 2)


@pytest.mark.usefixtures("slices_of_two")
@pytest.mark.row("C22")
@pytest.mark.parametrize("ttl_ms", [None, 60_000])
def test_a_burst_is_written_in_slices_between_which_others_have_their_turn(
    broker: Broker, ttl_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send(7, ttl_ms=ttl_ms)
    unwritten: list[int] = []
    handle = Decider.handle

    def handled(*arguments: Any) -> None:
        handle(*arguments)
        unwritten.append(broker.runtime.express.messages)

    monkeypatch.setattr(Decider, "handle", handled)
    broker.rest(BOUND_MS * 5 / 6 + 1)
    assert unwritten[-4:] == [5, 3, 1, 0]
    broker.rest(BOUND_MS / 6 - 1)
    assert (broker.stored(), len(broker.commits)) == (7, 1), "one commit for all of them"


@pytest.mark.usefixtures("slices_of_two")
def test_for_want_of_memory_the_oldest_are_written_and_it_becomes_less() -> None:
    broker = Broker(StoreLimits(express_bytes=3_500))
    broker.warm()
    for _ in range(10):
        broker.send(size=900)
        assert isinstance(broker.answers.pop(), r.Accepted), "its answer does not wait"
        assert 0 < broker.runtime.express.size_bytes <= 3_500
    broker.send(8, size=900)
    assert broker.runtime.express.size_bytes <= 3_500, "however many come at once"
    broker.send(20, size=100)
    broker.meters.express.bytes_max = 1_000  # as if another partition had taken the rest
    broker.send(size=100)
    broker.rest(100)
    assert 0 < broker.runtime.express.size_bytes <= 1_000, "slice by slice"
    broker.rest(BOUND_MS)
    assert broker.stored() == 39


@pytest.mark.row("C22")
def test_a_clock_that_was_set_back_delays_nothing(broker: Broker) -> None:
    broker.send()
    broker.timeline.time_ms -= 1_000
    broker.send()
    broker.rest(BOUND_MS)
    assert broker.stored() == 1, "the younger one, which is behind one that seems to be younger still"
    broker.rest(1_000)
    assert broker.stored() == 2


def test_one_that_expires_soon_does_not_wait_behind_others(broker: Broker) -> None:
    broker.send(ttl_ms=600_000)
    broker.send(ttl_ms=1_000)
    broker.send(ttl_ms=2_000)
    broker.rest(1_100)
    assert broker.runtime.express.messages == 2, "the first of those that expire was written for the sweep to find"
    broker.rest(1_000)
    assert broker.runtime.express.messages == 1
    broker.rest(BOUND_MS)
    assert (broker.runtime.express.messages, broker.stored()) == (0, 1)


def test_purging_all_takes_messages_that_are_not_written_yet() -> None:
    broker = Broker()
    broker.send(3)
    broker.take(r.Accepted)
    broker.ask(lambda request: c.PurgeAll(request, 0))
    broker.rest(200)
    broker.send()
    broker.take(r.Accepted)
    assert [entry.sequence for entry in broker.receive(10).entries] == [4]
