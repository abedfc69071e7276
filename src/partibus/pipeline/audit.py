"""The job `audit`: logs of producers and consumers compared, and every broken promise listed.

| finding | meaning |
|---|---|
| lost | acknowledged to the producer, and completed by no consumer |
| unsent | received, though no producer sent it |
| refused | received, though the broker refused it |
| doubled | completed more often than it was sent |
| after_completion | delivered again after a completion was acknowledged |
| out_of_order | first delivered after a message that follows it in its key |
| lock_overlap | delivered to a second holder during the lock of the first one |

Every finding is a function from the two logs to a table: kind, entity, message_id, key, at, detail. It is made by joins
and windows over message ids and keys; it collects nothing, and no window spans more than one message or one key. A
finding respects the limits of the broker's promises (docs/loss.md): times of different machines differ by up to
``slack``, and a message whose first delivery is not in a log says nothing about order.
"""

from collections.abc import Callable, Sequence
from datetime import UTC
from functools import reduce
from typing import Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from partibus.pipeline.job import DONE, FINDINGS, Job, JobError, Values
from partibus.pipeline.logs import CONSUMED, PRODUCED, LogColumn, read_log
from partibus.pipeline.place import inside
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    counted,
    figure,
    in_words,
    mark,
    moment_of,
    number,
    paragraph,
    prose,
    table,
    text,
    time_of_us,
    whole,
)
from partibus.pipeline.report.plots import lines

ID: Final = ("entity", "message_id")
OUTCOMES: Final = ("ok", "failed", "unknown")


class Logs(NamedTuple):
    """The logs to compare, as `logs.fitted` makes them."""

    produced: DataFrame
    consumed: DataFrame
    remaining: DataFrame | None = None
    """Entity and message id of messages that remain: neither received nor lost."""


class Terms(NamedTuple):
    """The definition of a fault."""

    slack_ms: int = 1000
    """The largest difference between clocks of producers and consumers."""


def normalized(logs: Logs) -> Logs:
    """Fold the case of entities and outcomes, and count a send without an outcome as acknowledged."""
    entity = sf.lower(sf.coalesce("entity", sf.lit("")))
    given = sf.nullif(sf.lower(sf.trim("outcome")), sf.lit(""))
    produced = logs.produced.withColumn("entity", entity).withColumn("outcome", sf.coalesce(given, sf.lit("ok")))
    remaining = None if logs.remaining is None else logs.remaining.withColumn("entity", entity).select(*ID).distinct()
    return Logs(produced, logs.consumed.withColumn("entity", entity), remaining)


def sends(logs: Logs) -> DataFrame:
    """Make one row per message: how often it was sent, acknowledged and refused, its first time, key and place.

    ``strange`` is an outcome outside of `OUTCOMES`, where it has one.
    """
    return logs.produced.groupBy(*ID).agg(
        sf.count(sf.lit(1)).alias("sends"),
        sf.count_if(sf.col("outcome") == "ok").alias("acknowledged"),
        sf.count_if(sf.col("outcome") == "failed").alias("refusals"),
        sf.min(sf.when(~sf.col("outcome").isin(*OUTCOMES), sf.col("outcome"))).alias("strange"),
        sf.min("sent_time").alias("sent_time"),
        sf.min_by("key", "sent_time").alias("key"),
        sf.min_by("key_sequence", "sent_time").alias("key_sequence"),
    )


def receipts(logs: Logs) -> DataFrame:
    """Make one row per received message: how often it came, how often it was completed, and its first time."""
    first = sf.min(sf.struct("received_time", sf.coalesce("delivery_count", sf.lit(0)).alias("delivery_count")))
    return logs.consumed.groupBy(*ID).agg(
        sf.count(sf.lit(1)).alias("deliveries"),
        sf.count("completed_time").alias("completions"),
        first.alias("first"),
        sf.max("completed_time").alias("completed_time"),
        sf.array_sort(sf.collect_set("consumer")).alias("consumers"),
        sf.count_if(sf.col("locked_until").isNotNull() & sf.col("lock_token").isNotNull()).alias("locks"),
    )


def reconciled(logs: Logs) -> DataFrame:
    """Join both sides of every message, `sends` and `receipts`, with nulls where one has nothing."""
    return sends(logs).join(receipts(logs), [*ID], "full")


def lost(both: DataFrame, logs: Logs) -> DataFrame:
    """Find acknowledged messages that were neither completed nor remain."""
    gone = both.where((sf.col("acknowledged") > 0) & (sf.coalesce("completions", sf.lit(0)) == 0))
    if logs.remaining is not None:
        gone = gone.join(logs.remaining, [*ID], "left_anti")
    received = sf.when(sf.col("deliveries") > 0, sf.format_string("deliveries: %d, completions: 0", "deliveries"))
    return _found(gone, "lost", "sent_time", sf.coalesce(received, sf.lit("never received")))


def unsent(both: DataFrame) -> DataFrame:
    """Find received messages without a send."""
    strange = both.where(sf.col("sends").isNull())
    return _found(strange, "unsent", "first.received_time", sf.format_string("deliveries: %d", "deliveries"))


def refused(both: DataFrame) -> DataFrame:
    """Find received messages that the broker refused."""
    all_refused = (sf.col("sends") == sf.col("refusals")) & (sf.col("deliveries") > 0)
    return _found(both.where(all_refused), "refused", "first.received_time", sf.lit("every send was refused"))


def doubled(both: DataFrame) -> DataFrame:
    """Find messages that were completed too often.

    A send of unknown outcome may have been stored, so it counts as one.
    """
    more = both.where(sf.col("completions") > sf.greatest(sf.col("sends") - sf.col("refusals"), sf.lit(1)))
    by = sf.when(sf.size("consumers") > 0, sf.concat(sf.lit(" by "), sf.array_join("consumers", ", ", "?"))).otherwise(
        ""
    )
    detail = sf.concat(sf.format_string("sends: %d, completions: %d", "sends", "completions"), by)
    return _found(more, "doubled", "completed_time", detail)


def after_completion(logs: Logs, sent: DataFrame, terms: Terms) -> DataFrame:
    """Find deliveries after a completion, of messages that were sent once; of others another copy may have come."""
    whole = Window.partitionBy(*ID)
    completed = logs.consumed.withColumn("completed_first", sf.min("completed_time").over(whole))
    again = completed.where(_later("received_time", "completed_first", terms))
    once = again.join(sent.where(sf.col("sends") == 1).select(*ID), [*ID], "left_semi")
    detail = sf.format_string(
        "completed at %s, delivered again to %s",
        sf.col("completed_first").cast("string"),
        sf.coalesce("consumer", sf.lit("?")),
    )
    return _found(once, "after_completion", "received_time", detail)


def out_of_order(both: DataFrame) -> DataFrame:
    """Find first deliveries that go back in the sequence of their key.

    Only deliveries count that the delivery count shows to be first. Among equal times the order is not known.
    """
    least = both.agg(sf.min("first.delivery_count").alias("least"))
    known = both.where(
        sf.col("key").isNotNull()
        & sf.col("key_sequence").isNotNull()
        & sf.col("first").isNotNull()
        & (sf.col("sends") == 1)
    )
    first = known.join(sf.broadcast(least), sf.col("first.delivery_count") == sf.col("least"))
    before = (
        Window.partitionBy("entity", "key")
        .orderBy(sf.unix_micros("first.received_time"))
        .rangeBetween(Window.unboundedPreceding, -1)
    )
    placed = first.withColumn("ahead", sf.max(sf.struct("key_sequence", "message_id")).over(before))
    late = placed.where(sf.col("key_sequence") < sf.col("ahead.key_sequence"))
    detail = sf.format_string(
        "number %d of its key came after number %d, '%s'", "key_sequence", "ahead.key_sequence", "ahead.message_id"
    )
    return _found(late, "out_of_order", "first.received_time", detail)


def lock_overlap(logs: Logs, terms: Terms) -> DataFrame:
    """Find consecutive deliveries under different locks of which the first had neither expired nor been released."""
    in_turn = Window.partitionBy(*ID).orderBy("received_time", "lock_token")
    previous = sf.lag(
        sf.struct("received_time", "locked_until", "lock_token", "completed_time", "released_time", "consumer")
    )
    locked = logs.consumed.where(sf.col("locked_until").isNotNull())
    pairs = locked.withColumn("before", previous.over(in_turn)).where(sf.col("before").isNotNull())
    held_until = sf.least(
        sf.col("before.locked_until"), sf.col("before.completed_time"), sf.col("before.released_time")
    )
    overlap = pairs.withColumn("held_until", held_until).where(
        _later("held_until", "received_time", terms) & ~sf.col("lock_token").eqNullSafe(sf.col("before.lock_token"))
    )
    detail = sf.format_string(
        "%s held it until %s, and it was delivered to %s",
        sf.coalesce("before.consumer", sf.lit("?")),
        sf.col("held_until").cast("string"),
        sf.coalesce("consumer", sf.lit("?")),
    )
    return _found(overlap, "lock_overlap", "received_time", detail)


def findings(logs: Logs, both: DataFrame, terms: Terms) -> DataFrame:
    """Make the rows of all findings. ``logs`` are `normalized`; ``both`` is `reconciled` of them."""
    sent = both.where(sf.col("sends").isNotNull())
    tables = [
        lost(both, logs),
        unsent(both),
        refused(both),
        doubled(both),
        after_completion(logs, sent, terms),
        out_of_order(both),
        lock_overlap(logs, terms),
    ]
    return reduce(DataFrame.unionAll, tables)


KINDS: Final = ("lost", "unsent", "refused", "doubled", "after_completion", "out_of_order", "lock_overlap")


def totals(both: DataFrame) -> Values:
    """Count over all messages."""
    counts: dict[str, Callable[[], Column]] = {
        "messages": lambda: sf.count(sf.lit(1)),
        "sends": lambda: sf.sum("sends"),
        "acknowledged": lambda: sf.sum("acknowledged"),
        "refused_sends": lambda: sf.sum("refusals"),
        "deliveries": lambda: sf.sum("deliveries"),
        "completions": lambda: sf.sum("completions"),
        "sent_more_than_once": lambda: sf.count_if(sf.col("sends") > 1),
        "delivered_more_than_once": lambda: sf.count_if(sf.col("deliveries") > 1),
        "ordered": lambda: sf.count_if(sf.col("key").isNotNull() & sf.col("key_sequence").isNotNull()),
        "locked_deliveries": lambda: sf.sum("locks"),
    }
    row = both.agg(
        *(make().alias(name) for name, make in counts.items()),
        sf.count_distinct(sf.when(sf.col("key").isNotNull(), sf.struct("entity", "key"))).alias("keys"),
        sf.min("sent_time").alias("first"),
        sf.max(sf.coalesce("completed_time", "sent_time")).alias("last"),
    ).first()
    assert row is not None
    return {name: row[name] or 0 for name in (*counts, "keys")} | {
        "from": utc_of(row["first"]),
        "to": utc_of(row["last"]),
    }


_NEEDED: Final = {"lost": "acknowledged", "out_of_order": "ordered", "lock_overlap": "locked_deliveries"}
"""The total that must not be zero for a check to find anything."""


def unchecked(whole: Values) -> list[str]:
    """Return the kinds of findings for which the logs lack columns or rows. ``whole`` are the `totals`."""
    return [kind for kind, needed in _NEEDED.items() if not whole[needed]]


def count_by_kind(found: DataFrame) -> dict[str, int]:
    """Count each kind of finding, zeros included."""
    rows = found.groupBy("kind").count().collect()
    counts = {row["kind"]: row["count"] for row in rows}
    return {kind: counts.get(kind, 0) for kind in KINDS}


def samples(found: DataFrame, most: int) -> list[Values]:
    """Return the first findings of each kind, ``most`` at most."""
    rank = sf.row_number().over(Window.partitionBy("kind").orderBy("at", "message_id"))
    rows = found.withColumn("rank", rank).where(sf.col("rank") <= most).drop("rank").sort("kind", "at", "message_id")
    return [{**row.asDict(), "at": utc_of(row["at"])} for row in rows.collect()]


def delays(both: DataFrame, points_max: int = 240) -> list[Values]:
    """Return messages sent and completed per second over the time of sending, and their delay."""
    span = both.agg(sf.min(sf.unix_seconds("sent_time")), sf.max(sf.unix_seconds("sent_time"))).first()
    if span is None or span[0] is None:
        return []
    step = max(1, -(-(span[1] - span[0] + 1) // points_max))
    took = (sf.unix_micros("first.received_time") - sf.unix_micros("sent_time")) / 1000
    series = (
        both.where(sf.col("sent_time").isNotNull())
        .groupBy((sf.floor(sf.unix_seconds("sent_time") / step) * step).alias("at"))
        .agg(
            (sf.count(sf.lit(1)) / step).alias("sent"),
            (sf.count_if(sf.col("completions") > 0) / step).alias("completed"),
            sf.percentile_approx(took, 0.5).alias("p50_ms"),
            sf.percentile_approx(took, 0.99).alias("p99_ms"),
        )
    )
    found = {row["at"]: row.asDict() for row in series.collect()}
    none = {"sent": 0.0, "completed": 0.0, "p50_ms": None, "p99_ms": None}
    return [found.get(at) or {"at": at, **none} for at in range(span[0] // step * step, span[1] + 1, step)]


def _later(one: str, other: str, terms: Terms) -> Column:
    """Tell whether a time is after another by more than clocks may differ."""
    return sf.unix_micros(sf.col(one)) > sf.unix_micros(sf.col(other)) + terms.slack_ms * 1000


def _found(table: DataFrame, kind: str, at: str, detail: Column) -> DataFrame:
    key = sf.col("key") if "key" in table.columns else sf.lit(None)
    return table.select(
        sf.lit(kind).alias("kind"), *ID, key.cast("string").alias("key"), sf.col(at).alias("at"), detail.alias("detail")
    )


def utc_of(at: Any) -> str | None:
    """Format a time in UTC. Spark returns times without a zone, in that of this machine."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds")


REMAINING = tuple(column for column in PRODUCED if column.name in ID)


def findings_in(out: str) -> str:
    """Return the folder of the table of findings."""
    return inside(out, "findings")


class Want(NamedTuple):
    """The request for an audit."""

    produced: Sequence[str]
    consumed: Sequence[str]
    remaining: Sequence[str] = ()
    form: str | None = None
    """The format, parquet, json or csv; None: by the file names."""
    slack_ms: int = 1000
    samples_max: int = 10
    out: str | None = None


STRANGE_MAX: Final = 5
"""Outcomes that an error lists."""


def check_logs(both: DataFrame) -> None:
    """Raise `JobError` for empty logs, rows without an id, and unknown outcomes, which would hide lost messages.

    A line that is cut short, as the last one of a log that is still being written, has no id. It would count as lost.
    """
    nameless = [
        sf.sum(sf.when(sf.col("message_id").isNull(), sf.col(name)).otherwise(0)).alias(name)
        for name in ("sends", "deliveries")
    ]
    counted = both.agg(sf.count(sf.lit(1)).alias("messages"), *nameless).first()
    if counted is None or not counted["messages"]:
        raise JobError("the logs have no rows, so nothing was audited; check --produced, --consumed and --format")
    for name, side in (("sends", "producers"), ("deliveries", "consumers")):
        if counted[name]:
            raise JobError(
                f"the log of the {side} has {counted[name]:,} rows without a message_id, as lines that are cut short: "
                "wait until the log is complete, or remove them"
            )
    found = both.where(sf.col("strange").isNotNull()).select("strange").distinct().limit(STRANGE_MAX).collect()
    if found:
        raise JobError(
            f"the log of the producers has outcomes such as {', '.join(sorted(repr(row[0]) for row in found))}; an "
            f"outcome is {', '.join(OUTCOMES[:-1])} or {OUTCOMES[-1]}, or null for ok. Change them in the log."
        )


def run(job: Job, want: Want) -> Values:
    """Run the audit. The `counts` of the result are all zero when every promise was kept.

    Raises `JobError` for logs that prove nothing: `check_logs`.
    """
    job.check_paths(
        (*want.produced, *want.consumed, *want.remaining), "give the logs with --produced, --consumed and --remaining"
    )
    spark = job.spark

    def log(paths: Sequence[str], columns: Sequence[LogColumn]) -> Any:
        return read_log(spark, paths, columns, want.form)

    remaining = log(want.remaining, REMAINING) if want.remaining else None
    logs = normalized(Logs(log(want.produced, PRODUCED), log(want.consumed, CONSUMED), remaining))
    both = reconciled(logs).persist(StorageLevel.MEMORY_AND_DISK)
    found = findings(logs, both, Terms(want.slack_ms)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with job.step("join the logs"):
            job.watched(lambda: check_logs(both))
        with job.step("look for faults"):
            counts = job.watched(lambda: count_by_kind(found))
        with job.step("tell"):
            in_all = totals(both)
            result: Values = {
                "holds": not any(counts.values()),
                "counts": counts,
                "unchecked": unchecked(in_all),
                "totals": in_all,
                "samples": samples(found, want.samples_max),
                "series": delays(both),
                "findings": None,
            }
            if want.out is not None:
                result["findings"] = findings_in(want.out)
                found.write.mode("overwrite").partitionBy("kind").parquet(result["findings"])
    finally:
        found.unpersist()
        both.unpersist()
    job.finish(result, status=DONE if result["holds"] else FINDINGS, page=audit_page)
    return result


MEANINGS: Final = {
    "lost": "acknowledged to the producer, and completed by no consumer",
    "unsent": "received, though no producer sent it",
    "refused": "received, though the broker refused it",
    "doubled": "completed more often than it was sent",
    "after_completion": "delivered again after its completion was acknowledged",
    "out_of_order": "first delivered after a message that follows it in its key",
    "lock_overlap": "delivered to a second holder while the lock of the first one ran",
}

LACKING: Final = {
    "lost": "the producers have no acknowledged send",
    "out_of_order": "no row of the producers has both `key` and `key_sequence`",
    "lock_overlap": "no row of the consumers has both `locked_until` and `lock_token`",
}
"""The data that a log without these rows lacks."""


def audit_page(found: Values) -> Page:
    """Make the page of a result of `run`."""
    totals, counts = found["totals"], found["counts"]
    faults = ", ".join(f"{count:,} {in_words(kind)}" for kind, count in counts.items() if count)
    return Page(
        title="Audit",
        lead="Compares the logs of producers with those of consumers: is every message there, once, in order, with one "
        "holder at a time?"
        + (f" From {moment_of(totals['from'])} to {moment_of(totals['to'])}." if totals["from"] else "")
        + " The job knows the messages of these logs only. Without a log of what remains in the entity, it counts "
        "messages that wait there as lost.",
        verdict=Verdict(
            True, "NOTHING FOUND", f"{counted(totals['messages'], 'message')} kept every promise that was checked."
        )
        if found["holds"]
        else Verdict(False, "FAULTS", f"{faults}."),
        tiles=[
            (number(totals["messages"]), "messages"),
            (number(totals["sends"]), "sends"),
            (number(totals["deliveries"]), "deliveries"),
            (number(totals["completions"]), "completions"),
            (number(totals["keys"]), "keys"),
            (number(totals["delivered_more_than_once"]), "delivered again"),
        ],
        sections=[
            Section("Checks", [_checks(counts, found["unchecked"])]),
            *([Section("Examples", _examples(found))] if found["samples"] else []),
            *([Section("Over time", _over_time(found["series"]))] if found["series"] else []),
        ],
    )


def _checks(counts: Values, unchecked: Sequence[str]) -> str:
    return table(
        ["result", "finding", "means", "messages"],
        [
            [
                whole("not checked"),
                whole(text(in_words(kind))),
                f"<span>{prose(f'{meaning}: {LACKING[kind]}')}</span>",
                "",
            ]
            if kind in unchecked
            else [mark(not counts[kind]), whole(text(in_words(kind))), text(meaning), number(counts[kind])]
            for kind, meaning in MEANINGS.items()
        ],
        (3,),
    )


def _examples(found: Values) -> list[str]:
    rows = [
        [
            whole(text(in_words(one["kind"]))),
            code(one["message_id"]),
            "" if one["key"] is None else code(one["key"]),
            text((one["at"] or "")[:23].replace("T", " ")),
            text(one["detail"]),
        ]
        for one in found["samples"]
    ]
    everything = [paragraph(f"All of them: {found['findings']}")] if found["findings"] else []
    return [table(["finding", "message", "key", "at", "what happened"], rows), *everything]


def _over_time(series: list[Values]) -> list[str]:
    times = [point["at"] for point in series]
    rates = {name: (times, [point[name] for point in series]) for name in ("sent", "completed")}
    step = times[1] - times[0] if len(times) > 1 else 1
    known = [point for point in series if point["p50_ms"] is not None]
    waits = {
        name: ([point["at"] for point in known], [max(point[key] / 1000, 1e-6) for point in known])
        for key, name in (("p50_ms", "p50"), ("p99_ms", "p99"))
    }
    rate = lines("Messages per second", [("messages per second, by the time of sending", rates)])
    if not known:
        return [figure(rate)]
    wait = lines(
        "From sending to the first delivery",
        [("from the send to the first delivery", waits)],
        unit=lambda seconds: time_of_us(seconds * 1e6),
        log=True,
        step=step,
    )
    return [figure(rate), figure(wait, "By two clocks, where producers and consumers are on different machines.")]
