import time

import pytest

from partibus import clock
from partibus.clock import ManualClock, SystemClock


def test_system_clock_starts_at_wall_time() -> None:
    before = time.time_ns() // clock.NS_PER_MS
    now = SystemClock().now_ms()
    after = time.time_ns() // clock.NS_PER_MS
    assert before - 1 <= now <= after + 1


def test_system_clock_follows_boot_time_and_not_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    boot_ns = 5_000_000_000
    wall_ns = 1_700_000_000_000_000_000
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: boot_ns)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns)
    system = SystemClock()
    wall_ns -= 3_600_000_000_000
    boot_ns += 250_000_000
    assert system.now_ms() == 1_700_000_000_250


def test_system_clock_catches_up_and_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    boot_ns = 5_000_000_000
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: boot_ns)
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    system = SystemClock()
    assert system.catch_up(1_700_000_060_000)
    assert system.now_ms() == 1_700_000_060_000
    boot_ns += 250_000_000
    assert system.now_ms() == 1_700_000_060_250
    assert not system.catch_up(1_700_000_060_250)
    assert not system.catch_up(1_600_000_000_000)
    assert system.now_ms() == 1_700_000_060_250


def test_manual_clock_moves_only_when_advanced() -> None:
    manual = ManualClock(1_000)
    assert manual.now_ms() == 1_000
    assert manual.advance(500) == 1_500
    assert manual.now_ms() == 1_500


def test_manual_clock_refuses_to_go_back() -> None:
    manual = ManualClock(1_000)
    with pytest.raises(ValueError, match="-1 ms"):
        manual.advance(-1)
    assert manual.now_ms() == 1_000
