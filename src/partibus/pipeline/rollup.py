"""Telemetry rows added up: three tables, small, and such that adding tables of parts gives the table of the whole.

| table | one row per | holds |
|---|---|---|
| `activity` | second, namespace, entity, partition, operation, outcome | messages, bytes, redeliveries |
| `timing` | minute, namespace, entity, partition, operation, measure, bucket of values | messages |
| `keys` | namespace, entity, partition, key | messages sent, bytes, deliveries, redeliveries |

A batch adds up everything at once; a stream adds up each micro-batch by itself and who reads sums (`added`), so there
is neither state nor a watermark, and what comes late counts.

Percentiles come from histograms with buckets of constant relative width (`histogram`): sampled rows count with their
weights, and sums of histograms are exact. Sketches of ranks can be merged too, but know no weights and are coarse where
it matters, at the 99th and beyond.
"""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from partibus.pipeline.histogram import bucket_of
from partibus.pipeline.rows import counted
from partibus.telemetry.schema import COMMIT, OK

KEYS_MAX = 10_000
"""Keys of one micro-batch that a stream keeps by name, the busiest ones; the others are one row without a name."""

ENTITY = ("namespace", "entity")
ACTIVITY = ("second", *ENTITY, "partition_id", "op", "outcome")
TIMING = ("minute", *ENTITY, "partition_id", "op", "measure", "bucket")
KEYS = (*ENTITY, "partition_id", "key", "others")

LATENCY, DWELL = "latency_us", "dwell_ms"
SETTLING = ("deliver", "complete", "abandon", "release", "dead_letter", "defer", "expire")
"""Operations that a dwell time, since the message was enqueued, says something of."""


class Rollup(NamedTuple):
    """The three tables."""

    activity: DataFrame
    timing: DataFrame
    keys: DataFrame


def roll_up(rows: DataFrame, keys_max: int | None = None) -> Rollup:
    """Add up rows of `telemetry.schema`. With ``keys_max`` only so many keys are kept by name."""
    keys = key_table(rows)
    return Rollup(activity_table(rows), timing_table(rows), keys if keys_max is None else busiest(keys, keys_max))


def added(rollup: Rollup) -> Rollup:
    """Rows of equal keys made one: what several micro-batches have left."""
    return Rollup(_summed(rollup.activity, ACTIVITY), _summed(rollup.timing, TIMING), _summed(rollup.keys, KEYS))


def activity_table(rows: DataFrame) -> DataFrame:
    """Who did how much in each second."""
    weight = sf.coalesce(sf.col("weight"), sf.lit(1.0))
    return rows.groupBy(_start(1).alias("second"), *ACTIVITY[1:]).agg(
        counted().alias("messages"),
        sf.sum(weight).alias("operations"),
        sf.sum(weight * sf.coalesce("size_bytes", sf.lit(0))).alias("bytes"),
        counted(is_redelivery()).alias("redeliveries"),
        sf.count(sf.lit(1)).alias("rows"),
    )


def timing_table(rows: DataFrame) -> DataFrame:
    """How long operations took, and how old messages were; both in one pass over the rows."""
    # Of a commit the duration counts once, however many messages it had.
    weight = sf.when(sf.col("op") == COMMIT, sf.lit(1.0)).otherwise(sf.coalesce("weight", sf.lit(1.0)))
    age = sf.when(sf.col("op").isin(*SETTLING), bucket_of(sf.col(DWELL)))
    measures = sf.array(*(
        sf.struct(sf.lit(name).alias("measure"), bucket.alias("bucket"))
        for name, bucket in ((LATENCY, bucket_of(sf.col(LATENCY))), (DWELL, age))
    ))  # fmt: skip
    measured = rows.where(sf.col("outcome") == OK).select(
        _start(60).alias("minute"), *ENTITY, "partition_id", "op", weight.alias("messages"), sf.inline(measures)
    )
    return measured.where(sf.col("bucket").isNotNull()).groupBy(*TIMING).agg(sf.sum("messages").alias("messages"))


def key_table(rows: DataFrame) -> DataFrame:
    """What each session id or partition key has caused."""
    keyed = rows.where(sf.col("key").isNotNull() & sf.col("op").isin("send", "deliver") & (sf.col("outcome") == OK))
    table = keyed.groupBy(*KEYS[:-1]).agg(
        counted(sf.col("op") == "send").alias("sent"),
        sf.sum(sf.when(sf.col("op") == "send", sf.col("weight") * sf.col("size_bytes")).otherwise(0.0)).alias("bytes"),
        counted(sf.col("op") == "deliver").alias("deliveries"),
        counted(is_redelivery()).alias("redeliveries"),
        sf.count(sf.lit(1)).alias("rows"),
    )
    return table.withColumn("others", sf.lit(False))


def busiest(keys: DataFrame, most: int) -> DataFrame:
    """The ``most`` busiest keys of each entity, and all others as one row per partition: sums stay what they are."""
    rank = sf.row_number().over(
        Window.partitionBy(*ENTITY).orderBy(sf.desc(sf.col("sent") + sf.col("deliveries")), "key")
    )
    ranked = keys.withColumn("others", sf.col("others") | (rank > most))
    return _summed(ranked.withColumn("key", sf.when(~sf.col("others"), sf.col("key"))), KEYS)


def is_redelivery() -> Column:
    """A delivery that is not the first of its message."""
    return (sf.col("op") == "deliver") & (sf.col("delivery_count") > 1)


def _start(seconds: int) -> Column:
    """When the span of so many seconds began that a row is in, as Unix time: whole numbers group faster than times."""
    return sf.floor(sf.unix_micros("time") / (seconds * 1_000_000)) * seconds


def _summed(table: DataFrame, by: tuple[str, ...]) -> DataFrame:
    measures = [name for name in table.columns if name not in by]
    return table.groupBy(*by).agg(*(sf.sum(name).alias(name) for name in measures)).select(table.columns)
