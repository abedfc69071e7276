"""Failed syncs leave pages in the cache that the disk lacks: acknowledged commits do not rely on them."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from partibus.partition.protocol.ports import StoreError
from tests.contract.stores import enqueued, positions
from tests.plugins.soak import seed_of
from tests.unit.store.sqlite.lossy_disk import DATABASE, LOG, LossyDisk, disk, library
from tests.unit.store.sqlite.places import open_store

__all__ = ["disk", "library"]


def found_on(device: Path) -> list[int]:
    """The commits that are there after a loss of power, in a database that is whole."""
    store = open_store(device)
    found = positions(store)
    store.close()
    with closing(sqlite3.connect(device / "store-00.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return found


def test_a_disk_that_works_keeps_what_was_acknowledged(disk: LossyDisk) -> None:
    assert disk.run("commit:1", "commit:2") == [1, 2]
    assert found_on(disk.lose_power()) == [1, 2]


def test_a_commit_behind_one_whose_sync_failed_outlives_a_loss_of_power(disk: LossyDisk) -> None:
    """The sync of commit 3 fails, and so does that of the close: the cache has commit 3, the disk has not."""
    assert disk.run("commit:1", "commit:2", f"fail:{LOG}*2", "commit:3", "commit:4") == [1, 2, 4]
    assert set(found_on(disk.lose_power())) - {3} == {1, 2, 4}


def test_a_process_that_starts_after_a_failed_sync_trusts_no_log_of_the_cache(disk: LossyDisk) -> None:
    """Start as if the process that saw the sync fail is gone, with all its knowledge."""
    assert disk.run("commit:1", "commit:2", f"fail:{LOG}*1", "commit:3") == [1, 2]
    assert disk.run("commit:4") == [4]
    assert set(found_on(disk.lose_power())) - {3} == {1, 2, 4}


@pytest.mark.seeded
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 6))])
def test_failed_syncs_at_any_moment_lose_nothing_that_was_acknowledged(disk: LossyDisk, seed: int) -> None:
    """Fail syncs of log and database in commits, checkpoints, closes and openings, over three runs of a process."""
    run_and_check(disk, seed_of(seed))


def run_and_check(disk: LossyDisk, seed: int, *planted: str) -> None:
    """Commit while syncs fail, lose the power, and see what is left. ``planted``: bugs."""
    acknowledged: list[int] = []
    for run in range(3):
        plan = f"random:{10 * seed + run},{40 * run},{40 * run + 40}"
        acknowledged += disk.run(*planted, plan, seed=seed if seed % 2 else None)
    found = set(found_on(disk.lose_power()))
    for number in acknowledged:
        if number >= 100:
            assert number in found
        elif number + 20 in acknowledged:
            assert number not in found, "its commit has completed it"
        elif number >= 80:
            assert (number in found) != (number + 20 in found), "a commit of unknown outcome happened, or it did not"


PARTLY_COPIED = (
    *("commit:1", "commit:2", "commit:3", "hold", "commit:4"),
    "copy",  # up to what the reader sees; SQLite syncs the database when all of the log is copied
    *("release", f"fail:{DATABASE}*1"),
    "copy",  # the rest; the sync fails, and neither part is on the disk
    *("copy", "commit:5", "commit:6"),
)


def test_a_checkpoint_after_one_whose_sync_failed_takes_nothing_for_written(disk: LossyDisk) -> None:
    assert disk.run(*PARTLY_COPIED) == [1, 2, 3, 4, 6], "commit 5 is refused, and the store opened anew"
    assert found_on(disk.lose_power()) == [1, 2, 3, 4, 6]


def test_the_lossy_disk_catches_checkpoints_that_go_on(disk: LossyDisk) -> None:
    """Plant the bug again: the log starts over, and the pages of the first checkpoint are nowhere."""
    assert disk.run("checkpoints_go_on", *PARTLY_COPIED) == [1, 2, 3, 4, 5, 6]
    try:
        found = found_on(disk.lose_power())
    except (AssertionError, StoreError, sqlite3.Error):
        return
    assert found != [1, 2, 3, 4, 5, 6]


def test_the_lossy_disk_catches_a_store_that_trusts_the_cache(disk: LossyDisk) -> None:
    """Plant the bug again: commit 4 is lost, so the tests above can fail."""
    acknowledged = disk.run("trusting", "commit:1", "commit:2", f"fail:{LOG}*2", "commit:3", "commit:4")
    assert acknowledged == [1, 2, 4]
    assert 4 not in found_on(disk.lose_power())


def test_a_sync_of_the_database_that_fails_costs_nothing(disk: LossyDisk) -> None:
    plan = [f"commit:{number}" for number in range(1, 100)]
    acknowledged = disk.run(f"fail:{DATABASE}*3", *plan)
    found = set(found_on(disk.lose_power()))
    assert {number for number in acknowledged if number >= 80} <= found
    assert not {number for number in acknowledged if number + 20 in acknowledged} & found


def test_a_store_whose_name_could_not_be_synced_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file, or its log, would be gone after a loss of power, with all that was committed meanwhile."""
    open_store(tmp_path).close()

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("partibus.durable.sync_directory", fail)
        with pytest.raises(StoreError, match=r"opening the store failed.*the disk refused"):
            open_store(tmp_path)
    store = open_store(tmp_path)
    store.commit(enqueued(1))
    assert positions(store) == [1]
    store.close()
