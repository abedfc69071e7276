"""The load of each key, the input of `balance`."""

from collections.abc import Sequence
from datetime import UTC
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sf

from partibus.pipeline.balance import slot_of
from partibus.pipeline.job import JobError
from partibus.telemetry.schema import NAMESPACE, OK

ENTITY = ("namespace", "entity")
WANTED = ("partition_id",)
"""The least columns of a table of messages; `session_id`, `partition_key` and `body` are used if present."""


class KeyLoad(NamedTuple):
    """The load of one key."""

    key: str
    slot: int
    load: float


class Loads(NamedTuple):
    """The load of one entity."""

    namespace: str
    entity: str
    slots: dict[int, float]
    """The load of all keys of each slot."""
    partitions: dict[int, float]
    """The observed load of each partition, with and without keys."""
    unkeyed: float
    placed: dict[int, int]
    """The partition in which the keys of each slot were last found."""
    keys: list[KeyLoad]
    """The largest keys, the largest first."""
    key_count: int
    rows: int
    """The number of rows from which the loads were computed."""
    sampled_share: float
    """Rows over messages: 1 when every message is known."""

    @property
    def total(self) -> float:
        """The load of all messages, with and without keys."""
        return sum(self.slots.values()) + self.unkeyed


def sent_rows(rows: DataFrame) -> DataFrame:
    """Return the accepted sends of telemetry, each with a `load` of 1 message; keys keep their slots."""
    return rows.where((sf.col("op") == "send") & (sf.col("outcome") == OK)).select(
        *ENTITY, "time", "partition_id", "key", "slot", "size_bytes", sf.coalesce("weight", sf.lit(1.0)).alias("weight")
    )


def message_rows(messages: DataFrame, entity: str) -> DataFrame:
    """Return the same columns of a table of messages, from the data source or a capture. Raises `JobError`."""
    columns = set(messages.columns)
    missing = [name for name in WANTED if name not in columns]
    if missing:
        raise JobError(f"the table of messages has no column {', '.join(missing)}; it has {', '.join(sorted(columns))}")
    keys = [sf.col(name).cast("string") for name in ("session_id", "partition_key") if name in columns]
    key = sf.coalesce(*keys) if keys else sf.lit(None).cast("string")
    keyed = messages.withColumn("whole_key", key)
    size = sf.length("body") if "body" in columns else sf.lit(0)
    time = _time(messages)
    return keyed.select(
        sf.lit(NAMESPACE).alias("namespace"),
        sf.lit(entity).alias("entity"),
        time.alias("time"),
        "partition_id",
        sf.col("whole_key").alias("key"),
        slot_of(sf.col("whole_key")).alias("slot"),
        size.cast("bigint").alias("size_bytes"),
        sf.lit(1.0).alias("weight"),
    )


_NS_LEAST = 10**16
"""The least number that is taken for a time in nanoseconds."""


def _time(messages: DataFrame) -> Column:
    """Return the times of acceptance, null where they are unknown. Spark reads nanoseconds as numbers."""
    kind = dict(messages.dtypes).get("enqueued_time")
    value = sf.col("enqueued_time")
    if kind == "bigint":
        return sf.when(value >= _NS_LEAST, sf.timestamp_micros(sf.floor(value / 1000).cast("bigint")))
    return value.cast("timestamp") if kind in ("timestamp", "timestamp_ntz") else sf.lit(None).cast("timestamp")


def range_of(keys: DataFrame) -> dict[str, Any]:
    """Return the first and last time in UTC, the rows and the number of entities of `key_loads`."""
    found = keys.agg(
        sf.min("first").alias("first"), sf.max("last").alias("last"), sf.sum("rows").alias("rows"),
        sf.count_distinct(*ENTITY).alias("entities"),
    ).collect()[0]  # fmt: skip
    # Spark returns times without a zone, in that of this machine.
    first, last = (
        None if one is None else one.astimezone(UTC).isoformat(sep=" ") for one in (found["first"], found["last"])
    )
    return {"from": first, "to": last, "rows": found["rows"] or 0, "entity_count": found["entities"]}


def key_loads(sent: DataFrame, by_bytes: bool) -> DataFrame:
    """Return the load per entity, partition, slot and key. A null slot stands for messages without a key."""
    load = sf.col("weight") * (sf.coalesce("size_bytes", sf.lit(0)) if by_bytes else sf.lit(1.0))
    return sent.groupBy(*ENTITY, "partition_id", "slot", "key").agg(
        sf.sum(load).alias("load"), sf.sum("weight").alias("messages"), sf.count(sf.lit(1)).alias("rows"),
        sf.min("time").alias("first"), sf.max("time").alias("last"),
    )  # fmt: skip


def slot_loads(keys: DataFrame) -> DataFrame:
    """Return the load per entity, partition and slot, and the time of the last message."""
    return keys.groupBy(*ENTITY, "partition_id", "slot").agg(
        *(sf.sum(name).alias(name) for name in ("load", "messages", "rows")), sf.count_distinct("key").alias("keys"),
        sf.max("last").alias("last"),
    )  # fmt: skip


def largest_keys(keys: DataFrame, most: int) -> DataFrame:
    """Return the keys with most load, ``most`` of each entity."""
    whole = keys.where(sf.col("slot").isNotNull()).groupBy(*ENTITY, "slot", "key").agg(sf.sum("load").alias("load"))
    rank = sf.row_number().over(Window.partitionBy(*ENTITY).orderBy(sf.desc("load"), "key"))
    return whole.withColumn("rank", rank).where(sf.col("rank") <= most).drop("rank")


def collect_loads(spark: SparkSession, keys: DataFrame, *, entities_max: int, keys_max: int) -> list[Loads]:
    """Return the entities with the most load, in that order.

    At most 16,384 rows per partition come to the driver for each.
    """
    ranked = keys.groupBy(*ENTITY).agg(sf.sum("load").alias("load")).sort(sf.desc("load"), *ENTITY)
    names = [(row["namespace"], row["entity"]) for row in ranked.limit(entities_max).collect()]
    if not names:
        return []
    busy = sf.broadcast(spark.createDataFrame(names, "namespace string, entity string"))
    picked = keys.join(busy, [*ENTITY], "left_semi")
    # In the order of time: the last partition of a slot that has moved is the present one.
    slots = slot_loads(picked).sort("last", "partition_id").collect()
    largest = largest_keys(picked, keys_max).collect()
    return [
        _loads(name, [r for r in slots if _name(r) == name], [r for r in largest if _name(r) == name]) for name in names
    ]


def _loads(name: tuple[str, str], slots: Sequence[Row], largest: Sequence[Row]) -> Loads:
    of_slots: dict[int, float] = {}
    partitions: dict[int, float] = {}
    placed: dict[int, int] = {}
    unkeyed, rows, messages = 0.0, 0, 0.0
    for row in slots:
        partitions[row["partition_id"]] = partitions.get(row["partition_id"], 0.0) + row["load"]
        rows += row["rows"]
        messages += row["messages"]
        if row["slot"] is None:
            unkeyed += row["load"]
        else:
            of_slots[row["slot"]] = of_slots.get(row["slot"], 0.0) + row["load"]
            placed[row["slot"]] = row["partition_id"]
    keys = [KeyLoad(row["key"], row["slot"], row["load"]) for row in largest]
    keys.sort(key=lambda key: (-key.load, key.key))
    key_count = sum(row["keys"] for row in slots if row["slot"] is not None)
    return Loads(
        *name, of_slots, partitions, unkeyed, placed, keys, key_count, rows, rows / messages if messages else 1.0
    )


def _name(row: Row) -> tuple[str, str]:
    return row["namespace"], row["entity"]
