"""Summing up measurements."""

from collections.abc import Sequence
from typing import NamedTuple


class Percentiles(NamedTuple):
    """Percentiles in the unit of the values."""

    p50: float
    p90: float
    p99: float
    p999: float
    most: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (0..1) of the values do not exceed.

    ``ordered`` is ascending and not empty.
    """
    if not ordered:
        raise ValueError("no values, no percentile")
    # The rank is ceil(share * n), kept exact for shares with up to six decimals.
    rank = -(-round(share * 1_000_000) * len(ordered) // 1_000_000)
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def percentiles(values: Sequence[float]) -> Percentiles:
    """ValueError if there are no values."""
    if not values:
        raise ValueError("no values, no percentiles")
    ordered = sorted(values)
    return Percentiles(
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        p999=percentile(ordered, 0.999),
        most=ordered[-1],
    )


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two in the middle. Raises ValueError without values."""
    if not values:
        raise ValueError("no values, no median")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
