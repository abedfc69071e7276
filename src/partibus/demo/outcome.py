"""From the Parquet tables to plain values."""

from pyspark.sql import functions as sf

from partibus.demo.pipeline import Tables
from partibus.demo.proof import KeyRead
from partibus.demo.results import Delay, KeyLoad, PartitionLoad
from partibus.demo.tally import Tally


def collect_delays(tables: Tables) -> list[Delay]:
    """In order of carrier and hour."""
    return [
        Delay(row["carrier"], row["hour"], row["flights"], row["cancelled"], row["departure_delay"])
        for row in tables.delays.sort("carrier", "hour").collect()
    ]


def collect_keys(tables: Tables) -> dict[str, KeyRead]:
    """What was read of every key."""
    return {
        row["partition_key"]: KeyRead(
            Tally(row["messages"], int(row["checksum"])), tuple(row["partition_ids"]), row["misplaced"]
        )
        for row in tables.keys.collect()
    }


def collect_partitions(
    tables: Tables, partition_count: int, subscription: str
) -> tuple[list[PartitionLoad], dict[int, Tally]]:
    """Load and tally of every partition of a subscription; one that nothing was read of has a load of nothing and no
    tally."""
    found = tables.partitions.where(sf.col("subscription") == subscription)
    rows = {row["partition_id"]: row for row in found.collect()}
    loads = [
        PartitionLoad(id_, rows[id_]["messages"], rows[id_]["bytes"], rows[id_]["keys"])
        if id_ in rows
        else PartitionLoad(id_, 0, 0, 0)
        for id_ in sorted({*range(partition_count), *rows})
    ]
    return loads, {id_: Tally(row["messages"], int(row["checksum"])) for id_, row in rows.items()}


def busiest_keys(keys: dict[str, KeyRead], count: int) -> list[KeyLoad]:
    """The keys with most messages."""
    ranked = sorted(keys.items(), key=lambda item: (-item[1].tally.messages, item[0]))
    return [KeyLoad(key, read.tally.messages, read.partition_ids[0]) for key, read in ranked[:count]]
