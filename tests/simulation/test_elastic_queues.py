"""An elastic queue gets partitions under load, and loses them when it is calm, while clients use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from partibus.errors import PartibusError, StoreUnavailable
from partibus.forwarding.forwarder import Forwarder
from partibus.limits import ElasticLimits
from partibus.message import Message, pack
from partibus.namespace import moving
from partibus.namespace.catalog import Catalog
from partibus.namespace.elastic import ElasticQueues
from partibus.namespace.moving import Movers
from partibus.namespace.namespace import Queue
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.partition_moves import PLANNED, REBALANCED, Move
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind
from partibus.routing.cursors import OpenAll
from partibus.routing.elastic import Action
from partibus.routing.entity import inspect_all
from partibus.routing.fault_injections import Effect
from partibus.routing.send import send
from partibus.routing.session_source import SessionHold
from tests.kit.simulated_broker import SimulatedProcess
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.stores.memory import MemoryDisk

STORES = 3
MOST = 5
LIMITS = ElasticLimits(requests_per_s=15, messages_per_s=150, calm_ms=60_000)
"""Low, so that few messages are a load."""


class World:
    """One broker with an elastic queue."""

    def __init__(self, folder: Path) -> None:
        self.timeline = Timeline(1_000_000.0)
        self.run = self.timeline.run_for
        self.host = SimulatedHost(self.timeline, Random(1))
        self.process = SimulatedProcess(
            [MemoryDisk() for _ in range(STORES)], self.host, self.timeline, forward=self._forward
        )
        self.catalog = Catalog(folder, STORES)
        self.broker = self.process.broker(self.catalog)
        self.broker.elastic.limits = LIMITS
        self.forwarder = Forwarder(Namespaces(self.broker), self.host.call_later)
        self.broker.create_queue("q", {"RequiresSession": True, "PartibusElasticPartitions": MOST})
        self.sent: dict[str, int] = {}
        self.errors: list[PartibusError] = []

    def _forward(self, store_no: int, row: int, transfers: bool) -> None:
        self.forwarder.see(self.process.stores[store_no], row, transfers=transfers)

    @property
    def queue(self) -> Queue:
        return self.broker.namespace.entity("q")

    def send(self, group: str) -> None:
        number = self.sent[group] = self.sent.get(group, 0) + 1
        message = Message(pack(rest=b"%04d" % number), session_id=group)

        def sent(errors: list[PartibusError | None] | None) -> None:
            self.errors += [error for error in errors or () if error is not None]

        send(self.broker.entity("q").route, [[message]], sent)

    def load(self, seconds: int, per_s: int, groups: int = 100) -> None:
        """Send to many groups, evenly spread over time."""
        for second in range(seconds):
            for n in range(per_s):
                self.send(f"group-{(second * per_s + n) % groups}")
                self.run(1_000 / per_s)

    def owners(self) -> int:
        """Return the number of partitions that own slots."""
        return sum(count > 0 for count in self.broker.entity("q").route.slots.counts())

    def receive_all(self) -> dict[str, list[int]]:
        """Receive everything, session by session."""
        found: dict[str, list[int]] = {}
        route = self.broker.entity("q").route
        while True:
            holds: list[SessionHold | PartibusError] = []
            search = route.sessions.search(None, holds.append)
            search.start()
            self.run(600)
            if not holds:
                search.cancel()
                return found
            (hold,) = holds
            assert isinstance(hold, SessionHold)
            self._receive(hold, found.setdefault(hold.session, []))
            hold.release()
            self.run(5)

    def _receive(self, hold: SessionHold, found: list[int]) -> None:
        tokens: list[Any] = []

        def told(reply: Any) -> None:
            if isinstance(reply, r.Granted):
                for entry in reply.entries:
                    assert entry.data is not None
                    found.append(int(entry.data[-4:]))
                    tokens.append((hold.lock_id, entry.pos))

        hold.listen(told)
        hold.partition.submit(c.Receive(0, hold.receiver, 100, 1 << 20, session=hold.lock_id))
        self.run(60)
        hold.partition.submit(c.Settle(0, 0, c.Outcome.COMPLETE, tokens))
        self.run(30)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(moving, "SCREEN_MS", 30_000)
    world = World(tmp_path)
    yield world
    world.catalog.close()


@pytest.mark.row("S3")
@pytest.mark.row("S4")
@pytest.mark.row("S5")
def test_queue_grows_under_load_and_shrinks_when_it_is_calm(world: World) -> None:
    """Grow under twice the load of the other tests: groups that differ by chance are even only where there are many."""
    world.broker.update("q", {"PartibusPartitionRequests": 30})
    world.load(10, 10, groups=200)
    assert world.owners() == 1
    world.load(40, 60, groups=200)
    assert 3 <= world.owners() <= 4, "also while messages of moved groups wait"
    assert world.errors == []
    found = world.receive_all()
    assert found == {group: list(range(1, count + 1)) for group, count in world.sent.items()}
    world.load(60, 60, groups=200)
    counts = [count for count in world.broker.entity("q").route.slots.counts() if count]
    assert max(counts) - min(counts) <= 1, "slots are dealt out evenly in the end"
    more = world.receive_all()
    assert {group: found[group] + more[group] for group in found} == {
        group: list(range(1, count + 1)) for group, count in world.sent.items()
    }

    world.run(400_000)
    assert world.owners() == 1
    assert len(world.queue.partitions) == 1, "empty partitions without slots are removed"
    assert len(world.broker.entity("q").route.partitions) == 1
    world.sent.clear()
    world.load(5, 5)
    assert world.errors == []
    assert sum(map(len, world.receive_all().values())) == 25


def test_a_broker_decides_by_the_load_through_all_brokers(world: World) -> None:
    """The other broker's clients have most of the load at first, and then all of it."""
    elastic, number = world.broker.elastic, str(world.queue.entity_id)
    world.load(20, 10)
    assert world.owners() == 1
    elastic.hear([{number: [(0, Action.SEND, 10.0, 10.0)]}])
    world.load(20, 10)
    owners = world.owners()
    assert owners > 1
    elastic.hear([{number: [(n, Action.SEND, 10.0, 10.0) for n in range(owners)]}])
    world.receive_all()
    world.run(400_000)
    assert world.owners() == owners, "busy with the clients of the other broker"
    elastic.hear([])
    world.run(400_000)
    assert world.owners() == 1


@pytest.mark.row("S3")
def test_growth_stops_at_the_quota_of_the_queue(world: World) -> None:
    world.load(30, 100)
    assert world.owners() == MOST
    assert {place.store_no for place in world.queue.partitions} == set(range(STORES)), "partitions share stores"


@pytest.mark.parametrize(("why", "stays"), [(PLANNED, True), (REBALANCED, True), ("another reason", False)])
def test_slots_that_an_operator_has_moved_stay(world: World, why: str, stays: bool) -> None:
    world.broker.update("q", {"PartibusPartitionCalm": "P1D"})
    world.load(20, 20)
    world.receive_all()
    world.run(120_000)
    assert world.broker.entity("q").route.slots.counts() == [8_192, 8_192]

    def change(old: Any) -> Any:
        return moving.plan(old, [(0, 1, [(0, 999)])], 2, world.timeline.now_ms(), why)

    world.broker.change_slots("q", change)
    world.run(300_000)
    assert world.queue.slots.moves == ()
    assert world.broker.entity("q").route.slots.counts() == ([7_192, 9_192] if stays else [8_192, 8_192])


def test_each_move_is_told_when_its_slots_are_routed_and_when_it_has_finished(world: World) -> None:
    told: dict[int, list[tuple[str, int]]] = {}

    def note(queue: Queue, move: Move, step: str) -> None:
        owners = sum(count > 0 for count in queue.slots.map(len(queue.partitions)).counts())
        told.setdefault(move.version, []).append((step, owners))

    world.broker.movers.on_step.append(note)
    world.load(20, 30)
    world.receive_all()
    history = world.queue.slots.history
    assert [[step for step, _ in steps] for steps in told.values()] == [["route", "finish"]] * len(history)
    assert {*told} == {move.version for move in history}
    assert max(owners for steps in told.values() for _, owners in steps) > 1


def test_thresholds_of_a_queue_replace_those_of_the_broker(world: World) -> None:
    world.load(20, 5)
    assert world.owners() == 1
    own = {"PartibusPartitionRequests": 5, "PartibusPartitionSplitPercent": 60, "PartibusPartitionMergePercent": 30}
    world.broker.update("q", own)
    world.load(30, 5)
    assert world.owners() > 1, "5 requests/s are more than 60 % of 5"
    owners = world.owners()
    world.broker.update("q", dict.fromkeys(own, 0) | {"PartibusPartitionCalm": "PT1H"})
    world.run(120_000)
    assert world.owners() == owners, "calm for an hour, not for the broker's minute"
    elastic = world.broker.entity("q").elastic
    assert elastic is not None
    assert elastic.limits == replace(LIMITS, calm_ms=3_600_000)


@pytest.mark.row("S5")
def test_receiver_that_waits_gets_messages_of_partitions_that_came_later(world: World) -> None:
    holds: list[SessionHold | PartibusError] = []
    world.load(2, 1)
    world.receive_all()
    search = world.broker.entity("q").route.sessions.search(None, holds.append)
    search.start()
    world.run(100)
    entity = world.broker.entity("q")

    def change(old: Any) -> Any:
        slots = old.slots.map(1)
        return moving.plan(old, [(0, 1, slots.slots_of(0))], 2, world.timeline.now_ms(), "test")

    world.broker.change_slots("q", change)
    world.run(2_000)
    assert entity.route.slots.counts() == [0, 16_384]
    assert holds == []
    world.send("new")
    world.run(100)
    (hold,) = holds
    assert isinstance(hold, SessionHold)
    assert (hold.session, hold.partition.partition_id) == ("new", 1)


def test_one_hot_group_is_reported(world: World) -> None:
    for _ in range(15 * 20):
        world.send("hot")
        world.run(50)
    assert world.owners() == 1
    assert world.broker.entity("q").hot_slot is not None


def test_partition_that_comes_again_gives_no_number_twice(world: World) -> None:
    world.load(40, 30)
    world.receive_all()
    ends = world.queue.slots
    world.run(400_000)
    assert len(world.queue.partitions) == 1
    assert world.queue.slots.first_sequence > 1 << 20
    assert ends.first_sequence == 1


def test_an_error_at_one_queue_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue whose look raises each time comes first, both where growth is decided and where slots are moved."""

    def raising_for_bad(look_at: Callable[..., None], name_of: Callable[[Any], str]) -> Callable[..., None]:
        def look_or_fail(self: Any, one: Any, *rest: Any) -> None:
            if name_of(one) == "bad":
                raise ZeroDivisionError
            look_at(self, one, *rest)

        return look_or_fail

    monkeypatch.setattr(ElasticQueues, "_look_at", raising_for_bad(ElasticQueues._look_at, lambda one: one.queue.name))
    monkeypatch.setattr(Movers, "_look_at", raising_for_bad(Movers._look_at, lambda one: one.name))
    world.broker.create_queue("bad", {"RequiresSession": True, "PartibusElasticPartitions": MOST})
    world.broker.entity("bad")
    bad = SimpleNamespace(name="bad", deleted=False, slots=SimpleNamespace(moves=["never done"]))
    world.broker.movers._queues[-1] = bad  # type: ignore[assignment]
    world.load(40, 30)
    assert world.owners() > 1
    assert "internal error: the partitions of 'bad' stay as they are" in caplog.text
    assert "internal error: moves of slots of 'bad' can't be carried out now" in caplog.text


def test_a_move_that_ends_before_the_catalog_knows_of_its_owner_is_routed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog can't be used when the source has given the slots; a queue without sessions has nothing to drain."""
    world.broker.create_queue("plain", {"PartibusElasticPartitions": MOST})
    failures = [StoreUnavailable("the catalog is busy")]
    change_slots = world.catalog.change_slots

    def change_or_fail(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return change_slots(*arguments)

    now_ms = world.timeline.now_ms()
    world.broker.change_slots("plain", lambda old: moving.plan(old, [(0, 1, [(0, 99)])], 2, now_ms, PLANNED))
    monkeypatch.setattr(world.catalog, "change_slots", change_or_fail)
    world.run(5_000)
    assert not failures
    queue = world.broker.namespace.entity("plain")
    assert queue.slots.moves == ()
    assert queue.slots.map(2).counts() == [16_284, 100]


@pytest.mark.parametrize("kind", [SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER])
def test_a_cursor_is_in_partitions_that_come_later_before_their_first_message(world: World, kind: int) -> None:
    opened: list[Any] = []
    route = world.broker.entity("q").route
    OpenAll(
        route,
        kind,
        "c",
        lambda partition_id: c.EARLIEST,
        {},
        opened.append,
        dispositions=True,
        bound_bytes=1 << 20,
        lease_ms=0,
        revoke=False,
    ).start()
    world.run(100)
    world.load(40, 30)
    assert world.owners() > 1
    world.receive_all()
    infos: list[r.Inspected] = []
    inspect_all(route, infos.extend, lambda failed: None)
    world.run(100)
    cursors = [[(one.kind, one.name, one.position, one.bound_bytes) for one in info.cursors] for info in infos]
    assert cursors == [[(kind, "c", 0, 1 << 20)]] * len(route.partitions)
    assert all(one.disposition_position >= 0 for info in infos for one in info.cursors)
    if kind == SubqueueKind.ACTIVE:
        assert sum(info.retained[kind][0] for info in infos) == sum(world.sent.values())


def test_dead_letters_are_forwarded_from_partitions_that_were_removed_and_came_again(world: World) -> None:
    world.broker.create_queue("failed", {})
    world.broker.update("q", {"ForwardDeadLetteredMessagesTo": "failed"})
    rows: list[list[int]] = []
    for _ in range(2):
        world.load(40, 30)
        world.receive_all()
        assert len(world.queue.partitions) > 1
        rows.append([place.partition_row for place in world.queue.partitions])
        pumps = world.forwarder._forwarding[world.queue.entity_id]._pumps
        assert [pumps[index, SubqueueKind.DEAD_LETTER]._source.row for index in range(len(rows[-1]))] == rows[-1]
        world.run(400_000)
        assert len(world.queue.partitions) == 1
        assert list(pumps) == [(0, SubqueueKind.DEAD_LETTER)]
        world.broker.update("q", {"MaxDeliveryCount": 5})
    assert rows[0][1] != rows[1][1], "a removed partition does not come again under its row"


def test_a_partition_that_came_again_unseen_has_its_new_row(world: World) -> None:
    """A broker learns of the removal of a partition and of its return in one step."""
    world.load(40, 30)
    entity = world.broker.entity("q")
    partitions = entity.route.partitions
    count = len(partitions)
    assert count > 1
    former = partitions[-1]
    partitions[-1] = world.process.handle(
        world.queue, world.queue.partitions[-1]._replace(partition_row=former.row + 1_000)
    )
    world.broker.update("q", {"MaxDeliveryCount": 5})
    assert [partition.row for partition in partitions] == [place.partition_row for place in world.queue.partitions]
    assert len(partitions) == count


def test_an_error_of_one_user_keeps_no_change_from_the_others(world: World, caplog: pytest.LogCaptureFixture) -> None:
    class User:
        waiting = False

        def __init__(self, error: Exception | None) -> None:
            self.error = error
            self.told = 0

        def on_entity_changed(self) -> None:
            self.told += 1
            if self.error is not None:
                raise self.error

    users = [User(IndexError("bug")), User(None)]
    entity = world.broker.entity("q")
    for user in users:
        entity.join(user)
    world.broker.update("q", {"MaxDeliveryCount": 5})
    assert [user.told for user in users] == [1, 1]
    assert "a user of 'q' does not follow its change" in caplog.text


def test_faults_of_stores_reach_partitions_that_are_added(world: World) -> None:
    broker = world.broker
    names = [f"store-{number}" for number in range(STORES)]
    entity = broker.entity("q")
    first = world.queue.partitions[0].store_no
    for name in names[:first] + names[first + 1 :]:
        broker.fault_injections.inject_store_fault(name, Effect(fails=True))
    now_ms = world.timeline.now_ms()
    broker.change_slots("q", lambda old: moving.plan(old, [(0, 1, [(0, 9)]), (0, 2, [(10, 19)])], 3, now_ms, "test"))
    assert entity.away == [1, 2]
    broker.fault_injections.heal_all()
    assert entity.away == []
