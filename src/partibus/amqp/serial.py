"""Arithmetic on 32-bit numbers that wrap around: delivery ids, transfer ids, delivery counts.

RFC 1982 as AMQP uses it [2.8.10]: of two numbers, the one that lies less than half the circle ahead is
the greater; exactly half the circle apart they can not be compared, and `distance` calls that behind.
"""

from __future__ import annotations

from typing import Final

MASK: Final = 0xFFFFFFFF
_HALF: Final = 0x80000000
_CIRCLE: Final = 0x100000000


def add(number: int, count: int) -> int:
    """`number` moved `count` steps forward (backward if negative)."""
    return (number + count) & MASK


def distance(start: int, end: int) -> int:
    """Steps from `start` forward to `end`, negative if `end` lies behind; -2**31 .. 2**31 - 1."""
    steps = (end - start) & MASK
    return steps if steps < _HALF else steps - _CIRCLE


def is_before(left: int, right: int) -> bool:
    """True if `right` is ahead of `left`."""
    return distance(left, right) > 0
