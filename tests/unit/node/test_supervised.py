"""A supervised broker that deletes idle queues: what it has to know of the others before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from partibus.cluster.ownership import Identity
from partibus.node.supervised import Supervised
from tests.unit.cluster.loops import on_loop


class World:
    """A leading broker of a supervisor, and its knowledge of idle queues."""

    def __init__(self) -> None:
        self.begun = 0
        self.moves: list[tuple[int, list[int] | None]] = []
        self.answer: list[int] | None = []
        self.coordinator = Supervised.__new__(Supervised)
        units = SimpleNamespace(leads=True, follow=lambda *_: None)
        front = SimpleNamespace(units=units, idle=self, hand=self)
        self.coordinator._broker = SimpleNamespace(  # type: ignore[assignment]
            front=front,
            us=Identity("broker-0", "1"),
            lead=lambda _: None,
            settings=SimpleNamespace(brokers_most=2),
        )
        self.coordinator._channel = self  # type: ignore[assignment]
        self.coordinator._present = frozenset()
        self.coordinator.stores = SimpleNamespace(follow=lambda *_: None)  # type: ignore[assignment]

    async def ask(self, op: str) -> dict[str, Any]:
        assert op == "used"
        return {"entities": self.answer}

    async def move_to(self, now_ms: int, used: list[int] | None) -> None:
        self.moves.append((now_ms, used))

    def begin(self) -> None:
        self.begun += 1

    async def see(self, runs: str) -> None:
        """Hear from the supervisor that these runs of the other broker, of one character each, are present."""
        present = [("broker-0", "1"), *(("broker-1", run) for run in runs)]
        body = {"version": 1, "owners": [None], "leader": "broker-0", "present": present}
        await self.coordinator.handle("owners", body)


@pytest.mark.parametrize(("seen", "begun"), [(["1", "1"], 0), (["1", ""], 1), (["1", "2"], 1), (["", "1"], 0)])
@on_loop
async def test_the_end_of_a_run_of_a_broker_counts_as_use_of_everything(seen: list[str], begun: int) -> None:
    world = World()
    for runs in seen:
        await world.see(runs)
    assert world.begun == begun


@on_loop
async def test_while_a_broker_does_not_tell_its_use_everything_counts_as_used() -> None:
    world = World()
    assert await world.coordinator.used() == []
    world.answer = None
    assert await world.coordinator.used(surely=True) is None
    assert world.begun == 1


@on_loop
async def test_a_manual_clock_deletes_nothing_while_a_broker_does_not_tell_its_use() -> None:
    world = World()
    await world.coordinator.handle("advance", {"now_ms": 5, "used": [7]})
    assert (world.moves, world.begun) == ([(5, [7])], 0)
    await world.coordinator.handle("advance", {"now_ms": 9, "used": None})
    assert (world.moves, world.begun) == ([(5, [7]), (9, None)], 1)
