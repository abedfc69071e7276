"""Copies of stores: of one moment while commits go on, and whole under their names or not there at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from threading import Event

import pytest
from click.testing import CliRunner

from partibus.cli.main import main
from partibus.partition.protocol import queries as q
from partibus.partition.protocol.generations import LeftOff
from partibus.partition.protocol.keys import POSITION_MAX, SubqueueKind, body_key, entry_key
from partibus.partition.protocol.ports import FINISHED, Disposition, StoreError, Writes
from partibus.store.backup import CATALOG, LIST, Backup, back_up, read_backup, store_file
from partibus.store.sqlite import owner
from partibus.store.sqlite.backup import BackupStopped, Moment, StoreCopy, copy_store
from partibus.store.sqlite.checkpoint import checkpoint
from partibus.store.sqlite.directory import close_stores, lock_data_directory, open_stores
from partibus.store.sqlite.store import SQLiteStore
from tests.contract.stores import PARTITION, QUEUE, complete, enqueue
from tests.unit.store.sqlite.places import SETTINGS, US, open_store

BODY = b"x" * 20_000
MESSAGES = 200
"""Two pages each: a few steps of a copy."""


class Steps(Event):
    """The ``stop`` of a copy, which asks it after each step."""

    def __init__(self, after_step: Callable[[int], bool]) -> None:
        super().__init__()
        self._after_step = after_step
        self.steps = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.steps += 1
        return self._after_step(self.steps)


def commit(store: SQLiteStore, first: int, count: int) -> None:
    writes = Writes()
    for pos in range(first, first + count):
        enqueue(writes, pos, BODY)
    store.commit(writes)


def positions(copy: Path) -> list[int]:
    with StoreCopy(copy) as reading:
        return [row.pos for page in reading.pages(PARTITION, SubqueueKind.ACTIVE, 0) for row in page]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    (tmp_path / "live").mkdir()
    store = open_store(tmp_path / "live")
    commit(store, 1, MESSAGES)
    store.close()
    return tmp_path / "live" / "store-00.db"


def test_a_copy_is_of_the_moment_at_which_it_began(filled: Path, tmp_path: Path) -> None:
    store = open_store(filled.parent)
    target = tmp_path / "copy.db"

    def commit_meanwhile(step: int) -> bool:
        commit(store, MESSAGES + step, 1)
        return False

    steps = Steps(commit_meanwhile)
    assert copy_store(filled, target, steps) == target.stat().st_size
    assert steps.steps > 1
    store.close()
    assert positions(target) == list(range(1, MESSAGES + 1))
    assert target.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "live"]


def test_what_is_only_in_the_log_is_in_the_copy(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    commit(store, 1, 3)
    copy_store(tmp_path / "store-00.db", tmp_path / "copy.db", Event())
    store.close()
    assert positions(tmp_path / "copy.db") == [1, 2, 3]


def test_a_copy_can_be_served(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    copy_store(filled, tmp_path / "other" / "store-00.db", Event())
    store = open_store(tmp_path / "other")
    commit(store, MESSAGES + 1, 1)
    store.close()
    assert positions(tmp_path / "other" / "store-00.db")[-1] == MESSAGES + 1


def test_a_copy_of_a_store_begins_a_generation_when_it_is_opened_first(filled: Path, tmp_path: Path) -> None:
    copies = [tmp_path / name for name in ("one", "two")]
    for copy in copies:
        copy.mkdir()
        copy_store(filled, copy / "store-00.db", Event())
    store = open_store(filled.parent)
    (before,) = store.generations
    store.close()
    drawn = []
    for copy in copies:
        store = open_store(copy)
        assert store.generations[0] == before
        drawn.append(store.generations)
        commit(store, store.generations[1].first, 1)
        store = store.reopen()
        assert store.generations == drawn[-1]
        snapshot = store.read(q.Partition(PARTITION))
        store.close()
        assert snapshot is not None
        assert snapshot.left_off == (LeftOff(2, 0, store.generations[1].first),)
    assert drawn[0][1].id != drawn[1][1].id


def test_a_copy_by_other_means_begins_a_generation_and_a_renamed_store_does_not(filled: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.db"
    open_store(filled.parent).close()
    shutil.copy2(filled, kept)
    store = open_store(filled.parent)
    (before,) = store.generations
    given_out = MESSAGES + 1
    commit(store, given_out, 1)
    store.close()

    filled.unlink()
    shutil.copy2(kept, filled)  # perhaps under the inode number that has just become free
    store = open_store(filled.parent)
    began = store.generations
    assert [one.id for one in began] == [before.id, began[-1].id]
    assert began[-1].first > given_out
    store.close()
    store = open_store(filled.parent)
    assert store.generations == began
    store.close()

    filled.parent.rename(tmp_path / "renamed")
    store = open_store(tmp_path / "renamed")
    assert store.generations == began
    store.close()


def test_a_file_system_that_numbers_its_files_anew_does_not_use_up_the_numbers(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = count(1)
    monkeypatch.setattr(owner, "file_identity", lambda _descriptor: next(mounted))
    store = open_store(filled.parent)
    for _ in range(owner.MOVES_MAX + 2):
        store.close()
        store = open_store(filled.parent)
    store.close()
    assert len(store.generations) == 1 + owner.MOVES_MAX


def test_a_file_system_without_inode_generations_has_inodes(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> bytes:
        raise OSError(errno.ENOTTY, "no such request")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    with filled.open("rb") as one, Path(__file__).open("rb") as other:
        identities = {owner.file_identity(file.fileno()) for file in (one, one, other)}
    assert len(identities) == 2


def test_an_operator_marks_the_stores_of_a_directory_that_a_snapshot_has_put_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    stores = open_stores(data, owner=US, created_ms=0, count=2)
    close_stores(stores)
    command = ["cluster", "accept-loss", "stores", "--data", str(data)]
    held = lock_data_directory(data, US)
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 1
    assert "in use by" in refused.output
    held.release()
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "2 stores" in done.output
    for opens in (1, 2):
        stores = open_stores(data, owner=US, created_ms=0, count=2)
        assert [len(store.generations) for store in stores] == [2, 2], opens
        close_stores(stores)
    empty = CliRunner().invoke(main, [*command[:-1], str(tmp_path)])
    assert "no stores are in it" in empty.output


def test_who_reads_a_copy_writes_nothing_beside_it(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    copy_store(filled, tmp_path / "copies" / "store-00.db", Event())
    before = (tmp_path / "copies" / "store-00.db").read_bytes()
    (tmp_path / "copies" / "store-00.db").chmod(0o400)
    with StoreCopy(tmp_path / "copies" / "store-00.db") as copy:
        pages = list(copy.pages(PARTITION, SubqueueKind.ACTIVE, 150))
    assert [row.pos for page in pages for row in page] == list(range(150, MESSAGES + 1))
    assert len(pages) == 1
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["store-00.db"]
    assert (tmp_path / "copies" / "store-00.db").read_bytes() == before


def test_what_has_left_and_is_kept_for_cursors_is_not_read_from_a_copy(filled: Path, tmp_path: Path) -> None:
    """Read no completed message again."""
    store = open_store(filled.parent)
    writes = Writes()
    for pos in range(1, MESSAGES):
        writes.entry_updates += [
            entry_key(QUEUE, pos),
            body_key(PARTITION, pos),
            FINISHED + Disposition.COMPLETED,
            1,
            None,
        ]
    store.commit(writes)
    store.close()
    copy_store(filled, tmp_path / "copy.db", Event())
    assert positions(tmp_path / "copy.db") == [MESSAGES]


def test_a_copy_that_is_stopped_is_not_there(filled: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupStopped):
        copy_store(filled, tmp_path / "copy.db", Steps(lambda step: step == 2))
    assert [path.name for path in tmp_path.iterdir()] == ["live"]


def test_a_damaged_store_has_no_copy(filled: Path, tmp_path: Path) -> None:
    with filled.open("r+b") as file:
        file.seek(16_384)
        file.write(b"\xff" * 16_384 * 3)
    with pytest.raises(StoreError, match=r"damaged|malformed"):
        copy_store(filled, tmp_path / "copy.db", Event())
    assert [path.name for path in tmp_path.iterdir()] == ["live"]


def test_a_store_that_is_gone_has_no_copy(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="store-00"):
        copy_store(tmp_path / "store-00.db", tmp_path / "copy.db", Event())
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_another_format_is_refused(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as connection, connection:
        connection.execute("UPDATE meta SET format_version = 99")
    with pytest.raises(StoreError, match="format version 99"):
        StoreCopy(filled)


def test_stores_are_copied_as_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages go from one store to another, which has each before the first one deletes it, as forwarding does. Each
    is in one of the copies at least, also when the destination is copied first."""
    at_once = SETTINGS._replace(busy_timeout_ms=0)
    places = [tmp_path / "d.db", tmp_path / "s.db"]
    destination, source = (SQLiteStore.open(path, store_id="x", owner=US, settings=at_once) for path in places)
    commit(source, 1, 3)
    outcomes = []

    def move(pos: int) -> None:
        destination.commit(enqueue(Writes(), pos))
        source.commit(complete(Writes(), pos, pos))

    @contextmanager
    def failing(path: Path, doing: str) -> Iterator[None]:
        if doing.startswith("reading") and path == places[1]:
            try:
                move(2)
                outcomes.append("moved")
            except StoreError:
                outcomes.append("refused")
        yield

    move(1)
    monkeypatch.setattr("partibus.store.sqlite.backup._failing", failing)
    with Moment(places, Event()) as moment:
        there, here = (entries(moment.take(path)) for path in places)
    assert moment.is_one
    assert outcomes == ["refused"]
    assert (there, here) == ({1}, {2, 3})
    move(2)
    source.close()
    destination.close()


def entries(connection: sqlite3.Connection) -> set[int]:
    with closing(connection):
        return {key & POSITION_MAX for (key,) in connection.execute("SELECT key FROM entry")}


def test_stores_that_can_not_be_held_are_copied_one_after_the_other(
    filled: Path, catalog: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        backup = make(filled, catalog, tmp_path / "one")
    assert not backup.is_one_moment
    assert read_backup(tmp_path / "one") == backup
    assert make(filled, catalog, tmp_path / "two").is_one_moment


# -- whole backups -----------------------------------------------------------------------------------------------------


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("CREATE TABLE entity (name TEXT)")
        connection.execute("CREATE TABLE policy (name TEXT, primary_key TEXT, secondary_key TEXT)")
        # One that is deleted, and leaves its bytes in pages that are free:
        connection.execute("INSERT INTO policy VALUES ('old', ?, ?)", ("secret-old" * 1_000, "secret-too" * 1_000))
        connection.commit()
        connection.execute("DELETE FROM policy")
        connection.execute("INSERT INTO policy VALUES ('p', 'secret-first', 'secret-second')")
    return path


def second_of(filled: Path) -> Path:
    """Another store with the same messages."""
    return Path(shutil.copy(filled, filled.parent / "store-01.db"))


def make(filled: Path, catalog: Path, directory: Path, stop: Event | None = None) -> Backup:
    return make_of({"store-00": filled, "store-01": second_of(filled)}, catalog, directory, stop)


def make_of(files: dict[str, Path], catalog: Path, directory: Path, stop: Event | None) -> Backup:
    return back_up(files, catalog, directory, ["store-02"], 1_000, stop or Event())


def test_a_backup_says_what_is_in_it(filled: Path, catalog: Path, tmp_path: Path) -> None:
    directory = tmp_path / "new" / "backup"
    backup = make(filled, catalog, directory)
    assert backup == read_backup(directory)
    assert (backup.began_ms, backup.left_out, list(backup.stores)) == (1_000, ["store-02"], ["store-00", "store-01"])
    assert positions(store_file(directory, "store-00")) == list(range(1, MESSAGES + 1))
    assert directory.stat().st_mode & 0o077 == 0


def test_a_backup_holds_no_key(filled: Path, catalog: Path, tmp_path: Path) -> None:
    assert b"secret-first" in catalog.read_bytes()
    assert b"secret-old" in catalog.read_bytes()
    directory = tmp_path / "backup"
    make(filled, catalog, directory)
    for path in directory.rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes()
    with closing(sqlite3.connect(directory / CATALOG)) as connection:
        assert connection.execute("SELECT * FROM policy").fetchall() == [("p", "", "")]
    assert (directory / CATALOG).stat().st_mode & 0o077 == 0


def test_a_backup_that_is_stopped_while_it_copies_the_catalog_is_none(catalog: Path, tmp_path: Path) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(BackupStopped):
        make_of({}, catalog, tmp_path / "backup", stop)
    assert not (tmp_path / "backup" / CATALOG).exists()


def test_a_directory_with_something_in_it_is_refused(filled: Path, catalog: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not empty"):
        make(filled, catalog, tmp_path)


def test_a_backup_that_lacks_something_is_none(filled: Path, catalog: Path, tmp_path: Path) -> None:
    directory = tmp_path / "backup"
    make(filled, catalog, directory)
    copy = store_file(directory, "store-01")
    copy.write_bytes(copy.read_bytes()[:-1])
    with pytest.raises(StoreError, match="store-01"):
        read_backup(directory)
    document = json.loads((directory / LIST).read_text())
    (directory / LIST).write_text(json.dumps(document | {"format": 2}))
    with pytest.raises(StoreError, match="format 2"):
        read_backup(directory)
    (directory / LIST).write_text("{}")
    with pytest.raises(StoreError, match="can't be read"):
        read_backup(directory)
    (directory / LIST).unlink()
    with pytest.raises(StoreError, match="was not finished"):
        read_backup(directory)


KILLED = """
import os, signal, sys
from pathlib import Path
from threading import Event
from partibus.store.backup import back_up

class Killed(Event):
    steps = 0
    def wait(self, timeout=None):
        self.steps += 1
        if self.steps == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return False

store, other, catalog, directory = map(Path, sys.argv[2:])
back_up({"store-00": store, "store-01": other}, catalog, directory, [], 0, Killed())
"""


@pytest.mark.parametrize("step", [1, 2, 4, 5])
def test_a_process_that_is_killed_leaves_nothing_that_looks_whole(
    filled: Path, catalog: Path, tmp_path: Path, step: int
) -> None:
    directory = tmp_path / "backup"
    command = [
        sys.executable,
        "-c",
        KILLED,
        str(step),
        str(filled),
        str(second_of(filled)),
        str(catalog),
        str(directory),
    ]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    with pytest.raises(StoreError, match="was not finished"):
        read_backup(directory)
    for copy in (directory / "stores").glob("*.db"):
        assert positions(copy) == list(range(1, MESSAGES + 1))
    with pytest.raises(StoreError, match="is not empty"):
        make(filled, catalog, directory)


@pytest.mark.parametrize("in_use", [False, True])
def test_a_copy_over_the_file_begins_a_generation(filled: Path, tmp_path: Path, in_use: bool) -> None:
    """`cp -p` over a file keeps its inode. The lock file beside it knows the last commit, also of one run."""
    store = open_store(filled.parent)
    if in_use:
        with closing(sqlite3.connect(filled)) as connection:
            checkpoint(connection, "TRUNCATE")
    else:
        store.close()
    shutil.copy2(filled, tmp_path / "kept.db")
    if not in_use:
        store = open_store(filled.parent)
    commit(store, MESSAGES + 1, 1)
    store.close()
    inode = filled.stat().st_ino
    shutil.copy2(tmp_path / "kept.db", filled)
    assert filled.stat().st_ino == inode
    assert_begins_one_generation_above(MESSAGES + 1, filled)


def test_a_copy_over_the_file_of_an_owner_that_was_killed_begins_a_generation(filled: Path, tmp_path: Path) -> None:
    open_store(filled.parent).close()
    shutil.copy2(filled, tmp_path / "kept.db")
    store = open_store(filled.parent)
    commit(store, MESSAGES + 1, 1)
    text = filled.with_suffix(".lock").read_bytes()
    store.close()
    filled.with_suffix(".lock").write_bytes(text)  # as after a kill
    shutil.copy2(tmp_path / "kept.db", filled)
    filled.with_name("store-00.db-wal").touch()
    assert_begins_one_generation_above(MESSAGES + 1, filled)


def test_a_copy_over_the_folder_with_its_lock_files_begins_a_generation(filled: Path, tmp_path: Path) -> None:
    open_store(filled.parent).close()
    shutil.copytree(filled.parent, tmp_path / "kept")
    store = open_store(filled.parent)
    commit(store, MESSAGES + 1, 1)
    store.close()
    shutil.copytree(tmp_path / "kept", filled.parent, copy_function=shutil.copy, dirs_exist_ok=True)
    assert_begins_one_generation_above(MESSAGES + 1, filled)


def test_a_closed_store_whose_mode_or_links_change_begins_no_generation(filled: Path, tmp_path: Path) -> None:
    """Containers set the owner of their files at each start, and backups make links."""
    open_store(filled.parent).close()
    filled.chmod(0o600)
    os.chown(filled, os.getuid(), os.getgid())
    os.link(filled, tmp_path / "linked")
    store = open_store(filled.parent)
    assert len(store.generations) == 1
    store.close()


def test_a_lock_file_of_an_older_version_has_no_note(filled: Path) -> None:
    filled.with_suffix(".lock").write_bytes(b"process 1 (broker broker-1, incarnation run-1)\n")
    os.utime(filled)
    for _ in range(2):
        store = open_store(filled.parent)
        assert len(store.generations) == 1
        store.close()


def assert_begins_one_generation_above(given_out: int, path: Path) -> None:
    store = open_store(path.parent)
    began = store.generations
    assert len(began) == 2
    assert began[-1].first > given_out
    store.close()
    store = open_store(path.parent)
    assert store.generations == began
    store.close()


def test_an_operator_who_marks_stores_leaves_the_log_of_one_that_was_not_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next start would take a log that is missing for a loss."""
    stores = open_stores(tmp_path / "data", owner=US, created_ms=0, count=2)
    stores[1].close()
    commit(stores[0], 1, 3)
    killed = tmp_path / "as after a kill"
    shutil.copytree(tmp_path / "data", killed)
    stores[0].close()
    log = killed / "stores" / "store-00.db-wal"
    size_bytes = log.stat().st_size
    done = CliRunner().invoke(main, ["cluster", "accept-loss", "stores", "--data", str(killed)])
    assert done.exit_code == 0, done.output
    assert log.stat().st_size >= size_bytes
    assert not log.with_name("store-01.db-wal").exists()
    for opens in (1, 2):
        stores = open_stores(killed, owner=US, created_ms=0, count=2)
        assert [len(store.generations) for store in stores] == [2, 2], opens
        close_stores(stores)
    assert positions(killed / "stores" / "store-00.db") == [1, 2, 3]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
