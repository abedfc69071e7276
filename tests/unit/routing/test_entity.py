"""An entity's route: turns, overload, and where receivers get their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from partibus.errors import PartibusError, StoreUnavailable
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.routing.entity import EntityRoute, inspect_all
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.slots import SlotMap
from tests.unit.routing.fakes import FakePartition, entry


def route_of(count: int, first_turn: int = 0) -> tuple[EntityRoute, list[FakePartition]]:
    partitions = [FakePartition(index) for index in range(count)]
    return EntityRoute("q", [*partitions], Numbers(), first_turn), partitions


@pytest.mark.row("K11")
def test_partitions_take_turns_from_the_first_on() -> None:
    route, _ = route_of(4, first_turn=2)
    assert [route.next_partition().partition_id for _ in range(6)] == [3, 0, 1, 2, 3, 0]


@pytest.mark.row("K12")
def test_partitions_that_are_away_have_no_turn() -> None:
    route, partitions = route_of(4)
    partitions[1].is_available = partitions[2].is_available = False
    assert [route.next_partition().partition_id for _ in range(4)] == [3, 0, 3, 0]


def test_when_all_are_away_one_is_named_all_the_same() -> None:
    route, partitions = route_of(4)
    for partition in partitions:
        partition.is_available = False
    assert route.next_partition() in partitions


def test_relief_is_told_by_a_store_that_is_overloaded() -> None:
    route, partitions = route_of(4)
    states = [route.overloaded]
    partitions[2].overload()
    states.append(route.overloaded)
    assert states == [False, True]
    told: list[int] = []
    route.when_relieved(lambda: told.append(1))
    partitions[0].recover()
    assert told == []
    partitions[2].recover()
    assert told == [1]


class TestPlain:
    """One partition: receivers ask it without a cache in between."""

    def receiver(self) -> tuple[FakePartition, list[r.Granted], list[PartibusError], object]:
        route, (partition,) = route_of(1)
        granted: list[r.Granted] = []
        failures: list[PartibusError] = []

        def on_granted(_: PartitionHandle, grant: r.Granted) -> None:
            granted.append(grant)

        source = route.source(0, delete=False, on_granted=on_granted, on_failed=failures.append)
        source.ask(3, 1_000)
        return partition, granted, failures, source

    def test_an_ask_is_a_receive(self) -> None:
        partition, granted, _, _ = self.receiver()
        (ask,) = partition.taken(c.Receive)
        assert (ask.count, ask.max_bytes, ask.delete, ask.reserve) == (3, 1_000, False, False)
        grant = r.Granted(ask.receiver, 0, 7, 60_000, [entry(1)], ended=False)
        partition.receivers[ask.receiver](grant)
        assert granted == [grant]

    def test_a_failure_names_the_entity(self) -> None:
        partition, _, failures, _ = self.receiver()
        (ask,) = partition.taken(c.Receive)
        partition.receivers[ask.receiver](r.Failed(ask.receiver, executed=False, full=False, message="sick"))
        (failure,) = failures
        assert isinstance(failure, StoreUnavailable)
        assert "'q'" in str(failure)


@pytest.mark.parametrize(
    "change",
    [lambda route: route.follow([FakePartition(2)], SlotMap(3)), lambda route: route.shrink(1)],
    ids=["grows", "shrinks"],
)
def test_counts_are_of_the_partitions_that_were_asked(change: Callable[[EntityRoute], None]) -> None:
    """The entity gets a partition, or loses one, before the others have answered."""
    route, partitions = route_of(2)
    told: list[Any] = []
    inspect_all(route, told.append, told.append)
    change(route)
    answers = [r.Inspected(0, number, 0, {}) for number in (10, 20)]
    for partition, answer in zip(reversed(partitions), reversed(answers), strict=True):
        partition.answer(answer)
    assert told == [answers]
