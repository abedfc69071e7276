"""When a store in PostgreSQL begins a generation."""

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.generations import LeftOff
from partibus.partition.protocol.ports import StoreError, StoreFenced
from tests.contract.stores import PARTITION, enqueued, new_address, positions
from tests.kit.postgresql_server import shared_server
from tests.unit.store.postgresql.places import THEY, open_store, sql


def test_a_dump_that_is_restored_begins_a_generation() -> None:
    address, server = new_address(), shared_server()
    store = open_store(address)
    store.commit(enqueued(1, 2))
    before = store.generations
    store.close()
    dump = server.run("pg_dump", "--dbname", server.conninfo(), "--schema", address.schema)
    server.sql(f"DROP SCHEMA {address.schema} CASCADE")
    script = server.directory / "dump.sql"
    script.write_text(dump)
    script.chmod(0o644)
    server.psql(["--file", str(script)])
    store = open_store(address)
    assert store.generations[:1] == before
    (began,) = store.generations[1:]
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    assert snapshot.left_off == (LeftOff(2, 0, began.first),)
    assert positions(store) == [1, 2]
    store.close()
    store = open_store(address)
    assert store.generations == (*before, began)
    store.close()


def test_a_store_that_was_made_by_an_older_format_may_be_a_restored_one() -> None:
    address = new_address()
    open_store(address).close()
    sql(address, "UPDATE meta SET home = ''")
    store = open_store(address)
    assert len(store.generations) == 2
    store.close()


def test_an_owner_that_was_fenced_off_begins_no_generation() -> None:
    address = new_address()
    first = open_store(address)
    second = open_store(address, THEY, evict=True)
    with pytest.raises(StoreError):
        first.begin_generation()
    sql(address, "UPDATE owner SET epoch = epoch + 1")
    with pytest.raises(StoreFenced):
        second.begin_generation()
    assert sql(address, "SELECT count(*) FROM generation") == ["1"]
    first.close()
    second.close()
