"""The load of each partition, now and with other partition counts: arithmetic over the loads of slots (D7).

A key's slot does not depend on the number of partitions. So the loads of the slots give the exact load of every
partition of any other division; messages without a key spread evenly. Each prediction states the error of sampling.

A *run* is the consecutive slots of one partition. `plan` splits runs whose load is over a limit, where that helps, and
merges neighbours that are both cold.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import sqrt
from typing import NamedTuple

import pandas as pd
from pyspark.sql import Column
from pyspark.sql.functions import shiftright
from pyspark.sql.pandas.functions import pandas_udf

from partibus.routing.slots import SLOT_COUNT, partition_for_slot, slot_for_key

SIGNIFICANT_ROWS = 100
"""Messages that must be known before a partition or key is called hot: fewer differ by chance."""
STANDARD_PARTITION_COUNT = 16
"""The number of partitions of a partitioned entity, as the broker creates it."""
COUNT_MAX = 1024
"""The most partitions that are tried for an entity."""
USEFUL = 0.9
"""The largest share that a split may leave in one part; a larger one would only move the problem."""
MERGE = 0.5
"""The largest share of the limit for merged neighbours, far from being split again."""


class Skew(NamedTuple):
    """The spread of one quantity over the partitions."""

    largest_over_mean: float
    """1 when even; the fullest partition carries this many times the mean."""
    smallest_over_mean: float
    variation: float
    """Standard deviation over mean; 0 when even."""
    gini: float
    """0 when even, near 1 when one partition has everything: half the mean difference of two partitions, in means."""


class Run(NamedTuple):
    """The slots of one partition, end exclusive."""

    partition: int
    first: int
    end: int


class Prediction(NamedTuple):
    """The predicted spread of a load."""

    partitions: int
    shares: list[float]
    skew: Skew
    largest_share: float
    effective_partitions: float
    """1 / largest share: the capacity of all partitions, in partitions, when the busiest is full."""
    error: float
    """The error of the largest share, plus or minus, with 95 % confidence; 0 where every message is known."""


class Split(NamedTuple):
    """One partition becomes two; the new one takes the slots from ``at`` on."""

    partition: int
    at: int
    new: int
    shares: tuple[float, float]


class Merge(NamedTuple):
    """Two neighbours become the first."""

    partition: int
    gone: int
    share: float


class Plan(NamedTuple):
    """The actions in order, and their result."""

    limit_share: float
    actions: list[Split | Merge]
    runs: list[Run]
    shares: list[float]
    """The shares of the runs."""
    stuck: list[Run]
    """Runs over the limit that no split would help: one slot carries nearly all."""


def runs_of(count: int) -> list[Run]:
    """Return the runs of an entity with so many partitions."""
    bounds = [-(-partition * SLOT_COUNT // count) for partition in range(count + 1)]
    return [Run(partition, first, end) for partition, (first, end) in enumerate(pairwise(bounds))]


def observed_count(placed: Mapping[int, int], partitions: Sequence[int]) -> int | None:
    """Return the number of partitions that explains where slots were found.

    Several numbers explain few slots. One partition is tried first, then the number of a partitioned entity, then the
    smallest number. None when none does, as when the number has changed meanwhile.
    """
    least = max(partitions, default=0) + 1
    return next(
        (
            count
            for count in (1, STANDARD_PARTITION_COUNT, *range(least, COUNT_MAX + 1))
            if count >= least
            and all(partition_for_slot(slot, count) == partition for slot, partition in placed.items())
        ),
        None,
    )


def loads_of_runs(slots: Mapping[int, float], unkeyed: float, runs: Sequence[Run]) -> list[float]:
    """Return the load of each run. Messages without a key count evenly."""
    upto = _sums(slots)
    return [upto[run.end] - upto[run.first] + unkeyed / len(runs) for run in runs]


def predict(
    slots: Mapping[int, float],
    unkeyed: float,
    count: int,
    rows: int,
    sampled_share: float,
    placed: Mapping[int, int] | None = None,
) -> Prediction:
    """Predict the spread over ``count`` partitions. ``rows`` is the size of the sample; see `Prediction.error`.

    ``placed`` is the partition of each slot, for an entity whose slots have moved.
    """
    if placed is None:
        loads = loads_of_runs(slots, unkeyed, runs_of(count))
    else:
        loads = [unkeyed / count] * count
        for slot, load in slots.items():
            loads[placed[slot]] += load
    total = sum(loads)
    shares = [load / total if total else 1 / count for load in loads]
    largest = max(shares)
    # Each known message is a draw: the count of those in one partition is binomial.
    error = 1.96 * sqrt(largest * (1 - largest) / rows) if sampled_share < 0.999 and rows else 0.0
    return Prediction(count, shares, skew(shares), largest, 1 / largest, error)


def plan(slots: Mapping[int, float], unkeyed: float, runs: Sequence[Run], limit: float, count_max: int) -> Plan:
    """Plan splits and merges so that no load is over ``limit``, with at most ``count_max`` partitions."""
    upto = _sums(slots)
    now: list[Run] = list(runs)
    stuck: set[Run] = set()
    total = upto[-1] + unkeyed or 1.0

    def load(run: Run, count: int) -> float:
        return upto[run.end] - upto[run.first] + unkeyed / count

    parts: set[int] = set()
    found: list[Split | Merge] = []
    while len(now) < count_max:
        hot = [run for run in now if run not in stuck and load(run, len(now)) > limit]
        if not hot:
            break
        run = max(hot, key=lambda run: load(run, len(now)))
        at = _middle(upto, run)
        if at is None:
            stuck.add(run)
            continue
        new = max(one.partition for one in now) + 1
        left, right = Run(run.partition, run.first, at), Run(new, at, run.end)
        now[now.index(run) : now.index(run) + 1] = [left, right]
        parts |= {run.partition, new}
        shares = load(left, len(now)) / total, load(right, len(now)) / total
        found.append(Split(run.partition, at, new, shares))
    while len(now) > 1:
        fewer = len(now) - 1
        # Messages without a key spread over fewer partitions then, which must not overload another one.
        if any(load(run, fewer) > limit for run in now if run not in stuck):
            break
        pairs = [
            (load(Run(a.partition, a.first, b.end), fewer), a, b)
            for a, b in pairwise(now)
            if not {a.partition, b.partition} & parts and load(Run(a.partition, a.first, b.end), fewer) <= limit * MERGE
        ]
        if not pairs:
            break
        together, a, b = min(pairs)
        now[now.index(a) : now.index(a) + 2] = [Run(a.partition, a.first, b.end)]
        found.append(Merge(a.partition, b.partition, together / total))
    still = [run for run in now if run in stuck]
    return Plan(limit / total, found, now, [load(run, len(now)) / total for run in now], still)


def _middle(upto: Sequence[float], run: Run) -> int | None:
    """Return where to split a run so that the larger part is smallest; None where no split helps."""
    whole = upto[run.end] - upto[run.first]
    if run.end - run.first < 2 or whole == 0:
        return None
    at = min(
        range(run.first + 1, run.end), key=lambda slot: max(upto[slot] - upto[run.first], upto[run.end] - upto[slot])
    )
    larger = max(upto[at] - upto[run.first], upto[run.end] - upto[at])
    return at if larger <= USEFUL * whole else None


def _sums(slots: Mapping[int, float]) -> list[float]:
    """Return the load of all slots below each."""
    return [0.0, *accumulate(slots.get(slot, 0.0) for slot in range(SLOT_COUNT))]


def skew(loads: Sequence[float]) -> Skew:
    """Compute the skew of a non-empty list; a list of zeros counts as even."""
    count, total = len(loads), sum(loads)
    if total == 0:
        return Skew(1.0, 1.0, 0.0, 0.0)
    mean = total / count
    variance = sum((load - mean) ** 2 for load in loads) / count
    # A sorted load's index is the number of smaller ones before it: one pass instead of all pairs.
    ranked = sum((2 * place - count + 1) * load for place, load in enumerate(sorted(loads)))
    return Skew(max(loads) / mean, min(loads) / mean, sqrt(variance) / mean, ranked / (count * total))


def slot_of(key: Column) -> Column:
    """Compute the slot of each key, 0 .. 16383; null without a key."""
    hashed: Column = pandas_udf(_slots, "int")(key)  # type: ignore[call-overload]
    return hashed


def partition_of(slot: Column, partition_count: Column) -> Column:
    """Compute `partibus.routing.slots.partition_for_slot` with Spark's own functions."""
    return shiftright(slot * partition_count, SLOT_COUNT.bit_length() - 1)


def _slots(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for keys in batches:
        yield pd.Series([None if key is None else slot_for_key(key) for key in keys], dtype="Int32")
