"""A server without room refuses messages; what is there can be received and completed."""

import pytest

from partibus.partition.protocol.ports import StoreFull, Writes
from partibus.store.postgresql import PostgreSQLSettings
from tests.contract.stores import complete, enqueued, new_address, positions
from tests.unit.store.postgresql.places import open_store, sql

NO_ROOM = """
    CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
    CREATE TRIGGER full_disk BEFORE INSERT ON body EXECUTE FUNCTION no_room()
"""


def test_messages_are_refused_and_completed_while_the_disk_is_full() -> None:
    address = new_address()
    store = open_store(address)
    store.commit(enqueued(1, 2))
    sql(address, NO_ROOM)
    with pytest.raises(StoreFull, match=r"no room: .*No space left.*free space on the server's disk") as caught:
        store.commit(enqueued(3))
    assert caught.value.executed is False
    assert not store.has_room
    again = store.reopen()
    assert not again.has_room
    again.commit(complete(Writes(), 1, 1))
    assert positions(again) == [2]
    again.close()


def test_after_a_while_the_next_commit_tries_again() -> None:
    address = new_address()
    store = open_store(address, settings=PostgreSQLSettings(full_ms=0))
    sql(address, NO_ROOM)
    with pytest.raises(StoreFull):
        store.commit(enqueued(1))
    assert store.has_room
    sql(address, "DROP TRIGGER full_disk ON body")
    store.commit(enqueued(1))
    assert positions(store) == [1]
    store.close()
