"""A broker's stores: taken, given up, and the ways to those that others own. A timeline decides when files open."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from random import Random
from typing import Any

import pytest

from partibus.cluster.admin import facts_of
from partibus.cluster.ownership import Identity, Stores
from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store, StoreError
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.store_access import StoreAccess, StoreRoute
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.stores.memory import MemoryDisk, MemoryStore

NAMES = ["store-00", "store-01", "store-02"]
US, OTHER, THIRD = Identity("broker-0", "run-a"), Identity("broker-1", "run-b"), Identity("broker-2", "run-c")
OPTIONS = PartitionOptions()
ROW = 7


class World:
    """One broker; what it would say to its peers is noted."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.host = SimulatedHost(self.timeline, Random(1))
        self.disks = [MemoryDisk() for _ in NAMES]
        self.damaged: set[int] = set()
        self.led: list[tuple[str, str, int]] = []
        self.present: list[set[tuple[str, str]]] = []
        self.served: dict[int, StoreAccess] = {}
        self.stores = Stores(
            NAMES,
            US,
            self.host,
            self,
            _Serving(self.served),
            self._open,
            lambda number, open_one: self._runtime(open_one),
        )

    def lead(self, route: StoreRoute, owner: tuple[str, str], store_no: int) -> None:
        assert route is self.stores.routes[store_no]
        assert route.access is None
        self.led.append((*owner, store_no))

    def keep(self, present: Set[tuple[str, str]]) -> None:
        self.present.append({tuple(owner) for owner in present})  # type: ignore[misc]

    def _open(self, number: int) -> Store:
        if number in self.damaged:
            raise StoreError(f"{NAMES[number]}: damaged")
        return MemoryStore(self.disks[number])

    def _runtime(self, open_one: Callable[[], Store]) -> StoreRuntime:
        return StoreRuntime(open_one, self.host, self.timeline)

    def run(self, until: Callable[[], Any]) -> None:
        for _ in range(1_000):
            if until():
                return
            self.timeline.run_next()
        raise AssertionError("it did not happen")

    def take(self, number: int) -> StoreRuntime:
        taken: list[StoreRuntime] = []
        self.stores.take(number, taken.append)
        self.run(lambda: taken)
        return taken[0]

    def give_up(self, number: int) -> None:
        given: list[bool] = []
        self.stores.give_up(number, lambda: given.append(True))
        self.run(lambda: given)

    def ask(self, number: int, command: Any) -> list[Any]:
        replies: list[Any] = []
        self.stores.routes[number].submit(ROW, OPTIONS, command, replies.append)
        return replies


class _Serving:
    def __init__(self, served: dict[int, StoreAccess]) -> None:
        self.open = served.__setitem__
        self._served = served

    def close(self, number: int, why: str) -> None:
        self._served.pop(number, None)

    def asker_of(self, request: int) -> tuple[str, int] | None:
        return None


@pytest.fixture
def world() -> World:
    return World()


def enqueue(request: int) -> c.Enqueue:
    return c.Enqueue(request, [Message(pack(rest=b"body"))])


def test_what_is_taken_is_used_here_and_offered_to_peers(world: World) -> None:
    runtime = world.take(1)
    assert world.stores.routes[1].access is runtime
    assert world.served == {1: runtime}
    replies = world.ask(1, enqueue(5))
    world.run(lambda: replies)
    assert isinstance(replies[0], r.Accepted)
    assert list(world.stores.runtimes) == [1]
    assert facts_of(runtime)["trouble"] is None


def test_nothing_is_asked_of_a_store_that_nobody_has(world: World) -> None:
    (failed,) = world.ask(0, enqueue(5))
    assert (failed.executed, failed.request) == (False, 5)
    assert "store-00" in failed.message


def test_what_was_accepted_before_it_is_given_up_is_there_for_the_next_owner(world: World) -> None:
    world.take(0)
    loaded = world.ask(0, enqueue(1))
    world.run(lambda: loaded)
    replies = [world.ask(0, enqueue(number)) for number in range(2, 6)]
    world.give_up(0)
    assert all(isinstance(reply[0], r.Accepted) for reply in replies), "what is under way is committed first"
    assert world.served == {}
    assert world.stores.runtimes == {}
    next_owner = StoreRuntime(partial(MemoryStore, world.disks[0]), world.host, world.timeline)
    next_owner.open()
    found: list[r.Inspected] = []
    next_owner.submit(ROW, OPTIONS, c.Inspect(9), found.append)
    world.run(lambda: found)
    assert found[0].subqueues[0].messages == 5


def test_a_store_that_is_asked_all_the_time_is_given_up_all_the_same(world: World) -> None:
    runtime = world.take(0)
    given: list[bool] = []
    asked = 0

    def again(reply: Any = None) -> None:
        nonlocal asked
        asked += 1
        if isinstance(reply, r.Accepted | None):
            runtime.submit(ROW, OPTIONS, enqueue(asked), again)

    again()
    world.stores.give_up(0, lambda: given.append(True))
    world.run(lambda: given)


def test_a_request_that_is_held_for_the_next_owner_is_made_when_this_broker_takes_an_idle_store(world: World) -> None:
    world.take(0)
    stored = world.ask(0, enqueue(1))
    world.run(lambda: stored)
    answers: list[Any] = []
    world.stores.routes[0].hold(ROW, OPTIONS, c.RenewLocks(7, 0, []), answers.append)
    world.run(lambda: answers)
    assert isinstance(answers[0], r.LocksRenewed)


def test_receivers_and_those_who_wait_go_on_with_the_next_owner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = world.take(0)
    monkeypatch.setattr(type(runtime), "overloaded", True)
    route = world.stores.routes[0]
    told: list[Any] = []
    usable: list[bool] = []
    route.register(3, told.append)
    route.submit(ROW, OPTIONS, c.Receive(0, 3, 10, 1 << 20))
    route.when_usable(lambda: usable.append(True))
    world.give_up(0)
    assert [(reply.request, reply.executed) for reply in told] == [(3, False)]
    assert usable == []
    monkeypatch.undo()
    world.take(0)
    world.run(lambda: usable)


def test_a_store_that_can_not_be_opened_is_owned_and_tried_again(world: World) -> None:
    world.damaged.add(2)
    runtime = world.take(2)
    assert runtime.failure == "store-02: damaged"
    assert facts_of(world.stores.runtimes[2])["trouble"] == "store-02: damaged"
    (failed,) = world.ask(2, enqueue(5))
    assert failed.executed is False
    world.damaged.clear()
    world.run(lambda: runtime.failure is None)
    replies = world.ask(2, enqueue(6))
    world.run(lambda: replies)
    assert isinstance(replies[0], r.Accepted)


def test_one_that_can_not_be_opened_can_be_given_up(world: World) -> None:
    world.damaged.add(2)
    world.take(2)
    world.give_up(2)
    assert world.stores.runtimes == {}


def test_ways_lead_to_whom_the_supervisor_names(world: World) -> None:
    world.take(0)
    world.stores.follow(1, [US, OTHER, None], [])
    assert world.led == [(*OTHER, 1)]
    assert world.present == [{tuple(OTHER)}]
    world.stores.follow(2, [US, OTHER, THIRD], [])
    assert world.led == [(*OTHER, 1), (*THIRD, 2)]
    world.stores.follow(3, [US, THIRD, THIRD], [])
    assert world.led[2:] == [(*THIRD, 1)]
    world.stores.follow(2, [OTHER, OTHER, OTHER], [])
    assert len(world.led) == 3, "older news change nothing"


def test_another_run_of_the_same_broker_is_another_owner(world: World) -> None:
    world.stores.follow(1, [OTHER, None, None], [])
    world.stores.follow(2, [Identity("broker-1", "run-d"), None, None], [])
    assert world.led == [(*OTHER, 0), ("broker-1", "run-d", 0)]


def test_the_channel_to_who_is_giving_up_everything_stays_as_long_as_he_is_there(world: World) -> None:
    world.stores.follow(1, [OTHER, OTHER, None], [US, OTHER])
    world.stores.follow(2, [None, None, None], [US, OTHER])
    world.stores.follow(3, [US, US, None], [US])
    assert world.present == [{tuple(OTHER)}, {tuple(OTHER)}, set()]


def test_what_is_being_taken_or_given_is_not_led_away_by_news(world: World) -> None:
    runtime = world.take(0)
    world.stores.follow(1, [None, None, None], [])
    assert world.stores.routes[0].access is runtime


def test_all_are_closed_together(world: World) -> None:
    world.damaged.add(1)
    for number in range(3):
        world.take(number)
    given: list[int] = []
    for number in range(3):
        world.stores.give_up(number, partial(given.append, number))
    world.run(lambda: len(given) == 3)
    assert world.stores.runtimes == {}


def test_a_store_that_is_being_given_up_can_be_given_up_again(world: World) -> None:
    world.take(0)
    given: list[str] = []
    world.stores.give_up(0, lambda: given.append("by the plan"))
    world.stores.give_up(0, lambda: given.append("at the end"))
    world.run(lambda: len(given) == 2)
    world.stores.give_up(0, lambda: given.append("when it is gone"))
    world.run(lambda: len(given) == 3)
    assert given == ["by the plan", "at the end", "when it is gone"]
    assert world.stores.runtimes == {}
