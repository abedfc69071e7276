"""Statements over many rows, and loads over many entries that are not wanted."""

import sqlite3
from importlib.resources import files
from pathlib import Path

import pytest

from partibus.partition.keys import entry_key
from partibus.partition.ports import EntryState, Writes
from partibus.store.sqlite.apply import last_updates
from partibus.store.sqlite.sql import ROWS_MAX, execute_keys, execute_rows, schema, statement
from tests.contract.stores import QUEUE, enqueue, enqueued
from tests.unit.store.sqlite.places import open_store

NAMES = sorted(
    Path(file.name).stem for file in files("partibus.store.sqlite").joinpath("statements").iterdir() if file.is_file()
)


@pytest.fixture
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(schema())
    return connection


@pytest.mark.parametrize("name", NAMES)
def test_every_statement_fits_the_schema(database: sqlite3.Connection, name: str) -> None:
    text = statement(name)
    plan = database.execute(f"EXPLAIN QUERY PLAN {text}", [1] * text.count("?")).fetchall()
    # A load or a delete by key must never walk a whole table.
    assert not [row[3] for row in plan if row[3] in ("SCAN entry", "SCAN body", "SCAN lock_batch")]


def test_peek_by_sequence_uses_its_index(database: sqlite3.Connection) -> None:
    plan = database.execute(f"EXPLAIN QUERY PLAN {statement('peek_by_sequence')}", [1] * 4).fetchall()
    assert [row[3] for row in plan if "entry_by_sequence" in row[3]]


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 64, 65, ROWS_MAX, ROWS_MAX + 1, 3 * ROWS_MAX])
def test_rows_and_keys_of_any_number(database: sqlite3.Connection, rows: int) -> None:
    execute_rows(database, "insert_bodies", 2, [column for key in range(rows) for column in (key, b"%d" % key)])
    stored = database.execute("SELECT key, data FROM body ORDER BY key").fetchall()
    assert stored == [(key, b"%d" % key) for key in range(rows)]
    execute_keys(database, "delete_bodies", range(1, rows))
    assert database.execute("SELECT key FROM body").fetchall() == [(0,)][:rows]


def test_of_several_updates_of_an_entry_only_the_last_is_sent() -> None:
    """SQLite may take any of several rows that match."""
    assert last_updates([1, 0, 1, None, 2, 0, 0, None, 1, 2, 3, 4]) == [1, 2, 3, 4, 2, 0, 0, None]
    assert last_updates([1, 0, 1, None, 2, 0, 0, None]) == [1, 0, 1, None, 2, 0, 0, None]


def test_few_calls_into_sqlite_per_commit(tmp_path: Path) -> None:
    """Each call may cost a switch interval beside a busy event loop, so their number is part of the design."""
    store = open_store(tmp_path)
    calls: list[str] = []
    store._writer.connection.set_trace_callback(calls.append)
    writes = enqueued(*range(200))
    writes.counters[5] = (200, 1, 0)
    writes.counts[QUEUE] = (200, 1_000)
    writes.lock_batches[entry_key(QUEUE, 1)] = [(0, 1, b"\xff")]
    writes.deleted_locks.append(entry_key(QUEUE, 9))
    writes.deleted_entries += [(entry_key(QUEUE, pos), entry_key(QUEUE, pos + 5)) for pos in range(0, 90, 9)]
    store.commit(writes)
    assert len(calls) == 10, calls
    store.close()


@pytest.mark.parametrize("waiting", [1, 16_383, 16_384, 16_385, 16_386, 40_000])
def test_a_page_finds_the_first_active_entry_behind_many_others(tmp_path: Path, waiting: int) -> None:
    store = open_store(tmp_path)
    writes = Writes()
    for pos in range(waiting):
        enqueue(writes, pos, b"", state=EntryState.SCHEDULED)
    enqueue(writes, waiting, b"here")
    enqueue(writes, (1 << 39) + waiting, b"far")
    store.commit(writes)
    assert [row.data for row in store.load_page(QUEUE, 0, 1, 99)] == [b"here"]
    assert [row.data for row in store.load_page(QUEUE, waiting + 1, 9, 99)] == [b"far"]
    assert store.load_page(QUEUE, (1 << 39) + waiting + 1, 9, 99) == []
    store.close()
