"""Telemetry as a broker could have written it, made by Spark, for tests and measurements of jobs without a broker.

`python -m bench.synthetic_telemetry DIR --messages 2500000` writes it. Each message is sent, delivered and completed,
one in 50 is abandoned and delivered again, one in 500 is refused first. Keys have a Zipf-like distribution, so few are
hot; a quarter of the messages has none. Everything follows from the message's number: a second run writes the same
rows.
"""

import argparse
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType

from partibus.pipeline.balance import slot_of
from partibus.routing.slots import SLOT_COUNT
from partibus.telemetry.schema import DDL

START = "2026-01-01 00:00:00"


class Shape(NamedTuple):
    """The parameters of the synthetic load."""

    messages: int = 1_000_000
    seconds: int = 600
    entities: int = 3
    partitions: int = 16
    keys: int = 20_000
    seed: int = 1

    @property
    def rows(self) -> int:
        """The approximate number of rows."""
        return round(self.messages * (3 + 2 / 50 + 1 / 500))


def messages(spark: SparkSession, shape: Shape) -> DataFrame:
    """Make one row per message: number, entity, key, slot, partition, time, size."""
    keys = spark.range(shape.keys).select(
        sf.col("id").alias("rank"), sf.concat(sf.lit("key-"), sf.col("id")).alias("key")
    )
    keys = keys.withColumn("slot", slot_of(sf.col("key"))).cache()
    # The inverse of a Zipf-like distribution: rank r gets about 1/r of the share of the first.
    rank = sf.floor(sf.pow(sf.lit(float(shape.keys)), _chance(shape, 1)) - 1)
    numbered = spark.range(shape.messages).select(
        sf.col("id").alias("number"),
        sf.concat(sf.lit("queue-"), sf.floor(_chance(shape, 2) * shape.entities)).alias("entity"),
        sf.when(_chance(shape, 3) >= 0.25, rank).alias("rank"),
        (sf.lit(START).cast("timestamp").cast("double") + sf.col("id") * (shape.seconds / shape.messages)).alias("at"),
        sf.floor(200 + 800 * _chance(shape, 4)).alias("size_bytes"),
    )
    joined = numbered.join(sf.broadcast(keys), "rank", "left")
    keyed = sf.shiftright(sf.col("slot") * shape.partitions, SLOT_COUNT.bit_length() - 1)
    return joined.withColumn("partition_id", sf.coalesce(keyed, sf.col("number") % shape.partitions).cast("int"))


def telemetry(spark: SparkSession, shape: Shape) -> DataFrame:
    """Make rows of `telemetry.schema`, in no order."""
    again = _chance(shape, 5) < 1 / 50
    refused = _chance(shape, 6) < 1 / 500
    first_ms = sf.floor(2 + 60 * sf.pow(_chance(shape, 7), 4))
    work_ms = sf.floor(5 + 400 * sf.pow(_chance(shape, 8), 6))
    commit_us = sf.floor(900 + 20_000 * sf.pow(_chance(shape, 9), 8))
    late_ms = first_ms + sf.when(again, 1000).otherwise(0)
    operations = sf.filter(
        sf.array(
            sf.when(refused, _operation("send", sf.lit(0), sf.lit(0), commit_us, "com.microsoft:server-busy")),
            _operation("send", sf.lit(0), sf.lit(0), commit_us),
            _operation("deliver", first_ms, sf.lit(1), sf.lit(80)),
            sf.when(again, _operation("abandon", first_ms + 10, sf.lit(1), commit_us)),
            sf.when(again, _operation("deliver", late_ms, sf.lit(2), sf.lit(80))),
            _operation("complete", late_ms + work_ms, sf.when(again, 2).otherwise(1), commit_us),
        ),
        lambda operation: operation.isNotNull(),
    )
    rows = messages(spark, shape).withColumn("one", sf.explode(operations))
    return rows.select(
        (sf.col("at") + sf.col("one.after_ms") / 1000).cast("timestamp").alias("time"),
        sf.col("one.op").alias("op"),
        sf.lit("default").alias("namespace"),
        "entity",
        "partition_id",
        sf.col("partition_id").alias("store"),
        sf.lit("broker-0").alias("broker"),
        sf.col("number").alias("position"),
        (sf.shiftleft(sf.col("partition_id").cast("bigint"), 48) + sf.col("number")).alias("sequence_number"),
        "key",
        sf.col("slot").cast(IntegerType()).alias("slot"),
        "size_bytes",
        sf.col("one.delivery_count").alias("delivery_count"),
        sf.when(sf.col("one.op") != "send", sf.col("one.after_ms")).alias("dwell_ms"),
        sf.col("one.latency_us").alias("latency_us"),
        sf.lit(1).alias("messages"),
        sf.col("one.outcome").alias("outcome"),
        sf.lit(1.0).alias("weight"),
    ).to(spark.createDataFrame([], DDL).schema)


def _operation(op: str, after_ms: Column, delivery_count: Column, latency_us: Column, outcome: str = "ok") -> Column:
    return sf.struct(
        sf.lit(op).alias("op"),
        after_ms.cast("bigint").alias("after_ms"),
        delivery_count.cast("int").alias("delivery_count"),
        latency_us.cast("bigint").alias("latency_us"),
        sf.lit(outcome).alias("outcome"),
    )


def _chance(shape: Shape, salt: int) -> Column:
    """Return a number of [0, 1) that follows from the message's number."""
    mixed = sf.xxhash64(sf.col("id") if salt < 5 else sf.col("number"), sf.lit(salt), sf.lit(shape.seed))
    return sf.pmod(mixed, sf.lit(1 << 40)) / float(1 << 40)


def main() -> None:
    """Run the command line."""
    from partibus.pipeline.job import job_session

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out")
    parser.add_argument("--messages", type=int, default=Shape().messages)
    parser.add_argument("--partitions", type=int, default=Shape().partitions)
    arguments = parser.parse_args()
    spark = job_session("partibus synthetic telemetry", None, {})
    shape = Shape(messages=arguments.messages, partitions=arguments.partitions)
    telemetry(spark, shape).write.mode("overwrite").parquet(arguments.out)
    print(f"{spark.read.parquet(arguments.out).count():,} rows in {arguments.out}")
    spark.stop()


if __name__ == "__main__":
    main()
