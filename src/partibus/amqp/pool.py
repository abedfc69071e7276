"""Small numbers that are in use for a while: channels and handles."""

from __future__ import annotations

from heapq import heappop, heappush


class NumberPool:
    """Hands out the lowest free number, from 0."""

    __slots__ = ("_free", "_next")

    def __init__(self) -> None:
        self._next = 0
        self._free: list[int] = []

    def take(self) -> int:
        if self._free:
            return heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        heappush(self._free, number)
