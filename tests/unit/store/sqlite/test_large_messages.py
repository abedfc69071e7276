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


def fill(store: SQLiteStore, data: dict[int, bytes]) -> None:
    """Store messages in one commit each, with the counts that a partition would write."""
    for pos, message in data.items():
        writes = enqueued(pos, data=message)
        writes.counts[QUEUE] = (len(data), sum(map(len, data.values())))
        store.commit(writes)


def test_pages_of_large_messages_have_small_ones_in_their_places(store: SQLiteStore) -> None:
    data = {pos: bytes([pos]) * (10 if pos < 20 or pos % 7 == 0 else 3 * LARGE) for pos in range(60)}
    fill(store, data)
    found: dict[int, bytes] = {}
    while page := store.read(q.Page(QUEUE, len(found), 1_000, 10 * LARGE)):
        assert sum(len(row.data) for row in page) <= 10 * LARGE
        found |= {row.pos: row.data for row in page}
    assert found == data
    store.close()


def test_a_page_of_large_messages_has_one_at_least(store: SQLiteStore) -> None:
    fill(store, {pos: bytes(2 * LARGE) for pos in range(3)})
    assert [row.pos for row in store.read(q.Page(QUEUE, 1, 1_000, LARGE))] == [1]
    assert store.read(q.Page(QUEUE, 1, 0, LARGE)) == []
    store.close()


def test_large_messages_that_do_not_fit_are_not_visited(store: SQLiteStore, tmp_path: Path) -> None:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    fill(store, {pos: bytes(LARGE + 1) for pos in range(40)})
    with closing(connect_reader(tmp_path / "store-00.db", SETTINGS)) as connection:
        connection.set_progress_handler(count, 1)
        rows = reader.read_page(connection, QUEUE, 0, 1_000, 5 * LARGE)
    assert [row.pos for row in rows] == [*range(4)]
    assert steps < 200
    store.close()
