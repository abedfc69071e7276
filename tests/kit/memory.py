"""The memory that an object holds, measured from outside: whatever it keeps, and however it keeps it."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
"""Types of things that an object refers to and does not hold: code, and what a callback is bound to."""


def held_bytes(thing: object) -> int:
    """Return the bytes of an object and of all objects that it refers to, without classes, modules and functions."""
    seen: set[int] = set()
    waiting = [thing]
    size_bytes = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        size_bytes += sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return size_bytes
