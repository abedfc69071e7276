"""The demo on Spark: the capture into a table in two runs, and the tables that are derived from it."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import reduce
from math import ceil
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from partibus.demo.flights import CHECKSUM_MODULUS, FIELDS, DemoError, Tally
from partibus.demo.proof import KeyRead
from partibus.demo.results import Captured, Delay, KeyLoad, PartitionLoad, Run
from partibus.demo.sending import POLL_SECONDS, tasks_of
from partibus.demo.topology import ALL, CONSUMED, PARTITION_COUNT, SUBSCRIPTIONS, path_of
from partibus.spark.tail import complete_tail

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
    """Compute `partibus.demo.flights.fingerprint` in Spark's functions, as a decimal: it has 64 unsigned bits."""
    digest = sf.md5(sf.concat(message_id.cast("binary"), sf.lit(b"\0"), body))
    return sf.conv(sf.substring(digest, 1, 16), 16, 10).cast("decimal(20,0)")


def checksum(fingerprints: Column) -> Column:
    """Sum modulo 2^64. A decimal of 38 digits holds the sum of 5 * 10^18 fingerprints."""
    return sf.pmod(sf.sum(fingerprints), sf.lit(Decimal(CHECKSUM_MODULUS))).cast("decimal(20,0)")


def flights_table(subscriptions: Mapping[str, DataFrame]) -> DataFrame:
    """Return one row per message, with the body's fields as columns; of tables or of streams.

    All partitions of all subscriptions are read in one stage.
    """
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
    """Return for each key: count, checksum, where it was found, and how many messages are out of order.

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
    """Write the other tables."""
    every = flights.where(sf.col("subscription") == ALL)
    return Tables(
        flights,
        _written("delays", delays_table(every).coalesce(1).sort("carrier", "hour"), out),
        _written("partitions", partitions_table(flights).coalesce(1).sort("subscription", "partition_id"), out),
        _written("keys", keys_table(every).coalesce(1).sort("partition_key"), out),
    )


def _written(name: str, table: DataFrame, out: Path) -> DataFrame:
    """Write a table, and return it as read back from the files."""
    path = str(out / name)
    table.write.mode("overwrite").parquet(path)
    return table.sparkSession.read.schema(table.schema).parquet(path)


CURSOR = "capture"
BATCHES = 4
"""Micro-batches that all flights make. One costs about a second besides its rows, for tasks, files and the log."""
LOOK_SECONDS = 0.02
"""The interval between looks at a run that must end within a micro-batch: a small one takes some tenths of a second."""

Options = dict[str, str]


def source_options(connection: str, rows: int) -> dict[str, Options]:
    """Subscription -> options of its source; ``rows``: how many flights are sent."""
    common = {
        "connection": connection,
        "cursor": CURSOR,
        # It counts positions, and one of each partition is no message's.
        "maxMessagesPerTrigger": str(ceil(rows / BATCHES) + PARTITION_COUNT),
        "pollTimeoutMs": "0",
    }
    return {
        name: {**common, "entity": path_of(name), "mode": "consume" if name == CONSUMED else "browse"}
        for name in SUBSCRIPTIONS
    }


class Capture:
    """The query with its checkpoint. ``format_``: the data source, for tests without a broker."""

    def __init__(
        self, spark: SparkSession, sources: Mapping[str, Options], folder: Path, *, format_: str = "partibus"
    ) -> None:
        """Capture ``sources``.

        ``folder`` gets `flights` and, beside it, the checkpoint. The results of an earlier capture are removed there,
        because a checkpoint belongs to one entity.
        """
        self._spark = spark
        self._sources = sources
        self._format = format_
        self._table = folder / "flights"
        self.checkpoint = folder.parent / "checkpoint"
        for old in (self._table, self.checkpoint):
            shutil.rmtree(old, ignore_errors=True)
        self._runs: list[Run] = []

    def run_into_the_middle(self, show: Callable[[int, int], None]) -> Run:
        """Capture the present messages, but end in the middle of the second micro-batch, if there is one.

        The run ends in a later one if the second was over before it was seen.
        """
        return self._run(show, ends_early=True)

    def run_to_the_end(self, show: Callable[[int, int], None]) -> Run:
        """Go on from the checkpoint until everything is captured that was there at the start of this run."""
        return self._run(show, ends_early=False)

    def finish(self) -> Captured:
        """Move the cursors to the end, which completes the last micro-batch where the reader consumes; tidy up."""
        for options in self._sources.values():
            complete_tail(self.checkpoint, options)
        files, rows = self.remove_leftovers()
        return Captured(self._runs, files, rows)

    @property
    def flights(self) -> DataFrame:
        """The table as read back from the files."""
        return self._spark.read.schema(self._query_plan().schema).parquet(str(self._table))

    def remove_leftovers(self) -> tuple[int, int]:
        """Remove files that the table's log does not name; how many, and with how many rows."""
        named = {Path(unquote(urlsplit(file).path)) for file in self.flights.inputFiles()}
        left = [file for file in self._table.glob("*/*.parquet") if file not in named]
        rows = 0
        for file in left:
            # A file without its footer is unreadable: it has no rows.
            with suppress(pa.ArrowInvalid, OSError):
                rows += pq.read_metadata(file).num_rows
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        return len(left), rows

    def _query_plan(self) -> DataFrame:
        # A task and a file for each partition of each subscription would cost more than its messages.
        tasks = max(self._spark.sparkContext.defaultParallelism, 2)

        def messages(name: str) -> DataFrame:
            reader = self._spark.readStream.format(self._format).options(**self._sources[name])
            return reader.schema(ENTITY_SCHEMA).load().coalesce(tasks)

        return flights_table({name: messages(name) for name in self._sources})

    def _run(self, show: Callable[[int, int], None], *, ends_early: bool) -> Run:
        writer = self._query_plan().writeStream.format("parquet").partitionBy("subscription")
        writer = writer.option("path", str(self._table)).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        ended_in = None
        look = LOOK_SECONDS if ends_early else POLL_SECONDS
        try:
            # PySpark takes fractions of a second, though its types say whole ones.
            while not query.awaitTermination(look):  # type: ignore[arg-type]
                done, total = tasks_of(self._spark)
                show(done, total)
                if ends_early and total and (batch := self._begun()):
                    query.stop()
                    ended_in = batch if self._begun() == batch else None
                    break
        except StreamingQueryException as error:
            raise DemoError(f"the capture ended: {error}; its log is {self._table.parent.parent}/spark.log") from error
        finally:
            query.stop()
        run = Run(_rows(query), ended_in)
        self._runs.append(run)
        return run

    def _begun(self) -> int | None:
        """Return the micro-batch that was begun and is not committed; the first one does not count."""
        begun, committed = (self._newest(folder) for folder in ("offsets", "commits"))
        return begun if begun > max(committed, 0) else None

    def _newest(self, folder: str) -> int:
        names = (file.name for file in (self.checkpoint / folder).glob("[0-9]*"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)


def _rows(query: StreamingQuery) -> list[int]:
    """Return the rows of each micro-batch that had some."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def collect_delays(tables: Tables) -> list[Delay]:
    """Return the rows in the order of carrier and hour."""
    return [
        Delay(row["carrier"], row["hour"], row["flights"], row["cancelled"], row["departure_delay"])
        for row in tables.delays.sort("carrier", "hour").collect()
    ]


def collect_keys(tables: Tables) -> dict[str, KeyRead]:
    """Return the tallies of all keys that were read."""
    return {
        row["partition_key"]: KeyRead(
            Tally(row["messages"], int(row["checksum"])), tuple(row["partition_ids"]), row["misplaced"]
        )
        for row in tables.keys.collect()
    }


def collect_partitions(
    tables: Tables, partition_count: int, subscription: str
) -> tuple[list[PartitionLoad], dict[int, Tally]]:
    """Return load and tally of every partition of a subscription.

    A partition without messages has an empty load and no tally.
    """
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
    """Return the keys with most messages."""
    ranked = sorted(keys.items(), key=lambda item: (-item[1].tally.messages, item[0]))
    return [KeyLoad(key, read.tally.messages, read.partition_ids[0]) for key, read in ranked[:count]]
