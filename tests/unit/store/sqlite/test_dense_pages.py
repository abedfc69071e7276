"""Pages of a sub-queue whose entries are neighbours are read without a sum of their lengths."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.partition.protocol import queries as q
from partibus.store.sqlite import SQLiteStore
from partibus.store.sqlite.reader import LARGE_BYTES
from partibus.store.sqlite.sql import statement
from tests.contract.stores import QUEUE, complete, enqueued
from tests.unit.store.sqlite.places import SETTINGS, connections, open_store

COUNT = 200


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = open_store(tmp_path, SETTINGS._replace(readers_idle=0))  # each load opens its connection
    yield store
    store.close()


def fill(store: SQLiteStore, data: dict[int, bytes]) -> None:
    """Store messages, with the counts that a partition would write."""
    for pos, message in data.items():
        writes = enqueued(pos, data=message)
        writes.counts[QUEUE] = (len(data), sum(map(len, data.values())))
        store.commit(writes)


def page(store: SQLiteStore, max_entries: int, max_bytes: int) -> tuple[dict[int, bytes], bool]:
    """Read a page from the beginning; return it, and whether it took the statement that sums lengths up."""
    seen: list[str] = []
    with connections(seen.append):
        rows = store.read(q.Page(QUEUE, 0, max_entries, max_bytes))
    assert seen
    summing = statement("select_page")[:60]
    return {row.pos: row.data for row in rows}, any(text.startswith(summing) for text in seen)


def test_neighbours_come_without_a_sum(store: SQLiteStore) -> None:
    data = {pos: bytes([pos]) * 100 for pos in range(COUNT)}
    fill(store, data)
    assert page(store, 1_000, 1 << 20) == (data, False)
    assert page(store, 70, 1 << 20) == ({pos: data[pos] for pos in range(70)}, False)


def test_bytes_bound_such_a_page(store: SQLiteStore) -> None:
    data = {pos: bytes(100) for pos in range(COUNT)}
    fill(store, data)
    found, summed = page(store, 1_000, 10_000)
    assert (len(found), summed) == (100, False)


def test_messages_far_above_the_average_come_whole(store: SQLiteStore) -> None:
    data = {pos: bytes([pos]) * (LARGE_BYTES + pos if pos % 50 == 49 else 100) for pos in range(COUNT)}
    fill(store, data)
    assert page(store, 1_000, 1 << 20) == (data, False)
    found, _ = page(store, 1_000, 20_000)
    assert found == {pos: data[pos] for pos in found}
    assert list(found) == [*range(49)], "the large one does not fit behind them"


def test_entries_with_wide_gaps_fill_a_page_all_the_same(store: SQLiteStore) -> None:
    data = {50 * pos: bytes(100) for pos in range(COUNT)}
    fill(store, data)
    assert page(store, 1_000, 1 << 20) == (data, True)


def test_a_few_entries_are_read_once(store: SQLiteStore) -> None:
    data = {pos: bytes(100) for pos in range(1, 10)}
    fill(store, data)
    assert page(store, 1_000, 1 << 20) == (data, True)


def test_completed_entries_are_not_in_a_dense_page(store: SQLiteStore) -> None:
    data = {pos: bytes(100) for pos in range(COUNT)}
    fill(store, data)
    writes = enqueued()
    complete(writes, 20, 29)
    store.commit(writes)
    found, summed = page(store, 1_000, 1 << 20)
    assert (list(found), summed) == ([*range(20), *range(30, COUNT)], False)
