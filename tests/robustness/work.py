"""Work that a call does, counted: no clock, so that a test gives the same answer on every machine.

Counted are the steps of Python's interpreter, and for searches in C the bytes of what is searched. Two things are not
seen: how much a slice copies, and what a library in C does with its arguments. `bench.holds` measures those.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_SEARCHES = frozenset(
    {"count", "find", "index", "partition", "rfind", "rpartition", "replace", "split", "splitlines", "lower", "strip"}
)
"""Methods of texts and bytes that look at all of them."""
_BYTES_PER_STEP = 64
"""The items that a search reads in the time of one step, or less."""


def work_of(call: Callable[[], object]) -> int:
    """Run a call, and return the steps that it took, of dictionaries with colliding keys in its result included."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        steps += 1
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal steps
        if event == "c_call" and argument.__name__ in _SEARCHES:
            subject = argument.__self__
            if isinstance(subject, str | bytes | bytearray):
                steps += len(subject) // _BYTES_PER_STEP

    tracing, profiling, collecting = sys.gettrace(), sys.getprofile(), gc.isenabled()
    gc.disable()  # finalizers of former tests' objects are no work of this call
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        result = call()
    finally:
        sys.settrace(tracing)
        sys.setprofile(profiling)
        if collecting:
            gc.enable()
    return steps + collisions(result)


def collisions(value: object) -> int:
    """Return how many pairs of keys have one hash, in a value of dictionaries and lists."""
    found = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            counts: dict[str, int] = {}
            for key in one:
                digits = str(hash(key))
                counts[digits] = counts.get(digits, 0) + 1
            found += sum(count * (count - 1) // 2 for count in counts.values())
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
    return found
