"""The load of the units of one premium namespace, and the decision to refuse its requests (row R11). Pure.

The load is the processor time and the memory used in the last second, each divided by what the units have; the larger
quotient counts. At `CLOSE_AT` the namespace's requests are refused before any work is done for them, until the load is
below `OPEN_BELOW`. Time spent on refusals does not count: a client that is refused must not keep itself out.
"""

from collections import deque
from enum import StrEnum
from typing import Final

CLOSE_AT: Final = 1.0
OPEN_BELOW: Final = 0.8
LOOKS: Final = 10
"""Looks in the sliding second."""


class Resource(StrEnum):
    """The resources that units have a share of. Clients see the values."""

    CPU = "processor time"
    MEMORY = "memory"


class Load:
    """The load of one namespace over all brokers, as this broker knows it."""

    def __init__(self) -> None:
        self._busy: deque[float] = deque([0.0] * LOOKS, LOOKS)
        self._all: deque[float] = deque([0.0] * LOOKS, LOOKS)
        self.elsewhere = (0.0, 0.0, 0)
        """The sum of `here` over the other brokers."""
        self.held_bytes = 0
        self.cpu = 0.0
        """Used share of its processor time, refusals included; 1 is all."""
        self.memory = 0.0
        self.exhausted: Resource | None = None
        """The resource because of which requests are refused; None: they are served."""

    @property
    def here(self) -> tuple[float, float, int]:
        """Use of this process: seconds of the last second spent on requests, seconds with refusals, bytes held."""
        return sum(self._busy), sum(self._all), self.held_bytes

    def look(self, busy_s: float, all_s: float, held_bytes: int, cpu_share_s: float, memory_share: int) -> None:
        """Record a tenth of a second and decide whether requests are refused.

        ``busy_s`` and ``all_s`` are the seconds used here, without and with refusals. ``cpu_share_s`` is the seconds
        per second
        that the namespace has in all brokers together, ``memory_share`` its bytes.
        """
        self._busy.append(busy_s)
        self._all.append(all_s)
        self.held_bytes = held_bytes
        busy, total, held = (mine + others for mine, others in zip(self.here, self.elsewhere, strict=True))
        self.cpu = total / cpu_share_s
        self.memory = held / memory_share
        busy_load = busy / cpu_share_s
        bound = CLOSE_AT if self.exhausted is None else OPEN_BELOW
        if busy_load >= bound:
            self.exhausted = Resource.CPU
        elif self.memory >= bound:
            self.exhausted = Resource.MEMORY
        else:
            self.exhausted = None
