"""Stores that can't be opened: the error names the file and the next step, and the file stays as it was."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.ports import StoreError
from partibus.store.sqlite import writer
from partibus.store.sqlite.sql import FORMAT_VERSION, connect_reader
from partibus.store.sqlite.store import Readers
from tests.contract.stores import QUEUE, enqueued, positions
from tests.plugins.specification import PROJECT
from tests.unit.store.sqlite.places import SETTINGS, open_store, rewrite, unprivileged_directory


def filled(directory: Path) -> Path:
    """A closed store with three messages."""
    store = open_store(directory)
    store.commit(enqueued(1, 2, 3))
    store.close()
    return directory / "store-00.db"


def assert_refused(directory: Path, *words: str) -> None:
    """Opening fails, names the file, says what to do and does not keep the lock."""
    with pytest.raises(StoreError) as caught:
        open_store(directory)
    message = str(caught.value)
    for word in (str(directory / "store-00"), *words):
        assert word in message
    assert caught.value.executed is False


def test_a_store_in_use_is_refused_and_goes_on_working(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert_refused(tmp_path, "store-00.lock", f"process {os.getpid()}", "broker-1", "run-1", "stop that process")
    store.commit(enqueued(1))
    assert positions(store) == [1]
    store.close()
    again = open_store(tmp_path)
    assert positions(again) == [1]
    again.close()


@pytest.mark.parametrize("garbage", [b"not a database" * 100, b"\xff" * 20_000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "store-00.db"
    path.write_bytes(garbage)
    assert_refused(tmp_path, "header is damaged", "restore")
    assert path.read_bytes() == garbage


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store-00.db").touch()
    assert_refused(tmp_path, "no store of partibus", "move it away")


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store-00.db"
    rewrite(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    assert_refused(tmp_path, "no store of partibus", "choose another data directory")
    assert path.read_bytes() == before


def test_a_damaged_header_is_refused_and_the_messages_come_back_with_it(tmp_path: Path) -> None:
    path = filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(b"\x00" * 100 + whole[100:])
    assert_refused(tmp_path, "header is damaged")
    path.write_bytes(whole)
    store = open_store(tmp_path)
    assert positions(store) == [1, 2, 3]
    store.close()


def test_a_damaged_page_is_found_when_it_is_used(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'entry'")
    with path.open("r+b") as file:
        file.seek((root - 1) * 16_384)
        file.write(b"\xa5" * 16_384)
    store = open_store(tmp_path)
    with pytest.raises(StoreError, match="is damaged; stop the broker, keep a copy") as caught:
        store.read(q.Page(QUEUE, 0, 10, 1_000))
    assert str(path) in str(caught.value)
    with pytest.raises(StoreError, match="is damaged") as caught:
        store.commit(enqueued(4))
    assert caught.value.executed is False
    store.close()


def test_a_newer_format_is_refused_and_kept(tmp_path: Path) -> None:
    path = filled(tmp_path)
    rewrite(path, f"UPDATE meta SET format_version = {FORMAT_VERSION + 1}")
    before = path.read_bytes()
    assert_refused(
        tmp_path, f"format version {FORMAT_VERSION + 1}", f"knows 1 to {FORMAT_VERSION}", "install a version"
    )
    assert path.read_bytes() == before
    rewrite(path, f"UPDATE meta SET format_version = {FORMAT_VERSION}")
    store = open_store(tmp_path)
    assert positions(store) == [1, 2, 3]
    store.close()


def test_another_stores_file_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path)
    rewrite(path, "UPDATE meta SET store_id = 'store-07'")
    assert_refused(tmp_path, "'store-07'", "'store-00'", "own name")


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nowhere", "make the directory exist")


def test_a_read_only_directory_is_refused_and_keeps_its_messages() -> None:
    with unprivileged_directory() as directory:
        filled(directory)
        directory.chmod(0o500)
        assert_refused(directory, "writable")
        directory.chmod(0o700)
        store = open_store(directory)
        assert positions(store) == [1, 2, 3]
        store.close()


def test_a_read_only_directory_without_a_store_is_refused() -> None:
    with unprivileged_directory() as directory:
        directory.chmod(0o500)
        assert_refused(directory, "writable")
        directory.chmod(0o700)
        assert list(directory.iterdir()) == []


def test_a_read_only_file_is_refused_and_keeps_its_messages() -> None:
    with unprivileged_directory() as directory:
        path = filled(directory)
        path.chmod(0o400)
        assert_refused(directory, "read-only", "writable")
        assert not (directory / "store-00.db-wal").exists()
        path.chmod(0o600)
        store = open_store(directory)
        assert positions(store) == [1, 2, 3]
        store.close()


def test_a_refused_opening_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = filled(tmp_path)
    rewrite(path, f"UPDATE meta SET format_version = {FORMAT_VERSION + 1}")
    assert_refused(tmp_path)
    assert_refused(tmp_path, "format version")


def test_half_a_store_from_a_start_that_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "store-00.db.new").write_bytes(b"half")
    store = open_store(tmp_path)
    store.commit(enqueued(1))
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store-00.ballast", "store-00.db", "store-00.lock"]


def test_a_name_with_signs_that_mean_something_in_a_uri(tmp_path: Path) -> None:
    directory = tmp_path / "a b?mode=memory#%41"
    directory.mkdir()
    store = open_store(directory)
    store.commit(enqueued(1))
    store.close()
    assert (directory / "store-00.db").stat().st_size > 16_384
    store = open_store(directory, SETTINGS)
    assert positions(store) == [1]
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_goes_away_under_its_store_stops_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    monkeypatch.setattr(writer, "LOOK_S", 0.0)
    store = open_store(tmp_path)
    store.commit(enqueued(1))
    path, aside = tmp_path / "store-00.db", tmp_path / "aside"
    path.rename(aside)
    if replaced:
        path.write_bytes(aside.read_bytes())
    for _ in range(2):
        with pytest.raises(StoreError, match="put the file back") as caught:
            store.commit(enqueued(2))
        assert caught.value.executed is False
    aside.rename(path)
    again = store.reopen()
    assert positions(again) == [1]
    again.close()


def test_a_store_whose_file_is_gone_is_not_opened_anew_as_an_empty_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (tmp_path / "store-00.db").rename(tmp_path / "aside")
    with pytest.raises(StoreError):
        store.reopen()
    assert not (tmp_path / "store-00.db").exists()


def test_a_log_that_goes_away_under_its_store_loses_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process still has the log open: it copies the log into the database, even if it is killed right after."""
    monkeypatch.setattr(writer, "LOOK_S", 0.0)
    store = open_store(tmp_path)
    store.commit(enqueued(1))
    store.commit(enqueued(2))
    (tmp_path / "store-00.db-wal").unlink()
    with pytest.raises(StoreError, match="its commits are in the database") as caught:
        store.commit(enqueued(3))
    assert caught.value.executed is False
    copy = tmp_path / "as after a kill"
    copy.mkdir()
    shutil.copy(tmp_path / "store-00.db", copy)
    killed = open_store(copy)
    assert positions(killed) == [1, 2]
    killed.close()
    again = store.reopen()
    again.commit(enqueued(3))
    assert positions(again) == [1, 2, 3]
    assert len(again.generations) == 1
    again.close()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_store_without_the_log_of_an_owner_that_was_killed_begins_a_generation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_closed: bool
) -> None:
    """Its last commits may be lost, so the numbers in them must not be given out again."""
    owner = subprocess.run(
        [sys.executable, "-c", OWNER, str(tmp_path), "close" if is_closed else "kill"], cwd=PROJECT, check=False
    )
    assert owner.returncode == (0 if is_closed else 9)
    (tmp_path / "store-00.db-wal").unlink(missing_ok=is_closed)
    for _ in range(2):  # once is enough
        store = open_store(tmp_path)
        assert len(store.generations) == (1 if is_closed else 2)
        assert positions(store) == ([1] if is_closed else [])
        store.close()
    assert caplog.text.count("its last owner did not close it") == (not is_closed)


def test_a_killed_owner_whose_log_is_there_begins_no_generation(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", OWNER, str(tmp_path), "kill"], cwd=PROJECT, check=False)
    store = open_store(tmp_path)
    assert (positions(store), len(store.generations)) == ([1], 1)
    store.close()


OWNER = """
import os, sys
from pathlib import Path
from tests.contract.stores import enqueued
from tests.unit.store.sqlite.places import open_store
store = open_store(Path(sys.argv[1]))
store.commit(enqueued(1))
if sys.argv[2] == "kill":
    os._exit(9)
store.close()
"""


def test_a_store_whose_log_a_reader_has_kept_is_not_marked_as_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss of that log loses commits, so their numbers must not be given out again."""
    store = open_store(tmp_path, SETTINGS._replace(busy_timeout_ms=0))
    store.commit(enqueued(1))
    with closing(connect_reader(tmp_path / "store-00.db", SETTINGS)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entry").fetchall()
        store.commit(enqueued(2))
        store.close()
        assert (tmp_path / "store-00.lock").read_bytes().endswith(b"open\n")
    store = open_store(tmp_path)
    assert (positions(store), len(store.generations)) == ([1, 2], 1)
    store.close()
    assert not (tmp_path / "store-00.lock").read_bytes().endswith(b"open\n")

    store = open_store(tmp_path, SETTINGS._replace(busy_timeout_ms=0))
    with closing(connect_reader(tmp_path / "store-00.db", SETTINGS)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entry").fetchall()
        store.commit(enqueued(3))
        store.close()
    (tmp_path / "store-00.db-wal").unlink()
    store = open_store(tmp_path)
    assert (positions(store), len(store.generations)) == ([1, 2], 2)
    assert "its last owner did not close it" in caplog.text
    store.close()


class ClosedMeanwhile(list[sqlite3.Connection]):
    """Idle connections of a pool that is closed between a load's look and its append."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def append(self, connection: sqlite3.Connection) -> None:
        self._readers.close()
        super().append(connection)


def test_a_load_that_ends_as_its_store_is_closed_leaves_no_connection(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    readers = Readers(tmp_path / "store-00.db", SETTINGS)
    readers._idle = ClosedMeanwhile(readers)
    with readers.reader() as connection:
        pass
    assert readers._idle == []
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")
