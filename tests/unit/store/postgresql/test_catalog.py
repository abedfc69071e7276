"""The catalog's schema on a server: what is refused at the start, and what its outage means."""

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from partibus.errors import OutcomeUnknown, StoreUnavailable, UnusableFile
from partibus.limits import CATALOG_NUMBERS_SKIPPED
from partibus.namespace.catalog_database import FORMAT_VERSION, schema_steps
from partibus.store.acknowledged import FOLDER, AcknowledgedCommits, accept_loss
from partibus.store.postgresql.catalog import (
    SCHEMA_DEFAULT,
    CatalogSchema,
    check_changes,
    prepare_catalog,
)
from partibus.store.postgresql.connection import Address, TimedConnection, parse_address
from partibus.store.postgresql.registry import Registry, Version
from tests.contract.stores import new_address
from tests.kit.postgresql_server import PostgreSQLServer, shared_server


def prepare(address: Address) -> None:
    prepare_catalog(address, FORMAT_VERSION, partial(schema_steps, "postgresql"))


@pytest.fixture
def address() -> Address:
    address = new_address()
    prepare(address)
    return address


@pytest.fixture
def catalog(address: Address) -> Iterator[CatalogSchema]:
    catalog = CatalogSchema(address, "a test")
    yield catalog
    catalog.close()


def change(address: Address, statement: str) -> None:
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path = {address.schema}".encode())
        connection.execute(statement.encode())


def refusal(url: str) -> str:
    (address,) = parse_address(url, SCHEMA_DEFAULT)
    with pytest.raises(UnusableFile) as caught:
        prepare(address)
    return str(caught.value)


def test_refused_with_the_reason_and_what_to_do() -> None:
    server = shared_server()
    assert "correct user and password" in refusal(server.url(password="not-the-password"))
    assert "make the database (createdb)" in refusal(server.url("nowhere"))
    assert "see that the server runs" in refusal("postgresql://partibus@127.0.0.1:1/partibus")
    assert "not-the-password" not in refusal(server.url(password="not-the-password"))


def changed(catalog: CatalogSchema, times: int) -> None:
    for _ in range(times):
        catalog.begin(writing=True)
        catalog.note({"entity": "orders"})
        catalog.commit()


def started(address: Address, data: Path) -> CatalogSchema:
    """The catalog of a fresh process with this data directory."""
    record = AcknowledgedCommits(data, "catalog")
    check_changes(address, record)
    return CatalogSchema(address, "a test", record)


def numbers(catalog: CatalogSchema) -> list[tuple[object, ...]]:
    return catalog.execute("SELECT next_entity_id, next_partition_row, next_namespace_id FROM numbers")


@pytest.mark.parametrize("content", [None, b"", b"x"])
def test_a_fresh_process_refuses_a_catalog_that_has_gone_back_until_the_loss_is_accepted(
    address: Address, tmp_path: Path, content: bytes | None
) -> None:
    """The rows of lost entities have messages in stores; given out again, they would be those of other entities."""
    catalog = started(address, tmp_path)
    other = started(address, tmp_path / "other")  # on another machine
    changed(catalog, 3)
    other.begin(writing=False)
    other.rollback()
    catalog.close()
    change(address, "DELETE FROM change WHERE version > 1; UPDATE version SET version = 1")
    if content is not None:
        (tmp_path / FOLDER / "catalog").write_bytes(content)
    known = "while change 3 was stored" if content is None else "is damaged"
    for _ in range(2):
        with pytest.raises(UnusableFile, match=f"{known}.*accept-loss catalog --data .* --last-commit 1"):
            started(address, tmp_path)
    assert accept_loss(tmp_path, "catalog", 1) == (2 if content is None else None)
    catalog = started(address, tmp_path)
    assert numbers(catalog) == [(1 + CATALOG_NUMBERS_SKIPPED, 1 + CATALOG_NUMBERS_SKIPPED, 1 + CATALOG_NUMBERS_SKIPPED)]
    changed(catalog, 1)
    catalog.close()
    other.begin(writing=True)  # it has run all the time
    other.rollback()
    other.close()
    again = started(address, tmp_path)
    assert numbers(again) == [(1 + CATALOG_NUMBERS_SKIPPED, 1 + CATALOG_NUMBERS_SKIPPED, 1 + CATALOG_NUMBERS_SKIPPED)]
    again.close()


def test_brokers_that_run_read_a_catalog_anew_that_has_lost_changes(address: Address, tmp_path: Path) -> None:
    catalog = started(address, tmp_path)
    changed(catalog, 3)
    catalog.close()
    with closing(Registry(address, "b", "1", Version("1", "1"))) as registry:
        followed = registry.register("host:1")
        assert registry.beat(followed, "{}", [], tell=False).is_complete
        change(address, "DELETE FROM change WHERE version > 1; UPDATE version SET version = 1")
        accept_loss(tmp_path, "catalog", 1)
        started(address, tmp_path).close()
        assert followed == 3
        heard = registry.beat(followed, "{}", [], tell=False)
    assert heard.changes == [(3 + CATALOG_NUMBERS_SKIPPED, "{}")]
    assert not heard.is_complete


def test_a_catalog_that_has_all_changes_is_used_as_before(address: Address, tmp_path: Path) -> None:
    for times in (0, 2, 1):
        catalog = started(address, tmp_path)
        changed(catalog, times)
        assert numbers(catalog) == [(1, 1, 1)]
        catalog.close()
    record = AcknowledgedCommits(tmp_path, "catalog").last
    assert record is not None
    assert record.last_commit == 3


def test_a_schema_of_something_else_is_refused() -> None:
    address = new_address()
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {address.schema}".encode())
        connection.execute(f"CREATE TABLE {address.schema}.theirs (a int)".encode())
    with pytest.raises(UnusableFile, match=r"has tables, but is no catalog of partibus.*schema=NAME"):
        prepare(address)


def test_a_newer_format_is_refused_and_left_as_it_was(address: Address) -> None:
    change(address, f"UPDATE format SET version = {FORMAT_VERSION + 1}")
    with pytest.raises(UnusableFile, match=f"has format {FORMAT_VERSION + 1}, .* up to format {FORMAT_VERSION}"):
        prepare(address)


def test_preparing_again_changes_nothing(address: Address, catalog: CatalogSchema) -> None:
    catalog.execute("INSERT INTO used_entity VALUES (?)", (7,))
    prepare(address)
    assert catalog.execute("SELECT entity_id FROM used_entity") == [(7,)]


def test_a_change_is_noted_with_the_next_version_or_not_at_all(catalog: CatalogSchema) -> None:
    catalog.begin(writing=True)
    catalog.note({"entity": "orders"})
    catalog.rollback()
    catalog.begin(writing=True)
    catalog.note({"entity": 'a/Subscriptions/"b"'})
    catalog.note({"entity": "c"})
    catalog.commit()
    assert catalog.execute("SELECT version, body::json ->> 'entity' FROM change ORDER BY version") == [
        (1, 'a/Subscriptions/"b"'),
        (2, "c"),
    ]
    assert catalog.execute("SELECT version FROM version") == [(2,)]


def test_a_change_waits_for_the_one_under_way_but_not_for_ever(catalog: CatalogSchema, address: Address) -> None:
    other = CatalogSchema(address, "another test")
    other.begin(writing=True)
    with pytest.raises(StoreUnavailable, match=r"lock timeout.*nothing was changed"):
        catalog.begin(writing=True)
    other.rollback()
    catalog.begin(writing=True)
    catalog.commit()
    other.close()


def test_while_the_server_is_away_who_asks_is_told_at_once_and_afterwards_it_works_again() -> None:
    server = PostgreSQLServer()
    try:
        server.start()
        (address,) = parse_address(server.url(), SCHEMA_DEFAULT)
        prepare(address)
        catalog = CatalogSchema(address, "a test")
        catalog.begin(writing=True)
        catalog.execute("INSERT INTO used_entity VALUES (?)", (1,))
        server.kill()
        with pytest.raises(OutcomeUnknown, match="may or may not be stored"):
            catalog.commit()
        for _ in range(100):  # a hundred waits would take minutes
            with pytest.raises(StoreUnavailable, match="can't be reached now"):
                catalog.execute("SELECT version FROM version")
        assert not catalog.in_transaction
        server.start()
        assert eventually(catalog) == [(0,)]
        catalog.close()
    finally:
        server.remove()


def test_a_server_that_says_nothing_is_as_one_that_is_away(
    catalog: CatalogSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert eventually(catalog) == [(0,)]
    monkeypatch.setattr(TimedConnection, "TIMEOUT_S", 0.2)
    # The statement's own limit would end it later:
    with pytest.raises(StoreUnavailable, match="does not answer"):
        catalog.execute("SELECT pg_sleep(1)")
    assert eventually(catalog) == [(0,)]


def eventually(catalog: CatalogSchema) -> list[tuple[object, ...]]:
    """The version, when a connection is there again."""
    while True:
        try:
            return catalog.execute("SELECT version FROM version")
        except StoreUnavailable:
            time.sleep(0.05)


def test_a_catalog_that_has_gone_back_is_neither_read_nor_changed_by_who_knows_better(
    address: Address, catalog: CatalogSchema
) -> None:
    for _ in range(2):
        catalog.begin(writing=True)
        catalog.note({"entity": "orders"})
        catalog.commit()
    catalog.begin(writing=True)
    catalog.note({"entity": "not stored"})
    catalog.rollback()
    catalog.begin(writing=False)
    catalog.rollback()
    change(address, "DELETE FROM change WHERE version = 2; UPDATE version SET version = 1")
    for writing in (False, True):
        with pytest.raises(StoreUnavailable, match=r"older copy, which ends with change 1, but must have change 2"):
            catalog.begin(writing=writing)
        assert not catalog.in_transaction
    restarted = CatalogSchema(address, "another run")
    restarted.begin(writing=True)
    restarted.note({"entity": "orders"})
    restarted.commit()
    restarted.close()


def test_a_change_whose_commit_is_not_answered_in_time_may_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    server = PostgreSQLServer()
    try:
        server.start()
        (address,) = parse_address(server.url(), SCHEMA_DEFAULT)
        prepare(address)
        catalog = CatalogSchema(address, "a test")
        assert eventually(catalog) == [(0,)]
        monkeypatch.setattr(TimedConnection, "TIMEOUT_S", 0.2)
        catalog.begin(writing=True)
        catalog.note({"entity": "orders"})
        server.pause()
        with pytest.raises(OutcomeUnknown, match="may or may not be stored"):
            catalog.commit()
        server.resume()
        while eventually(catalog) != [(1,)]:  # the server carries out what it has received
            time.sleep(0.05)
        catalog.close()
    finally:
        server.resume()
        server.remove()
