"""Which partitions a fault is injected into, and how several are one effect."""

from __future__ import annotations

import pytest

from partibus.errors import ArgumentError
from partibus.partition.protocol import commands as c
from partibus.partition.protocol.options import PartitionOptions
from partibus.routing.fault_injections import Effect, FaultInjections, Place, from_plain, to_plain
from partibus.routing.partitions import PartitionHandle
from tests.unit.routing.test_faulty_route import FakeStore, Timers

FAILS = Effect(fails=True)
STORES = ["store-00", "store-01"]


def place(row: int, store: str = "store-00", entity: str = "Orders") -> Place:
    return Place(entity, store, PartitionHandle(row - 1, row, FakeStore(), PartitionOptions(), batched=False))


def away(places: list[Place]) -> list[int]:
    return [one.partition.row for one in places if not one.partition.available]


@pytest.fixture
def places() -> list[Place]:
    return [place(1), place(2, "store-01"), place(3, entity="other"), place(4, "store-01", entity="other")]


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def fault_injections(places: list[Place], timers: Timers) -> FaultInjections:
    fault_injections = FaultInjections(STORES, timers)
    fault_injections.places.append(lambda: places)
    return fault_injections


def test_a_store_is_rehearsed_with_everything_in_it(fault_injections: FaultInjections, places: list[Place]) -> None:
    fault_injections.inject_store_fault("store-01", FAILS)
    assert away(places) == [2, 4]
    assert (fault_injections.fails("store-01"), fault_injections.fails("store-00")) == (True, False)
    assert fault_injections.heal_store("store-01") == 1
    assert away(places) == []
    assert fault_injections.heal_store("store-01") == 0


def test_partitions_that_come_into_use_later_are_in_it(fault_injections: FaultInjections) -> None:
    fault_injections.inject_store_fault("store-01", FAILS)
    later = [place(5), place(6, "store-01")]
    fault_injections.join(later)
    assert away(later) == [6]
    fault_injections.heal_all()
    assert away(later) == []


def test_partitions_are_healed_by_their_entity_whatever_its_case(
    fault_injections: FaultInjections, places: list[Place]
) -> None:
    fault_injections.inject_partition_faults(places, FAILS)
    assert fault_injections.heal_partitions("ORDERS", [1]) == 1
    assert away(places) == [1, 3, 4]
    assert fault_injections.heal_partitions("orders", []) == 1
    assert away(places) == [3, 4]


def test_a_deleted_entity_can_be_healed(fault_injections: FaultInjections, places: list[Place]) -> None:
    fault_injections.inject_partition_faults(places[:1], FAILS)
    deleted = places.pop(0)
    assert not deleted.partition.available
    assert fault_injections.heal_partitions("orders", []) == 1
    assert deleted.partition.available


def test_failure_counts_more_than_delay_and_the_longest_delay_most(
    fault_injections: FaultInjections, places: list[Place], timers: Timers
) -> None:
    def delays() -> list[float]:
        """Return the delays of a request to the first partition, and of one to the second."""
        timers.set.clear()
        for request, one in enumerate(places[:2]):
            one.partition.submit(c.TakeNumbers(request, 1), lambda _: None)
        return [delay_ms for delay_ms, _ in timers.set]

    fault_injections.inject_partition_faults(places[:1], Effect(delay_ms=20))
    fault_injections.inject_store_fault("store-00", FAILS)
    assert away(places) == [1, 3]
    fault_injections.inject_store_fault("store-00", Effect(delay_ms=700))
    assert away(places) == []
    assert delays() == [700]
    fault_injections.heal_store("store-00")
    assert delays() == [20]


def test_another_broker_follows(fault_injections: FaultInjections, places: list[Place]) -> None:
    told: list[list[dict[str, object]]] = []
    fault_injections.on_changed = lambda rules: told.append(to_plain(rules))
    fault_injections.inject_store_fault("store-01", Effect(delay_ms=3))
    fault_injections.inject_partition_faults(places[2:3], FAILS)
    other_places = [place(row, one.store, one.entity) for row, one in enumerate(places, 1)]
    other = FaultInjections(STORES, Timers())
    other.places.append(lambda: other_places)
    other.follow(from_plain(told[-1]))
    assert other.all() == fault_injections.all()
    assert away(other_places) == [3]
    fault_injections.heal_all()
    other.follow(from_plain(told[-1]))
    assert away(other_places) == []


def test_an_unknown_store_is_refused(fault_injections: FaultInjections) -> None:
    with pytest.raises(ArgumentError, match="store-00, store-01"):
        fault_injections.inject_store_fault("store-02", FAILS)
    with pytest.raises(ArgumentError):
        fault_injections.heal_store("")
