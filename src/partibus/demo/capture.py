"""The capture: one streaming query over all subscriptions into the table `flights`, in two runs.

Each subscription is read under a cursor. The first run begins while flights are still being sent, and is ended in the
middle of a micro-batch; the second goes on from the checkpoint to the end. Which messages are in the table is what the
table's own log says (`_spark_metadata`): files that the ended run has left half-written are no part of it, and are
removed at the end, so that readers which do not know that log see the same.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from partibus.demo.errors import DemoError
from partibus.demo.pipeline import ENTITY_SCHEMA, flights_table
from partibus.demo.results import Captured, Run
from partibus.demo.steps import POLL_SECONDS, tasks_of
from partibus.demo.topology import CONSUMED, PARTITION_COUNT, SUBSCRIPTIONS, path_of
from partibus.spark.tail import complete_tail

CURSOR = "capture"
BATCHES = 4
"""Micro-batches that all flights make. One costs about a second besides its rows, for tasks, files and the log."""
LOOK_SECONDS = 0.02
"""How often a run that is to be ended in a micro-batch is looked at: a small one takes some tenths of a second."""

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
        """``folder``: gets `flights` and, beside it, the checkpoint; what an earlier capture left there is removed, for
        a checkpoint is of one entity and can't be used for another."""
        self._spark = spark
        self._sources = sources
        self._format = format_
        self._table = folder / "flights"
        self.checkpoint = folder.parent / "checkpoint"
        for old in (self._table, self.checkpoint):
            shutil.rmtree(old, ignore_errors=True)
        self._runs: list[Run] = []

    def run_into_the_middle(self, show: Callable[[int, int], None]) -> Run:
        """Capture what is there by now, but end in the middle of the second micro-batch, if there is one; of a later
        one when that was over before it was seen."""
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
        """The table as it was written: what is read back is what is there."""
        return self._spark.read.schema(self._query_plan().schema).parquet(str(self._table))

    def remove_leftovers(self) -> tuple[int, int]:
        """Remove files that the table's log does not name; how many, and with how many rows."""
        named = {Path(unquote(urlsplit(file).path)) for file in self.flights.inputFiles()}
        left = [file for file in self._table.glob("*/*.parquet") if file not in named]
        rows = 0
        for file in left:
            # A file whose end was not written can't be read by anybody: it has no rows.
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
        """The micro-batch that was begun and is not committed; the first one counts as none."""
        begun, committed = (self._newest(folder) for folder in ("offsets", "commits"))
        return begun if begun > max(committed, 0) else None

    def _newest(self, folder: str) -> int:
        names = (file.name for file in (self.checkpoint / folder).glob("[0-9]*"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)


def _rows(query: StreamingQuery) -> list[int]:
    """Of each micro-batch that had some."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
