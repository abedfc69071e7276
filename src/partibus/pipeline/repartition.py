"""What the job `repartition` reckons with: fingerprints of messages, the proof that a copy is whole and in order, and
where its messages are.

A message is known by its key and a checksum of all that a copy keeps of it. Of every key the copy must have the
original's messages, each as often, and first of all in the same order; what came to the copy behind them is counted,
and breaks nothing. Messages without a key have no order.
"""

from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from partibus.pipeline.balance import predict
from partibus.pipeline.loads import collect_loads, key_loads, message_rows
from partibus.pipeline.slots import partition_of, slot_of

Values = dict[str, Any]

LINE = ("key", "partition_id", "position", "content")
_KEPT = (
    "body", "body_type", "content_type", "content_encoding", "session_id", "partition_key", "subject", "correlation_id",
    "to", "reply_to", "reply_to_session_id",
)  # fmt: skip
_MAPS = ("application_properties", "application_property_types")


class Proof(NamedTuple):
    """What became of the messages that were moved."""

    messages: int
    keys: int
    missing: int
    """Are not in the copy, or not as they were."""
    added: int
    """Are in the copy only: sent to it by others meanwhile, or there twice."""
    keys_out_of_order: int
    keys_unlike: int
    """Of those with something missing."""
    misplaced: int
    """Messages of the copy that are not in the partition of their key."""

    @property
    def holds(self) -> bool:
        return not (self.missing or self.keys_out_of_order or self.keys_unlike or self.misplaced)


def lines(rows: DataFrame) -> DataFrame:
    """`LINE` of rows with the columns of the data source: a message without an id is known by the one that the sink
    gives to its copy."""
    address = sf.concat_ws("/", "entity_id", "partition_id", "position")
    parts: list[Column] = [sf.coalesce("message_id", address), *map(sf.col, _KEPT)]
    parts += [sf.array_sort(sf.map_entries(name)) for name in _MAPS]
    # A checksum skips what is null, so that values would do for those of the next column:
    marked = [part for given in parts for part in (given.isNull(), given)]
    return rows.select(_key().alias("key"), "partition_id", "position", sf.xxhash64(*marked).alias("content"))


def prove(source: DataFrame, copy: DataFrame, expired: DataFrame, partitions: int) -> Proof:
    """Hold lines of ``copy`` against those of ``source``, which were moved. Of ``expired`` ones it is all the same
    whether they are in the copy: they expired while they were moved."""
    copy = copy.join(
        expired.select("key", "content").distinct().alias("gone"),
        copy["key"].eqNullSafe(sf.col("gone.key")) & (copy["content"] == sf.col("gone.content")),
        "left_anti",
    )
    sums = _counted(source, copy).first()
    unlike = _out_of_order(source, copy)
    keys = source.select(sf.count_distinct("key").alias("keys")).first()
    partition = partition_of(slot_of(sf.col("key")), sf.lit(partitions))
    misplaced = copy.where(sf.col("key").isNotNull() & (partition != sf.col("partition_id"))).count()
    assert sums is not None, "sums have a row"
    assert keys is not None, "sums have a row"
    return Proof(
        sums["messages"] or 0, keys["keys"], sums["missing"] or 0, sums["added"] or 0, unlike, sums["keys_unlike"],
        misplaced,
    )  # fmt: skip


def shares(moved: DataFrame, copy: DataFrame | None, entity: str, partitions: int) -> list[Values]:
    """Of each partition of the copy the share of messages that `plan` predicts from the rows that were moved, and the
    one that it has; None where there is no copy yet."""
    loads = collect_loads(
        moved.sparkSession, key_loads(message_rows(moved, entity), by_bytes=False), entities_max=1, keys_max=0
    )
    if not loads:
        return []
    one = loads[0]
    predicted = predict(one.slots, one.unkeyed, partitions, one.rows, one.sampled_share).shares
    counted = {} if copy is None else {row[0]: row[1] for row in copy.groupBy("partition_id").count().collect()}
    total = sum(counted.values())
    return [
        {
            "partition": partition,
            "predicted": round(share, 6),
            "real": round(counted.get(partition, 0) / total, 6) if total else None,
            "messages": counted.get(partition, 0) if copy is not None else None,
        }
        for partition, share in enumerate(predicted)
    ]


def _counted(source: DataFrame, copy: DataFrame) -> DataFrame:
    """One row: how many messages one side has more of."""
    both = source.select("key", "content", sf.lit(1).alias("here"), sf.lit(0).alias("there")).union(
        copy.select("key", "content", sf.lit(0).alias("here"), sf.lit(1).alias("there"))
    )
    each = both.groupBy("key", "content").agg(sf.sum("here").alias("here"), sf.sum("there").alias("there"))
    missing = sf.greatest(sf.col("here") - sf.col("there"), sf.lit(0))
    return each.agg(
        sf.sum("here").alias("messages"),
        sf.sum(missing).alias("missing"),
        sf.sum(sf.greatest(sf.col("there") - sf.col("here"), sf.lit(0))).alias("added"),
        sf.count_distinct(sf.when(missing > 0, sf.col("key"))).alias("keys_unlike"),
    )


def _out_of_order(source: DataFrame, copy: DataFrame) -> int:
    """Keys of which the copy does not begin with the same messages in the same order."""
    place = sf.row_number().over(Window.partitionBy("key").orderBy("partition_id", "position"))

    def ranked(rows: DataFrame, name: str) -> DataFrame:
        keyed = rows.where(sf.col("key").isNotNull())
        return keyed.select("key", place.alias("place"), sf.col("content").alias(name))

    both = ranked(source, "here").join(ranked(copy, "there"), ["key", "place"])
    return both.where(sf.col("here") != sf.col("there")).select("key").distinct().count()


def _key() -> Column:
    return sf.coalesce("session_id", "partition_key")
