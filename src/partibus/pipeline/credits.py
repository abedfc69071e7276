"""The job `credits`: what an enforced namespace would have throttled (row D9), period by period.

```text
 rows of `use` ──▶ demand ──▶ period_sums ──▶ replay ──▶ periods in which something is refused
                     │                                      │
                     └────────────────── costs ◀────────────┘   by entity, client, operation, rule
```

A namespace begins each period with its credits; a rest is lost, a debt is repaid. The broker admits a request while the
balance is positive (D23). Only sums of a period are known. So requests of one period count as equally large, and their
order is unknown. Where all are equal the replay is exact; otherwise it is wrong by one request per period at most.
Refused requests are not repeated here, and withheld deliveries are not made later, which would both add to later
periods.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from partibus.pipeline.credits_page import credits_page
from partibus.pipeline.job import Job, Values
from partibus.pipeline.rows import GIVE_TELEMETRY, read_rows, within
from partibus.telemetry.schema import OK
from partibus.throttling.settings import ThrottlingSettings

PERIOD_MS: Final = 1_000
"""The only period that can be replayed: telemetry has sums of a second."""
FILTER: Final = "filter"
OTHER_RULES: Final = r"^\((\d+) others\)$"
SUBSCRIPTIONS: Final = "/subscriptions/"
RULES: Final = "rules"
_COLUMNS: Final = {"operations": "asked_for", "entities": "entity", "clients": "client"}
KINDS: Final = (*_COLUMNS, RULES)
_SUMMED: Final = ("requests", "units", "cost", "refused", "throttled_cost")


class PeriodSum(NamedTuple):
    """The demand of one period."""

    namespace: str
    period: int
    """Seconds since 1970."""
    cost: float
    """Credits."""
    requests: float


class Refused(NamedTuple):
    """A period in which a request would have been refused."""

    namespace: str
    period: int
    cost: float
    """The demand in credits."""
    refused: float
    """The refused part of it."""
    requests: float
    """Requests that would have been refused."""


def demand(uses: DataFrame, settings: ThrottlingSettings) -> DataFrame:
    """Price rows of `use`: period, namespace, entity, client, asked_for, rules, requests, units, cost."""
    prices = sf.create_map(*[
        sf.lit(value)
        for pair in (
            ("send", settings.send_credits), (FILTER, settings.filter_credits), ("receive", settings.receive_credits),
            ("peek", settings.peek_credits), ("management", settings.management_credits),
        )
        for value in pair
    ])  # fmt: skip
    return uses.select(
        _period().alias("period"),
        sf.coalesce("namespace", sf.lit("default")).alias("namespace"),
        sf.coalesce("entity", sf.lit("")).alias("entity"),
        sf.coalesce("client", sf.lit("")).alias("client"),
        "asked_for",
        sf.coalesce("rules", sf.lit("")).alias("rules"),
        sf.col("requests").cast("double").alias("requests"),
        sf.col("messages").cast("double").alias("units"),
        (sf.col("messages") * prices[sf.col("asked_for")]).cast("double").alias("cost"),
    )


def uses_of_messages(rows: DataFrame) -> DataFrame:
    """Derive rows of `use` from rows about messages, for telemetry that has none.

    Sends and deliveries count as a request each, without a client. The cost of rules, peeks and management is missing.
    """
    is_copy = sf.contains(sf.lower("entity"), sf.lit(SUBSCRIPTIONS))
    sends = (sf.col("op") == "send") & ~is_copy
    found = rows.where((sends | (sf.col("op") == "deliver")) & (sf.col("outcome") == OK))
    weight = sf.sum("weight")
    asked_for = sf.when(sf.col("op") == "send", "send").otherwise("receive")
    return found.groupBy(
        sf.timestamp_seconds(_period()).alias("time"), "namespace", "entity", asked_for.alias("asked_for")
    ).agg(
        weight.alias("messages"),
        weight.alias("requests"),
        sf.lit(None).cast("string").alias("client"),
        sf.lit(None).cast("string").alias("rules"),
    )


def period_sums(demand: DataFrame) -> DataFrame:
    """Make rows of `PeriodSum`. The cost of rules is part of a send, not a request of its own."""
    requests = sf.sum(sf.when(sf.col("asked_for") != FILTER, sf.col("requests")).otherwise(0.0))
    return demand.groupBy("namespace", "period").agg(sf.sum("cost").alias("cost"), requests.alias("requests"))


def replay(sums: Iterable[PeriodSum], period_credits: int) -> Iterator[Refused]:
    """Yield the periods in which something is refused.

    ``sums`` are by namespace, then period; they are read one at a time.
    """
    namespace: str | None = None
    period, balance = 0, 0.0
    for one in sums:
        if one.namespace != namespace:
            namespace, period, balance = one.namespace, one.period, float(period_credits)
        else:
            balance = min(float(period_credits), balance + (one.period - period) * period_credits)
            period = one.period
        requests = max(1.0, one.requests)
        size = one.cost / requests
        admitted = requests if one.cost <= balance or not size else min(requests, max(0, ceil(balance / size)))
        balance -= admitted * size
        if admitted < requests:
            left = requests - admitted
            yield Refused(one.namespace, one.period, one.cost, left * size, left)


@dataclass(slots=True)
class Refusals:
    """The refusals of one namespace."""

    first: int
    """The first period."""
    last: int
    periods: int = 0
    run: int = 0
    """Neighbouring periods up to the last one."""
    longest: int = 0
    requests: float = 0.0
    credits: float = 0.0
    points: dict[int, float] = field(default_factory=dict)
    """Credits by the first period of each step of the curve."""
    ranked: int = 0
    """The periods among the first `PERIODS_MAX` of all namespaces."""


def sum_up(refused: Iterable[Refused], first: int, step: int) -> tuple[dict[str, Refusals], list[Refused]]:
    """Sum up all refusals by namespace, and return the first `PERIODS_MAX` of them, too.

    ``refused`` is as `replay` yields it. A curve begins at the period ``first`` and has steps of ``step`` periods.
    """
    found: dict[str, Refusals] = {}
    ranked: list[Refused] = []
    for one in refused:
        sums = found.get(one.namespace)
        if sums is None:
            sums = found[one.namespace] = Refusals(one.period, one.period - 1)
        sums.run = sums.run + 1 if one.period == sums.last + 1 else 1
        sums.longest = max(sums.longest, sums.run)
        sums.last = one.period
        sums.periods += 1
        sums.requests += one.requests
        sums.credits += one.refused
        at = (one.period - first) // step * step + first
        sums.points[at] = sums.points.get(at, 0.0) + one.refused
        if len(ranked) < PERIODS_MAX:
            ranked.append(one)
            sums.ranked += 1
    return found, ranked


def with_refused(demand: DataFrame, refused: DataFrame) -> DataFrame:
    """Add to the demand the part of its cost that would have been refused, and its cost in periods with refusals.

    ``refused`` has rows of `Refused`. Each request of a period counts alike.
    """
    share = (sf.col("refused") / sf.col("period_cost")).alias("share")
    known = refused.withColumnRenamed("cost", "period_cost").select("namespace", "period", share)
    joined = demand.join(sf.broadcast(known), ["namespace", "period"], "left")
    return joined.select(
        *demand.columns,
        (sf.col("cost") * sf.coalesce("share", sf.lit(0.0))).alias("refused"),
        sf.when(sf.col("share").isNotNull(), sf.col("cost")).otherwise(0.0).alias("throttled_cost"),
    )


def costs(priced: DataFrame, most: int) -> DataFrame:
    """Compute the cost of each entity, client, operation and rule: ``kind``, one of `KINDS`, and ``name``.

    First come those that cost most while something was refused, then those that cost most in all, ``most`` at most of a
    namespace and kind. ``priced`` has the columns that `with_refused` adds.
    """
    named = sf.array(
        *[sf.struct(sf.lit(kind).alias("kind"), sf.col(column).alias("name")) for kind, column in _COLUMNS.items()]
    )
    of_rules = _of_rules(priced)
    found = (
        priced.select("namespace", sf.inline(named), *_SUMMED)
        .where(sf.col("name") != "")
        .unionByName(of_rules.select("namespace", sf.lit(RULES).alias("kind"), "name", *_SUMMED))
    )
    sums = found.groupBy("namespace", "kind", "name").agg(*[sf.sum(name).alias(name) for name in _SUMMED])
    order = (sf.desc("throttled_cost"), sf.desc("cost"), sf.asc("name"))
    place = sf.row_number().over(Window.partitionBy("namespace", "kind").orderBy(*order))
    return sums.withColumn("place", place).where(sf.col("place") <= most).orderBy("namespace", "kind", "place")


def _of_rules(priced: DataFrame) -> DataFrame:
    """Compute the cost by rule, ``topic/subscription/rule``.

    Each rule of a topic costs the same, since each is evaluated on every message. Rules that telemetry does not name
    are one line together.
    """

    def standing_for(line: Column) -> Column:
        return sf.coalesce(sf.regexp_extract(line, OTHER_RULES, 1).try_cast("int"), sf.lit(1))

    lines = sf.split("rules", "\n")
    part = standing_for(sf.col("line")) / (sf.size(lines) - 1 + standing_for(sf.element_at(lines, -1)))
    found = priced.where((sf.col("asked_for") == FILTER) & (sf.col("rules") != ""))
    return found.withColumn("line", sf.explode(lines)).select(
        "namespace",
        sf.concat_ws("/", "entity", "line").alias("name"),
        sf.lit(0.0).alias("requests"),
        *[(sf.col(name) * part).alias(name) for name in _SUMMED if name != "requests"],
    )


def _period() -> Column:
    return sf.floor(sf.unix_millis("time") / PERIOD_MS).cast("bigint")


POINTS = 400
"""Points of a curve over time."""
PERIODS_MAX = 1_000_000
"""The most periods with refusals by which the costs are ranked, in the order of namespaces: ten days of nothing else.
Sums have all of them.
"""
REFUSED = "namespace string, period bigint, cost double, refused double, requests double"
USES, MESSAGES = "uses", "messages"


class Want(NamedTuple):
    """The request for a replay of credits."""

    paths: Sequence[str]
    settings: ThrottlingSettings
    namespaces: Sequence[str] = ()
    """Namespaces; empty: all."""
    since: datetime | None = None
    until: datetime | None = None
    names_max: int = 10


def run(job: Job, want: Want) -> Values:
    """Run the job on the present telemetry."""
    job.check_paths(want.paths, GIVE_TELEMETRY)
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
            first, last, step = _steps(totals)
            refused, periods = sum_up(replay(in_order, settings.period_credits), first, step)
            series = job.watched(lambda: _series(sums, refused, range(first, last + 1, step)))
        with job.step("find who cost most"):
            priced = with_refused(asked, spark.createDataFrame(periods, REFUSED))
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
            sf.max_by("period", sf.struct("cost", -sf.col("period"))).alias("peak_period"),  # the first of equal ones
        )
        .orderBy(sf.desc("cost"), "namespace")
        .collect()
    )
    return found


def _steps(totals: Sequence[Any]) -> tuple[int, int, int]:
    """Return the first and the last period of all namespaces, and the step of the curves between them."""
    first, last = min((one["first"] for one in totals), default=0), max((one["last"] for one in totals), default=-1)
    return first, last, max(1, -(-(last - first + 1) // POINTS))


def _series(sums: DataFrame, refused: Mapping[str, Refusals], places: range) -> dict[str, list[Values]]:
    """Compute curves by namespace: mean and peak demand and would-be refusals in equal steps, in credits per second."""
    first, step = places.start, places.step
    at = (sf.floor((sf.col("period") - first) / step) * step + first).alias("at")
    rows = sums.groupBy("namespace", at).agg(sf.sum("cost").alias("cost"), sf.max("cost").alias("peak"))
    asked = {(row["namespace"], row["at"]): row for row in rows.collect()}
    series: dict[str, list[Values]] = {}
    for namespace in sorted({namespace for namespace, _ in asked}):
        lost = refused[namespace].points if namespace in refused else {}
        for place in places:
            row = asked.get((namespace, place))
            series.setdefault(namespace, []).append(
                {
                    "at": place,
                    "asked_per_s": row["cost"] / step if row else 0.0,
                    "peak_per_s": row["peak"] if row else 0.0,
                    "refused_per_s": lost.get(place, 0.0) / step,
                }
            )
    return series


def _namespace(
    total: Any, refused: Mapping[str, Refusals], ranked: Sequence[Any], series: dict[str, list[Values]]
) -> Values:
    name = total["namespace"]
    own = refused.get(name)
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
        "throttled": own is not None,
        "first_at": _time(own.first) if own else None,
        "throttled_seconds": own.periods if own else 0,
        "longest_seconds": own.longest if own else 0,
        "refused_requests": own.requests if own else 0.0,
        "refused_credits": own.credits if own else 0.0,
        "ranked_seconds": own.ranked if own else 0,
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


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
