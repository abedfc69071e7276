"""The number of messaging units that a namespace should have, by its load (row R12). Pure; time is an argument.

```text
 mean of UP_MS   above 70 %  ─▶ the next larger number, within the range
 mean of DOWN_MS below 20 %  ─▶ the next smaller one
```

Halving the units doubles the load: from below 20 % to below 40 %, far from 70 %. After a change, the number stays until
the load has been seen with it for as long as the rule asks. So it does not oscillate.
"""

from collections import deque
from typing import Final

from partibus.units.shares import UNITS

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
