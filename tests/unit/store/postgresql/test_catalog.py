"""The catalog's schema on a server: what is refused at the start, and what its outage means."""

import time
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from partibus.errors import OutcomeUnknown, StoreUnavailable, UnusableFile
from partibus.namespace.catalog_database import FORMAT_VERSION, schema_steps
from partibus.store.postgresql.address import Address, parse_address
from partibus.store.postgresql.catalog import SCHEMA_DEFAULT, CatalogSchema, prepare_catalog
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
    catalog.rollback()
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
    connection = catalog._connected()
    monkeypatch.setattr(type(connection), "TIMEOUT_S", 0.2)
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
