"""The one clock object that everything which keeps deadlines is handed (D26).

Times are wall-clock milliseconds since 1970, UTC: deadlines are persisted and outlive the process. Within a process
time must not jump when somebody sets the machine's clock, and must go on while the machine sleeps; hence wall time at
start plus the boot-time clock. Only `SystemClock.catch_up` moves it, forward, to where the machine's clock is by now.
"""

import time
from threading import Lock
from typing import Protocol

NS_PER_MS = 1_000_000


class Clock(Protocol):
    """What the time is. Never goes backwards."""

    def now_ms(self) -> int:
        """Wall-clock ms since 1970."""
        ...


def _boot_time_ns() -> int:
    """Counts while the machine sleeps, where the platform has such a clock."""
    return time.clock_gettime_ns(_BOOT_CLOCK)


_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Wall time at construction plus the boot-time clock."""

    __slots__ = ("_moving", "_start_ns")

    def __init__(self) -> None:
        self._start_ns = time.time_ns() - _boot_time_ns()
        self._moving = Lock()

    def now_ms(self) -> int:
        # As `_boot_time_ns`, in line: it is asked more than once for each message.
        return (self._start_ns + time.clock_gettime_ns(_BOOT_CLOCK)) // NS_PER_MS

    def catch_up(self, seen_ms: int) -> bool:
        """Jump to a time that the machine's clock has reached, and go on from there; False when it is there already.
        Any thread."""
        with self._moving:
            behind_ns = seen_ms * NS_PER_MS - self._start_ns - _boot_time_ns()
            if behind_ns <= 0:
                return False
            self._start_ns += behind_ns
            return True


class ManualClock:
    """Stands still until told to advance: tests, simulation, ``--clock manual``."""

    __slots__ = ("_now_ms",)

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Moves on by ``ms`` and answers the new time. ValueError when negative: time never goes back."""
        if ms < 0:
            raise ValueError(f"a clock can't be advanced by {ms} ms: give 0 or more")
        self._now_ms += ms
        return self._now_ms
