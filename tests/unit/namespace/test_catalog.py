"""The catalog, in a file and on a server: what it gives out, keeps, and refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partibus.errors import (
    ArgumentError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    StoreUnavailable,
    UnusableFile,
)
from partibus.namespace.catalog import Catalog
from partibus.namespace.catalog_database import CatalogDatabase
from partibus.namespace.catalog_file import CatalogFile
from partibus.namespace.entities import EntityOptions, EntityStatus, QueueDescription
from tests.contract.stores import new_catalog
from tests.unit.namespace.tiered import limited

STORES = 16
PARTITIONED = EntityOptions(partitioned=True)


Open = Callable[[], CatalogDatabase]
"""Opens the same database each time."""


@pytest.fixture(params=["file", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    opened: list[CatalogDatabase] = []
    open_one: Open = (lambda: CatalogFile(tmp_path)) if request.param == "file" else new_catalog()

    def open_and_note() -> CatalogDatabase:
        opened.append(open_one())
        return opened[-1]

    yield open_and_note
    for one in opened:
        one.close()


@pytest.fixture
def catalog(database: Open) -> Iterator[Catalog]:
    catalog = Catalog(database(), STORES)
    yield catalog
    catalog.close()


def reopened(catalog: Catalog, database: Open, store_count: int = STORES) -> Catalog:
    catalog.close()
    return Catalog(database(), store_count)


def test_an_entity_is_there_after_reopening_as_it_was_made(catalog: Catalog, database: Open) -> None:
    options = EntityOptions(
        lock_duration_ms=5_500, status=EntityStatus.SEND_DISABLED, user_metadata='"täst"', partitioned=True
    )
    made = catalog.create(QueueDescription("Orders", options), now_ms=1_000)
    catalog = reopened(catalog, database)
    assert catalog.get("orders") == made
    assert catalog.list_entities() == [made]
    assert (made.description.name, made.created_ms, made.updated_ms) == ("Orders", 1_000, 1_000)


@pytest.mark.row("P5", "P7", "P11")
def test_plain_and_partitioned_side_by_side(catalog: Catalog) -> None:
    plain = catalog.create(QueueDescription("plain"), 0)
    partitioned = catalog.create(QueueDescription("partitioned", PARTITIONED), 0)
    assert len(plain.placements) == 1
    assert [placement.partition_no for placement in partitioned.placements] == list(range(16))
    assert {placement.store_no for placement in partitioned.placements} == set(range(16))


def test_placement_goes_on_after_reopening_and_is_never_computed_again(catalog: Catalog, database: Open) -> None:
    first = [catalog.create(QueueDescription(f"q{n}"), 0) for n in range(5)]
    catalog = reopened(catalog, database, store_count=32)
    second = [catalog.create(QueueDescription(f"r{n}"), 0) for n in range(3)]
    assert [record.placements[0].store_no for record in first + second] == list(range(8))
    assert catalog.list_entities()[:5] == first


def test_ids_and_rows_are_never_given_out_again(catalog: Catalog, database: Open) -> None:
    seen_ids: set[int] = set()
    seen_rows: set[int] = set()
    for round_no in range(3):
        record = catalog.create(QueueDescription("same", PARTITIONED), 0)
        rows = {placement.partition_row for placement in record.placements}
        assert record.entity_id not in seen_ids
        assert not rows & seen_rows
        seen_ids.add(record.entity_id)
        seen_rows |= rows
        catalog.delete("same")
        if round_no == 1:
            catalog = reopened(catalog, database)
    assert len(seen_rows) == 48


def test_a_name_is_taken_whatever_its_case(catalog: Catalog) -> None:
    catalog.create(QueueDescription("Orders"), 0)
    with pytest.raises(EntityExists, match="'ORDERS' already exists"):
        catalog.create(QueueDescription("ORDERS"), 0)
    assert len(catalog.list_entities()) == 1


@pytest.mark.row("P9")
def test_partitioning_can_not_change(catalog: Catalog) -> None:
    made = catalog.create(QueueDescription("q"), 0)
    with pytest.raises(InvalidOperation, match=r"EnablePartitioning of the queue 'q' is false for life .* true"):
        catalog.update("q", PARTITIONED, 1)
    assert catalog.get("q") == made


def test_an_update_keeps_identity_and_placement(catalog: Catalog, database: Open) -> None:
    made = catalog.create(QueueDescription("q"), 10)
    updated = catalog.update("Q", EntityOptions(max_delivery_count=3), 20)
    assert (updated.entity_id, updated.placements, updated.created_ms) == (made.entity_id, made.placements, 10)
    assert (updated.description.name, updated.updated_ms) == ("q", 20)
    assert reopened(catalog, database).get("q") == updated


@pytest.mark.parametrize(
    "operation",
    [
        lambda catalog: catalog.get("missing"),
        lambda catalog: catalog.update("missing", EntityOptions(), 0),
        lambda catalog: catalog.delete("missing"),
    ],
)
def test_a_missing_entity_is_named(catalog: Catalog, operation: Callable[[Catalog], object]) -> None:
    with pytest.raises(EntityNotFound, match="'missing' could not be found"):
        operation(catalog)


def test_partitions_of_a_deleted_entity_are_remembered_until_told_gone(catalog: Catalog, database: Open) -> None:
    first = catalog.create(QueueDescription("a"), 0).placements[0]
    second = catalog.create(QueueDescription("b"), 0).placements[0]
    catalog.delete("a")
    catalog.delete("b")
    catalog = reopened(catalog, database)
    rows = [(place.partition_row, place.store_no) for place in (first, second)]
    assert catalog.dropped_partitions() == rows
    catalog.forget_dropped([first.partition_row])
    assert catalog.dropped_partitions() == rows[1:]
    assert catalog.list_entities() == []


def test_changes_together_are_all_or_none(catalog: Catalog, database: Open) -> None:
    catalog.create(QueueDescription("there"), 0)

    def create_both() -> None:
        with catalog.together():
            catalog.create(QueueDescription("new"), 0)
            catalog.create(QueueDescription("THERE"), 0)

    with pytest.raises(EntityExists):
        create_both()
    assert [record.description.name for record in catalog.list_entities()] == ["there"]
    with catalog.together():
        catalog.create(QueueDescription("new"), 0)
        catalog.delete("there")
    assert [record.description.name for record in reopened(catalog, database).list_entities()] == ["new"]


def test_more_partitions_than_stores_are_refused(database: Open) -> None:
    catalog = Catalog(database(), store_count=8)
    with pytest.raises(ArgumentError, match=r"false with 8 stores.*at least 16 stores"):
        catalog.create(QueueDescription("q", PARTITIONED), 0)
    assert catalog.list_entities() == []
    catalog.close()


@pytest.mark.row("A12")
def test_quota_of_partitioned_entities_counts_them_in_all(database: Open) -> None:
    catalog = limited(Catalog(database(), STORES), entities=3, partitioned_entities=2)
    catalog.create(QueueDescription("p1", PARTITIONED), 0)
    catalog.create(QueueDescription("p2", PARTITIONED), 0)
    with pytest.raises(QuotaExceeded, match="quota of 2 partitioned entities"):
        catalog.create(QueueDescription("p3", PARTITIONED), 0)
    catalog.create(QueueDescription("plain"), 0)
    with pytest.raises(QuotaExceeded, match="quota of 3 entities"):
        catalog.create(QueueDescription("plain2"), 0)
    catalog.close()


def test_partition_rows_end_where_the_keys_of_the_stores_end(database: Open) -> None:
    catalog = Catalog(database(), STORES, partition_row_max=16)
    catalog.create(QueueDescription("q"), 0)
    with pytest.raises(QuotaExceeded, match="partitions made over its life"):
        catalog.create(QueueDescription("p", PARTITIONED), 0)
    catalog.create(QueueDescription("r"), 0)
    catalog.close()


def test_a_bad_name_is_refused(catalog: Catalog) -> None:
    with pytest.raises(ArgumentError, match="reserved"):
        catalog.create(QueueDescription("a/$management"), 0)


def test_fewer_stores_than_are_in_use_are_refused(catalog: Catalog, database: Open) -> None:
    catalog.create(QueueDescription("q", PARTITIONED), 0)
    catalog.close()
    with pytest.raises(UnusableFile, match=r"in store 15, but there are only 4 stores\. Serve with at least 16 stores"):
        Catalog(database(), 4)


def test_readers_beside_a_change_see_the_catalog_of_one_moment(catalog: Catalog, database: Open) -> None:
    catalog.create(QueueDescription("first", PARTITIONED), 0)
    other = Catalog(database(), STORES)
    with catalog.together():
        catalog.create(QueueDescription("second", PARTITIONED), 0)
        assert [record.description.name for record in other.list_entities()] == ["first"]
    assert [record.description.name for record in other.list_entities()] == ["first", "second"]
    other.close()


def test_a_closed_catalog_says_so_and_closing_twice_is_harmless(catalog: Catalog) -> None:
    catalog.close()
    catalog.close()
    with pytest.raises(StoreUnavailable):
        catalog.list_entities()
