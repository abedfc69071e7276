"""How unevenly a load is spread over partitions."""

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
    gini: float
    """0 when even, near 1 when one partition has everything: half the mean difference of two partitions, in means."""


def skew(loads: Sequence[float]) -> Skew:
    """The skew of a non-empty list; of one that sums to nothing, that of an even one."""
    count, total = len(loads), sum(loads)
    if total == 0:
        return Skew(1.0, 1.0, 0.0, 0.0)
    mean = total / count
    variance = sum((load - mean) ** 2 for load in loads) / count
    # Of sorted loads each has as many smaller ones before it as its place: one pass instead of all pairs.
    ranked = sum((2 * place - count + 1) * load for place, load in enumerate(sorted(loads)))
    return Skew(max(loads) / mean, min(loads) / mean, sqrt(variance) / mean, ranked / (count * total))
