"""The catalog's SQLite file: whose it is, how it is written, and what of it is refused."""

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.errors import StoreUnavailable, UnusableFile
from partibus.namespace.catalog import Catalog
from partibus.namespace.catalog_database import FORMAT_VERSION
from partibus.namespace.catalog_file import FILE_NAME, CatalogFile
from partibus.namespace.entities import QueueDescription, QueueOptions

STORES = 16
PARTITIONED = QueueOptions(partitioned=True)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path, STORES)
    yield catalog
    catalog.close()


def database(catalog: Catalog) -> sqlite3.Connection:
    file = catalog._database
    assert isinstance(file, CatalogFile)
    return file._connection


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
