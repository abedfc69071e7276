"""How evenly a load is spread over partitions."""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple


class Skew(NamedTuple):
    """Spread of one quantity over the partitions."""

    largest_over_mean: float
    """1 when even; the partition with the most carries this many times the mean."""
    smallest_over_mean: float
    variation: float
    """Standard deviation over mean; 0 when even."""


def skew(loads: Sequence[float]) -> Skew:
    """The skew of a non-empty list; of one that sums to nothing, that of an even one."""
    mean = sum(loads) / len(loads)
    if mean == 0:
        return Skew(1.0, 1.0, 0.0)
    variance = sum((load - mean) ** 2 for load in loads) / len(loads)
    return Skew(max(loads) / mean, min(loads) / mean, sqrt(variance) / mean)
