"""Checks of the times in stores, and moves of the manual clock (D26).

No broker uses a time that its machine has not reached. A store remembers the latest time of its commits. If it is ahead
of this machine's clock, it was used by a clock that is ahead, or this machine's is behind. Following it would expire
messages, also those of other stores, and store the wrong time there. So a small difference is ignored: locks last that
much longer. A store with a larger one is not opened until an operator has decided which clock was wrong (ADR 0021).

A move of the manual clock is answered when everything that keeps time by it has followed.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime

from partibus.clock import Clock, ManualClock, SystemClock
from partibus.node.idle import IdleQueues
from partibus.node.settings import Settings
from partibus.partition.protocol.ports import StoreError
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.opening import CheckTime

_DRIFT_MAX_MS = 1_000
"""The usual difference between clocks of long-running processes, which is not worth a warning."""

log = logging.getLogger(__name__)


def stored_time(
    clock: Clock, settings: Settings, jumped: Callable[[], None], loop: asyncio.AbstractEventLoop
) -> CheckTime | None:
    """Return the check for openers; None for a clock that is moved by hand.

    ``jumped`` is called on the loop after the clock has moved on. A clock that is moved by hand stores no times and
    follows none.
    """
    if not isinstance(clock, SystemClock):
        return None
    ahead_max_ms = settings.limits.store.clock_ahead_ms

    def check(name: str, highest_ms: int) -> int | None:
        # An operator may have set the machine's clock right since this process began.
        here_ms = max(clock.now_ms(), SystemClock().now_ms())
        behind_ms = min(highest_ms, here_ms) - clock.now_ms()
        if clock.catch_up(min(highest_ms, here_ms)):
            level = logging.WARNING if behind_ms > _DRIFT_MAX_MS else logging.DEBUG
            log.log(level, "%s: the machine's clock was set on by %d ms: time goes on from there", name, behind_ms)
            loop.call_soon_threadsafe(jumped)
        ahead_ms = highest_ms - here_ms
        if ahead_ms > ahead_max_ms:
            if not settings.accept_clock:
                raise StoreError(
                    f"{name}: was last used at {_text(highest_ms)}, {_seconds(ahead_ms)} after {_text(here_ms)}, which "
                    f"it is by this machine's clock, and more than {_seconds(ahead_max_ms)}; set this clock right, or, "
                    "if the other one was wrong, serve with --accept-clock once",
                    executed=False,
                )
            log.warning("%s: its time is turned back from %s to %s", name, _text(highest_ms), _text(here_ms))
            return here_ms
        if ahead_ms > _DRIFT_MAX_MS:
            log.warning(
                "%s was used at a time that is %s ahead of this machine's clock: locks in it may last that much longer",
                name,
                _seconds(ahead_ms),
            )
        return None

    return check


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1_000:,.0f} s"


def _text(time_ms: int) -> str:
    """Format a time for people; one that no calendar has as its number."""
    try:
        return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms after 1970"


_LOOK_S = 0.001
"""The interval of checks whether loads and commits have ended. A test that moves a clock does not depend on a
millisecond.
"""


class ClockHand:
    """The manual clock of one broker. Of several, the supervisor moves the clocks of all: `move_to`, `run_out`."""

    def __init__(
        self,
        clock: ManualClock,
        on_moved: Callable[[], None],
        runtimes: Callable[[], Collection[StoreRuntime]],
        idle: IdleQueues,
    ) -> None:
        """Move a clock.

        ``on_moved`` runs due work outside of the stores. ``runtimes``: the stores that the broker owns at the moment.
        """
        self._clock = clock
        self._on_moved = on_moved
        self._owned = runtimes
        self._idle = idle
        self._turn = asyncio.Lock()

    async def advance(self, milliseconds: int) -> int:
        """Move the clock on, run due work, make it durable and return the new time. Calls run one after the other."""
        async with self._turn:
            self._idle.note()  # until now time stood still: what was used, was used now
            now_ms = self._clock.advance(milliseconds)
            self._on_moved()
            self._idle.check()
            await self.run_out()
            return now_ms

    async def move_to(self, now_ms: int, used_elsewhere: Iterable[int] | None) -> None:
        """Move the clock to a time and run due work.

        ``used_elsewhere`` are the ids of queues that were used through any broker until now, where this one deletes
        idle queues.
        """
        if used_elsewhere is not None:
            self._idle.note(used_elsewhere)
        self._clock.advance(max(now_ms - self._clock.now_ms(), 0))
        self._on_moved()
        if used_elsewhere is not None:
            self._idle.check()
        await self.run_out()

    async def run_out(self) -> None:
        """Run due work until there is none: it may cause more, such as a scheduled message with a time to live."""
        while True:
            self._run_due()
            while self._catching_up:
                await asyncio.sleep(_LOOK_S)
                self._run_due()
            decided = [(runtime, runtime.decided) for runtime in self._owned()]
            # A store reports its commits only to those that wait for a reply.
            while not all(runtime.is_durable(commit) for runtime, commit in decided):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
            if not self._catching_up:
                return

    @property
    def _catching_up(self) -> bool:
        return self._idle.asking > 0 or any(runtime.catching_up for runtime in self._owned())

    def _run_due(self) -> None:
        for runtime in self._owned():
            runtime.run_due()
