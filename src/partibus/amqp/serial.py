"""Arithmetic on 32-bit numbers that wrap around: delivery ids, transfer ids, delivery counts.

RFC 1982 as AMQP uses it [2.8.10]: of two numbers, the one less than half the circle ahead is the greater. Numbers
exactly half the circle apart can not be compared; `distance` treats that as behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

MASK: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_CIRCLE: Final = 0x100000000


def add(number: int, count: int) -> int:
    """Return `number` moved `count` steps forward (backward if negative)."""
    return (number + count) & MASK


def distance(start: int, end: int) -> int:
    """Return the steps from `start` forward to `end`, -2**31 .. 2**31 - 1.

    The result is negative if `end` lies behind.
    """
    steps = (end - start) & MASK
    return steps if steps < _HALF else steps - _CIRCLE


def ids_in_range(first: int, last: int, known: Mapping[int, object]) -> Iterable[int]:
    """Return the ids from `first` to `last` that can be in `known`, at a cost bounded by the size of `known`."""
    count = distance(first, last) + 1
    if count == 1:
        return (first,)
    if count <= 0:
        return ()
    if count <= len(known):
        return [(first + step) & MASK for step in range(count)]
    found = [number for number in known if 0 <= distance(first, number) < count]
    return sorted(found, key=lambda number: distance(first, number))
