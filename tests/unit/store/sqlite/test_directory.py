"""The stores of one data directory."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from partibus.partition.protocol.ports import StoreError
from partibus.store.sqlite import Owner, SQLiteStore, close_stores, lock_data_directory, open_stores
from partibus.store.sqlite.sql import FORMAT_VERSION, PAGE_BYTES
from tests.contract.stores import enqueued, positions
from tests.unit.store.sqlite.places import SETTINGS, US, rewrite


def opened(data_dir: Path, count: int = 4, owner: Owner = US) -> list[SQLiteStore]:
    return open_stores(data_dir, owner=owner, created_ms=1_700_000_000_000, count=count, settings=SETTINGS)


def test_stores_are_made_once_and_found_again_in_order(tmp_path: Path) -> None:
    stores = opened(tmp_path)
    assert [Path(store.name).name for store in stores] == [f"store-{index:02}.db" for index in range(4)]
    for index, store in enumerate(stores):
        store.commit(enqueued(index))
    close_stores(stores)
    stores = opened(tmp_path)
    assert [positions(store) for store in stores] == [[0], [1], [2], [3]]
    assert [store.epoch for store in stores] == [2, 2, 2, 2]
    close_stores(stores)


_MAKING = """
import os, signal, sys
from itertools import count
from pathlib import Path

from partibus.store.sqlite import creation
from tests.unit.store.sqlite.test_directory import opened

step, before = sys.argv[2], int(sys.argv[3])
real = getattr(creation, step)
calls = count()


def kill_in_time(*arguments):
    if next(calls) == before:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)


setattr(creation, step, kill_in_time)
opened(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("step", "done"), [("prepare", 1), ("sync_file", 2), ("publish", 0), ("publish", 2), ("sync_directory", 0)]
)
def test_a_start_that_is_killed_while_it_makes_the_stores_is_made_up_for_by_the_next(
    tmp_path: Path, step: str, done: int
) -> None:
    root = Path(__file__).parents[4]
    child = subprocess.run([sys.executable, "-c", _MAKING, str(tmp_path), step, str(done)], cwd=root, check=False)
    assert child.returncode == -signal.SIGKILL
    named = len(list((tmp_path / "stores").glob("store-*.db")))
    assert named == {"publish": done, "sync_directory": 4}.get(step, 0)
    # What a process leaves that is killed while SQLite writes; it must not be taken for part of the new file.
    for unborn in (tmp_path / "stores").glob("*.new"):
        unborn.with_name(f"{unborn.name}-wal").write_bytes(b"of another run")

    stores = opened(tmp_path)
    assert [store.epoch for store in stores] == [1, 1, 1, 1]
    for index, store in enumerate(stores):
        store.commit(enqueued(index))
    close_stores(stores)
    stores = opened(tmp_path)
    assert [positions(store) for store in stores] == [[0], [1], [2], [3]]
    close_stores(stores)
    left = [path.name for path in (tmp_path / "stores").iterdir() if ".new" in path.name]
    assert not left


def test_stores_that_are_made_together_are_complete_and_each_its_own(tmp_path: Path) -> None:
    close_stores(opened(tmp_path))
    for index in range(4):
        path = tmp_path / "stores" / f"store-{index:02}.db"
        with closing(sqlite3.connect(path)) as made:
            assert made.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert made.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert made.execute("PRAGMA auto_vacuum").fetchone() == (2,)
            assert made.execute("PRAGMA page_size").fetchone() == (PAGE_BYTES,)
            assert made.execute("SELECT store_id, created_ms FROM meta").fetchall() == [(path.stem, 1_700_000_000_000)]


def test_the_directories_are_the_owners_alone(tmp_path: Path) -> None:
    data_dir = tmp_path / "a" / "data"
    close_stores(opened(data_dir))
    for directory in (data_dir, data_dir / "stores"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_more_stores_than_asked_for_are_opened_and_missing_ones_are_added(tmp_path: Path) -> None:
    close_stores(opened(tmp_path, 3))
    stores = opened(tmp_path, 2)
    assert len(stores) == 3
    close_stores(stores)
    stores = opened(tmp_path, 5)
    assert [store.epoch for store in stores] == [3, 3, 3, 1, 1]
    close_stores(stores)


def test_a_lost_store_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    close_stores(opened(tmp_path))
    lost = tmp_path / "stores" / "store-01.db"
    lost.unlink()
    with pytest.raises(StoreError, match=r"missing.*put the file back") as caught:
        opened(tmp_path)
    assert str(lost) in str(caught.value)
    assert not lost.exists()


def test_one_store_that_fails_closes_the_others(tmp_path: Path) -> None:
    close_stores(opened(tmp_path))
    damaged = tmp_path / "stores" / "store-02.db"
    rewrite(damaged, "UPDATE meta SET format_version = 9")
    for _ in range(2):
        with pytest.raises(StoreError, match="format version 9") as caught:
            opened(tmp_path)
        assert str(damaged) in str(caught.value)
    rewrite(damaged, f"UPDATE meta SET format_version = {FORMAT_VERSION}")
    close_stores(opened(tmp_path))


def test_swapped_files_are_refused(tmp_path: Path) -> None:
    close_stores(opened(tmp_path, 2))
    first, second = (tmp_path / "stores" / f"store-0{index}.db" for index in (0, 1))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    with pytest.raises(StoreError, match="is store 'store-01', not 'store-00'"):
        opened(tmp_path, 2)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no directory")
    for refused in (lambda: lock_data_directory(tmp_path / "data", US), lambda: opened(tmp_path / "data")):
        with pytest.raises(StoreError, match="choose another data directory") as caught:
            refused()
        assert str(tmp_path / "data") in str(caught.value)


_SECOND_PROCESS = """
import sys
from contextlib import closing
from pathlib import Path
from partibus.partition.protocol.ports import StoreError
from tests.unit.store.sqlite.test_directory import opened
from partibus.store.sqlite import Owner, lock_data_directory

data_dir = Path(sys.argv[1])
for attempt in (lambda: lock_data_directory(data_dir, Owner("other", "run")), lambda: opened(data_dir)):
    try:
        attempt()
    except StoreError as error:
        print(error)
"""


def test_a_second_process_on_one_directory_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    lock = lock_data_directory(tmp_path, US)
    stores = opened(tmp_path)
    root = Path(__file__).parents[4]
    said = subprocess.run(
        [sys.executable, "-c", _SECOND_PROCESS, str(tmp_path)], capture_output=True, text=True, cwd=root, check=True
    ).stdout.splitlines()
    assert len(said) == 2
    for line, path in zip(said, (tmp_path / "lock", tmp_path / "stores" / "store-00.lock"), strict=True):
        assert line.startswith(f"{path}: in use by process {os.getpid()} (broker broker-1, incarnation run-1)")
        assert "stop that process or choose another data directory" in line
    stores[0].commit(enqueued(1))
    close_stores(stores)
    lock.release()
    lock.release()
    again = lock_data_directory(tmp_path, Owner("other", "run"))
    close_stores(opened(tmp_path))
    again.release()


def test_files_of_stores_are_for_their_owner_only_and_become_so_when_they_were_not(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        close_stores(opened(tmp_path))
        directory = tmp_path / "stores"
        assert {path.stat().st_mode & 0o077 for path in directory.iterdir()} == {0}
        directory.chmod(0o755)
        for path in directory.iterdir():
            path.chmod(0o644)
        stores = opened(tmp_path)
        assert {path.stat().st_mode & 0o077 for path in (directory, *directory.iterdir())} == {0}
        close_stores(stores)
    finally:
        os.umask(before)
