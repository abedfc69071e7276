"""A check that the machine itself runs as fast as it did a moment ago.

A virtual machine can be slowed down from outside for some tens of milliseconds: a loop of plain arithmetic takes ten
times its processor time then, whatever else runs (on the machine of the results two times in a hundred). In a
percentile of answers such moments look like a slow broker. So a short piece of arithmetic is timed beside each of them.
Processor time counts, not wall time: a moment counts although another process has the processor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from partibus.bench.measures import median

SLOW = 2.0
"""Times the median, from which on the machine is slow."""
_TURNS = 400
"""About 20 us."""


def piece_ns() -> int:
    """Processor time that the same piece of work takes now."""
    start_ns = time.thread_time_ns()
    total = 0
    for turn in range(_TURNS):
        total += turn * turn
    return time.thread_time_ns() - start_ns


def at_full_speed(values: Sequence[float], pieces: Sequence[float]) -> list[float]:
    """Return those of ``values`` beside which the machine was not slow.

    ``pieces`` are the times before each of them and, one more, after the last.
    """
    slow = SLOW * median(list(pieces))
    return [
        value for value, before, after in zip(values, pieces, pieces[1:], strict=False) if max(before, after) < slow
    ]
