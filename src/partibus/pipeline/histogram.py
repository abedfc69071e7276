"""Histograms with buckets of constant relative width, and the percentiles in them.

```text
 bucket 0: values below 1     bucket n: G^(n-2) < value <= G^(n-1), G = 1.02 / 0.98; the value 1 is bucket 1
```

A bucket's middle is within 2 % of all its values, hence so is every percentile, however far out.
"""

from collections.abc import Mapping, Sequence
from math import log

from pyspark.sql import Column
from pyspark.sql import functions as sf

G = 1.02 / 0.98
SHARES = (0.5, 0.9, 0.99, 0.999)
"""The percentiles that results hold."""

Spread = dict[str, float]


def bucket_of(value: Column) -> Column:
    """The bucket of each value."""
    return sf.when(value < 1, 0).otherwise(sf.ceil(sf.log(value.cast("double")) / log(G)) + 1).cast("int")


def value_of(bucket: int) -> float:
    """What stands for the values of a bucket."""
    return float(bucket) if bucket < 2 else G ** (bucket - 1) * 2 / (1 + G)


def spread(weights: Mapping[int, float], shares: Sequence[float] = SHARES) -> Spread:
    """Count, mean, percentiles (`p50`, `p99_9`) and the largest value of a histogram: bucket -> weight, not empty.
    Values have four digits."""
    count = sum(weights.values())
    mean = sum(weight * value_of(bucket) for bucket, weight in weights.items()) / count
    found: Spread = {"count": round(count), "mean": _short(mean)}
    buckets = sorted(weights)
    upto, place = weights[buckets[0]], 0
    for share in sorted(shares):
        # Sums of weights are floating-point numbers: a share is reached when all but a billionth of it is there.
        while upto < count * share * (1 - 1e-9) and place < len(buckets) - 1:
            place += 1
            upto += weights[buckets[place]]
        found[percentile_name(share)] = _short(value_of(buckets[place]))
    return {**found, "largest": _short(value_of(buckets[-1]))}


def percentile_name(share: float) -> str:
    """`p50`, `p99_9`."""
    return f"p{share * 100:g}".replace(".", "_")


def _short(value: float) -> float:
    return float(f"{value:.4g}")
