"""The writing side of the data source, on the Python Data Source API.

It serves ``df.write.format("partibus").mode("append")`` and ``df.writeStream.format("partibus")``.

It depends on these facts about the engine. Writers are made in one process, pickled, used by tasks in others, and
committed in yet another one. A task is not told its batch, but Spark gives it the id of its query among its local
properties, and that id stays as long as the checkpoint does.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from partibus.client.extensions.sinks import SINK_ENDS, open_sink
from partibus.spark.errors import OptionError, WriteError
from partibus.spark.sink_options import Naming, SinkOptions
from partibus.spark.sink_values import check_columns, naming_of

if TYPE_CHECKING:
    import pyarrow as pa

    from partibus.spark.writer import OpenSink, Report, RowStore

QUERY_ID = "sql.streaming.queryId"
"""The local property with the id of the query."""


def open_sink_client(connection: str, entity: str, within_s: float, request_bytes: int) -> "RowStore":
    """Open a client of a broker."""
    return open_sink(connection, entity, within_s, request_bytes)


class Written(WriterCommitMessage):
    """A task's report on its way to the driver."""

    def __init__(self, report: "Report") -> None:
        self.report = report


class _Writing:
    """The common part of both writers. It holds values only."""

    def __init__(self, options: SinkOptions, columns: Mapping[str, str], open_client: "OpenSink") -> None:
        check_columns(columns, options)
        self._options = options
        self._open_client = open_client
        self._naming = naming_of(columns, options)
        if self._naming is Naming.NONE and options.naming is Naming.AUTO:
            from partibus.spark.writer import warn_at_least_once

            warn_at_least_once(options)

    def _write(self, batches: Iterator["pa.RecordBatch"], sink: int) -> Written:
        from partibus.spark.writer import write_rows

        now_ms = int(time.time() * 1000)
        return Written(write_rows(batches, self._options, self._naming, sink, self._open_client, now_ms))

    def _commit(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        from partibus.spark.writer import committed

        reports = [message.report for message in messages if isinstance(message, Written)]
        committed(reports, self._options, self._naming, batch, self._open_client)


class BatchWriter(_Writing, DataSourceArrowWriter):
    """One run of a job. With a name it recognizes the rows of earlier runs, otherwise only its own."""

    def __init__(self, options: SinkOptions, columns: Mapping[str, str], open_client: "OpenSink") -> None:
        super().__init__(options, columns, open_client)
        if self._naming is Naming.POSITIONS and options.sink is None:
            raise OptionError(
                "option 'naming' is 'positions', which takes a name for the job, as the mark outlives the run; "
                'add .option("sink", "NAME")'
            )
        self._run = "" if options.sink is not None else uuid4().hex

    @property
    def _sink(self) -> int:
        from partibus.spark.sink_rows import sink_key

        return sink_key("run", self._run) if self._run else sink_key("batch", self._options.sink or "")

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        """Store the rows of one task."""
        return self._write(iterator, self._sink)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Finish the batch after the success of all tasks."""
        self._commit(messages, SINK_ENDS if self._run else int(time.time() * 1000))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Let the broker forget the ids of a run without a name, which no later run uses. Stored rows stay."""
        if self._run and self._naming is Naming.IDS:
            from partibus.spark.writer import tell_committed

            tell_committed(self._sink, SINK_ENDS, self._options, self._open_client)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """The sink of one query."""

    def __init__(self, options: SinkOptions, columns: Mapping[str, str], open_client: "OpenSink") -> None:
        if options.sink is not None:
            raise OptionError(
                "option 'sink' is for batches; a stream goes by its checkpoint. Leave it out, also in foreachBatch's "
                "query; the batch that is written inside of foreachBatch may have it"
            )
        super().__init__(options, columns, open_client)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        """Store the rows of one task."""
        from partibus.spark.sink_rows import sink_key

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        if not query:
            raise WriteError(
                f"this Spark does not tell its tasks of which query they are ({QUERY_ID}), which names the sink; write "
                'in foreachBatch with .option("sink", "NAME")'
            )
        return self._write(iterator, sink_key("stream", query))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Finish a micro-batch after the success of all tasks."""
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the failure. Spark repeats the micro-batch, and the broker recognizes the rows that are stored."""
        logging.getLogger("partibus.spark").warning(
            "batch %d to %s was not complete; what is stored of it is known when it comes again",
            batchId,
            self._options.where,
        )


class Sink(DataSource):
    """The part of the data source that writes."""

    open_sink: ClassVar["OpenSink"] = staticmethod(open_sink_client)
    """Opens a client; a test replaces it in a subclass."""

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch."""
        if overwrite:
            raise OptionError("mode 'overwrite' would have to empty the queue; use .mode(\"append\")")
        from partibus.spark.writer import check_target

        options, open_client = SinkOptions.parse(self.options), type(self).open_sink
        made = BatchWriter(options, _columns(schema), open_client)
        check_target(options, open_client)  # not for each micro-batch of a stream: that would cost it a connection
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return the writer of a stream."""
        if overwrite:
            raise OptionError("output mode 'complete' can't be written to a queue; use .outputMode(\"append\")")
        return StreamWriter(SinkOptions.parse(self.options), _columns(schema), type(self).open_sink)


def _columns(schema: StructType) -> Mapping[str, str]:
    from partibus.spark.writer import asked_columns

    return asked_columns((field.name, field.dataType.simpleString()) for field in schema.fields)
