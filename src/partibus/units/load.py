"""How loaded the units of one premium namespace are, and whether it is served (row R11). Pure.

The load is what was used in the last second, of processor time and of memory, over what its units have; the larger of
the two counts. At `CLOSE_AT` requests are refused, before anything is done for them, until it is below `OPEN_BELOW`.
Time spent on refusals is not in it: else who is refused could keep himself out.
"""

from collections import deque
from enum import StrEnum
from typing import Final

CLOSE_AT: Final = 1.0
OPEN_BELOW: Final = 0.8
LOOKS: Final = 10
"""In the sliding second."""


class Resource(StrEnum):
    """What units have a part of; the values are what clients are told."""

    CPU = "processor time"
    MEMORY = "memory"


class Load:
    """Of one namespace over all brokers, as this one knows it."""

    def __init__(self) -> None:
        self._busy: deque[float] = deque([0.0] * LOOKS, LOOKS)
        self._all: deque[float] = deque([0.0] * LOOKS, LOOKS)
        self.elsewhere = (0.0, 0.0, 0)
        """`here` of the other brokers, summed."""
        self.held_bytes = 0
        self.cpu = 0.0
        """Of its processor time, refusals included: 1 is all."""
        self.memory = 0.0
        self.exhausted: Resource | None = None
        """Why its requests are refused; None: they are not."""

    @property
    def here(self) -> tuple[float, float, int]:
        """In this process: seconds in the last second for what was done, seconds with refusals, bytes held."""
        return sum(self._busy), sum(self._all), self.held_bytes

    def look(self, busy_s: float, all_s: float, held_bytes: int, cpu_share_s: float, memory_share: int) -> None:
        """A tenth of a second is over. ``busy_s`` and ``all_s`` were used here in it, without and with refusals.
        ``cpu_share_s``: seconds per second that it has in all brokers together; ``memory_share``: bytes."""
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
