"""The tables: pure functions from table to table, and one that writes those which are derived, as Parquet.

Everything is computed from what the subscriptions gave; the sending side is not known here. Each subscription is read
once, by the `capture`, into its part of the table `flights`; the others are derived from that, so that all describe the
same messages.
"""

from collections.abc import Mapping
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from partibus.demo.flights import FIELDS
from partibus.demo.tally import CHECKSUM_MODULUS
from partibus.demo.topology import ALL

FLIGHT_SCHEMA = ", ".join(f"{field} {type_}" for field, type_ in FIELDS.items())
ENTITY_SCHEMA = (
    "partition_id int, position bigint, sequence_number bigint, enqueued_time timestamp, message_id string, "
    "partition_key string, application_properties map<string,string>, body binary"
)


class Tables(NamedTuple):
    """The Parquet tables, as written."""

    flights: DataFrame
    """One row per message of every subscription: its name, broker columns, `n`, the fingerprint, the fields of the
    flight."""
    delays: DataFrame
    """Per carrier and hour of departure, of all flights."""
    partitions: DataFrame
    """Per subscription and broker partition."""
    keys: DataFrame
    """Per partition key, of all flights."""


def fingerprint(message_id: Column, body: Column) -> Column:
    """`partibus.demo.tally.fingerprint` in Spark's own functions: an exact decimal, for it takes 64 bits unsigned."""
    digest = sf.md5(sf.concat(message_id.cast("binary"), sf.lit(b"\0"), body))
    return sf.conv(sf.substring(digest, 1, 16), 16, 10).cast("decimal(20,0)")


def checksum(fingerprints: Column) -> Column:
    """Sum modulo 2^64. A decimal of 38 digits holds the sum of 5 * 10^18 fingerprints."""
    return sf.pmod(sf.sum(fingerprints), sf.lit(Decimal(CHECKSUM_MODULUS))).cast("decimal(20,0)")


def flights_table(subscriptions: Mapping[str, DataFrame]) -> DataFrame:
    """One row per message, the body's fields as columns; of tables or of streams. All partitions of all subscriptions
    are read in one stage."""
    named = [messages.withColumn("subscription", sf.lit(name)) for name, messages in subscriptions.items()]
    return (
        reduce(DataFrame.unionAll, named)
        .select(
            "subscription",
            "partition_id",
            "position",
            "sequence_number",
            "enqueued_time",
            "message_id",
            "partition_key",
            sf.col("application_properties")["n"].cast("bigint").alias("n"),
            sf.length("body").alias("body_bytes"),
            fingerprint(sf.col("message_id"), sf.col("body")).alias("fingerprint"),
            sf.from_json(sf.col("body").cast("string"), FLIGHT_SCHEMA).alias("parsed"),
        )
        .select("*", "parsed.*")
        .drop("parsed")
    )


def delays_table(flights: DataFrame) -> DataFrame:
    """Flights, cancellations and mean delays in minutes per carrier and scheduled hour."""
    return flights.groupBy("carrier", "hour").agg(
        sf.count("*").alias("flights"),
        sf.count_if(sf.col("dep_time").isNull()).alias("cancelled"),
        sf.avg("dep_delay").alias("departure_delay"),
        sf.avg("arr_delay").alias("arrival_delay"),
        sf.percentile_approx("dep_delay", 0.9).alias("departure_delay_p90"),
    )


def partitions_table(flights: DataFrame) -> DataFrame:
    """Load and checksum per subscription and partition."""
    return flights.groupBy("subscription", "partition_id").agg(
        sf.count("*").alias("messages"),
        sf.sum("body_bytes").alias("bytes"),
        sf.count_distinct("partition_key").alias("keys"),
        sf.min("enqueued_time").alias("first_enqueued"),
        sf.max("enqueued_time").alias("last_enqueued"),
        checksum(sf.col("fingerprint")).alias("checksum"),
    )


def keys_table(flights: DataFrame) -> DataFrame:
    """Per key: count, checksum, where it was found, and how many messages are not in their place.

    A key's messages are numbered `n` = 0, 1, 2 ... by the one sender they have. Put in order of sequence number, each
    must be at the place that its number says: that also shows gaps and repetitions.
    """
    in_order = Window.partitionBy("partition_key").orderBy("sequence_number")
    placed = flights.withColumn("place", sf.row_number().over(in_order) - 1)
    return placed.groupBy("partition_key").agg(
        sf.count("*").alias("messages"),
        checksum(sf.col("fingerprint")).alias("checksum"),
        sf.array_sort(sf.collect_set("partition_id")).alias("partition_ids"),
        sf.count_if(~sf.col("place").eqNullSafe(sf.col("n"))).alias("misplaced"),
    )


def write_derived(flights: DataFrame, out: Path) -> Tables:
    """The other tables."""
    every = flights.where(sf.col("subscription") == ALL)
    return Tables(
        flights,
        _written("delays", delays_table(every).coalesce(1).sort("carrier", "hour"), out),
        _written("partitions", partitions_table(flights).coalesce(1).sort("subscription", "partition_id"), out),
        _written("keys", keys_table(every).coalesce(1).sort("partition_key"), out),
    )


def _written(name: str, table: DataFrame, out: Path) -> DataFrame:
    """The table as it was written: what is read back is what is there."""
    path = str(out / name)
    table.write.mode("overwrite").parquet(path)
    return table.sparkSession.read.schema(table.schema).parquet(path)
