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
from partibus.pipeline.slots import partition_of, slot_of

Values = dict[str, Any]

LINE = ("key", "partition_id", "position", "content")
_KEPT = (
    "body", "body_type", "content_type", "content_encoding", "session_id", "partition_key", "subject", "correlation_id",
    "to", "reply_to", "reply_to_session_id",
)  # fmt: skip
_MAPS = ("application_properties", "application_property_types")
_SIDES = ("here", "there")


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
    sums = _counted(source, copy, partitions).first()
    unlike = _out_of_order(source, copy)
    assert sums is not None, "sums have a row"
    return Proof(
        sums["messages"] or 0, sums["keys"], sums["missing"] or 0, sums["added"] or 0, unlike, sums["keys_unlike"],
        sums["misplaced"] or 0,
    )  # fmt: skip


def shares(moved: DataFrame, copy: DataFrame | None, partitions: int) -> list[Values]:
    """Of each partition of the copy the share of messages that `plan` predicts from the rows that were moved, and the
    one that it has; None where there is no copy yet."""
    by_slot = moved.select(slot_of(_key()).alias("slot")).groupBy("slot").count()
    slots = {row["slot"]: row["count"] for row in by_slot.collect()}
    if not slots:
        return []
    rows = sum(slots.values())
    unkeyed = slots.pop(None, 0)
    predicted = predict(slots, unkeyed, partitions, rows, sampled_share=1).shares
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


def _counted(source: DataFrame, copy: DataFrame, partitions: int) -> DataFrame:
    """One row: how many messages one side has more of, and how many of the copy are not where their key belongs. Keys
    are counted as groups, for which nothing has to be read twice; what has no key is one group too, and is no key."""
    place = partition_of(slot_of(sf.col("key")), sf.lit(partitions))
    astray = sf.when(sf.col("key").isNotNull() & (place != sf.col("partition_id")), 1).otherwise(0)
    none = sf.lit(0)
    both = source.select("key", "content", sf.lit(1).alias("here"), none.alias("there"), none.alias("astray")).union(
        copy.select("key", "content", none.alias("here"), sf.lit(1).alias("there"), astray.alias("astray"))
    )
    each = both.groupBy("key", "content").agg(*(sf.sum(name).alias(name) for name in ("here", "there", "astray")))
    more, less = (sf.greatest(sf.col(one) - sf.col(other), none) for one, other in (_SIDES, _SIDES[::-1]))
    by_key = each.groupBy("key").agg(
        sf.sum("here").alias("messages"), sf.sum(more).alias("missing"), sf.sum(less).alias("added"),
        sf.sum("astray").alias("misplaced"),
    )  # fmt: skip
    sums = (sf.sum(name).alias(name) for name in ("messages", "missing", "added", "misplaced"))
    return by_key.agg(
        *sums,
        sf.count(sf.when(sf.col("messages") > 0, sf.col("key"))).alias("keys"),
        sf.count(sf.when(sf.col("missing") > 0, sf.col("key"))).alias("keys_unlike"),
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
