"""Large messages are read by a statement of their own."""

from contextlib import closing
from pathlib import Path

import pytest

from partibus.partition.protocol import queries as q
from partibus.store.sqlite import SQLiteStore, reader
from partibus.store.sqlite.sql import connect_reader, statement
from tests.contract.stores import QUEUE, complete, enqueued
from tests.unit.store.sqlite.places import SETTINGS, connections, open_store

LARGE = reader.LARGE_BYTES


@pytest.fixture
def store(tmp_path: Path) -> SQLiteStore:
    return open_store(tmp_path)


def test_messages_around_the_bound_come_whole_and_in_order(store: SQLiteStore) -> None:
    data = {pos: bytes([pos]) * (LARGE + pos - 3) for pos in range(1, 6)}
    for pos, message in data.items():
        store.commit(enqueued(pos, data=message))
    rows = store.read(q.Page(QUEUE, 0, 100, 1 << 20))
    assert {row.pos: row.data for row in rows} == data
    bodies = [row.body for row in rows]
    assert store.read(q.Bodies([*reversed(bodies), 0])) == [*reversed(data.values()), None]
    store.close()


def test_only_large_messages_are_left_out_of_the_blob(store: SQLiteStore, tmp_path: Path) -> None:
    """The statements and the code that splits the blob agree on the bound."""
    store.commit(enqueued(1, data=bytes(LARGE)))
    store.commit(enqueued(2, data=bytes(LARGE + 1)))
    with closing(connect_reader(tmp_path / "store-00.db", SETTINGS)) as connection:
        first, last = reader.key_range(QUEUE, 0, 10) or (0, 0)
        (_, blob) = connection.execute(statement("select_page"), (first, last, 10, 1 << 20)).fetchone()
    assert len(blob) == LARGE
    store.close()


def test_a_page_is_of_one_commit_where_a_large_message_is_deleted_while_it_is_read(
    store: SQLiteStore,
) -> None:
    store.commit(enqueued(1, 2, data=bytes(LARGE + 1)))
    deletes = enqueued(3, data=b"small")
    complete(deletes, 1, 1)
    with connections() as opened:
        store.read(q.Page(QUEUE, 0, 1, 1))
    (reading,) = opened
    loads_message = statement("select_body").split("?")[0]

    def delete_first(text: str) -> None:
        if text.startswith(loads_message) and not reading.in_transaction and not deleted:
            deleted.append(True)
            store.commit(deletes)

    deleted: list[bool] = []
    reading.set_trace_callback(delete_first)
    assert [row.pos for row in store.read(q.Page(QUEUE, 0, 100, 1 << 20))] == [2, 3]
    assert deleted
    store.close()
