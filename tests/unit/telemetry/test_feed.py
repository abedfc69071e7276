"""A writer that is slow, killed or stopped: the broker goes on, and knows what was dropped (D28)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.notes import SEND, StoreRecorder
from partibus.telemetry import feed as feed_module
from partibus.telemetry.feed import Feed
from partibus.telemetry.recorder import Place
from partibus.telemetry.settings import TelemetrySettings

BATCH = 1000
WAIT_S = 90
LOOK_S = 0.01


@pytest.fixture(autouse=True)
def retry_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits for a writer that has only begun to start, as long as that takes on a busy machine."""
    monkeypatch.setattr(feed_module, "CLOSE_S", WAIT_S)


@asynccontextmanager
async def started(folder: Path, roll_s: float = 0.1) -> AsyncIterator[Feed]:
    feed = Feed(TelemetrySettings("full", roll_s=roll_s), folder, "broker-0", "run", asyncio.get_running_loop())
    feed.recorder.place_of = lambda row: Place("orders", 0 if row == 1 else row, 0)
    feed.start()
    try:
        yield feed
    finally:
        feed.close()


def record(feed: Feed, batches: int, first: int = 0) -> None:
    store = feed.recorder.of_store()
    for number in range(first, first + batches):
        sent = [Entry(number * BATCH + n, 1, number * BATCH + n, 0, 0, None, None, 10, b"") for n in range(BATCH)]
        store.noted(1, [(SEND, 0, sent, None)], 0, 0)


def positions(folder: Path) -> list[int]:
    found = ds.dataset(str(folder / "telemetry"), format="parquet").to_table(["position"])["position"].to_pylist()
    return sorted(found)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(WAIT_S / LOOK_S)):
        if condition():
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"not so within {WAIT_S} s")


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


def test_a_graceful_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path, roll_s=60) as feed:
            record(feed, 100)
        assert feed.recorder.dropped == 0

    run(test)
    assert positions(tmp_path) == list(range(100 * BATCH))


def test_files_come_while_it_runs(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path) as feed:
            record(feed, 1)
            await until(lambda: any((tmp_path / "telemetry").glob("*.parquet")))
            assert positions(tmp_path) == list(range(BATCH))
            assert feed.pid is not None

    run(test)


def test_a_writer_that_stands_still_costs_rows_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "WAITING_BYTES_MAX", 1 << 20)

    async def test() -> None:
        async with started(tmp_path) as feed:
            assert feed.pid is not None
            os.kill(feed.pid, signal.SIGSTOP)
            record(feed, 400)  # 6 MB
            feed.flush()
            assert feed.recorder.rows == 400 * BATCH
            assert 0 < feed.recorder.dropped < feed.recorder.rows
            os.kill(feed.pid, signal.SIGCONT)
            before = feed.recorder.dropped
            folder = tmp_path / "telemetry"
            await until(lambda: any(folder.glob("*.parquet")) and len(positions(tmp_path)) == 400 * BATCH - before)
            record(feed, 1, first=400)
        assert feed.recorder.dropped == before

        found = positions(tmp_path)
        assert len(found) == feed.recorder.rows - feed.recorder.dropped
        assert found[-BATCH:] == list(range(400 * BATCH, 401 * BATCH))

    run(test)


def test_a_writer_that_is_slow_at_the_stop_goes_on_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def start_noted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        writers.append(start(*arguments, **options))
        return writers[-1]

    monkeypatch.setattr(subprocess, "Popen", start_noted)

    async def test() -> None:
        async with started(tmp_path, roll_s=60) as feed:
            record(feed, 1)
            feed.flush()
            await until((tmp_path / "telemetry").is_dir)
            (writer,) = writers
            os.kill(writer.pid, signal.SIGSTOP)
            monkeypatch.setattr(feed_module, "CLOSE_S", 0.01)
            feed.close()
            os.kill(writer.pid, signal.SIGCONT)
            assert writer.wait(WAIT_S) == 0

    run(test)
    assert positions(tmp_path) == list(range(BATCH))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_a_writer_gathers_below_the_brokers_priority_and_writes_the_rest_at_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(tmp_path, roll_s=60) as feed:
            writer = feed.pid
            assert writer is not None
            lower = min(os.nice(0) + 10, 19)  # the tests may run at a low priority themselves
            await until(lambda: lower in niceness_of(writer))
            assert niceness_of(writer)[0] == os.nice(0)

    run(test)


def niceness_of(pid: int) -> list[int]:
    """The niceness of each thread, the first one's first."""
    stats = [
        (task / "stat").read_text()
        for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda one: int(one.name))
    ]
    return [int(stat.rpartition(")")[2].split()[16]) for stat in stats]


def test_a_killed_writer_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "RESTART_S", 0.01)

    async def test() -> None:
        async with started(tmp_path, roll_s=60) as feed:
            record(feed, 10)
            feed.flush()
            first = feed.pid
            assert first is not None
            await until(lambda: not feed._waiting)
            os.kill(first, signal.SIGKILL)
            await until(lambda: feed.pid not in (None, first))
            record(feed, 10, first=10)
        assert feed.recorder.dropped == 10 * BATCH

    run(test)
    assert positions(tmp_path) == list(range(10 * BATCH, 20 * BATCH))


def test_a_writer_without_a_socket_is_started_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has too many open files for a moment."""
    monkeypatch.setattr(feed_module, "RESTART_S", 0.01)
    make_pair, failures = socket.socketpair, [OSError(24, "Too many open files")]

    def pair_or_fail() -> tuple[socket.socket, socket.socket]:
        if failures:
            raise failures.pop()
        return make_pair()

    async def test() -> None:
        monkeypatch.setattr(socket, "socketpair", pair_or_fail)
        feed = Feed(TelemetrySettings("full"), tmp_path, "broker-0", "run", asyncio.get_running_loop())
        feed.recorder.place_of = lambda row: Place("orders", 0, 0)
        feed.start()
        assert failures == []
        await until(lambda: feed.pid is not None)
        record(feed, 1)
        feed.close()

    run(test)
    assert positions(tmp_path) == list(range(BATCH))


def test_rows_that_can_not_be_written_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        async with started(tmp_path) as feed:
            folder = tmp_path / "telemetry"
            await until(folder.is_dir)
            folder.rmdir()
            record(feed, 1)
            await until(lambda: feed.recorder.dropped == BATCH)
            folder.mkdir()
            record(feed, 1, first=1)
        assert feed.recorder.dropped == BATCH

    run(test)
    assert positions(tmp_path) == list(range(BATCH, 2 * BATCH))
    assert "telemetry can't be written, rows are lost" in capfd.readouterr().err


def test_rows_behind_dropped_ones_have_the_entity_whose_name_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "WAITING_BYTES_MAX", 0)

    async def test() -> None:
        async with started(tmp_path) as feed:
            assert feed.pid is not None
            os.kill(feed.pid, signal.SIGSTOP)
            store = feed.recorder.of_store()
            await until(lambda: fills(feed, store))
            noted(store, 2, 0)
            feed.flush()
            assert feed.recorder.dropped > 0
            os.kill(feed.pid, signal.SIGCONT)
            await until(lambda: not feed._waiting)
            noted(store, 2, 1)

    run(test)
    table = ds.dataset(str(tmp_path / "telemetry"), format="parquet").to_table(["partition_id", "entity"])
    assert {"partition_id": 2, "entity": "orders"} in table.to_pylist()
    assert set(table["entity"].to_pylist()) == {"orders"}


def fills(feed: Feed, store: StoreRecorder) -> bool:
    """Hand over rows of one partition, and tell whether some of them wait."""
    for number in range(100):
        noted(store, 1, number)
    feed.flush()
    return bool(feed._waiting)


def noted(store: StoreRecorder, row: int, number: int) -> None:
    sent = [Entry(number * BATCH + n, 1, number * BATCH + n, 0, 0, None, None, 10, b"") for n in range(BATCH)]
    store.noted(row, [(SEND, 0, sent, None)], 0, 0)
