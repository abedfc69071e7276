"""Statements over many rows, and loads over many entries that are not wanted."""

import re
import sqlite3
from importlib.resources import files
from pathlib import Path

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import entry_key
from partibus.partition.protocol.ports import EntryState, Writes
from partibus.store.sqlite.apply import last_updates
from partibus.store.sqlite.sql import ROWS_MAX, execute_keys, execute_rows, schema, statement
from tests.contract.stores import QUEUE, enqueue, enqueued
from tests.unit.store.sqlite.places import open_store, open_with_writer

NAMES = sorted(
    Path(file.name).stem for file in files("partibus.store.sqlite").joinpath("statements").iterdir() if file.is_file()
)


@pytest.fixture
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(schema())
    return connection


TABLES = ("entry", "body", "lock_batch", "session_state", "duplicate_id", "fate", "sink_id", "session_lock")
"""Tables with a row per message, session or id."""

WALKS = {"count_entries", "cut_lock_batches", "cut_session_locks"}
"""Statements that run once in the life of a file, beside a copy of all of it, or when an operator turns time back."""

BY_SESSION = "entry_by_session (<expr>=? AND state=? AND session"
SEARCHES = {
    "peek_by_sequence": "entry_by_sequence (<expr>=? AND sequence>?",
    "select_by_sequences": "entry_by_sequence (<expr>=? AND sequence=?",
    "select_session_page": f"{BY_SESSION}=? AND rowid>?",
    "peek_session": f"{BY_SESSION}=? AND rowid>?",
    "peek_session_by_sequence": f"{BY_SESSION}=?",
    "scan_sessions": f"COVERING INDEX {BY_SESSION}>?",
    "list_sessions": f"COVERING INDEX {BY_SESSION}>?",
    "list_updated_sessions": "COVERING INDEX session_state_by_name (partition_row=? AND session>?",
    "select_due": "entry_by_due (<expr>=? AND state=? AND due_ms<?",
    "select_next_due": "entry_by_due (<expr>=? AND state=? AND due_ms=? AND rowid>?",
    "select_first_due": "entry_by_due (<expr>=? AND state=? AND due_ms>?",
    "select_session_state": "session_state_by_name (partition_row=? AND session=?",
    "delete_session_states": "session_state_by_name (partition_row=? AND session=?",
    "find_duplicates": "PRIMARY KEY (partition_row=? AND bucket=? AND id=?",
    "scan_duplicates": "PRIMARY KEY (partition_row=? AND (bucket,id)>(?,?)",
    "delete_duplicates_before": "PRIMARY KEY (partition_row=? AND (bucket,id)<(?,?)",
    "delete_duplicate_buckets": "PRIMARY KEY (partition_row=? AND bucket<?",
    "find_sink_ids": "PRIMARY KEY (partition_row=? AND sink=? AND batch=? AND id=?",
    "delete_sink_ids": "PRIMARY KEY (partition_row=? AND sink=? AND batch=? AND id=?",
    "select_swept_sink_id": "PRIMARY KEY (partition_row=?",
    "delete_swept_sink_ids": "PRIMARY KEY (partition_row=? AND (sink,batch,id)<(?,?,?)",
    "select_sink_batches": "PRIMARY KEY (partition_row=? AND sink=? AND batch>?",
    "count_sink_ids": "PRIMARY KEY (partition_row=? AND sink=? AND batch<?",
    "select_sink_bound": "PRIMARY KEY (partition_row=? AND sink=? AND batch<?",
    "delete_sink_ids_before": "PRIMARY KEY (partition_row=? AND sink=? AND (batch,id)<(?,?)",
    "delete_sink_ids_to": "PRIMARY KEY (partition_row=? AND sink=? AND batch<?",
    "delete_session_locks": "PRIMARY KEY (partition_row=? AND session=?",
    "scan_entries": "entry USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "select_range": "entry USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
}
"""The columns by which a statement must find its rows: one fewer may be a walk through a million rows."""


def plan(database: sqlite3.Connection, name: str) -> list[str]:
    """The steps of a statement."""
    text = statement(name)
    parameters = max(map(int, re.findall(r"\?(\d+)", text)), default=0) + len(re.findall(r"\?(?!\d)", text))
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", [1] * parameters)]


def test_every_statement_fits_the_schema_and_only_rare_ones_walk_through_a_table(database: sqlite3.Connection) -> None:
    table = re.compile(rf"SCAN ({'|'.join(TABLES)})\b")
    assert {name for name in NAMES if any(map(table.match, plan(database, name)))} == WALKS


def test_a_statement_finds_its_rows_by_all_columns_of_an_index(database: sqlite3.Connection) -> None:
    plans = {name: plan(database, name) for name in SEARCHES}
    assert {name: plans[name] for name, search in SEARCHES.items() if not any(search in s for s in plans[name])} == {}


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 64, 65, ROWS_MAX, ROWS_MAX + 1, 3 * ROWS_MAX])
def test_rows_and_keys_of_any_number(database: sqlite3.Connection, rows: int) -> None:
    execute_rows(database, "insert_bodies", 2, [column for key in range(rows) for column in (key, b"%d" % key)])
    stored = database.execute("SELECT key, data FROM body ORDER BY key").fetchall()
    assert stored == [(key, b"%d" % key) for key in range(rows)]
    execute_keys(database, "delete_bodies", range(1, rows))
    assert database.execute("SELECT key FROM body").fetchall() == [(0,)][:rows]


def test_of_several_updates_of_an_entry_only_the_last_is_sent() -> None:
    """SQLite may take any of several rows that match."""
    assert last_updates([1, 9, 0, 1, None, 2, 9, 0, 0, None, 1, 8, 2, 3, 4]) == [1, 8, 2, 3, 4, 2, 9, 0, 0, None]
    assert last_updates([1, 9, 0, 1, None, 2, 9, 0, 0, None]) == [1, 9, 0, 1, None, 2, 9, 0, 0, None]


def test_few_calls_into_sqlite_per_commit(tmp_path: Path) -> None:
    """Each call may cost a switch interval beside a busy event loop, so their number is part of the design."""
    store, writer = open_with_writer(tmp_path)
    calls: list[str] = []
    writer.set_trace_callback(calls.append)
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
    assert [row.data for row in store.read(q.Page(QUEUE, 0, 1, 99))] == [b"here"]
    assert [row.data for row in store.read(q.Page(QUEUE, waiting + 1, 9, 99))] == [b"far"]
    assert store.read(q.Page(QUEUE, (1 << 39) + waiting + 1, 9, 99)) == []
    store.close()
