"""A broker's time is never behind that of a store which it opens, whoever wrote to it last (D26).

Else a clock that was set back between two runs, or that of another machine which takes a store over, would prolong
every lock and put off whatever is scheduled. It jumps, in one step: what has ended already has ended.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from partibus.clock import Clock, SystemClock
from partibus.partition.ports import StoreError
from partibus.store.opening import CheckTime

AHEAD_MAX_MS = 7 * 24 * 3_600_000
"""A store that is ahead by more was written to by a clock that was wrong, or this machine's is wrong; to follow would
write down a wrong time for years."""

_DRIFT_MAX_MS = 1_000
"""Clocks of processes that have run for long differ by as much, and nobody need hear of it."""

log = logging.getLogger(__name__)


def stored_time(clock: Clock, jumped: Callable[[], None], loop: asyncio.AbstractEventLoop) -> CheckTime | None:
    """What openers are to ask. ``jumped`` is called on the loop after the clock has. None for a clock that is moved by
    hand: it shows what its mover says."""
    if not isinstance(clock, SystemClock):
        return None

    def check(name: str, highest_ms: int) -> None:
        # Somebody may have set the machine's clock right since this process began.
        here_ms = max(clock.now_ms(), SystemClock().now_ms())
        if highest_ms - here_ms > AHEAD_MAX_MS:
            raise StoreError(
                f"{name}: was last used at {_text(highest_ms)}, more than {AHEAD_MAX_MS // 86_400_000} days after "
                f"{_text(here_ms)}, which it is by this machine's clock; set the clock right, or, if it was wrong "
                "then, serve once with --clock manual, make a backup, and restore that into a new broker",
                executed=False,
            )
        behind_ms = highest_ms - clock.now_ms()
        if clock.catch_up(highest_ms):
            level = logging.WARNING if behind_ms > _DRIFT_MAX_MS else logging.DEBUG
            log.log(level, "%s was used at a time that is %d ms ahead: time goes on from there", name, behind_ms)
            loop.call_soon_threadsafe(jumped)

    return check


def _text(time_ms: int) -> str:
    """For people; a time that no calendar has is told as it is."""
    try:
        return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms after 1970"
