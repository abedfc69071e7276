"""The catalog on its SQLite file: what it gives out, keeps, and refuses."""

import sqlite3
import stat
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
from partibus.namespace.catalog import Catalog, CatalogLimits
from partibus.namespace.catalog_file import FILE_NAME
from partibus.namespace.entities import EntityStatus, QueueDescription, QueueOptions

STORES = 16
PARTITIONED = QueueOptions(partitioned=True)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path, STORES)
    yield catalog
    catalog.close()


def reopened(catalog: Catalog, tmp_path: Path, store_count: int = STORES) -> Catalog:
    catalog.close()
    return Catalog(tmp_path, store_count)


def test_an_entity_is_there_after_reopening_as_it_was_made(catalog: Catalog, tmp_path: Path) -> None:
    options = QueueOptions(
        lock_duration_ms=5_500, status=EntityStatus.SEND_DISABLED, user_metadata='"täst"', partitioned=True
    )
    made = catalog.create(QueueDescription("Orders", options), now_ms=1_000)
    catalog = reopened(catalog, tmp_path)
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


def test_placement_goes_on_after_reopening_and_is_never_computed_again(catalog: Catalog, tmp_path: Path) -> None:
    first = [catalog.create(QueueDescription(f"q{n}"), 0) for n in range(5)]
    catalog = reopened(catalog, tmp_path, store_count=32)
    second = [catalog.create(QueueDescription(f"r{n}"), 0) for n in range(3)]
    assert [record.placements[0].store_no for record in first + second] == list(range(8))
    assert catalog.list_entities()[:5] == first


def test_ids_and_rows_are_never_given_out_again(catalog: Catalog, tmp_path: Path) -> None:
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
            catalog = reopened(catalog, tmp_path)
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


def test_an_update_keeps_identity_and_placement(catalog: Catalog, tmp_path: Path) -> None:
    made = catalog.create(QueueDescription("q"), 10)
    updated = catalog.update("Q", QueueOptions(max_delivery_count=3), 20)
    assert (updated.entity_id, updated.placements, updated.created_ms) == (made.entity_id, made.placements, 10)
    assert (updated.description.name, updated.updated_ms) == ("q", 20)
    assert reopened(catalog, tmp_path).get("q") == updated


@pytest.mark.parametrize(
    "operation",
    [
        lambda catalog: catalog.get("missing"),
        lambda catalog: catalog.update("missing", QueueOptions(), 0),
        lambda catalog: catalog.delete("missing"),
    ],
)
def test_a_missing_entity_is_named(catalog: Catalog, operation: Callable[[Catalog], object]) -> None:
    with pytest.raises(EntityNotFound, match="'missing' could not be found"):
        operation(catalog)


def test_partitions_of_a_deleted_entity_are_remembered_until_told_gone(catalog: Catalog, tmp_path: Path) -> None:
    first = catalog.create(QueueDescription("a"), 0).placements[0]
    second = catalog.create(QueueDescription("b"), 0).placements[0]
    catalog.delete("a")
    catalog.delete("b")
    catalog = reopened(catalog, tmp_path)
    rows = [(place.partition_row, place.store_no) for place in (first, second)]
    assert catalog.dropped_partitions() == rows
    catalog.forget_dropped([first.partition_row])
    assert catalog.dropped_partitions() == rows[1:]
    assert catalog.list_entities() == []


def test_changes_together_are_all_or_none(catalog: Catalog, tmp_path: Path) -> None:
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
    assert [record.description.name for record in reopened(catalog, tmp_path).list_entities()] == ["new"]


def test_more_partitions_than_stores_are_refused(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, store_count=8)
    with pytest.raises(ArgumentError, match=r"false with 8 stores.*at least 16 stores"):
        catalog.create(QueueDescription("q", PARTITIONED), 0)
    assert catalog.list_entities() == []
    catalog.close()


@pytest.mark.row("A12")
def test_quota_of_partitioned_entities_counts_them_in_all(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, STORES, CatalogLimits(entity_max=3, partitioned_max=2))
    catalog.create(QueueDescription("p1", PARTITIONED), 0)
    catalog.create(QueueDescription("p2", PARTITIONED), 0)
    with pytest.raises(QuotaExceeded, match="quota of 2 partitioned entities"):
        catalog.create(QueueDescription("p3", PARTITIONED), 0)
    catalog.create(QueueDescription("plain"), 0)
    with pytest.raises(QuotaExceeded, match="quota of 3 entities"):
        catalog.create(QueueDescription("plain2"), 0)
    assert CatalogLimits() == CatalogLimits(entity_max=10_000, partitioned_max=100)
    catalog.close()


def test_partition_rows_end_where_the_keys_of_the_stores_end(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, STORES, CatalogLimits(partition_row_max=16))
    catalog.create(QueueDescription("q"), 0)
    with pytest.raises(QuotaExceeded, match="partitions made over its life"):
        catalog.create(QueueDescription("p", PARTITIONED), 0)
    catalog.create(QueueDescription("r"), 0)
    catalog.close()


def test_a_bad_name_is_refused(catalog: Catalog) -> None:
    with pytest.raises(ArgumentError, match="reserved"):
        catalog.create(QueueDescription("a/$management"), 0)


def test_the_files_belong_to_the_owner_only(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create(QueueDescription("q"), 0)
    files = list(tmp_path.iterdir())
    assert tmp_path / FILE_NAME in files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_writes_are_synced(catalog: Catalog) -> None:
    connection = catalog._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_an_interrupted_first_start_is_made_good(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    catalog = Catalog(tmp_path, STORES)
    assert catalog.list_entities() == []
    catalog.close()


def test_a_newer_format_is_refused_and_left_as_it_was(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create(QueueDescription("q"), 0)
    catalog.close()
    change_file(tmp_path, "UPDATE format SET version = 2")
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(UnusableFile, match=r"catalog\.db: has format 2, .* up to format 1\. Use the newer version"):
        Catalog(tmp_path, STORES)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_another_database_is_refused(tmp_path: Path) -> None:
    change_file(tmp_path, "CREATE TABLE format (a)")
    with pytest.raises(UnusableFile, match="no catalog of partibus"):
        Catalog(tmp_path, STORES)


def test_what_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database, " * 1000)
    with pytest.raises(UnusableFile, match=r"catalog\.db: is corrupt .* backup"):
        Catalog(tmp_path, STORES)
    assert (tmp_path / FILE_NAME).read_bytes() == b"not a database, " * 1000


def test_a_damaged_page_is_found_at_the_start(catalog: Catalog, tmp_path: Path) -> None:
    for n in range(50):
        catalog.create(QueueDescription(f"q{n}", QueueOptions(user_metadata="x" * 1000)), 0)
    catalog.close()
    file = tmp_path / FILE_NAME
    content = bytearray(file.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    file.write_bytes(content)
    with pytest.raises(UnusableFile, match="is corrupt"):
        Catalog(tmp_path, STORES)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM placement WHERE partition_no = 3", "with 15 of its 16 partitions"),
        ("UPDATE entity SET properties = '{'", "with properties that can't be read"),
        ("""UPDATE entity SET properties = '{"LockDuration": 1}'""", "with properties that can't be read"),
        ("UPDATE entity SET properties = '[]'", "with properties that can't be read"),
    ],
)
def test_a_damaged_row_is_named(catalog: Catalog, tmp_path: Path, statement: str, what: str) -> None:
    catalog.create(QueueDescription("q", PARTITIONED), 0)
    catalog.close()
    change_file(tmp_path, statement)
    catalog = Catalog(tmp_path, STORES)
    with pytest.raises(UnusableFile, match=rf"catalog\.db: has the entity 'q' {what}.*backup"):
        catalog.list_entities()
    catalog.close()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=r"nowhere/catalog\.db: can't be made"):
        Catalog(tmp_path / "nowhere", STORES)


def test_fewer_stores_than_are_in_use_are_refused(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create(QueueDescription("q", PARTITIONED), 0)
    catalog.close()
    with pytest.raises(UnusableFile, match=r"in store 15, but there are only 4 stores\. Serve with at least 16 stores"):
        Catalog(tmp_path, 4)


def test_a_catalog_that_fails_changes_nothing_and_says_that_a_retry_helps(catalog: Catalog) -> None:
    catalog._database.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable, match="nothing was changed") as caught:
        catalog.create(QueueDescription("q"), 0)
    assert caught.value.retriable
    catalog._database.execute("PRAGMA query_only = OFF")
    assert catalog.create(QueueDescription("q"), 0).entity_id == 1


def test_closing_twice_is_harmless(catalog: Catalog) -> None:
    catalog.close()
    catalog.close()
    with pytest.raises(StoreUnavailable):
        catalog.list_entities()


def change_file(tmp_path: Path, statement: str) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.row("A2")
def test_nothing_is_made_when_too_many_stores_are_away(catalog: Catalog) -> None:
    with pytest.raises(StoreUnavailable, match="of 16 stores 1 can't be used"):
        catalog.create(QueueDescription("q", PARTITIONED), 0, away=frozenset({3}))
    assert catalog.list_entities() == []
    assert catalog.create(QueueDescription("q"), 0, away=frozenset({0, 1})).placements[0].store_no == 2
    assert len(catalog.create(QueueDescription("p", PARTITIONED), 0).placements) == STORES
