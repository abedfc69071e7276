"""The throughput of a partitioned entity is that of its stores together (row P2), in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partibus.routing.send import send
from tests.unit.frontends.harness import World
from tests.unit.routing.fakes import message

if TYPE_CHECKING:
    from pathlib import Path

RUNS = 800
MESSAGE_MS = 1.0
"""A store needs so long for each message of a commit, and does one commit at a time."""


def sent_in_ms(world: World, queue: str) -> float:
    """Send runs of one message each, all under way at once; returns how long the stores took in simulated ms."""
    for servant in world.stores:
        servant.message_ms = MESSAGE_MS
    route = world.broker.entity(queue).route
    answers: list[object] = []
    begun_ms = world.timeline.time_ms
    for _ in range(RUNS):
        send(route, [[message()]], answers.append)
    while len(answers) < RUNS:
        world.timeline.run_next()
    assert answers == [None] * RUNS
    return world.timeline.time_ms - begun_ms


@pytest.mark.row("P2")
def test_sixteen_stores_take_a_tenth_of_the_time_of_one(tmp_path: Path) -> None:
    times = []
    for partitioned in (False, True):
        (folder := tmp_path / str(partitioned)).mkdir()
        world = World(folder)
        queue = world.queue("q", EnablePartitioning=partitioned)
        times.append(sent_in_ms(world, queue))
    plain_ms, partitioned_ms = times
    assert plain_ms >= RUNS * MESSAGE_MS
    assert partitioned_ms <= plain_ms / 10
