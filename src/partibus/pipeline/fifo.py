"""The job `fifo`: how the partitions of FIFO queues followed their load, from telemetry.

Rows about messages give rate and age. Rows of `move` give splits and merges: one row where slots got another owner, and
one where their former partition had none of their messages left.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from partibus.pipeline.job import Job, Values
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    counted,
    figure,
    folded,
    number,
    paragraph,
    percent,
    range_of_times,
    table,
    time_of_us,
)
from partibus.pipeline.report.plots import lines
from partibus.pipeline.rows import GIVE_TELEMETRY, of_entities, read_rows, within
from partibus.telemetry.schema import OK, STEPS

POINTS: Final = 300
"""Points of a curve over time."""
PLOTTED: Final = 8
"""The most partitions with a curve of their own: the busiest."""
SHOWN: Final = 100
"""Moves in the table of a page: the newest."""
SUFFIX: Final = ".fifo"
"""The end of a FIFO queue's name."""
_RATES: Final = {"sent": "send", "delivered": "deliver", "completed": "complete"}
_PARTS: Final = "namespace", "entity"


class Want(NamedTuple):
    """The request for a report."""

    paths: Sequence[str]
    entities: Sequence[str] = ()
    """Entities; empty: FIFO queues, and those whose slots have moved."""
    since: datetime | None = None
    until: datetime | None = None
    remark: str = ""
    """A sentence about the telemetry for the page's lead."""


def run(job: Job, want: Want) -> Values:
    """Run the job on the present telemetry."""
    job.check_paths(want.paths, GIVE_TELEMETRY)
    spark = job.spark
    with job.step("read moves"):
        moves = of_entities(within(read_rows(spark, want.paths, moves=True), want.since, want.until), want.entities)
        found_moves = job.watched(lambda: _moves(moves))
    rows = within(read_rows(spark, want.paths), want.since, want.until)
    chosen = _chosen(rows, want, {key for key, _ in found_moves}).persist()
    try:
        with job.step("add up rows"):
            whole = (sf.min("time"), sf.max("time"), sf.count("*") / sf.sum("weight"))
            bounds = job.watched(lambda: chosen.agg(*whole).first())
            first, last = _seconds(bounds)
            step = max(1, -(-(last - first + 1) // POINTS))
            rates = job.watched(lambda: _rates(chosen, first, step))
        with job.step("compute ages"):
            ages = job.watched(lambda: _ages(chosen, first, step))
    finally:
        chosen.unpersist()
    keys = sorted({key for key, *_ in rates} | {key for key, _ in found_moves})
    entities = [
        _entity(
            key,
            [one for found, one in found_moves if found == key],
            {(at, partition): sums for found, at, partition, sums in rates if found == key},
            {at: age for found, at, age in ages if found == key},
            range(first, last + 1, step),
        )
        for key in keys
    ]
    result: Values = {
        "step_seconds": step,
        "sampled_share": 1.0 if bounds is None or bounds[2] is None else min(1.0, bounds[2]),
        "entities": sorted(entities, key=lambda one: -one["sent"]),
    }
    job.finish(result, page=lambda found: fifo_page(found, want.remark))
    return result


def _chosen(rows: DataFrame, want: Want, moved: set[tuple[str, str]]) -> DataFrame:
    """Select operations on messages of the wanted entities."""
    rows = rows.where((sf.col("outcome") == OK) & sf.col("op").isin(*_RATES.values()))
    if want.entities:
        return of_entities(rows, want.entities)
    names = [entity for _, entity in moved]
    return rows.where(sf.lower("entity").endswith(SUFFIX) | sf.col("entity").isin(names))


def _at(first: int, step: int) -> Column:
    second = sf.floor(sf.unix_millis("time") / 1000)
    return (sf.floor((second - first) / step) * step + first).cast("bigint").alias("at")


def _seconds(bounds: Any) -> tuple[int, int]:
    """Return the first and the last second; 0 and -1 of no rows."""
    if bounds is None or bounds[0] is None:
        return 0, -1
    return int(bounds[0].timestamp()), int(bounds[1].timestamp())


def _moves(moves: DataFrame) -> list[tuple[tuple[str, str], Values]]:
    """Return the steps of moves in order of time, with the (namespace, entity) of each."""
    columns = ("time", *_PARTS, "position", "partition_id", "messages", "requests", "asked_for", "latency_us", "rules")
    rows = moves.select(*columns).orderBy("time", "sequence_number").collect()
    return [
        (
            (row["namespace"], row["entity"]),
            {
                "time": row["time"].astimezone(UTC).isoformat(timespec="milliseconds"),
                "at": row["time"].timestamp(),
                "step": row["asked_for"],
                "source": row["position"],
                "target": row["partition_id"],
                "slots": row["messages"],
                "partitions": row["requests"],
                "took_ms": (row["latency_us"] or 0) / 1000,
                "why": row["rules"] or "",
            },
        )
        for row in rows
    ]


def _rates(rows: DataFrame, first: int, step: int) -> list[tuple[tuple[str, str], int, int, Values]]:
    """Return the messages that were sent, delivered and completed in each step of time, by partition."""
    sums = [
        sf.sum(sf.when(sf.col("op") == op, sf.col("weight")).otherwise(0.0)).alias(name) for name, op in _RATES.items()
    ]
    found = rows.groupBy(*_PARTS, _at(first, step), "partition_id").agg(*sums).collect()
    return [
        (
            (row["namespace"], row["entity"]),
            row["at"],
            row["partition_id"],
            {name: row[name] for name in _RATES},
        )
        for row in found
    ]


def _ages(rows: DataFrame, first: int, step: int) -> list[tuple[tuple[str, str], int, Values]]:
    """Return the age of messages when they were delivered, in each step of time."""
    shares = sf.percentile_approx("dwell_ms", sf.array(sf.lit(0.5), sf.lit(0.99)), sf.lit(1_000)).alias("ages")
    found = rows.where(sf.col("op") == "deliver").groupBy(*_PARTS, _at(first, step)).agg(shares).collect()
    return [
        ((row["namespace"], row["entity"]), row["at"], {"median_ms": row["ages"][0], "p99_ms": row["ages"][1]})
        for row in found
        if row["ages"] is not None
    ]


def _entity(
    key: tuple[str, str],
    steps: Sequence[Values],
    rates: dict[tuple[int, int], Values],
    ages: dict[int, Values],
    times: range,
) -> Values:
    """Return what is known of one queue. ``times`` are the points of its curves."""
    routed = [one for one in steps if one["step"] == STEPS[0]]
    before = _partitions_before(routed, rates, times.step)
    changes = list(_changes(before, routed))
    used = sorted({partition for _, partition in rates})
    totals = {name: sum(sums[name] for sums in rates.values()) for name in _RATES}
    owners = [before, *(one["partitions"] for one in routed)]
    return {
        "namespace": key[0],
        "entity": key[1],
        **{name: round(total) for name, total in totals.items()},
        "splits": sum(one["kind"] == "split" for one in changes),
        "merges": sum(one["kind"] == "merge" for one in changes),
        "partitions_first": before,
        "partitions_most": max(owners),
        "partitions_last": owners[-1],
        "longest_move_ms": max((one["took_ms"] for one in steps if one["step"] == STEPS[1]), default=None),
        "changes": changes,
        "moves": list(steps),
        "series": [_point(at, times.step, before, routed, rates, used, ages) for at in times],
        "by_partition": {
            str(partition): round(sum(sums["sent"] for (_, of), sums in rates.items() if of == partition))
            for partition in used
        },
    }


def _partitions_before(routed: Sequence[Values], rates: dict[tuple[int, int], Values], step: int) -> int:
    """Return the number of partitions before the first move: those that were sent to."""
    end = routed[0]["at"] if routed else None
    early = {at_of[1] for at_of, sums in rates.items() if sums["sent"] and (end is None or at_of[0] + step <= end)}
    return max(1, len(early))


def _changes(before: int, routed: Sequence[Values]) -> Iterator[Values]:
    """Yield the moves with what they did to the number of partitions that own slots."""
    count = before
    for one in routed:
        kind = "split" if one["partitions"] > count else "merge" if one["partitions"] < count else "move"
        count = one["partitions"]
        yield {key: one[key] for key in ("time", "source", "target", "slots", "partitions", "why")} | {"kind": kind}


def _point(
    at: int,
    step: int,
    before: int,
    routed: Sequence[Values],
    rates: dict[tuple[int, int], Values],
    used: Sequence[int],
    ages: dict[int, Values],
) -> Values:
    """Return one point of the curves."""
    owners = [one["partitions"] for one in routed if one["at"] < at + step]
    sums = [rates.get((at, partition), {}) for partition in used]
    return {
        "at": at,
        "partitions": owners[-1] if owners else before,
        **{f"{name}_per_s": sum(one.get(name, 0.0) for one in sums) / step for name in _RATES},
        "sent_per_s_of": [one.get("sent", 0.0) / step for one in sums],
        **ages.get(at, {"median_ms": None, "p99_ms": None}),
    }


# -- the page ----------------------------------------------------------------------------------------------------------


def fifo_page(found: Values, remark: str = "") -> Page:
    """Make the page of a result of `run`. ``remark`` is a sentence for its lead."""
    entities: list[Values] = found["entities"]
    step: int = found["step_seconds"]
    splits, merges = (sum(one[name] for one in entities) for name in ("splits", "merges"))
    most = max((one["partitions_most"] for one in entities), default=0)
    longest = max((one["longest_move_ms"] or 0 for one in entities), default=0)
    return Page(
        title="FIFO queues and their partitions",
        lead="How the number of partitions followed the load, and what rate and age were meanwhile."
        + range_of_times(
            end for one in entities for point in one["series"] for end in (point["at"], point["at"] + step)
        )
        + (
            f" Telemetry recorded {percent(found['sampled_share'])} of the operations; figures are estimates for all."
            if found["sampled_share"] < 0.999
            else " Telemetry recorded every message."
        )
        + " Rows that a broker dropped are missing."
        + (f" {remark}" if remark else ""),
        verdict=Verdict(None, "NO QUEUE", "No message of a FIFO queue and no move of slots is in this time range.")
        if not entities
        else Verdict(
            None,
            "SPLIT AND MERGED" if splits and merges else "SPLIT" if splits else "MERGED" if merges else "UNCHANGED",
            f"{counted(splits, 'split')} and {counted(merges, 'merge')} of {counted(len(entities), 'queue')}, "
            f"{counted(most, 'partition')} at most.",
        ),
        tiles=[
            (number(len(entities)), "queues"),
            (number(sum(one["sent"] for one in entities)), "messages sent"),
            (number(splits), "splits"),
            (number(merges), "merges"),
            (number(most), "partitions at most"),
            (time_of_us(longest * 1000) if longest else "none", "longest move until the old partition was empty"),
        ],
        sections=[
            Section("Queues", [_overview(entities)]),
            *(Section(one["entity"], _blocks(one, step)) for one in entities),
        ],
    )


def _overview(entities: list[Values]) -> str:
    return table(
        [
            "queue",
            "sent",
            "delivered",
            "completed",
            "partitions: first",
            "partitions: most",
            "partitions: last",
            "splits",
            "merges",
        ],
        [
            [
                code(one["entity"]),
                *(number(one[name]) for name in _RATES),
                *(number(one[f"partitions_{name}"]) for name in ("first", "most", "last")),
                number(one["splits"]),
                number(one["merges"]),
            ]
            for one in entities
        ],
        range(1, 9),
    )


def _blocks(one: Values, step: int) -> list[str]:
    if one["changes"]:
        return [_rate_chart(one), _age_chart(one, step), _spread_chart(one, step), _change_table(one)]
    return [_rate_chart(one), _age_chart(one, step), _spread_chart(one, step), paragraph("No slots have moved.")]


def _rate_chart(one: Values) -> str:
    times = [point["at"] for point in one["series"]]
    partitions = {"partitions": (times, [point["partitions"] for point in one["series"]])}
    rates = {name: (times, [point[f"{name}_per_s"] for point in one["series"]]) for name in _RATES}
    return figure(
        lines(
            f"Partitions and rate of {one['entity']}",
            [("partitions that own slots", partitions), ("messages per second", rates)],
        )
    )


def _age_chart(one: Values, step: int) -> str:
    aged = [point for point in one["series"] if point["median_ms"] is not None]
    times = [point["at"] for point in aged]
    ages = {
        name: (times, [max(point[key] / 1000, 1e-3) for point in aged])
        for key, name in (("median_ms", "p50"), ("p99_ms", "p99"))
    }
    return figure(
        lines(
            f"Age at delivery of {one['entity']}",
            [("age of a message at delivery", ages)],
            unit=lambda seconds: time_of_us(seconds * 1e6),
            log=True,
            step=step,
        ),
        "The scale is logarithmic.",
    )


def _spread_chart(one: Values, step: int) -> str:
    sent = one["by_partition"]
    times = [point["at"] for point in one["series"]]
    places = {name: place for place, name in enumerate(sent)}
    busiest = sorted(sent, key=lambda name: -sent[name])[:PLOTTED]
    curves = {
        f"partition {name}": (times, [point["sent_per_s_of"][places[name]] for point in one["series"]])
        for name in sorted(busiest, key=int)
    }
    return figure(
        lines(f"Spread of {one['entity']}", [("messages sent per second, by partition", curves)], step=step),
        f"The {PLOTTED} busiest of {len(sent)} partitions." if len(sent) > PLOTTED else "",
    )


def _change_table(one: Values) -> str:
    shown = one["changes"][-SHOWN:]
    return folded(
        "Changes" if len(shown) == len(one["changes"]) else f"The last {SHOWN} of {len(one['changes']):,} changes",
        table(
            ["time", "change", "from", "to", "slots", "partitions then", "why"],
            [
                [
                    code(change["time"][:19].replace("T", " ")),
                    change["kind"],
                    number(change["source"]),
                    number(change["target"]),
                    number(change["slots"]),
                    number(change["partitions"]),
                    code(change["why"]),
                ]
                for change in shown
            ],
            (2, 3, 4, 5),
        ),
    )
