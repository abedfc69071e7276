"""A broker of several machines that deletes idle queues: what it has to know of the others before."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from partibus.cluster.assignment import Member
from partibus.cluster.membership import MemberInfo
from partibus.cluster.ownership import Identity
from partibus.node.clustered import Clustered
from partibus.node.front import Front
from tests.unit.cluster.loops import on_loop


class World:
    """A leading broker, its membership, and its knowledge of idle queues."""

    def __init__(self) -> None:
        self.absences = 0
        self.have_reported = True
        self.waits = 0
        self.begun = 0
        self.units = SimpleNamespace(leads=True, follow=lambda *_: None)
        self.coordinator = Clustered.__new__(Clustered)
        front = SimpleNamespace(units=self.units, idle=self, hear=lambda _: None)
        self.coordinator._broker = SimpleNamespace(front=front)  # type: ignore[assignment]
        self.coordinator._membership = self  # type: ignore[assignment]
        self.coordinator._absences = 0
        self.coordinator._us = Identity("a", "1")
        self.coordinator._brokers = ()
        self.coordinator._late = set()
        self.coordinator._reconcile = lambda: None  # type: ignore[method-assign]
        self.noted: list[list[int]] = []
        self.checked: list[list[int]] = []

    async def all_report(self) -> bool:
        self.waits += 1
        return self.have_reported

    async def take_used(self) -> list[int]:
        return [self.waits]

    def begin(self) -> None:
        self.begun += 1

    def note(self, used: Iterable[int]) -> list[str]:
        self.noted.append(list(used))
        return ["idle"] if len(self.noted) > 1 else []

    def watch(self, over: list[str]) -> None:
        assert over == ["idle"]

    def check(self, most: int, used: Iterable[int]) -> None:
        self.checked.append(list(used))

    async def look(self) -> None:
        """Let the front end look for idle queues."""
        front: Any = Front.__new__(Front)
        works: list[Coroutine[Any, Any, object]] = []
        front.namespaces, front.idle, front._coordinator, front.spawn = [], self, self.coordinator, works.append
        front._loop = SimpleNamespace(call_later=lambda *_: None)
        front._check_idle()
        await asyncio.gather(*works)


@on_loop
async def test_nothing_is_deleted_before_all_brokers_have_reported_their_use() -> None:
    world = World()
    await world.look()
    assert (world.noted, world.checked, world.waits) == ([[0]], [], 0), "nothing seems to be idle"
    await world.look()
    assert (world.noted, world.checked, world.waits) == ([[0], [0]], [[1]], 1)
    world.have_reported = False
    await world.look()
    assert (world.waits, world.checked) == (2, [[1]]), "a broker is silent"


@on_loop
async def test_who_leads_no_longer_after_the_wait_deletes_nothing() -> None:
    world = World()

    async def lose_the_lead() -> bool:
        world.units.leads = False
        return True

    world.all_report = lose_the_lead  # type: ignore[method-assign]
    assert await world.coordinator.used(surely=True) is None


@on_loop
async def test_after_an_absence_everything_counts_as_used_once() -> None:
    world = World()
    world.absences = 2
    for _ in range(2):
        await world.coordinator.used()
    assert world.begun == 1


@pytest.mark.parametrize(("runs", "begun"), [("11", 0), ("12", 1), ("1-", 0), ("-1", 0)])
def test_another_run_of_a_broker_counts_as_use_of_everything(runs: str, begun: int) -> None:
    world = World()
    for run in runs:
        owners = [Identity("a", "1"), *([Identity("b", run)] if run != "-" else [])]
        infos = [MemberInfo(Member(owner, True, False, {}), "", 0, {}, is_late=False) for owner in owners]
        world.coordinator.seen(infos)
    assert world.begun == begun
