"""A broker's time and that of the stores which it opens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partibus.clock import ManualClock, SystemClock
from partibus.limits import Limits
from partibus.node.clocks import stored_time
from partibus.node.settings import Settings
from partibus.partition.protocol.ports import StoreError, Writes
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.generations import Owner
from partibus.store.opening import CheckTime, Opener, find_stores
from tests.kit.stores.memory import MemoryDisk, MemoryStore

HOUR_MS = 3_600_000
AHEAD_MAX_MS = Limits().store.clock_ahead_ms


def on_loop(check: Callable[[SystemClock, CheckTime], None], *, accept: bool = False) -> int:
    """How often somebody was told that time has jumped."""

    async def run() -> int:
        told: list[None] = []
        clock = SystemClock()
        settings = Settings(data=Path(), accept_clock=accept)
        check_time = stored_time(clock, settings, lambda: told.append(None), asyncio.get_running_loop())
        assert check_time is not None
        check(clock, check_time)
        await asyncio.sleep(0)
        return len(told)

    return asyncio.run(run())


@pytest.mark.parametrize("ahead_ms", [HOUR_MS // 60, AHEAD_MAX_MS - HOUR_MS // 60, -HOUR_MS])
def test_time_follows_the_machines_clock_and_no_store(ahead_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    def check(clock: SystemClock, check_time: CheckTime) -> None:
        before_ms = clock.now_ms()
        assert check_time("store-00", before_ms + ahead_ms) is None
        assert before_ms <= clock.now_ms() <= SystemClock().now_ms()

    assert on_loop(check) == 0
    assert ("store-00 was used at a time that is" in caplog.text) == (ahead_ms > 0)


@pytest.mark.parametrize("ahead_ms", [AHEAD_MAX_MS + HOUR_MS // 60, 6 * 24 * HOUR_MS, 10**17])
def test_a_store_that_is_far_ahead_is_not_opened(ahead_ms: int) -> None:
    def check(clock: SystemClock, check_time: CheckTime) -> None:
        before_ms = clock.now_ms()
        with pytest.raises(
            StoreError,
            match=r"store-00: was last used at .* more than 300 s; set this clock right.*--accept-clock once",
        ):
            check_time("store-00", before_ms + ahead_ms)
        assert clock.now_ms() <= SystemClock().now_ms()

    assert on_loop(check) == 0


def test_an_operator_can_have_its_time_turned_back() -> None:
    def check(clock: SystemClock, check_time: CheckTime) -> None:
        before_ms = clock.now_ms()
        back_to_ms = check_time("store-00", before_ms + 6 * 24 * HOUR_MS)
        assert back_to_ms is not None
        assert before_ms <= back_to_ms <= SystemClock().now_ms()
        assert check_time("store-01", before_ms) is None

    assert on_loop(check, accept=True) == 0


def test_who_sets_the_machines_clock_right_need_not_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(clock: SystemClock, check_time: CheckTime) -> None:
        seen_ms = clock.now_ms() + 30 * 24 * HOUR_MS
        with pytest.raises(StoreError):
            check_time("store-00", seen_ms)
        monkeypatch.setattr("time.time_ns", lambda: (seen_ms + 5) * 1_000_000)
        assert check_time("store-00", seen_ms) is None
        assert clock.now_ms() >= seen_ms

    assert on_loop(check) == 1


def test_a_clock_that_is_moved_by_hand_follows_nobody() -> None:
    loop = asyncio.new_event_loop()
    assert stored_time(ManualClock(5), Settings(data=Path()), lambda: None, loop) is None
    loop.close()


def test_an_opener_closes_what_it_refuses(tmp_path: Path) -> None:
    (place, *_) = find_stores(tmp_path, (), created_ms=0)
    writes = Writes()
    writes.counters[1] = 1, 1, 0
    writes.now_ms = 1_700_000_000_000
    store = Opener(place, Owner("broker-0", "run-1"), tmp_path)()
    store.commit(writes)
    store.close()
    asked: list[int] = []

    def refuse(name: str, highest_ms: int) -> None:
        asked.append(highest_ms)
        raise StoreError(f"{name}: no")

    with pytest.raises(StoreError, match=r"no$"):
        Opener(place, Owner("broker-0", "run-2"), tmp_path, check_time=refuse)()
    for back_to_ms in (1_600_000_000_000, None):

        def note(_: str, highest_ms: int, back_to_ms: int | None = back_to_ms) -> int | None:
            asked.append(highest_ms)
            return back_to_ms

        Opener(place, Owner("broker-0", "run-3"), tmp_path, check_time=note)().close()
    assert asked == [1_700_000_000_000, 1_700_000_000_000, 1_600_000_000_000]


@pytest.mark.parametrize("manual", [False, True])
def test_a_runtime_notes_the_time_of_its_commits(manual: bool) -> None:
    disk = MemoryDisk()

    later: list[Callable[[], None]] = []

    class Host:
        """Writes at once."""

        def call_later(self, _: float, call: Callable[[], None]) -> None:
            later.append(call)

        def call_soon(self, call: Callable[[], None]) -> None:
            later.append(call)

        def write(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
            done(work())

    clock = ManualClock(1_700_000_000_000) if manual else SystemClock()
    runtime = StoreRuntime(lambda: MemoryStore(disk), Host(), clock)  # type: ignore[arg-type]
    before_ms = clock.now_ms()
    runtime.open()
    runtime.drop(7, lambda _: None)
    (commit,) = later
    commit()
    if manual:
        assert disk.highest_ms == 0, "the next run begins anew"
    else:
        assert before_ms <= disk.highest_ms <= clock.now_ms()
