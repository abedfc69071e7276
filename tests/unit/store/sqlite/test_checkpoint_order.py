"""The order of checkpoints that keeps clear of SQLite's WAL-reset bug: see `partibus.store.sqlite.checkpoint`."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, current_thread
from typing import Any
from unittest.mock import patch

import pytest

from partibus.partition.protocol.ports import StoreFull
from partibus.store.sqlite import SQLiteStore, StoreSettings, checkpoint, store
from partibus.store.sqlite.backup import copy_store
from partibus.store.sqlite.store import Readers
from tests.contract.stores import complete, enqueued
from tests.unit.store.sqlite.log_index import LogIndex, log_index
from tests.unit.store.sqlite.places import US

KIB = 1 << 10


class Disk:
    """A file system of which a test says how much is free."""

    free = 1 << 30

    def __call__(self, _: Path) -> int:
        return self.free


class Watched:
    """A store, and what its checkpoints met."""

    def __init__(self, directory: Path) -> None:
        self.disk = Disk()
        self.database = directory / "store-00.db"
        settings = StoreSettings(checkpoint_bytes=200 * KIB, reserved_bytes=256 * KIB, min_free_bytes=KIB)
        with patch.object(store, "Checkpoints", self._make):
            self.store = SQLiteStore.open(
                self.database, store_id="store-00", owner=US, settings=settings, free=self.disk
            )
        self.index: LogIndex
        self.beside_commits = 0
        self.broken: list[str] = []
        self._real = checkpoint.checkpoint
        self._passed: set[int] = set()

    def _make(self, path: Path, settings: StoreSettings, commit_lock: Lock, *more: Any) -> checkpoint.Checkpoints:
        self._commit_lock = commit_lock
        return checkpoint.Checkpoints(path, settings, commit_lock, *more)

    def checkpoint(self, connection: sqlite3.Connection, mode: str = "PASSIVE") -> None:
        """Look at the log before a checkpoint begins."""
        thread = current_thread()
        is_first_pass = thread.name.startswith("checkpoint") and id(connection) not in self._passed
        if is_first_pass:
            self._passed.add(id(connection))
            self.beside_commits += 1
            if self.index.may_start_over:
                self.broken.append("a checkpoint beside commits began when the log could start over")
        elif not self._commit_lock.locked():
            self.broken.append("a checkpoint excluded no commits")
        self._real(connection, mode)
        if not is_first_pass:
            self._passed.discard(id(connection))

    def use(self) -> None:
        """Commit much and little, on a disk with room and on a full one."""
        for pos in range(0, 200, 2):
            self.disk.free = 0 if pos % 40 > 25 else 1 << 30
            with suppress(StoreFull):
                self.store.commit(enqueued(pos, pos + 1, data=bytes(40 * KIB)))
            if pos >= 20:
                self.store.commit(complete(enqueued(), pos - 20, pos - 19))


@contextmanager
def watched(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    one = Watched(directory)
    monkeypatch.setattr("partibus.store.sqlite.checkpoint.checkpoint", one.checkpoint)
    monkeypatch.setattr("partibus.store.sqlite.store.checkpoint", one.checkpoint)
    with log_index(one.database) as one.index:
        yield one
        one.store.close()


def test_no_checkpoint_begins_beside_commits_when_the_log_could_start_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path, monkeypatch) as one:
        one.use()
    assert one.beside_commits > 5
    assert one.broken == []


def test_the_watch_catches_an_order_that_opens_the_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant the bug again: on a full disk a commit copies the log and starts the thread all the same."""

    after_commit = checkpoint.Checkpoints.after_commit

    def copy_first(self: checkpoint.Checkpoints, appended_bytes: int) -> None:
        if one.disk.free == 0:
            with closing(sqlite3.connect(one.database)) as connection:
                checkpoint.checkpoint(connection)
        after_commit(self, appended_bytes)

    monkeypatch.setattr(checkpoint.Checkpoints, "after_commit", copy_first)
    with watched(tmp_path, monkeypatch) as one:
        one.disk.free = 0
        for pos in range(1_000):  # the thread begins when the scheduler lets it: mostly within a few commits
            one.store.commit(complete(enqueued(), pos, pos))
            if one.broken:
                break
    assert "a checkpoint beside commits began when the log could start over" in one.broken


_READ = """
import sqlite3, sys
for _ in range(20):
    connection = sqlite3.connect(sys.argv[1])
    connection.execute("SELECT count(*) FROM entry").fetchall()
    connection.close()
"""


def test_readers_of_other_programs_begin_no_checkpoint(tmp_path: Path) -> None:
    """Read as the shell of SQLite and a backup do: copied and other pages stay so."""
    store = SQLiteStore.open(tmp_path / "store-00.db", store_id="store-00", owner=US)
    with log_index(tmp_path / "store-00.db") as index:
        for pos in range(20):
            store.commit(enqueued(pos, data=bytes(KIB)))
        before = index.frames, index.copied
        assert before[0] > 20
        assert before[1] == 0
        subprocess.run([sys.executable, "-c", _READ, tmp_path / "store-00.db"], check=True)
        copy_store(tmp_path / "store-00.db", tmp_path / "copy.db", Event())
        assert (index.frames, index.copied) == before
        store.close()
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT count(*) FROM entry").fetchall() == [(20,)]


def test_a_reader_that_outlives_the_store_makes_no_checkpoint(tmp_path: Path) -> None:
    """SQLite makes one when the last connection is closed; the next owner may be writing by then."""
    store = SQLiteStore.open(tmp_path / "store-00.db", store_id="store-00", owner=US)
    store.commit(enqueued(1))
    readers = Readers(tmp_path / "store-00.db", StoreSettings())
    with readers.reader() as reader:
        reader.execute("SELECT count(*) FROM entry").fetchall()
        failed_sync = sqlite3.OperationalError("planted")
        failed_sync.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        store.checkpoints.failed(failed_sync)
        store.close()
        readers.close()
        log = tmp_path / "store-00.db-wal"
        size = log.stat().st_size
        assert size > 0
    assert log.stat().st_size == size, "it was closed at its end, as the last one"
