"""Waiting for messages: who is told when, and how often partitions are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partibus.partition.protocol.commands import Inspect
from partibus.partition.protocol.replies import Failed, Inspected, SubqueueInfo
from partibus.routing.arrivals import IDLE_MS, LOOKS_PER_S, Arrivals
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import Numbers
from partibus.routing.slots import SlotMap
from tests.kit.simulated_host import Timeline


class Partition:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.end = 1
        self.asked = 0
        self.fails = False
        self.revised: object = None

    def revision(self) -> object:
        return self.revised

    def submit(self, command: Inspect, on_reply: Callable[[Any], None]) -> None:
        self.asked += 1
        if self.fails:
            on_reply(Failed(command.request, False, False, "away"))
        else:
            on_reply(Inspected(command.request, self.end, 1, {0: SubqueueInfo(0, 0, 0)}))


class World:
    def __init__(self, count: int = 2) -> None:
        self.timeline = Timeline(0.0)
        self.arrivals = Arrivals(self.timeline.call_later)
        self.partitions, self.route = self.entity(count)
        self.answers: list[Any] = []

    @staticmethod
    def entity(count: int) -> tuple[list[Partition], EntityRoute]:
        partitions: Any = [Partition() for _ in range(count)]
        return partitions, EntityRoute("q", partitions, Numbers(), 0)

    def wait(self, timeout_ms: float = 10_000, positions: dict[int, int] | None = None) -> None:
        self.arrivals.wait(self.route, 0, positions or {}, timeout_ms, self.answers.append)

    def pass_time(self, ms: float) -> None:
        end_ms = self.timeline.time_ms + ms
        self.timeline.call_later(ms, lambda: None)
        while self.timeline.time_ms < end_ms:
            self.timeline.run_next()


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_new_is_told_at_once(world: World) -> None:
    world.partitions[1].end = 6
    world.wait(positions={1: 5})
    assert [one.end_pos for one in world.answers[0]] == [1, 6]
    assert world.arrivals.partitions == 0


def test_what_comes_is_told_soon(world: World) -> None:
    world.wait()
    world.pass_time(1_000)
    assert world.answers == []
    world.partitions[0].end = 2
    world.pass_time(IDLE_MS)
    (found,) = world.answers
    assert found[0].end_pos == 2
    asked = world.partitions[0].asked
    world.pass_time(5_000)
    assert world.partitions[0].asked == asked, "nobody waits any more"


def test_each_is_told_when_its_own_positions_are_passed(world: World) -> None:
    world.wait(positions={0: 1})
    world.wait(positions={0: 5})
    world.partitions[0].end = 3
    world.pass_time(500)
    assert len(world.answers) == 1
    world.partitions[0].end = 6
    world.pass_time(500)
    assert len(world.answers) == 2


def test_in_the_end_the_last_look_is_the_answer(world: World) -> None:
    world.wait(300)
    world.pass_time(299)
    assert world.answers == []
    world.pass_time(2)
    assert [one.end_pos for one in world.answers[0]] == [1, 1]


def test_no_time_is_an_answer_at_once(world: World) -> None:
    world.wait(0)
    assert len(world.answers) == 1


def test_a_partition_that_fails_is_told_to_all(world: World) -> None:
    world.wait()
    world.wait()
    world.partitions[1].fails = True
    world.pass_time(500)
    assert [type(answer) for answer in world.answers] == [Failed, Failed]


def test_many_cost_no_more_than_one(world: World) -> None:
    for _ in range(50):
        world.wait()
    before = world.partitions[0].asked
    world.pass_time(5_000)
    assert world.partitions[0].asked - before <= 5_000 / IDLE_MS + 10


def test_nobody_is_asked_while_nothing_is_stored(world: World) -> None:
    for partition in world.partitions:
        partition.revised = "as before"
    world.wait()
    world.pass_time(1_000)
    asked = world.partitions[0].asked
    world.pass_time(5_000)
    assert world.partitions[0].asked == asked
    world.partitions[1].revised = "anew"
    world.partitions[1].end = 2
    world.pass_time(IDLE_MS)
    assert len(world.answers) == 1


def test_a_new_one_is_looked_for_whatever_others_were_told(world: World) -> None:
    for partition in world.partitions:
        partition.revised = "as before"
    world.wait(positions={0: 100})
    world.pass_time(1_000)
    world.wait(positions={0: 1})
    world.partitions[0].end = 2  # stored before that look, and told to nobody
    world.pass_time(IDLE_MS)
    assert len(world.answers) == 1


def test_all_entities_share_the_rate() -> None:
    world = World()
    entities = [world.entity(16) for _ in range(100)]
    for _, route in entities:
        world.arrivals.wait(route, 0, {}, 20_000, world.answers.append)
    world.pass_time(2_000)
    before = sum(partition.asked for partitions, _ in entities for partition in partitions)
    world.pass_time(4_000)
    asked = sum(partition.asked for partitions, _ in entities for partition in partitions) - before
    assert 0.8 * LOOKS_PER_S * 4 < asked <= 1.1 * LOOKS_PER_S * 4


def test_partitions_that_are_added_or_removed_meanwhile_leave_no_trace_in_the_budget(world: World) -> None:
    world.wait(timeout_ms=500)
    others, _ = world.entity(3)
    partitions: Any = others
    world.route.follow(partitions, SlotMap(5))
    world.pass_time(1_000)
    assert world.arrivals.partitions == 0
    world.wait(timeout_ms=500)
    world.route.shrink(1)
    world.pass_time(1_000)
    assert world.arrivals.partitions == 0
