"""Files of format version 1: opened, they are of this format, with all their rows, and a copy is beside them."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.generations import LeftOff
from partibus.partition.protocol.keys import body_key, entry_key
from partibus.partition.protocol.ports import (
    FINISHED,
    CursorRow,
    Disposition,
    DispositionRow,
    EntryRow,
    EntryState,
    LockBatchRow,
    StoreError,
    SubqueueCounts,
    Writes,
)
from partibus.store.sqlite import SQLiteStore, creation
from partibus.store.sqlite.creation import copy_path
from partibus.store.sqlite.sql import FORMAT_VERSION, PAGE_BYTES
from partibus.store.sqlite.sql import migration as migration_script
from tests.contract.stores import DEAD_LETTERS, PARTITION, QUEUE, enqueue, positions
from tests.unit.store.sqlite.places import SETTINGS, US, files_no_larger_than, open_store

VERSION_1 = Path(__file__).with_name("version_1.sql").read_text("utf-8")
"""The script that made a store of the first format."""
MESSAGES = 300
DROPPED = PARTITION + 1


def write_version_1(path: Path, messages: int = MESSAGES) -> None:
    """A store as the first partibus left it: messages, with session ids and times to expire, one of them locked, one
    dead-lettered, and what is left of a deleted entity."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(
            f"PRAGMA page_size = {PAGE_BYTES}; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;{VERSION_1}"
        )
        connection.execute("INSERT INTO meta VALUES (1, 1, 'store-00', 1700000000000)")
        connection.execute("INSERT INTO owner VALUES (1, 'broker-0', 'run-0', 7, 0, 99)")
        connection.execute("INSERT INTO partition VALUES (?, ?, 3)", (PARTITION, messages))
        connection.execute("INSERT INTO dropped_partition VALUES (?)", (DROPPED,))
        connection.execute("INSERT INTO subqueue VALUES (?, ?, ?)", (QUEUE, messages, 5 * messages))
        connection.execute("BEGIN")
        for pos in range(messages):
            session = f"session {pos % 7}" if pos % 2 else None
            due_ms = 5_000 - pos if pos % 3 == 0 else None
            entry = (entry_key(QUEUE, pos), body_key(PARTITION, pos), pos, pos, 0, pos % 4, session, due_ms)
            connection.execute("INSERT INTO body VALUES (?, ?)", (body_key(PARTITION, pos), b"%05d" % pos))
            connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", entry)
        dead = (entry_key(DEAD_LETTERS, 1), body_key(PARTITION, 0), 77, 0, 0, 10, "s", None)
        connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", dead)
        gone = (entry_key(DROPPED << 2, 1), body_key(DROPPED, 1), 1, 0, 0, 0, None, None)
        connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)", gone)
        lock = (entry_key(QUEUE, 2), 4, 9_000, b"\x01")
        connection.execute("INSERT INTO lock_batch VALUES (?, ?, ?, ?)", lock)
        connection.execute("COMMIT")


def rows_of_version_1(messages: int = MESSAGES) -> list[EntryRow]:
    """Return the store's expected answers: session ids are where they were sent, in the messages."""
    return [
        EntryRow(
            pos,
            body_key(PARTITION, pos),
            pos,
            pos,
            0,
            pos % 4,
            None,
            5_000 - pos if pos % 3 == 0 else None,
            b"%05d" % pos,
        )
        for pos in range(messages)
    ]


def assert_migrated(store: SQLiteStore, messages: int = MESSAGES) -> None:
    """All rows are there, and what came with the new format works."""
    assert store.read(q.Browse(QUEUE, 0, 1 << 40, messages + 1, 1 << 30)) == rows_of_version_1(messages)
    assert [row.sequence for row in store.read(q.Peek(DEAD_LETTERS, 0, 9, 999))] == [77]
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    first = store.generations[-1].first  # it may be a backup of an older partibus: numbers begin anew
    assert (snapshot.next_sequence, snapshot.next_number, snapshot.session_state_bytes) == (first, first, 0)
    assert snapshot.left_off == (LeftOff(messages, 3, first),)
    assert store.generations[0] == (1, 0)
    assert snapshot.counts == {QUEUE: SubqueueCounts(messages, 5 * messages)}
    assert snapshot.lock_batches == [LockBatchRow(QUEUE, 2, 4, 9_000, b"\x01")]
    assert [row.pos for _, row, _ in snapshot.locked_entries] == [4]
    earliest = (messages - 1) // 3 * 3
    assert snapshot.next_due == {(QUEUE, 0): 5_000 - earliest}
    due = store.read(q.Due(QUEUE, EntryState.ACTIVE, 1 << 50, messages, 1 << 30)).rows
    assert [row.pos for row in due] == list(range(earliest, -1, -3))
    assert store.read(q.SessionsBehind(QUEUE, None, 9)) == []


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        version: int = connection.execute("SELECT format_version FROM meta").fetchone()[0]
        return version


def test_an_old_store_is_opened_with_all_its_rows_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "store-00.db"
    write_version_1(path)
    store = open_store(tmp_path)
    assert_migrated(store)
    assert (store.epoch, store.last_commit) >= (8, 99)
    store.commit(enqueue(Writes(), MESSAGES, session="a", due_ms=1))
    assert store.read(q.SessionsBehind(QUEUE, None, 9)) == ["a"]
    store.wait_until_swept()
    store.close()
    assert version_of(path) == FORMAT_VERSION
    store = open_store(tmp_path)
    assert positions(store) == [*range(MESSAGES + 1)]
    store.close()


@pytest.mark.parametrize("version", range(2, FORMAT_VERSION))
def test_a_store_of_a_format_in_between_is_opened_with_all_its_rows(tmp_path: Path, version: int) -> None:
    path = tmp_path / "store-00.db"
    write_version_1(path)
    with closing(sqlite3.connect(path)) as connection:
        for older in range(1, version):
            connection.executescript(";".join(migration_script(older)))
        connection.execute("UPDATE meta SET format_version = ?", (version,))
        connection.commit()
    store = open_store(tmp_path)
    assert_migrated(store)
    assert_keeps_cursors(store)
    store.close()
    assert version_of(path) == FORMAT_VERSION
    assert version_of(copy_path(path)) == version


def assert_keeps_cursors(store: SQLiteStore) -> None:
    """Check that the features of version 4 work in a migrated file: also in the index that it made anew."""
    cursor = CursorRow(DEAD_LETTERS, "reader", 0, 0, 0, 1, 2, 3, 4, 5)
    writes = Writes()
    writes.cursors[DEAD_LETTERS, "reader"] = cursor
    writes.retained[DEAD_LETTERS] = (1, 5)
    writes.entry_updates += [
        entry_key(DEAD_LETTERS, 1),
        body_key(PARTITION, 0),
        FINISHED + Disposition.COMPLETED,
        10,
        None,
    ]
    writes.dispositions += [entry_key(DEAD_LETTERS, 3), 1, 77, Disposition.COMPLETED, 4_000, 10]
    store.commit(writes)
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    assert (snapshot.cursors, snapshot.retained) == ((cursor,), {DEAD_LETTERS: SubqueueCounts(1, 5)})
    assert store.read(q.Peek(DEAD_LETTERS, 0, 9, 999)) == []
    assert store.read(q.BySequence(DEAD_LETTERS, [77])) == []
    assert store.read(q.Range(DEAD_LETTERS, 0, 99, 9, 999, finished=True)).data.endswith(b"00000")
    assert store.read(q.Dispositions(DEAD_LETTERS, 0, 9)) == [
        DispositionRow(3, 1, 77, Disposition.COMPLETED, 4_000, 10)
    ]


def test_what_is_still_in_the_log_of_a_killed_broker_is_migrated_and_in_the_copy(tmp_path: Path) -> None:
    making, path = tmp_path / "making.db", tmp_path / "store-00.db"
    write_version_1(making)
    with closing(sqlite3.connect(making, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("UPDATE partition SET next_number = 4")
        for suffix in ("", "-wal"):
            shutil.copy(f"{making}{suffix}", f"{path}{suffix}")
    store = open_store(tmp_path)
    snapshot = store.read(q.Partition(PARTITION))
    assert snapshot is not None
    assert snapshot.left_off[0].next_number == 4
    store.close()
    with closing(sqlite3.connect(copy_path(path))) as connection:
        assert connection.execute("SELECT next_number FROM partition").fetchall() == [(4,)]


def test_the_copy_is_the_old_store_and_can_be_put_back(tmp_path: Path) -> None:
    path = tmp_path / "store-00.db"
    write_version_1(path)
    open_store(tmp_path).close()
    kept = tmp_path / "store-00.before-format-6.copy"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "store-00.ballast", "store-00.before-format-6.copy", "store-00.db", "store-00.lock",
    ]  # fmt: skip
    assert version_of(kept) == 1
    path.unlink()
    kept.rename(path)
    store = open_store(tmp_path)
    assert_migrated(store)
    store.close()


def test_a_migrated_file_has_the_schema_of_a_new_one(tmp_path: Path) -> None:
    def described(path: Path) -> dict[str, object]:
        with closing(sqlite3.connect(path)) as connection:
            schema_rows = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
            return {
                name: sql if kind == "index" else connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
                for kind, name, sql in schema_rows
            }

    for directory in (tmp_path / "old", tmp_path / "new"):
        directory.mkdir()
    write_version_1(tmp_path / "old" / "store-00.db")
    for directory in (tmp_path / "old", tmp_path / "new"):
        open_store(directory).close()
    assert described(tmp_path / "old" / "store-00.db") == described(tmp_path / "new" / "store-00.db")


def test_a_copy_of_an_earlier_attempt_is_replaced(tmp_path: Path) -> None:
    """Replace it, since an older partibus may have gone on between the attempts."""
    path = tmp_path / "store-00.db"
    write_version_1(path)
    copy_path(path).write_bytes(b"older")
    copy_path(path).with_name("store-00.before-format-6.copy.new").write_bytes(b"half")
    store = open_store(tmp_path)
    assert_migrated(store)
    store.close()
    assert version_of(copy_path(path)) == 1
    assert not list(tmp_path.glob("*.new"))


def test_without_room_for_a_copy_nothing_changes_and_the_error_says_how_much_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "store-00.db"
    write_version_1(path)
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        SQLiteStore.open(path, store_id="store-00", owner=US, settings=SETTINGS, free=lambda _: 1 << 20)
    for word in (str(path), "format version 1", "store-00.before-format-6.copy", "takes 2 MiB", "1 MiB", "start again"):
        assert word in str(caught.value)
    assert caught.value.executed is False
    assert path.read_bytes() == before
    assert list(tmp_path.glob("*copy*")) == []
    assert version_of(path) == 1


def test_a_disk_that_fails_in_the_copy_leaves_the_old_format_and_no_half_copy(tmp_path: Path) -> None:
    path = tmp_path / "store-00.db"
    write_version_1(path)
    with files_no_larger_than(100_000):
        assert_migration_fails(path)
    assert list(tmp_path.glob("*copy*")) == []
    store = open_store(tmp_path)
    assert_migrated(store)
    store.close()


def test_a_disk_that_fails_in_the_change_leaves_the_old_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store-00.db"
    write_version_1(path)
    with monkeypatch.context() as without_copy, files_no_larger_than(100_000):
        # The copy is larger than the log and would fail first.
        without_copy.setattr(creation, "_copy", lambda *_: None)
        assert_migration_fails(path)
    store = open_store(tmp_path)
    assert_migrated(store)
    store.close()


def assert_migration_fails(path: Path) -> None:
    with pytest.raises(StoreError, match="migration from format version 1 to 6 failed") as caught:
        open_store(path.parent)
    assert caught.value.executed is False
    assert str(path) in str(caught.value)
    assert version_of(path) == 1


def test_a_file_at_its_bound_is_migrated_all_the_same(tmp_path: Path) -> None:
    """Its messages could not be received otherwise."""
    path = tmp_path / "store-00.db"
    write_version_1(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store = open_store(tmp_path, SETTINGS._replace(max_bytes=path.stat().st_size))
    assert_migrated(store)
    store.close()


def test_a_log_cut_anywhere_is_either_format_and_holds_all_rows(tmp_path: Path) -> None:
    """A loss of power in the migration leaves some beginning of the log."""
    origin = tmp_path / "origin"
    origin.mkdir()
    write_version_1(origin / "store-00.db")
    whole = _log_of_migration(origin)
    assert len(whole) > 5 * PAGE_BYTES
    versions = set()
    for cut in (*range(0, len(whole), 4_096), len(whole)):
        image = tmp_path / f"cut-{cut}"
        image.mkdir()
        shutil.copy(origin / "store-00.db", image)
        (image / "store-00.db-wal").write_bytes(whole[:cut])
        with closing(sqlite3.connect(image / "store-00.db")) as connection:
            versions.add(connection.execute("SELECT format_version FROM meta").fetchone()[0])
        store = open_store(image)
        assert_migrated(store)
        store.close()
        shutil.rmtree(image)
    assert versions == {1, FORMAT_VERSION}


def _log_of_migration(directory: Path) -> bytes:
    """Return the log that the migration appends, with the database as it was before, of a process that is killed
    between the commit and the checkpoint."""
    _migrate_and_kill(directory, "checkpoint")
    return (directory / "store-00.db-wal").read_bytes()


_KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path

from partibus.store.sqlite import creation
from tests.unit.store.sqlite.places import open_store

moment = sys.argv[2]


def kill(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)


class Killed(sqlite3.Connection):
    def execute(self, sql, *parameters):
        if moment.startswith("steps ") and sql.lstrip().startswith(("ALTER", "UPDATE entry", "CREATE")):
            self.set_progress_handler(kill, int(moment.split()[1]))
        if moment == f"before {sql}":
            kill()
        return super().execute(sql, *parameters)

    def backup(self, target, **named):
        if moment == "in the copy":
            super().backup(target, pages=3, progress=kill)
        super().backup(target, **named)


if moment == "in the copy":
    creation.connect_reader = lambda path, settings: Killed(path)
elif moment == "before the copy has its name":
    creation.publish = kill
elif moment == "after the copy has its name":
    creation.sync_directory = kill
elif moment == "checkpoint":
    creation.checkpoint = kill
else:
    real = creation.connect

    def connect(path, *arguments, **named):
        real(path, *arguments, **named).close()
        return Killed(path, isolation_level=None)

    creation.connect = connect
open_store(Path(sys.argv[1]))
"""


def _migrate_and_kill(directory: Path, moment: str) -> None:
    root = Path(__file__).parents[4]
    child = subprocess.run(
        [sys.executable, "-c", _KILLED, str(directory), moment],
        cwd=root,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr


@pytest.mark.parametrize(
    "moment",
    [
        "in the copy",
        "before the copy has its name",
        "after the copy has its name",
        "steps 1",
        "steps 5",
        "steps 200",
        "steps 2000",
        "before COMMIT",
        "checkpoint",
    ],
)
def test_a_process_killed_in_the_migration_leaves_one_format_or_the_other(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "store-00.db"
    write_version_1(path)
    _migrate_and_kill(tmp_path, moment)
    if moment == "checkpoint":
        assert version_of(path) == FORMAT_VERSION
    else:
        assert version_of(path) == 1
    store = open_store(tmp_path)
    assert_migrated(store)
    store.close()
    assert version_of(path) == FORMAT_VERSION
    assert version_of(copy_path(path)) == 1
    assert os.listdir(tmp_path).count("store-00.before-format-6.copy.new") == 0
