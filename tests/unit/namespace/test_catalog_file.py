"""The catalog's SQLite file: whose it is, how it is written, and what of it is refused."""

import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from partibus.errors import EntityExists, StoreUnavailable, UnusableFile
from partibus.limits import CATALOG_NUMBERS_SKIPPED
from partibus.namespace.catalog import Catalog
from partibus.namespace.catalog_database import FORMAT_VERSION
from partibus.namespace.catalog_file import FILE_NAME, CatalogFile
from partibus.namespace.entities import EntityOptions, QueueDescription
from partibus.store.acknowledged import FOLDER, AcknowledgedChanges, accept_loss
from tests.unit.namespace.catalogs import database

STORES = 16
PARTITIONED = EntityOptions(partitioned=True)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path, STORES)
    yield catalog
    catalog.close()


def test_the_files_belong_to_the_owner_only(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create(QueueDescription("q"), 0)
    files = list(tmp_path.iterdir())
    assert tmp_path / FILE_NAME in files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_writes_are_synced(catalog: Catalog) -> None:
    connection = database(catalog)
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
    newer = FORMAT_VERSION + 1
    change_file(tmp_path, f"UPDATE format SET version = {newer}")
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(
        UnusableFile, match=rf"catalog\.db: has format {newer}, .* up to format {newer - 1}\. Use the newer"
    ):
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
        catalog.create(QueueDescription(f"q{n}", EntityOptions(user_metadata="x" * 1000)), 0)
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


def test_a_catalog_that_fails_changes_nothing_and_says_that_a_retry_helps(catalog: Catalog) -> None:
    database(catalog).execute("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable, match="nothing was changed") as caught:
        catalog.create(QueueDescription("q"), 0)
    assert caught.value.retriable
    database(catalog).execute("PRAGMA query_only = OFF")
    assert catalog.create(QueueDescription("q"), 0).entity_id == 1


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


def open_recorded(data: Path) -> Catalog:
    return Catalog(data, STORES, record=AcknowledgedChanges(data))


def recorded(data: Path) -> int:
    record = AcknowledgedChanges(data)
    last, damage = record.read()
    record.close()
    assert damage is None
    return last


def create(data: Path, *names: str) -> None:
    catalog = open_recorded(data)
    for name in names:
        catalog.create(QueueDescription(name), 0)
    catalog.close()


def put_an_older_copy_back(data: Path) -> None:
    """Four queues are made, and the copy has one of them."""
    create(data, "a")
    shutil.copyfile(data / FILE_NAME, data / "copy")
    create(data, "b", "c", "d")
    shutil.copyfile(data / "copy", data / FILE_NAME)


def test_an_older_copy_is_refused_until_the_loss_is_accepted(tmp_path: Path) -> None:
    put_an_older_copy_back(tmp_path)
    before = (tmp_path / FILE_NAME).read_bytes()
    command = f"partibus cluster accept-loss catalog --data {tmp_path} --last-commit 1"
    for _ in range(2):
        with pytest.raises(
            UnusableFile, match=rf"catalog\.db: is an older copy, .* change 1, while change 4 was stored.*{command}"
        ):
            open_recorded(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == before
    with pytest.raises(ValueError, match="nothing is lost"):
        accept_loss(tmp_path, "catalog", 4)
    assert accept_loss(tmp_path, "catalog", 1) == 3
    catalog = open_recorded(tmp_path)
    assert [one.description.name for one in catalog.list_entities()] == ["a"]
    new = catalog.create(QueueDescription("e"), 0)
    assert new.entity_id == 2 + CATALOG_NUMBERS_SKIPPED
    assert new.placements[0].partition_row == 2 + CATALOG_NUMBERS_SKIPPED
    catalog.close()
    create(tmp_path, "f")
    assert recorded(tmp_path) == 4 + CATALOG_NUMBERS_SKIPPED + 2


def test_an_acceptance_covers_one_loss(tmp_path: Path) -> None:
    put_an_older_copy_back(tmp_path)
    accept_loss(tmp_path, "catalog", 1)
    create(tmp_path, "e")
    shutil.copyfile(tmp_path / "copy", tmp_path / FILE_NAME)
    with pytest.raises(UnusableFile, match="ends with change 1, while change 16389 was stored"):
        open_recorded(tmp_path)


def test_a_catalog_that_is_missing_is_an_older_copy(tmp_path: Path) -> None:
    create(tmp_path, "a", "b")
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(UnusableFile, match=r"change 0, while change 2 was stored.*--last-commit 0"):
        open_recorded(tmp_path)


def test_a_damaged_record_is_not_a_missing_one(tmp_path: Path) -> None:
    create(tmp_path, "a", "b")
    (tmp_path / FOLDER / "catalog").write_bytes(b"damaged")
    with pytest.raises(UnusableFile, match=r"may lack changes: .* is damaged .*--last-commit 2"):
        open_recorded(tmp_path)
    assert accept_loss(tmp_path, "catalog", 2) is None
    create(tmp_path, "c")
    assert recorded(tmp_path) == 2 + CATALOG_NUMBERS_SKIPPED + 1


def test_a_catalog_without_a_record_gets_one(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create(QueueDescription("a"), 0)
    catalog.close()
    open_recorded(tmp_path).close()
    assert recorded(tmp_path) == 1


def test_only_changes_are_counted(tmp_path: Path) -> None:
    catalog = open_recorded(tmp_path)
    catalog.create(QueueDescription("a"), 0)
    catalog.forget_dropped([7])
    catalog.list_entities()
    with pytest.raises(EntityExists):
        catalog.create(QueueDescription("a"), 0)
    assert recorded(tmp_path) == 1
    with catalog.together():
        catalog.create(QueueDescription("b"), 0)
        catalog.delete("a")
    assert recorded(tmp_path) == 2
    catalog.close()


def test_a_running_broker_changes_nothing_in_an_older_copy(tmp_path: Path) -> None:
    catalog = open_recorded(tmp_path)
    catalog.create(QueueDescription("a"), 0)
    catalog.create(QueueDescription("b"), 0)
    change_file(tmp_path, "PRAGMA user_version = 1")
    with pytest.raises(StoreUnavailable, match="ends with change 1, but must have change 2"):
        catalog.create(QueueDescription("c"), 0)
    change_file(tmp_path, "PRAGMA user_version = 2")
    assert catalog.create(QueueDescription("c"), 0).entity_id == 3
    catalog.close()


def test_brokers_that_share_a_catalog_never_turn_its_record_back(tmp_path: Path) -> None:
    """One is slow to record its change, and another records a later one meanwhile."""
    slow, quick = open_recorded(tmp_path), open_recorded(tmp_path)
    slow.create(QueueDescription("a"), 0)
    for name in "bc":
        quick.create(QueueDescription(name), 0)
    slow_record = AcknowledgedChanges(tmp_path)
    slow_record.read()
    slow_record.note(1)
    assert recorded(tmp_path) == 3
    assert len(slow.list_entities()) == 3
    slow.create(QueueDescription("d"), 0)
    assert recorded(tmp_path) == 4
    for one in (slow, quick, slow_record):
        one.close()


def test_a_change_that_can_not_begin_leaves_no_transaction_open(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_file: CatalogFile) -> int:
        raise StoreUnavailable("the disk is sick")

    with monkeypatch.context() as failing:
        failing.setattr(CatalogFile, "_version", fail)
        with pytest.raises(StoreUnavailable, match="sick"):
            catalog.create(QueueDescription("refused"), 0)
    catalog.create(QueueDescription("q"), 0)
    with closing(Catalog(tmp_path, STORES)) as second:
        assert [record.description.name for record in second.list_entities()] == ["q"]
