"""Clock, loop and threads of a simulation: one heap of events and a seeded generator decide what happens when."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

IO_MS_MAX = 12.0
"""Longest time that a blocking job takes to begin, and again to be told of."""


class SimulatedTimer:
    """The timer that `SimulatedHost.call_later` returns."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Idempotent."""
        self.call = None


class Timeline:
    """Clock and order of everything. Nothing happens but by `run_next`."""

    def __init__(self, start_ms: float = 1_000.0) -> None:
        self.time_ms = start_ms
        self._events: list[tuple[float, int, SimulatedTimer]] = []
        self._number = 0

    def __len__(self) -> int:
        """How much is still to happen."""
        return len(self._events)

    def now_ms(self) -> int:
        """Return the time as a `partibus.clock.Clock` does."""
        return int(self.time_ms)

    def call_later(self, delay_ms: float, call: Callable[[], object]) -> SimulatedTimer:
        """Call after ``delay_ms``, behind everything that is due by then already."""
        timer = SimulatedTimer(call)
        self._number += 1
        heappush(self._events, (self.time_ms + delay_ms, self._number, timer))
        return timer

    def run_next(self) -> None:
        """Go on to the next event."""
        self.time_ms, _, timer = heappop(self._events)
        if timer.call is not None:
            timer.call()

    def run_for(self, ms: float) -> None:
        """Let time pass, with all that happens in it."""
        end_ms = self.time_ms + ms
        self.call_later(ms, lambda: None)
        while self.time_ms < end_ms:
            self.run_next()


class SimulatedHost:
    """A `partition.protocol.host.Host`: one process on a timeline.

    A blocking job happens at one moment, some time after it was asked for; its outcome is told some time later. Jobs
    overtake each other: the runtime must not rely on an order that threads don't keep.
    """

    def __init__(self, timeline: Timeline, random: Random) -> None:
        self._timeline = timeline
        self._random = random
        self._alive = True

    def crash(self) -> None:
        """The process is gone: nothing that it still had to do happens."""
        self._alive = False

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call behind everything that is due now."""
        self.call_later(0, call)

    def call_later(self, delay_ms: float, call: Callable[[], object]) -> SimulatedTimer:
        """Call after ``delay_ms``."""
        return self._timeline.call_later(delay_ms, lambda: call() if self._alive else None)

    def write(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """A blocking job."""

        def run() -> None:
            result: Any
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 (as every host: what a job raises is its outcome)
                result = error
            self.call_later(self._delay_ms(), lambda: done(result))

        self.call_later(self._delay_ms(), run)

    read = write

    def _delay_ms(self) -> float:
        """Mostly short."""
        return self._random.choice((0.0, 0.1, 1.0, IO_MS_MAX)) * self._random.random()
