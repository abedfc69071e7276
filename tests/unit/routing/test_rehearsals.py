"""Which partitions a rehearsal is for, and how several are one effect."""

from __future__ import annotations

import pytest

from partibus.errors import ArgumentError
from partibus.partition.protocol.options import PartitionOptions
from partibus.routing.detour import NO_EFFECT, Effect
from partibus.routing.partitions import PartitionHandle
from partibus.routing.rehearsals import Place, Rehearsals, from_plain, to_plain
from tests.unit.routing.test_detour import FakeStore, Timers

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
def rehearsals(places: list[Place]) -> Rehearsals:
    rehearsals = Rehearsals(STORES, Timers())
    rehearsals.places.append(lambda: places)
    return rehearsals


def test_a_store_is_rehearsed_with_everything_in_it(rehearsals: Rehearsals, places: list[Place]) -> None:
    rehearsals.rehearse_store("store-01", FAILS)
    assert away(places) == [2, 4]
    assert (rehearsals.fails("store-01"), rehearsals.fails("store-00")) == (True, False)
    assert rehearsals.heal_store("store-01") == 1
    assert away(places) == []
    assert rehearsals.heal_store("store-01") == 0


def test_partitions_that_come_into_use_later_are_in_it(rehearsals: Rehearsals) -> None:
    rehearsals.rehearse_store("store-01", FAILS)
    later = [place(5), place(6, "store-01")]
    rehearsals.join(later)
    assert away(later) == [6]
    rehearsals.heal_all()
    assert away(later) == []


def test_partitions_are_healed_by_their_entity_whatever_its_case(rehearsals: Rehearsals, places: list[Place]) -> None:
    rehearsals.rehearse_partitions(places, FAILS)
    assert rehearsals.heal_partitions("ORDERS", [1]) == 1
    assert away(places) == [1, 3, 4]
    assert rehearsals.heal_partitions("orders", []) == 1
    assert away(places) == [3, 4]


def test_a_deleted_entity_can_be_healed(rehearsals: Rehearsals, places: list[Place]) -> None:
    rehearsals.rehearse_partitions(places[:1], FAILS)
    deleted = places.pop(0)
    assert not deleted.partition.available
    assert rehearsals.heal_partitions("orders", []) == 1
    assert deleted.partition.available


def test_failure_counts_more_than_delay_and_the_longest_delay_most(rehearsals: Rehearsals, places: list[Place]) -> None:
    rehearsals.rehearse_partitions(places[:1], Effect(delay_ms=20))
    rehearsals.rehearse_store("store-00", FAILS)
    assert away(places) == [1, 3]
    rehearsals.rehearse_store("store-00", Effect(delay_ms=700))
    assert away(places) == []
    assert rehearsals._effect_on(places[0]) == Effect(delay_ms=700)
    rehearsals.heal_store("store-00")
    assert [rehearsals._effect_on(one) for one in places[:2]] == [Effect(delay_ms=20), NO_EFFECT]


def test_another_broker_follows(rehearsals: Rehearsals, places: list[Place]) -> None:
    told: list[list[dict[str, object]]] = []
    rehearsals.on_changed = lambda rules: told.append(to_plain(rules))
    rehearsals.rehearse_store("store-01", Effect(delay_ms=3))
    rehearsals.rehearse_partitions(places[2:3], FAILS)
    other_places = [place(row, one.store, one.entity) for row, one in enumerate(places, 1)]
    other = Rehearsals(STORES, Timers())
    other.places.append(lambda: other_places)
    other.follow(from_plain(told[-1]))
    assert other.all() == rehearsals.all()
    assert away(other_places) == [3]
    rehearsals.heal_all()
    other.follow(from_plain(told[-1]))
    assert away(other_places) == []


def test_an_unknown_store_is_refused(rehearsals: Rehearsals) -> None:
    with pytest.raises(ArgumentError, match="store-00, store-01"):
        rehearsals.rehearse_store("store-02", FAILS)
    with pytest.raises(ArgumentError):
        rehearsals.heal_store("")
