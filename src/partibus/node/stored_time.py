"""Checks of the times in stores: no broker uses a time that its machine has not reached (D26).

A store remembers the latest time of its commits. If it is ahead of this machine's clock, it was used by a clock that is
ahead, or this machine's is behind. Following it would expire messages, also those of other stores, and store the wrong
time there. So a small difference is ignored: locks last that much longer. A store with a larger one is not opened until
an operator has decided which clock was wrong (ADR 0021).
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from partibus.clock import Clock, SystemClock
from partibus.node.settings import Settings
from partibus.partition.protocol.ports import StoreError
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
