"""The way around a partition's store: what is refused, what is late, and what comes back when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.host import overloaded_stores
from partibus.partition.protocol.options import PartitionOptions
from partibus.routing.fault_injections import LATE_MAX, NO_EFFECT, Effect, FaultyRoute
from partibus.routing.partitions import PartitionHandle

FAILS = Effect(fails=True)
LATE = Effect(delay_ms=500)


class FakeStore:
    """Writes down what it is told and answers what it is asked."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self.overloaded = False
        self.log: list[Any] = []
        self.receivers: dict[int, Callable[[Any], None]] = {}
        self.waiting: list[Callable[[], None]] = []

    def submit(
        self,
        row: int,
        options: PartitionOptions,
        command: Any,
        on_reply: Callable[[Any], None] | None = None,
        *,
        holdable: bool = False,
    ) -> None:
        self.log.append(command)
        if on_reply is not None:
            on_reply(r.Done(command.request))

    def register(self, receiver: int, on_granted: Callable[[Any], None]) -> None:
        self.receivers[receiver] = on_granted

    def unregister(self, receiver: int) -> None:
        self.receivers.pop(receiver, None)

    def forget(self, request: int) -> None:
        self.log.append(("forget", request))

    def when_usable(self, call: Callable[[], None]) -> None:
        self.waiting.append(call)

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        on_dropped(row)

    def retire(self, why: str) -> list[Callable[[], None]]:
        return self.waiting


class Timers:
    """``call_later`` by hand."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay_ms: float, call: Callable[[], None]) -> Timers:
        self.set.append((delay_ms, call))
        return self

    def cancel(self) -> None:
        self.set.pop(0)

    def fire(self) -> None:
        self.set.pop(0)[1]()


class Scene:
    def __init__(self) -> None:
        self.store = FakeStore()
        self.timers = Timers()
        self.partition = PartitionHandle(3, 7, self.store, PartitionOptions(), batched=False)
        self.replies: list[Any] = []

    def faulty_route(self, effect: Effect) -> FaultyRoute:
        faulty_route = FaultyRoute(self.partition, self.timers)
        faulty_route.begin(effect, "injected")
        return faulty_route

    def ask(self, request: int) -> None:
        self.partition.submit(c.TakeNumbers(request, 1), self.replies.append)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_without_a_detour_nothing_is_in_between(scene: Scene) -> None:
    faulty_route = scene.faulty_route(FAILS)
    faulty_route.end()
    assert scene.partition.reroute(scene.store) is scene.store


def test_what_fails_is_refused_as_by_a_store_that_is_away(scene: Scene) -> None:
    scene.faulty_route(FAILS)
    scene.ask(1)
    assert scene.replies == [r.Failed(1, executed=False, full=False, message="injected")]
    assert scene.store.log == []
    assert (scene.partition.available, scene.partition.failure) == (False, "injected")
    scene.partition.drop(scene.replies.append)
    assert len(scene.replies) == 1


def test_receivers_are_told_at_once_and_have_the_store_again_afterwards(scene: Scene) -> None:
    told: list[Any] = []

    def on_granted(reply: Any) -> None:
        told.append(reply)
        if len(told) == 2:
            scene.partition.register(11, on_granted)  # what a front end's cache does

    scene.partition.register(10, told.append)
    scene.partition.register(11, on_granted)
    faulty_route = scene.faulty_route(FAILS)
    assert {reply.request for reply in told} == {10, 11}
    assert scene.store.receivers == {}
    scene.partition.submit(c.Receive(0, 12, 1, 1_000))
    scene.partition.register(12, told.append)
    scene.partition.submit(c.Receive(0, 12, 1, 1_000))
    assert told[-1] == r.Failed(12, executed=False, full=False, message="injected")
    faulty_route.end()
    assert 12 in scene.store.receivers
    assert 10 not in scene.store.receivers


def test_what_only_gives_back_reaches_the_store_even_so(scene: Scene) -> None:
    scene.faulty_route(FAILS)
    give_back: list[c.Command] = [
        c.ReturnReserved(0, [(1, 1)]),
        c.ReleaseSession(5),
        c.CancelReceive(0, 0, 10),
        c.CancelAccept(0, 9),
        c.Settle(0, 0, c.Outcome.RELEASE, [(1, 1)]),
    ]
    for command in (*give_back, c.Settle(0, 0, c.Outcome.COMPLETE, [(1, 1)]), c.Tick()):
        scene.partition.submit(command)
    assert scene.store.log == give_back


def test_whoever_waits_for_the_partition_goes_on_when_it_is_healed(scene: Scene) -> None:
    faulty_route = scene.faulty_route(FAILS)
    usable: list[str] = []
    scene.partition.when_usable(lambda: usable.append("now"))
    faulty_route.begin(FAILS, "still")
    assert scene.timers.set == []
    faulty_route.end()
    assert usable == []
    scene.timers.fire()
    assert usable == ["now"]


def test_who_waits_for_a_store_that_is_really_away_waits_on(scene: Scene) -> None:
    faulty_route = scene.faulty_route(FAILS)
    scene.partition.when_usable(lambda: None)
    scene.store.failure = "the disk is sick"
    faulty_route.end()
    assert len(scene.store.waiting) == 1


def test_late_commands_keep_their_order(scene: Scene) -> None:
    scene.faulty_route(LATE)
    for request in (1, 2, 3):
        scene.ask(request)
    scene.partition.forget(2)
    assert scene.store.log == []
    assert {delay_ms for delay_ms, _ in scene.timers.set} == {500}
    while scene.timers.set:
        scene.timers.fire()
    assert scene.store.log == [
        c.TakeNumbers(1, 1), c.TakeNumbers(2, 1), c.TakeNumbers(3, 1), ("forget", 2),
    ]  # fmt: skip
    assert len(scene.replies) == 3


def test_what_is_late_is_handed_on_at_once_when_it_is_healed(scene: Scene) -> None:
    faulty_route = scene.faulty_route(LATE)
    scene.ask(1)
    scene.ask(2)
    faulty_route.end()
    assert scene.store.log == [c.TakeNumbers(1, 1), c.TakeNumbers(2, 1), c.Inspect(0)]
    assert scene.timers.set == []


def test_what_is_late_is_refused_when_the_partition_fails_meanwhile(scene: Scene) -> None:
    faulty_route = scene.faulty_route(LATE)
    scene.ask(1)
    faulty_route.begin(FAILS, "injected")
    assert [type(reply) for reply in scene.replies] == [r.Failed]
    assert scene.store.log == []


def test_more_than_a_store_may_have_waiting_is_too_much(scene: Scene) -> None:
    scene.faulty_route(LATE)
    for _ in range(LATE_MAX + 1):
        scene.partition.submit(c.Tick())
    assert scene.partition.overloaded
    assert overloaded_stores
    relieved: list[str] = []
    scene.partition.when_usable(lambda: relieved.append("yes"))
    while len(scene.timers.set) > 1 and not relieved:
        scene.timers.fire()
        if scene.timers.set[-1][0] == 0:
            scene.timers.set.pop()[1]()
    assert relieved == ["yes"]
    assert not scene.partition.overloaded


def test_a_change_of_the_entity_reaches_the_partition_when_it_is_healed(scene: Scene) -> None:
    faulty_route = scene.faulty_route(FAILS)
    scene.partition.used = False
    faulty_route.begin(NO_EFFECT, "")
    faulty_route.end()
    assert scene.store.log == [c.Inspect(0)]
    assert not scene.partition.used
