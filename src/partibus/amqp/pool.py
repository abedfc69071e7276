"""Allocation of small numbers: channels and handles."""

from __future__ import annotations

from heapq import heappop, heappush


class NumberPool:
    """A pool that allocates the lowest free number, from 0."""

    __slots__ = ("_free", "_next")

    def __init__(self) -> None:
        self._next = 0
        self._free: list[int] = []

    def take(self) -> int:
        """Allocate the lowest free number."""
        if self._free:
            return heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        """Free a number."""
        heappush(self._free, number)
