"""The clock that every component with deadlines receives (D26).

Times are wall-clock milliseconds since 1970, UTC: deadlines are persisted and outlive the process. Within a process,
time must not jump when an operator sets the machine's clock, and it must advance while the machine sleeps. The clock is
therefore the wall time at start plus the boot-time clock. Only `SystemClock.catch_up` moves it, and only forward to the
machine's current time.
"""

import time
from threading import Lock
from typing import Protocol

NS_PER_MS = 1_000_000


class Clock(Protocol):
    """A clock that never goes backwards."""

    def now_ms(self) -> int:
        """Return the wall-clock time in ms since 1970."""
        ...


def _boot_time_ns() -> int:
    """Return the time since boot; it includes sleep where the platform has such a clock."""
    return time.clock_gettime_ns(_BOOT_CLOCK)


_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The wall time at construction plus the boot-time clock."""

    __slots__ = ("_moving", "_start_ns")

    def __init__(self) -> None:
        self._start_ns = time.time_ns() - _boot_time_ns()
        self._moving = Lock()

    def now_ms(self) -> int:
        # The same as `_boot_time_ns`, inlined because this runs more than once for each message.
        """Return the wall-clock time in ms since 1970."""
        return (self._start_ns + time.clock_gettime_ns(_BOOT_CLOCK)) // NS_PER_MS

    def catch_up(self, seen_ms: int) -> bool:
        """Jump forward to a time that the machine's clock has reached; return False if already there.

        Safe to call from any thread.
        """
        with self._moving:
            behind_ns = seen_ms * NS_PER_MS - self._start_ns - _boot_time_ns()
            if behind_ns <= 0:
                return False
            self._start_ns += behind_ns
            return True


_OFF_MIN_NS = 1_000_000_000
_OFF_STANDS_NS = 180_000_000_000
"""How long the machine's clock must differ before a `ClaimClock` follows it."""


class ClaimClock:
    """The clock for the ends of claims, which clients write by their own clocks.

    It begins like a `SystemClock`, and follows the machine's clock in both directions once that has differed by the
    same for three minutes. So a start with a wrong clock locks no client out for longer, and a jump that is taken back
    changes nothing. It sees the machine's clock with each reading only.
    """

    __slots__ = ("_off_ns", "_off_since_ns", "_start_ns")

    def __init__(self) -> None:
        self._start_ns = time.time_ns() - _boot_time_ns()
        self._off_ns = 0
        self._off_since_ns = 0

    def now_ms(self) -> int:
        """Return the time in ms since 1970. It may be earlier than the one before."""
        boot_ns = _boot_time_ns()
        off_ns = time.time_ns() - boot_ns - self._start_ns
        if abs(off_ns - self._off_ns) > _OFF_MIN_NS:
            self._off_ns, self._off_since_ns = off_ns, boot_ns
        elif abs(off_ns) > _OFF_MIN_NS and boot_ns - self._off_since_ns >= _OFF_STANDS_NS:
            self._start_ns += off_ns
            self._off_ns = 0
        return (self._start_ns + boot_ns) // NS_PER_MS


class ManualClock:
    """A clock that stands still until `advance` is called, for tests, simulation and ``--clock manual``."""

    __slots__ = ("_now_ms",)

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """Return the time that the last `advance` set, in ms since 1970."""
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Advance by ``ms`` and return the new time.

        Raises ValueError when ``ms`` is negative, because time never goes back.
        """
        if ms < 0:
            raise ValueError(f"a clock can't be advanced by {ms} ms: give 0 or more")
        self._now_ms += ms
        return self._now_ms
