import time

import pytest

from partibus import clock
from partibus.clock import ClaimClock, ManualClock, SystemClock


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


class Machine:
    """A machine's two clocks, in ns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.boot_ns = 5_000_000_000
        self.wall_off_ns = 1_700_000_000_000_000_000
        monkeypatch.setattr(time, "clock_gettime_ns", lambda _: self.boot_ns)
        monkeypatch.setattr(time, "time_ns", lambda: self.boot_ns + self.wall_off_ns)

    def pass_s(self, seconds: int) -> None:
        self.boot_ns += seconds * 1_000_000_000

    def set_clock(self, seconds: int) -> None:
        self.wall_off_ns += seconds * 1_000_000_000

    @property
    def wall_ms(self) -> int:
        return (self.boot_ns + self.wall_off_ns) // clock.NS_PER_MS


@pytest.mark.parametrize("ahead_s", [7_200, -7_200])
def test_claim_clock_follows_a_clock_that_was_set_once_that_has_stood(
    monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    machine = Machine(monkeypatch)
    claims = ClaimClock()
    machine.set_clock(ahead_s)
    for _ in range(9):
        assert claims.now_ms() == machine.wall_ms - ahead_s * 1_000
        machine.pass_s(20)
    for _ in range(20):
        assert claims.now_ms() == machine.wall_ms
        machine.pass_s(20)


def test_claim_clock_does_not_follow_jumps_to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    claims = ClaimClock()
    right_off_ns = machine.wall_off_ns
    for turn in range(50):
        machine.set_clock(3_600 if turn % 2 else -3_600)
        assert claims.now_ms() * clock.NS_PER_MS == machine.boot_ns + right_off_ns
        machine.pass_s(100)
        assert claims.now_ms() * clock.NS_PER_MS == machine.boot_ns + right_off_ns
