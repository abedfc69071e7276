"""Dropped partitions: hidden at once, removed in slices."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import body_key, subqueue_key
from partibus.partition.protocol.ports import StoreError, Writes
from partibus.store import dropped_partitions
from partibus.store.dropped_partitions import SLICE_ROWS, PartitionRemover, without_hidden
from partibus.store.sqlite import store as sqlite_store
from partibus.store.sqlite.apply import remove_partition_rows
from tests.contract.stores import PARTITION, QUEUE, enqueued, positions
from tests.kit.eventually import eventually
from tests.unit.store.sqlite.places import open_store

OTHER = subqueue_key(PARTITION + 1, 0)
MANY = 3 * SLICE_ROWS + 1
NO_ROWS = {"entry": 0, "body": 0, "partition": 0, "dropped_partition": 0}


def dropping(*partition_rows: int) -> Writes:
    writes = Writes()
    writes.dropped_partitions.extend(partition_rows)
    return writes


def rows_in(directory: Path) -> dict[str, int]:
    """Rows per table of the file itself."""
    tables = ("entry", "body", "partition", "dropped_partition")
    with closing(sqlite3.connect(directory / "store-00.db")) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # a fixed list of names
            for table in tables
        }


def test_a_dropped_partition_is_gone_at_once_and_later_from_the_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.commit(enqueued(*range(MANY)))
    store.commit(enqueued(1, 2, subqueue=OTHER))
    store.commit(dropping(PARTITION))
    assert store.read(q.Partition(PARTITION)) is None
    assert positions(store) == []
    assert store.read(q.Page(QUEUE, 0, 9, 99)) == store.read(q.Peek(QUEUE, 0, 9, 99)) == []
    assert store.read(q.Bodies([body_key(PARTITION, 0), body_key(PARTITION + 1, 1)])) == [None, b"hello"]

    store.wait_until_swept()
    assert rows_in(tmp_path) == {"entry": 2, "body": 2, "partition": 1, "dropped_partition": 0}
    assert positions(store, OTHER) == [1, 2]
    assert store.last_commit > 3 + MANY // SLICE_ROWS, "in slices"
    store.close()


def test_states_and_remembered_ids_of_a_dropped_partition_go_in_slices_too(tmp_path: Path) -> None:
    large, megabytes = bytes(256 * 1024), 8
    store = open_store(tmp_path)
    writes = Writes()
    for partition in (PARTITION, PARTITION + 1):
        writes.session_states.update({(partition, f"{number}"): (large, 1) for number in range(4 * megabytes)})
        for number in range(MANY):
            writes.duplicate_ids += (partition, number % 3, number.to_bytes(16, "big"), 1, None)
    store.commit(writes)
    store.commit(dropping(PARTITION))
    assert store.read(q.SessionState(PARTITION, "1")) is None
    assert store.read(q.DuplicatesBehind(PARTITION, (0, b""), 9)) == []

    store.wait_until_swept()
    assert store.last_commit > 2 + megabytes, "a megabyte of states and 500 ids at once"
    with closing(sqlite3.connect(tmp_path / "store-00.db")) as connection:
        left = {
            table: connection.execute(f"SELECT partition_row, count(*) FROM {table} GROUP BY 1").fetchall()
            for table in ("session_state", "duplicate_id")
        }
    assert left == {"session_state": [(PARTITION + 1, 4 * megabytes)], "duplicate_id": [(PARTITION + 1, MANY)]}
    store.close()


def test_sweeping_goes_on_after_a_restart_and_hides_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    store.commit(enqueued(*range(MANY)))
    with monkeypatch.context() as congested_links:
        congested_links.setattr(PartitionRemover, "_start", lambda _: None)
        store.commit(dropping(PARTITION))
        store.close()
        assert rows_in(tmp_path) == {"entry": MANY, "body": MANY, "partition": 0, "dropped_partition": 1}
        store = open_store(tmp_path)
        assert positions(store) == []
        store.close()
    store = open_store(tmp_path)
    store.wait_until_swept()
    assert rows_in(tmp_path) == {"entry": 0, "body": 0, "partition": 0, "dropped_partition": 0}
    store.close()


def test_commits_go_on_while_partitions_are_swept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for partition in range(10, 14):
        store.commit(enqueued(*range(MANY), subqueue=subqueue_key(partition, 0)))
    for number, partition in enumerate(range(10, 14)):
        store.commit(dropping(partition))
        store.commit(enqueued(number))
    assert positions(store) == [0, 1, 2, 3]
    store.wait_until_swept()
    assert rows_in(tmp_path) == {"entry": 4, "body": 4, "partition": 1, "dropped_partition": 0}
    store.close()


def test_a_commit_that_fails_drops_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.commit(enqueued(1))
    failing = enqueued(1)
    failing.dropped_partitions.append(PARTITION)
    with pytest.raises(StoreError, match="UNIQUE"):
        store.commit(failing)
    assert positions(store) == [1]
    store.close()


@pytest.mark.parametrize("error", [StoreError("the file is locked", executed=False), ZeroDivisionError("a bug")])
def test_a_slice_that_fails_is_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Rows that stay take room on the disk, perhaps the room that somebody wanted to make by the deletion."""
    monkeypatch.setattr(dropped_partitions, "RETRY_S", 0.0)
    store = open_store(tmp_path)
    store.commit(enqueued(*range(MANY)))
    failures = [error]
    monkeypatch.setattr(sqlite_store, "remove_partition_rows", remove_unless(failures))
    store.commit(dropping(PARTITION))
    eventually("the rows are removed", lambda: rows_in(tmp_path) == NO_ROWS)
    assert not failures
    store.close()


def remove_unless(failures: list[Exception]) -> Callable[[int, int, sqlite3.Connection], bool]:
    """Return a `remove_partition_rows` that raises these errors first, the last one first of all."""

    def remove_or_fail(partition_row: int, rows: int, connection: sqlite3.Connection) -> bool:
        if failures:
            raise failures.pop()
        return remove_partition_rows(partition_row, rows, connection)

    return remove_or_fail


def test_closing_stops_between_slices(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.commit(enqueued(*range(20 * SLICE_ROWS), data=b""))
    store.commit(dropping(PARTITION))
    store.close()
    left = rows_in(tmp_path)
    assert left["entry"] == left["body"] > 0
    assert left["dropped_partition"] == 1


def test_a_sweep_whose_thread_does_not_start_is_made_up_for_at_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drop is durable, the rows stay hidden, and the store opens again in the same process."""
    store = open_store(tmp_path)
    store.commit(enqueued(1, 2))
    with monkeypatch.context() as exhausted:

        def refuse(_thread: Thread) -> None:
            raise RuntimeError("can't start new thread")

        exhausted.setattr(Thread, "start", refuse)
        store.commit(dropping(PARTITION))
        assert positions(store) == []
        store.close()
        store = open_store(tmp_path)
        assert positions(store) == []
        store.close()
        assert rows_in(tmp_path)["entry"] == 2
    store = open_store(tmp_path)
    store.wait_until_swept()
    store.close()
    assert rows_in(tmp_path)["entry"] == 0


SWEEPING = """
from partibus.store.dropped_partitions import PartitionRemover

def fail(_partition_row):
    raise OSError("the disk is sick")

PartitionRemover("store-00", fail, [1])
"""


def test_a_sweep_under_way_keeps_no_process_from_ending() -> None:
    subprocess.run([sys.executable, "-c", SWEEPING], check=True, timeout=60)


def test_slices_that_keep_failing_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=dropped_partitions.__name__)
    monkeypatch.setattr(dropped_partitions, "RETRY_S", 0.0)
    store = open_store(tmp_path)
    store.commit(enqueued(*range(MANY)))
    failures: list[Exception] = [
        StoreError(f"the file is {what}", executed=False) for what in ("sick", "sick", "locked")
    ]
    monkeypatch.setattr(sqlite_store, "remove_partition_rows", remove_unless(failures))
    store.commit(dropping(PARTITION))
    eventually("the rows are removed", lambda: rows_in(tmp_path) == NO_ROWS)
    store.close()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "WARNING", "INFO"]
    for word, (_, text) in zip(("(the file is locked)", "(the file is sick)", "again"), said, strict=True):
        assert word in text
        assert str(tmp_path / "store-00.db") in text


def test_a_reader_hides_what_is_removed_while_it_reads() -> None:
    """Filter rows from before their removal by the set from before it."""
    may_remove = Event()

    def remove(_partition_row: int) -> bool:
        may_remove.wait()
        return True

    remover = PartitionRemover("store-00", remove, [PARTITION])
    hidden, query = remover.hidden, q.Bodies([body_key(PARTITION, 1), body_key(PARTITION + 1, 1)])
    may_remove.set()
    remover.wait()
    assert remover.hidden == frozenset()
    assert without_hidden(hidden, query, [b"dropped", b"kept"]) == [None, b"kept"]
