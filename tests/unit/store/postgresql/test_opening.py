"""Refusals at the opening of a store: the reason, the place without its password, the next step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import body_key, entry_key
from partibus.partition.protocol.ports import StoreError
from partibus.store.postgresql import Identity, PostgreSQLStore, creation, identity_of, parse_address, writer
from partibus.store.postgresql import sql as store_sql
from partibus.store.postgresql.connection import Connection, connect
from tests.contract.stores import PARTITION, QUEUE, enqueued, new_address, positions
from tests.kit.postgresql_server import PASSWORD, PostgreSQLServer, shared_server
from tests.unit.store.postgresql.places import US, open_store, sql

VERSION_1 = Path(__file__).with_name("version_1.sql").read_text("utf-8")
"""The script that made a store of the first format."""


def refusal(url: str) -> str:
    """Return the refusal to open a store, without the password."""
    (address,) = parse_address(url)
    with pytest.raises(StoreError) as caught:
        open_store(address)
    assert caught.value.executed is False
    assert str(caught.value).startswith(address.name)
    for secret in (PASSWORD, "not-the-password"):
        assert secret not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def role() -> Iterator[str]:
    server = shared_server()
    server.sql("CREATE ROLE guest LOGIN PASSWORD 'guest' CONNECTION LIMIT 1")
    yield "guest"
    server.sql("DROP ROLE guest")


def test_nobody_listens() -> None:
    assert "see that the server runs" in refusal(f"postgresql://user:{PASSWORD}@127.0.0.1:1/postgres")


def test_the_password_is_wrong() -> None:
    assert "correct user and password" in refusal(shared_server().url(password="not-the-password"))


def test_there_is_no_such_database() -> None:
    assert "make the database (createdb)" in refusal(shared_server().url("nowhere"))


def test_all_connections_are_in_use(role: str) -> None:
    server = shared_server()
    server.sql("CREATE SCHEMA narrow AUTHORIZATION guest; GRANT CREATE ON DATABASE postgres TO guest")
    (address,) = parse_address(server.url(parameters="schema=narrow", user=role, password="guest"))
    store = open_store(address)
    try:
        # The writer has the only one: a load gets none.
        with pytest.raises(StoreError, match="raise its max_connections"):
            store.read(q.Partition(1))
    finally:
        store.close()
        server.sql("DROP SCHEMA narrow CASCADE; REVOKE CREATE ON DATABASE postgres FROM guest")


def test_the_role_may_not_make_a_schema(role: str) -> None:
    url = shared_server().url(parameters="schema=forbidden", user=role, password="guest")
    assert "grant it CREATE on the database" in refusal(url)


def test_the_schema_has_other_tables() -> None:
    server = shared_server()
    server.sql("CREATE SCHEMA other; CREATE TABLE other.mine ()")
    assert "has tables that are no store of partibus" in refusal(server.url(parameters="schema=other"))
    assert server.sql("SELECT count(*) FROM pg_class WHERE relnamespace = 'other'::regnamespace") == ["1"]


def test_a_newer_format_is_refused_and_left_as_it_was() -> None:
    address = new_address()
    open_store(address).close()
    sql(address, "UPDATE meta SET format_version = 99")
    with pytest.raises(StoreError, match="has format version 99, this partibus knows 1 to 5; install a version"):
        open_store(address)
    assert sql(address, "SELECT epoch FROM owner") == ["1"]


@pytest.mark.parametrize("version", range(1, store_sql.FORMAT_VERSION))
def test_an_older_format_is_migrated_and_keeps_its_rows(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    address = new_address()
    with monkeypatch.context() as before:
        before.setattr(creation, "FORMAT_VERSION", 1)
        before.setattr(creation, "schema_script", lambda: VERSION_1)
        creation.make_store(address, Identity("store-00", ""), 0)
    for older in range(1, version):
        sql(address, store_sql.migration_script(older))
    sql(address, f"UPDATE meta SET format_version = {version}")
    for pos in (1, 2):
        entry, body = entry_key(QUEUE, pos), body_key(PARTITION, pos)
        sql(address, f"INSERT INTO body VALUES ({body}, 'hello')")
        sql(address, f"INSERT INTO entry VALUES ({entry}, {body}, {pos}, 0, 0, 0, NULL, NULL)")
    store = open_store(address)
    assert positions(store) == [1, 2]
    writes = enqueued(3)
    writes.inbound_marks[PARTITION, 7] = 9
    writes.retained[QUEUE] = (1, 5)
    store.commit(writes)
    store.close()
    new = new_address()
    open_store(new).close()
    for described in (
        "SELECT indexname, replace(indexdef, current_schema(), '') FROM pg_indexes WHERE schemaname = current_schema() "
        "ORDER BY indexname",
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns "
        "WHERE table_schema = current_schema() ORDER BY table_name, column_name",
        "SELECT relname, reloptions FROM pg_class WHERE relnamespace = current_schema()::regnamespace ORDER BY relname",
    ):
        assert sql(address, described) == sql(new, described)
    found = sql(address, "SELECT format_version, pos, messages FROM meta, inbound_mark, retained")
    assert found == [f"{store_sql.FORMAT_VERSION}|9|1"]


def test_a_migration_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    address = new_address()
    open_store(address).close()
    monkeypatch.setattr(creation, "FORMAT_VERSION", 7)
    scripts = {5: "CREATE TABLE made ()", 6: "SELECT 1/0"}
    monkeypatch.setattr(creation, "migration_script", scripts.__getitem__)
    with pytest.raises(StoreError, match="division by zero"):
        open_store(address)
    assert sql(address, "SELECT format_version, to_regclass('made') FROM meta") == [f"{store_sql.FORMAT_VERSION}|"]


def test_another_stores_place_and_another_clusters_store() -> None:
    address = new_address()
    PostgreSQLStore.open(address, store_id="store-07", cluster="here", owner=US).close()
    assert identity_of(address) == ("store-07", "here")
    with pytest.raises(StoreError, match="is store 'store-07', not 'store-08'; give each --store"):
        PostgreSQLStore.open(address, store_id="store-08", cluster="here", owner=US)
    with pytest.raises(StoreError, match="belongs to the brokers of 'here', not to those of 'there'"):
        PostgreSQLStore.open(address, store_id="store-07", cluster="there", owner=US)


def test_a_place_without_a_store_has_no_identity() -> None:
    assert identity_of(new_address()) is None


def test_a_server_that_does_not_sync_is_refused() -> None:
    with PostgreSQLServer(settings={"fsync": "off"}) as server:
        assert "fsync off" in refusal(server.url())


def test_commits_are_synced_whatever_the_servers_default_is(monkeypatch: pytest.MonkeyPatch) -> None:
    server = shared_server()
    server.sql("ALTER ROLE partibus SET synchronous_commit = off")
    opened: list[Connection] = []

    def noted(*arguments: Any) -> Connection:
        opened.append(connect(*arguments))
        return opened[-1]

    monkeypatch.setattr(writer, "connect", noted)
    try:
        store = open_store(new_address())
        (committing,) = opened
        assert committing.execute("SHOW synchronous_commit").fetchone() == ("on",)
        store.close()
    finally:
        server.sql("ALTER ROLE partibus RESET synchronous_commit")
