"""A broker's time and that of the stores which it opens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partibus.clock import ManualClock, SystemClock
from partibus.node.stored_time import AHEAD_MAX_MS, stored_time
from partibus.partition.ports import StoreError, Writes
from partibus.partition.runtime import StoreRuntime
from partibus.store.memory import MemoryDisk, MemoryStore
from partibus.store.opening import Opener, find_stores
from partibus.store.owner import Owner

HOUR_MS = 3_600_000


def on_loop(check: Callable[[SystemClock, Callable[[str, int], None]], None]) -> int:
    """How often somebody was told that time has jumped."""

    async def run() -> int:
        told: list[None] = []
        clock = SystemClock()
        check_time = stored_time(clock, lambda: told.append(None), asyncio.get_running_loop())
        assert check_time is not None
        check(clock, check_time)
        await asyncio.sleep(0)
        return len(told)

    return asyncio.run(run())


def test_time_goes_on_from_where_a_store_has_been() -> None:
    def check(clock: SystemClock, check_time: Callable[[str, int], None]) -> None:
        seen_ms = clock.now_ms() + HOUR_MS
        check_time("store-00", seen_ms)
        assert seen_ms <= clock.now_ms() < seen_ms + HOUR_MS
        check_time("store-01", seen_ms - 1)

    assert on_loop(check) == 1, "the second store was not ahead"


def test_a_store_of_the_past_moves_nothing() -> None:
    assert on_loop(lambda clock, check_time: check_time("store-00", clock.now_ms() - HOUR_MS)) == 0
    assert on_loop(lambda _, check_time: check_time("store-00", 0)) == 0


@pytest.mark.parametrize("ahead_ms", [AHEAD_MAX_MS + HOUR_MS, 10**17])
def test_a_store_that_is_absurdly_far_ahead_is_not_followed(ahead_ms: int) -> None:
    def check(clock: SystemClock, check_time: Callable[[str, int], None]) -> None:
        before_ms = clock.now_ms()
        with pytest.raises(
            StoreError, match=r"store-00: was last used at .* more than 7 days after .*set the clock right"
        ):
            check_time("store-00", before_ms + ahead_ms)
        assert clock.now_ms() < before_ms + HOUR_MS

    assert on_loop(check) == 0


def test_who_sets_the_machines_clock_right_need_not_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(clock: SystemClock, check_time: Callable[[str, int], None]) -> None:
        seen_ms = clock.now_ms() + 30 * 24 * HOUR_MS
        with pytest.raises(StoreError):
            check_time("store-00", seen_ms)
        monkeypatch.setattr("time.time_ns", lambda: (seen_ms + 5) * 1_000_000)
        check_time("store-00", seen_ms)
        assert clock.now_ms() >= seen_ms

    assert on_loop(check) == 1


def test_a_clock_that_is_moved_by_hand_follows_nobody() -> None:
    loop = asyncio.new_event_loop()
    assert stored_time(ManualClock(5), lambda: None, loop) is None
    loop.close()


def test_an_opener_closes_what_it_refuses(tmp_path: Path) -> None:
    (place, *_) = find_stores(tmp_path, (), created_ms=0)
    writes = Writes()
    writes.counters[1] = 1, 1, 0
    writes.now_ms = 1_700_000_000_000
    store = Opener(place, Owner("broker-0", "run-1"))()
    store.commit(writes)
    store.close()
    asked: list[int] = []

    def refuse(name: str, highest_ms: int) -> None:
        asked.append(highest_ms)
        raise StoreError(f"{name}: no")

    with pytest.raises(StoreError, match=r"no$"):
        Opener(place, Owner("broker-0", "run-2"), check_time=refuse)()
    Opener(place, Owner("broker-0", "run-3"), check_time=lambda _, highest_ms: asked.append(highest_ms))().close()
    assert asked == [1_700_000_000_000] * 2


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
