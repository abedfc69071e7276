"""Every load walks along an index, whatever the statistics say: also in tables that the server believes to be empty."""

import re

import pytest

from partibus.store.postgresql import sql as store_sql
from partibus.store.postgresql.connection import connect, end
from tests.contract.stores import new_address
from tests.unit.store.postgresql.places import SETTINGS, open_store

PAGES = ["page", "page_of_session", "browse", "peek_by_sequence", "due"]
LOADS = [
    "peek_of_session", "peek_of_session_by_sequence", "next_due", "timed_subqueues", "by_keys", "by_sequences",
    "bodies", "partition", "counts", "lock_batches", "locked_entries", "first_due", "scan_sessions", "list_sessions",
    "session_state", "find_duplicates", "scan_duplicates", "cursors", "retained", "sinks", "session_locks", "fates",
    "find_sink_ids", "count_sink_ids", "scan", "range",
]  # fmt: skip


def plan_of(query: bytes) -> str:
    address = new_address()
    open_store(address).close()
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", number, query.decode())
    connection = connect(address, "plans", SETTINGS)
    try:
        rows = connection.execute(f"EXPLAIN (GENERIC_PLAN) {text}".encode()).fetchall()
    finally:
        end(connection)
    return "\n".join(line for (line,) in rows)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_needs_no_sorting(name: str) -> None:
    plan = plan_of(store_sql.page_statement(name))
    assert "Seq Scan" not in plan
    assert "Sort" not in plan


@pytest.mark.parametrize("name", LOADS)
def test_no_load_looks_at_a_whole_table(name: str) -> None:
    assert "Seq Scan" not in plan_of(store_sql.statement(name))
