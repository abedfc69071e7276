"""The log is copied beside the writer and starts over."""

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Self

import pytest

from partibus.partition.protocol.ports import StoreError
from partibus.store.dropped_partitions import PartitionRemover
from partibus.store.sqlite import SQLiteStore, StoreSettings
from partibus.store.sqlite import store as store_module
from partibus.store.sqlite.checkpoint import Checkpoints, estimate_appended_bytes
from partibus.store.sqlite.store import Readers
from partibus.store.sqlite.writer import Writer
from tests.contract.stores import PARTITION, complete, enqueued, positions
from tests.unit.store.sqlite.places import SETTINGS, open_store

MIB = 1 << 20


def test_the_log_starts_over_under_steady_load(tmp_path: Path) -> None:
    store = open_store(tmp_path, SETTINGS._replace(checkpoint_bytes=MIB, reserved_bytes=MIB))
    log = tmp_path / "store-00.db-wal"
    largest = 0
    for commit in range(300):
        writes = enqueued(*range(10 * commit, 10 * commit + 10), data=bytes(2_000))
        if commit:
            complete(writes, 10 * commit - 10, 10 * commit - 1)
        store.commit(writes)
        largest = max(largest, log.stat().st_size)
    # 300 commits append 40 MiB; the log holds what one checkpoint allows and what is committed during it.
    assert largest < 16 * MIB
    assert positions(store) == list(range(2_990, 3_000))
    store.close()
    assert not log.exists()


def test_the_log_never_holds_more_new_pages_than_the_ballast_could_take(tmp_path: Path) -> None:
    store = open_store(tmp_path, SETTINGS._replace(checkpoint_bytes=MIB, reserved_bytes=MIB))
    database = tmp_path / "store-00.db"
    batch = 100_000
    for pos in range(200):
        store.commit(enqueued(pos, data=bytes(batch)))
        written = (pos + 1) * batch
        assert written - database.stat().st_size < 2 * MIB
    store.close()


def test_a_closed_store_is_one_file_beside_its_lock_and_ballast(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.commit(enqueued(1))
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store-00.ballast", "store-00.db", "store-00.lock"]


def test_a_failed_checkpoint_loses_nothing_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, SETTINGS._replace(checkpoint_bytes=1))
    with monkeypatch.context() as broken:
        broken.setattr("partibus.store.sqlite.checkpoint.connect", _refuse)
        assert error_after_commit(store, 1) == "disk I/O error"
        assert error_after_commit(store, 2) == "disk I/O error"
    assert error_after_commit(store, 3) is None
    assert positions(store) == [1, 2, 3]
    store.close()


def error_after_commit(store: SQLiteStore, pos: int) -> str | None:
    """Commit, wait for the checkpoint that the commit starts, and tell its error."""
    store.commit(enqueued(pos))
    store.checkpoints.wait()
    error = store.checkpoints.last_error
    return None if error is None else str(error)


def _refuse(*_arguments: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")


def test_default_settings_bound_memory_and_log() -> None:
    settings = StoreSettings()
    assert settings.writer_cache_bytes + settings.reader_cache_bytes <= 2 * MIB
    assert settings.reserved_bytes >= settings.checkpoint_bytes


def test_the_log_is_copied_earlier_when_a_commit_has_sessions_ids_or_states() -> None:
    plain, other = enqueued(1, 2), enqueued(1, 2)
    other.entries[6] = "session"
    other.duplicate_ids += [PARTITION, 1, b"x" * 16, 1, None]
    other.session_states[PARTITION, "session"] = (bytes(10_000), 1)
    assert estimate_appended_bytes(other) == estimate_appended_bytes(plain) + 10_000 + 2 * 2_048


def no_thread_starts(_thread: Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_checkpoint_whose_thread_does_not_start_is_made_after_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lack_a_thread(tmp_path, monkeypatch)


def lack_a_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have checkpoints without threads. Commits are durable, and the store closes and opens again in this process."""
    store = open_store(folder, SETTINGS._replace(checkpoint_bytes=1))
    with monkeypatch.context() as exhausted:
        exhausted.setattr(Thread, "start", no_thread_starts)
        assert error_after_commit(store, 1) == "can't start new thread"
        store.close()
        store = open_store(folder, SETTINGS._replace(checkpoint_bytes=1))
        assert error_after_commit(store, 2) == "can't start new thread"
    assert error_after_commit(store, 3) is None
    assert positions(store) == [1, 2, 3]
    store.close()


PARTS = ((PartitionRemover, "stop"), (Checkpoints, "wait"), (Readers, "close"), (Writer, "close"))
EACH_PART = pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0].__name__}.{part[1]}")


@EACH_PART
def test_a_close_that_fails_half_way_releases_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: tuple[type, str]
) -> None:
    close_half_way(tmp_path, monkeypatch, part)


def close_half_way(folder: Path, monkeypatch: pytest.MonkeyPatch, part: tuple[type, str]) -> None:
    """Close a store while a part of it fails to close, and open the store again in this process."""
    store = open_store(folder)
    store.commit(enqueued(1))

    def fail(*_arguments: object, **_named: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as broken:
        broken.setattr(*part, fail)
        with pytest.raises(RuntimeError, match="planted"):
            store.close()
    again = open_store(folder)
    assert positions(again) == [1]
    again.close()


class StopsAtAnError:
    """An `ExitStack` of which the first call that fails keeps the others from being made."""

    left: list[Callable[[], object]]
    """The calls that the last failure has kept from being made."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        return self

    def callback(self, call: Callable[..., object], **options: Any) -> None:
        self.calls.append(partial(call, **options))

    def pop_all(self) -> None:
        self.calls = []

    def __exit__(self, *_error: object) -> None:
        while self.calls:
            call = self.calls.pop()
            try:
                call()
            except RuntimeError:
                StopsAtAnError.left = self.calls
                raise


@EACH_PART
def test_a_close_that_stops_at_an_error_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: tuple[type, str]
) -> None:
    monkeypatch.setattr(store_module, "ExitStack", StopsAtAnError)
    with pytest.raises(StoreError, match="in use by"):
        close_half_way(tmp_path, monkeypatch, part)
    while StopsAtAnError.left:
        StopsAtAnError.left.pop()()


def starts_whatever_happens(checkpoints: Checkpoints, _appended_bytes: int) -> None:
    """A thread that did not start is waited for."""
    checkpoints.thread = Thread()
    checkpoints.thread.start()


def test_a_checkpoint_that_waits_for_a_thread_that_never_started_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoints, "after_commit", starts_whatever_happens)
    with pytest.raises(RuntimeError, match="thread"):
        lack_a_thread(tmp_path, monkeypatch)


class TakenMeanwhile(list[sqlite3.Connection]):
    """Idle connections of which a load takes the last one between a look and a pop."""

    def __bool__(self) -> bool:
        return True


def test_a_load_that_takes_the_last_idle_connection_stops_no_close(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store._readers._idle = TakenMeanwhile()
    store.close()
    open_store(tmp_path).close()


def test_a_checkpoint_that_keeps_failing_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="partibus.store.sqlite.checkpoint")
    store = open_store(tmp_path, SETTINGS._replace(checkpoint_bytes=1))
    with monkeypatch.context() as broken:
        broken.setattr("partibus.store.sqlite.checkpoint.connect", _refuse)
        for pos in (1, 2):
            error_after_commit(store, pos)
        broken.setattr(Thread, "start", no_thread_starts)
        error_after_commit(store, 3)
    for pos in (4, 5):
        assert error_after_commit(store, pos) is None
    store.close()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "WARNING", "INFO"]
    for word, (_, text) in zip(("(disk I/O error)", "(can't start new thread)", "succeed again"), said, strict=True):
        assert word in text
        assert str(tmp_path / "store-00.db") in text
