"""Messaging units of premium namespaces: their division, their load, and its consequences (rows R10 to R12, ADR 0020).

A broker process has `UnitLimits.per_broker` units. A premium namespace has units of its own. Basic and standard
namespaces share the rest, at least `LEFT_MIN` of one unit, so that the operator's namespace is always served.

The rest is pure; time is an argument.

The load is the processor time and the memory used in the last second, each divided by what the units have; the larger
quotient counts. At `CLOSE_AT` the namespace's requests are refused before any work is done for them, until the load is
below `OPEN_BELOW`. Time spent on refusals does not count: a client that is refused must not keep itself out.

The number of units follows the mean load:

```text
 mean of UP_MS   above 70 %  ─▶ the next larger number, within the range
 mean of DOWN_MS below 20 %  ─▶ the next smaller one
```

Halving the units doubles the load: from below 20 % to below 40 %, far from 70 %. After a change, the number stays until
the load has been seen with it for as long as the rule asks. So it does not oscillate.
"""

from collections import deque
from enum import StrEnum
from typing import Final

from partibus.errors import ArgumentError

UNITS: Final = (1, 2, 4, 8, 16)
"""Numbers of units that a premium namespace may have."""
LEFT_MIN: Final = 0.25
"""The least share, in units, of all namespaces without units of their own together."""


def check_units(name: str, units: int, others: int, brokers_max: int, per_broker: int) -> None:
    """Check that a namespace can have ``units`` while others have ``others``. Raises ArgumentError."""
    free = brokers_max * per_broker - others
    if units > free:
        more = -(-(others + units) // per_broker)
        raise ArgumentError(
            f"units of the namespace '{name}'",
            units,
            f"at most {max(free, 0)}: {brokers_max} broker processes have {brokers_max * per_broker} units, "
            f"{others} of which are other namespaces'",
            f"Serve with --brokers {more}, or give another namespace fewer units.",
        )


def left_of(units: int, brokers: int, per_broker: int) -> float:
    """Return the units in each broker process that are left when premium namespaces have ``units``."""
    return max(LEFT_MIN, brokers * per_broker - units) / brokers


def brokers_wanted(units: int, least: int, most: int, per_broker: int) -> int:
    """Return the number of processes for ``units`` of premium namespaces; one more unit is left for the others."""
    return min(most, max(least, -(-(units + 1) // per_broker)))


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
        per second that the namespace has in all brokers together, ``memory_share`` its bytes.
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


UP_ABOVE: Final = 0.7
DOWN_BELOW: Final = 0.2
UP_MS: Final = 15_000
"""Longer than a burst, shorter than a client's patience with refusals."""
DOWN_MS: Final = 120_000
"""Long, since moving stores costs more than an idle unit."""
SEEN_MIN: Final = 5
"""The least number of looks that make a mean, however far apart they are."""


class Scaling:
    """The scaling decisions of one namespace since the first look or the last change."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque()
        self._units = 0
        self._since_ms = 0

    def look(self, now_ms: int, cpu: float, units: int, least: int, most: int) -> int:
        """Record a look and return the number of units that the namespace should have now.

        ``cpu`` is the load of ``units``; 1 is all.
        """
        if units != self._units:
            self._units = units
            self._seen.clear()
            self._since_ms = now_ms
        seen = self._seen
        seen.append((now_ms, cpu))
        while seen[0][0] < now_ms - DOWN_MS:
            seen.popleft()
        if self._mean(now_ms, UP_MS, above=UP_ABOVE):
            larger = [one for one in UNITS if units < one <= most]
            return larger[0] if larger else units
        if self._mean(now_ms, DOWN_MS, above=None):
            smaller = [one for one in UNITS if least <= one < units]
            return smaller[-1] if smaller else units
        return units

    def _mean(self, now_ms: int, period_ms: int, above: float | None) -> bool:
        """Tell whether the mean load of the period is above ``above``; with None, whether it is below `DOWN_BELOW`."""
        if now_ms - self._since_ms < period_ms:
            return False
        of_period = [cpu for at_ms, cpu in self._seen if at_ms >= now_ms - period_ms]
        if len(of_period) < SEEN_MIN:
            return False
        mean = sum(of_period) / len(of_period)
        return mean < DOWN_BELOW if above is None else mean > above
