"""The job `credits`: telemetry in, what would have been throttled out."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from partibus.pipeline.credits import (
    KINDS,
    PeriodSum,
    Refused,
    costs,
    demand,
    period_sums,
    replay,
    uses_of_messages,
    with_refused,
)
from partibus.pipeline.credits_page import credits_page
from partibus.pipeline.job import Job
from partibus.pipeline.rows import read_rows, within
from partibus.throttling.settings import ThrottlingSettings

Values = dict[str, Any]

POINTS = 400
"""Of a curve over time."""
PERIODS_MAX = 1_000_000
"""Periods with refusals that are told apart, ten days of nothing else: who was refused later is not told."""
REFUSED = "namespace string, period bigint, cost double, refused double, requests double"
USES, MESSAGES = "uses", "messages"


class Want(NamedTuple):
    """What is asked for."""

    paths: Sequence[str]
    settings: ThrottlingSettings
    namespaces: Sequence[str] = ()
    """Empty: all."""
    since: datetime | None = None
    until: datetime | None = None
    names_max: int = 10


def run(job: Job, want: Want) -> Values:
    """The result of what is there."""
    spark, settings = job.spark, want.settings
    with job.step("read"):
        uses = _chosen(read_rows(spark, want.paths, uses=True), want)
        source = USES if job.watched(lambda: bool(uses.take(1))) else MESSAGES
        if source == MESSAGES:
            uses = uses_of_messages(_chosen(read_rows(spark, want.paths), want))
    asked = demand(uses, settings).persist(StorageLevel.MEMORY_AND_DISK)
    sums = period_sums(asked).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with job.step("add up periods"):
            totals = job.watched(lambda: _totals(sums))
        with job.step("replay"):
            in_order = (PeriodSum(*row) for row in sums.orderBy("namespace", "period").toLocalIterator())
            refused = list(islice(replay(in_order, settings.period_credits), PERIODS_MAX))
            series = job.watched(lambda: _series(sums, totals, refused))
        with job.step("find who cost most"):
            priced = with_refused(asked, spark.createDataFrame(refused, REFUSED))
            ranked = job.watched(costs(priced, want.names_max).collect)
    finally:
        sums.unpersist()
        asked.unpersist()
    result: Values = {
        "source": source,
        "credits_per_s": settings.credits_per_s,
        "prices": {
            name: getattr(settings, f"{name}_credits") for name in ("send", "filter", "receive", "peek", "management")
        },
        "throttled": bool(refused),
        "namespaces": [_namespace(total, refused, ranked, series) for total in totals],
    }
    job.finish(result, page=credits_page)
    return result


def _chosen(rows: DataFrame, want: Want) -> DataFrame:
    rows = within(rows, want.since, want.until)
    if want.namespaces:
        rows = rows.where(sf.lower("namespace").isin([name.lower() for name in want.namespaces]))
    return rows


def _totals(sums: DataFrame) -> list[Any]:
    found: list[Any] = (
        sums.groupBy("namespace")
        .agg(
            sf.min("period").alias("first"),
            sf.max("period").alias("last"),
            sf.sum("cost").alias("cost"),
            sf.max("cost").alias("peak"),
            sf.max_by("period", "cost").alias("peak_period"),
        )
        .orderBy(sf.desc("cost"), "namespace")
        .collect()
    )
    return found


def _series(sums: DataFrame, totals: Sequence[Any], refused: Sequence[Refused]) -> dict[str, list[Values]]:
    """By namespace: in equal steps the mean and peak of what was asked for, and what would have been refused, each in
    credits per second."""
    if not totals:
        return {}
    first, last = min(one["first"] for one in totals), max(one["last"] for one in totals)
    step = max(1, -(-(last - first + 1) // POINTS))
    at = (sf.floor((sf.col("period") - first) / step) * step + first).alias("at")
    rows = sums.groupBy("namespace", at).agg(sf.sum("cost").alias("cost"), sf.max("cost").alias("peak"))
    lost: dict[tuple[str, int], float] = {}
    for one in refused:
        key = (one.namespace, (one.period - first) // step * step + first)
        lost[key] = lost.get(key, 0.0) + one.refused
    series: dict[str, list[Values]] = {}
    for row in rows.orderBy("namespace", "at").collect():
        series.setdefault(row["namespace"], []).append(
            {
                "at": row["at"],
                "asked_per_s": row["cost"] / step,
                "peak_per_s": row["peak"],
                "refused_per_s": lost.get((row["namespace"], row["at"]), 0.0) / step,
            }
        )
    return series


def _namespace(
    total: Any, refused: Sequence[Refused], ranked: Sequence[Any], series: dict[str, list[Values]]
) -> Values:
    name = total["namespace"]
    own = [one for one in refused if one.namespace == name]
    seconds = total["last"] - total["first"] + 1
    return {
        "namespace": name,
        "from": _time(total["first"]),
        "to": _time(total["last"] + 1),
        "seconds": seconds,
        "credits": total["cost"],
        "mean_per_s": total["cost"] / seconds,
        "peak_per_s": total["peak"],
        "peak_at": _time(total["peak_period"]),
        "throttled": bool(own),
        "first_at": _time(own[0].period) if own else None,
        "throttled_seconds": len(own),
        "longest_seconds": _longest([one.period for one in own]),
        "refused_requests": sum(one.requests for one in own),
        "refused_credits": sum(one.refused for one in own),
        **{
            kind: [
                {column: row[column] for column in ("name", "requests", "units", "cost", "refused", "throttled_cost")}
                for row in ranked
                if (row["namespace"], row["kind"]) == (name, kind)
            ]
            for kind in KINDS
        },
        "series": series.get(name, []),
    }


def _longest(periods: Sequence[int]) -> int:
    """The longest run of neighbours."""
    longest = run = 0
    before = None
    for period in periods:
        run = run + 1 if before is not None and period == before + 1 else 1
        longest, before = max(longest, run), period
    return longest


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
