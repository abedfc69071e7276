"""A supervised broker that deletes idle queues: what it has to know of the others before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from partibus.clock import ManualClock
from partibus.cluster.control import ControlChannel
from partibus.cluster.ownership import Identity
from partibus.namespace.catalog import Catalog
from partibus.node.node import Broker
from partibus.node.settings import Ports, Settings
from partibus.node.supervised import Supervised
from tests.unit.cluster.loops import on_loop


class World:
    """A leading broker of a supervisor, and its knowledge of idle queues."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.moves: list[tuple[int, list[int] | None]] = []
        self.answer: list[int] | None = []
        data.mkdir()
        settings = Settings(data=data, amqp_port=0, http_port=0)
        loop, clock, catalog = asyncio.get_running_loop(), ManualClock(1_000), Catalog(data, 1)
        us = Identity("broker-0", "1")
        self.broker = Broker(us, settings, loop, clock, [], catalog, self._coordinate, lambda: None)
        self.broker.lead(True)
        monkeypatch.setattr(self.broker.front.idle, "begin", self.begin)
        monkeypatch.setattr(self.broker.front.hand, "move_to", self.move_to)

    def _coordinate(self, broker: Broker) -> Supervised:
        self.coordinator = Supervised(broker, cast(ControlChannel, self), Ports(0, 0, None, None, 0, None))
        return self.coordinator

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
        body = {"version": 1, "owners": [], "leader": "broker-0", "present": present}
        await self.coordinator.handle("owners", body)


@pytest.mark.parametrize(("seen", "begun"), [(["1", "1"], 0), (["1", ""], 1), (["1", "2"], 1), (["", "1"], 0)])
@on_loop
async def test_the_end_of_a_run_of_a_broker_counts_as_use_of_everything(
    seen: list[str], begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data", monkeypatch)
    for runs in seen:
        await world.see(runs)
    assert world.begun == begun


@on_loop
async def test_while_a_broker_does_not_tell_its_use_everything_counts_as_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data", monkeypatch)
    assert await world.coordinator.used() == []
    world.answer = None
    assert await world.coordinator.used(surely=True) is None
    assert world.begun == 1


@on_loop
async def test_a_manual_clock_deletes_nothing_while_a_broker_does_not_tell_its_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data", monkeypatch)
    await world.coordinator.handle("advance", {"now_ms": 5, "used": [7]})
    assert (world.moves, world.begun) == ([(5, [7])], 0)
    await world.coordinator.handle("advance", {"now_ms": 9, "used": None})
    assert (world.moves, world.begun) == ([(5, [7]), (9, None)], 1)
