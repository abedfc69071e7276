"""The sums of telemetry rows: three small tables. The tables of the parts add up to the table of the whole.

| table | one row per | holds |
|---|---|---|
| `activity` | second, namespace, entity, partition, operation, outcome | messages, bytes, redeliveries |
| `timing` | minute, namespace, entity, partition, operation, measure, bucket of values | messages |
| `keys` | namespace, entity, partition, key | messages sent, bytes, deliveries, redeliveries |

`add_up` makes sums of each task's rows in one pass (`partial`), and `roll_up` makes the tables from them. A batch does
so with everything at once. A stream does so with each micro-batch, and the reader adds up the parts (`added`): it needs
neither state nor a watermark, and late rows count.

Percentiles come from histograms with buckets of constant relative width (`histogram`): sampled rows count with their
weights, and sums of histograms are exact. Sketches of ranks can be merged too, but have no weights, and are coarse at
the 99th percentile and beyond, where precision matters.
"""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from partibus.pipeline import partial
from partibus.pipeline.partial import DDL, READ, partial_sums

KEYS_MAX = 10_000
"""Keys of one micro-batch that a stream keeps by name, the busiest ones. The others become one row without a name."""

ENTITY = ("namespace", "entity")
ACTIVITY = ("second", *ENTITY, "partition_id", "op", "outcome")
TIMING = ("minute", *ENTITY, "partition_id", "op", "measure", "bucket")
KEYS = (*ENTITY, "partition_id", "key", "others")


class Rollup(NamedTuple):
    """The three tables."""

    activity: DataFrame
    timing: DataFrame
    keys: DataFrame


def add_up(rows: DataFrame) -> DataFrame:
    """Reduce rows of `telemetry.schema` to few rows of `partial`, the input of `roll_up`.

    The result is worth caching.
    """
    return rows.select(*READ).mapInArrow(partial_sums, DDL)


def roll_up(sums: DataFrame, keys_max: int | None = None) -> Rollup:
    """Make the tables from the sums of `add_up`. With ``keys_max`` only that many keys are kept by name."""
    tables = added(parts_of(sums))
    return tables if keys_max is None else tables._replace(keys=busiest(tables.keys, keys_max))


def parts_of(sums: DataFrame) -> Rollup:
    """Make the same tables with several rows of equal keys, enough for a reader that adds up anyway."""
    activity, timing, keys = (
        sums.where(sf.col("part") == part) for part in (partial.ACTIVITY, partial.TIMING, partial.KEYS)
    )
    return Rollup(
        activity.withColumnRenamed("at", "second").select(
            *ACTIVITY, "messages", "operations", "bytes", "redeliveries", "rows"
        ),
        timing.withColumnRenamed("at", "minute").select(*TIMING, "messages"),
        keys.withColumnRenamed("messages", "sent").select(
            *KEYS[:-1], sf.lit(False).alias("others"), "sent", "bytes", "deliveries", "redeliveries", "rows"
        ),
    )


def added(rollup: Rollup) -> Rollup:
    """Merge rows of equal keys, which several micro-batches have left."""
    return Rollup(_summed(rollup.activity, ACTIVITY), _summed(rollup.timing, TIMING), _summed(rollup.keys, KEYS))


def busiest(keys: DataFrame, most: int) -> DataFrame:
    """Return the ``most`` busiest keys of each entity, and the others as one row per partition. Sums are preserved."""
    rank = sf.row_number().over(
        Window.partitionBy(*ENTITY).orderBy(sf.desc(sf.col("sent") + sf.col("deliveries")), "key")
    )
    ranked = keys.withColumn("others", sf.col("others") | (rank > most))
    return _summed(ranked.withColumn("key", sf.when(~sf.col("others"), sf.col("key"))), KEYS)


def _summed(table: DataFrame, by: tuple[str, ...]) -> DataFrame:
    measures = [name for name in table.columns if name not in by]
    return table.groupBy(*by).agg(*_sums(*measures)).select(table.columns)


def _sums(*names: str) -> list[Column]:
    return [sf.sum(name).alias(name) for name in names]
