"""The content of a store after a crash: every commit that returned, and of a commit under way all or nothing."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from partibus.partition.protocol.ports import StoreError
from partibus.store.sqlite.store import Readers
from partibus.store.sqlite.writer import Writer
from tests.contract.stores import complete, enqueued, positions
from tests.unit.store.sqlite.places import SETTINGS, files_no_larger_than, open_store, open_with_writer


def test_a_log_cut_anywhere_holds_whole_commits_in_order(tmp_path: Path) -> None:
    """A loss of power leaves some beginning of the log. Cut it at every quarter page, with and without garbage."""
    origin = tmp_path / "origin"
    origin.mkdir()
    store = open_store(origin)
    log = origin / "store-00.db-wal"
    ends: list[int] = []
    states: list[list[int]] = [[]]
    for commit in range(4):
        writes = enqueued(*range(10 * commit, 10 * commit + 10), data=bytes(2_000))
        store.commit(complete(writes, 10 * commit, 10 * commit + 3))
        ends.append(log.stat().st_size)
        states.append(positions(store))

    whole = log.read_bytes()
    for cut in range(0, len(whole) + 1, 4_096):
        for garbage in (b"", b"\xa5" * 20_000):
            image = tmp_path / f"cut-{cut}-{len(garbage)}"
            image.mkdir()
            shutil.copy(origin / "store-00.db", image)
            (image / "store-00.db-wal").write_bytes(whole[:cut] + garbage)
            recovered = open_store(image)
            durable = sum(1 for end in ends if end <= cut)
            assert positions(recovered) == states[durable]
            assert recovered.last_commit == durable
            recovered.commit(enqueued(1_000))
            assert positions(recovered) == [*states[durable], 1_000]
            recovered.close()
            shutil.rmtree(image)
    store.close()


_COMMITTING = """
import sys
from pathlib import Path
from tests.contract.stores import enqueued
from tests.unit.store.sqlite.places import SETTINGS, files_no_larger_than, open_store, open_with_writer

store = open_store(Path(sys.argv[1]))
for number in range(1_000_000):
    store.commit(enqueued(number, data=bytes(3_000)))
    print(number, flush=True)
"""


def test_a_killed_process_has_every_commit_that_it_acknowledged(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    child = subprocess.Popen(
        [sys.executable, "-c", _COMMITTING, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert child.stdout is not None
    acknowledged = -1
    for line in child.stdout:
        acknowledged = int(line)
        if acknowledged == 400:  # past the first checkpoint
            os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()

    store = open_store(tmp_path)
    found = positions(store)
    assert found == list(range(len(found)))
    assert len(found) - 1 in (acknowledged, acknowledged + 1)
    store.close()


def test_a_disk_that_fails_in_the_commit_leaves_its_end_unknown_and_the_store_unusable(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.commit(enqueued(1))
    log = tmp_path / "store-00.db-wal"
    with (
        files_no_larger_than(log.stat().st_size + 20_000),
        pytest.raises(StoreError, match=r"a commit failed.*look at the kernel log") as caught,
    ):
        store.commit(enqueued(2, data=bytes(100_000)))
    assert caught.value.executed is None
    assert str(tmp_path / "store-00.db") in str(caught.value)
    with pytest.raises(StoreError, match="open it again") as caught:
        store.commit(enqueued(3))
    assert caught.value.executed is False
    again = store.reopen()
    assert positions(again) in ([1], [1, 2])
    again.commit(enqueued(4))
    assert positions(again)[-1] == 4
    again.close()


def test_a_disk_that_fails_before_the_commit_leaves_nothing_of_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.commit(enqueued(1))
    log = tmp_path / "store-00.db-wal"
    # Many times the page cache, so that the log is written to before the end of the transaction.
    with files_no_larger_than(log.stat().st_size + 20_000), pytest.raises(StoreError) as caught:
        store.commit(enqueued(*range(2, 300), data=bytes(60_000)))
    assert caught.value.executed is False
    assert positions(store) == [1]
    store.commit(enqueued(2))
    assert positions(store) == [1, 2]
    store.close()


def test_the_settings_that_durability_stands_on(tmp_path: Path) -> None:
    store, writer = open_with_writer(tmp_path)
    pragmas = {
        name: writer.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "page_size", "auto_vacuum", "wal_autocheckpoint", "secure_delete")
    }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,  # full: each commit syncs the log
        "page_size": 16_384,
        "auto_vacuum": 2,  # incremental
        "wal_autocheckpoint": 0,
        "secure_delete": 0,
    }
    store.close()


@pytest.mark.parametrize("value", ["\ud800", 1 << 64, object()])
def test_a_value_that_no_column_takes_fails_its_commit_only(tmp_path: Path, value: object) -> None:
    store = open_store(tmp_path)
    writes = enqueued(1)
    writes.entries[6] = value  # type: ignore[call-overload]  # the session
    with pytest.raises(StoreError) as caught:
        store.commit(writes)
    assert caught.value.executed is False
    assert positions(store) == []
    store.commit(enqueued(1))
    assert positions(store) == [1]
    store.close()


_READING = """
import sys
from contextlib import closing
from pathlib import Path
from partibus.store.sqlite.sql import DEFAULTS, connect
with closing(connect(Path(sys.argv[1]), 0, DEFAULTS)) as connection:
    connection.execute("SELECT count(*) FROM entry").fetchall()
"""


@pytest.mark.parametrize("outcome", ["opened", "refused first"])
def test_a_load_that_outlives_its_store_leaves_the_log_to_the_store_that_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """Another process that reads and closes would delete the log if the locks of this process had ended."""
    before = open_store(tmp_path)
    before.commit(enqueued(1))
    readers = Readers(tmp_path / "store-00.db", SETTINGS)
    with readers.reader() as connection:
        cursor = connection.execute("SELECT key FROM entry")
        if outcome == "refused first":
            with monkeypatch.context() as failing:
                failing.setattr(Writer, "_rewrite", _refuse)
                with pytest.raises(StoreError, match="sick"):
                    before.reopen()
        store = before.reopen()
        readers.close()
        cursor.fetchall()
    store.commit(enqueued(2))
    log = tmp_path / "store-00.db-wal"
    inode = log.stat().st_ino
    subprocess.run([sys.executable, "-c", _READING, str(tmp_path / "store-00.db")], check=True)
    assert log.stat().st_ino == inode
    store.commit(enqueued(3))
    assert positions(store) == [1, 2, 3]
    descriptors = open_descriptors(tmp_path / "store-00.db")
    store.close()
    assert descriptors
    assert not open_descriptors(tmp_path / "store-00.db")


def _refuse(_writer: Writer) -> None:
    raise OSError(5, "the disk is sick")


def open_descriptors(path: Path) -> list[str]:
    """List this process's descriptors of a file."""
    found = path.stat()
    descriptors = []
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            one = os.fstat(int(name))
            if (one.st_dev, one.st_ino) == (found.st_dev, found.st_ino):
                descriptors.append(name)
    return descriptors
