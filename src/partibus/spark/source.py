"""The data source class, on the Python Data Source API of PySpark 4.2 and later.

Only this file follows the engine's versions. It depends on these facts: batches must equal ``to_arrow_schema(schema,
timezone="UTC")`` exactly, and `partitions` must return a list. A reader class with `pushFilters` makes every read fail
unless a session option is on, so only a user who asks for it gets one. The import is cheap and needs no pyarrow,
because Spark imports the file to learn the source's name, also in sessions that read other sources.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from partibus.client.extensions.ranges import open_ranges
from partibus.spark.errors import OptionError
from partibus.spark.option_table import (
    BY_LOWER_NAME,
    FATES,
    is_of_table,
    options_for_catalog,
    with_comment,
    with_options_of_catalog,
)
from partibus.spark.options import Options
from partibus.spark.ports import OpenClient, RangeReader
from partibus.spark.schema import DISPOSITION_DDL, FATE_TYPE_OF, TYPE_OF, check_subset, table_ddl
from partibus.spark.sink import Sink

if TYPE_CHECKING:
    import pyarrow as pa

    from partibus.spark.dispositions import DispositionsPlanner
    from partibus.spark.stream import StreamPlanner


def open_range_client(connection: str, entity: str) -> RangeReader:
    """Open a client of a broker."""
    return open_ranges(connection, entity)


class PartibusSource(Sink):
    """The source of ``spark.read.format("partibus")`` and ``spark.readStream``.

    Options are checked when Spark asks for the schema, which it does in `load`.
    """

    open_client: ClassVar[OpenClient] = staticmethod(open_range_client)
    """Opens a client; a test replaces it in a subclass."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "partibus"

    def schema(self) -> str:
        """Check the options, and return the schema of the table.

        The schema of a table that Spark's catalog creates holds the options in a comment.
        """
        given: Mapping[str, str] = self.options
        options = Options.parse(given)
        ddl = (
            DISPOSITION_DDL
            if options.table == FATES
            else table_ddl(
                include_body=options.include_body,
                include_properties=options.include_properties,
                body_schema=options.body_schema,
            )
        )
        return with_comment(ddl, options_for_catalog(given, BY_LOWER_NAME)) if is_of_table(given) else ddl

    def reader(self, schema: StructType) -> "SplitReader":
        """Return the reader of a batch."""
        options = Options.parse(self._given(schema))
        options.check_batch()
        kind = PushingReader if options.pushdown else SplitReader
        return kind(options, _arrow(schema, options), type(self).open_client)

    def streamReader(self, schema: StructType) -> "StreamReader | DispositionsReader":  # noqa: N802 (PySpark's name)
        """Return the reader of a stream."""
        given = self._given(schema)
        options = Options.parse(given)
        options.check_stream(given)
        if options.table == FATES:
            return DispositionsReader(options, _arrow(schema, options))
        return StreamReader(options, _arrow(schema, options), type(self).open_client)

    def _given(self, schema: StructType) -> Mapping[str, str]:
        """Return the given options, with those of the catalog's table that ``schema`` is of."""
        comment = schema.fields[0].metadata.get("comment", "") if schema.fields else ""
        return with_options_of_catalog(self.options, comment)


def _arrow(schema: StructType, options: Options) -> "pa.Schema":
    """Return the requested columns as an Arrow schema. Raises `OptionError`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    decoded = bool(options.body_schema)
    asked = {field.name: field.dataType.simpleString() for field in schema.fields}
    if len(asked) < len(schema.fields):
        twice = next(name for name in asked if schema.fieldNames().count(name) > 1)
        raise OptionError(f"the schema asks for column {twice!r} twice; once is enough")
    check_subset(asked, decoded=decoded, type_of=FATE_TYPE_OF if options.table == FATES else TYPE_OF)
    found = to_arrow_schema(schema, timezone="UTC")
    if decoded:
        from partibus.spark.json_bodies import check_value

        check_value(found)
    return found


class SplitReader(DataSourceReader):
    """A reader made on the driver and pickled into every task: it holds values only, no connection."""

    def __init__(self, options: Options, schema: "pa.Schema", open_client: OpenClient) -> None:
        self._options = options
        self._schema = schema
        self._open_client = open_client

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        from partibus.spark.reader import plan

        return [InputPartition(task) for task in plan(self._options, self._open_client)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Read one task."""
        from partibus.spark.reader import read_task

        return read_task(partition.value, self._options, self._schema, self._open_client)


class PushingReader(SplitReader):
    """A reader that applies filters on partition and position to its plan."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters that the plan applies exactly, and return the others."""
        from partibus.spark.pushdown import Pushed

        self._pushed = Pushed()
        return [one for one in filters if not self._pushed.take(one)]

    def partitions(self) -> list[InputPartition]:
        """Return the tasks that the filters leave."""
        pushed = getattr(self, "_pushed", None)
        tasks = super().partitions()
        return tasks if pushed is None else [InputPartition(task) for task in pushed.narrow(t.value for t in tasks)]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader in Spark's planner process. Tasks get copies, which have no planner."""

    def __init__(self, options: Options, schema: "pa.Schema", open_client: OpenClient) -> None:
        self._options = options
        self._schema = schema
        self._open_client = open_client
        self._made: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": None}

    @property
    def _planner(self) -> "StreamPlanner":
        if self._made is None:
            from partibus.spark.stream import StreamPlanner

            self._made = StreamPlanner(self._options, self._open_client)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset of a query without a checkpoint."""
        return self._planner.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch."""
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the run to the present messages."""
        self._planner.prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch."""
        return self._planner.latest_offset(start, limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest known offset."""
        return self._planner.report_latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch."""
        return [InputPartition(task) for task in self._planner.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Read one task."""
        from partibus.spark.reader import read_task

        return read_task(partition.value, self._options, self._schema, self._open_client)

    def commit(self, end: dict[str, Any]) -> None:
        """Note the commit of a micro-batch."""
        self._planner.commit(end)

    def stop(self) -> None:
        """Close the connections."""
        if self._made is not None:
            self._made.stop()


class DispositionsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader as `StreamReader`, of the log of dispositions."""

    def __init__(self, options: Options, schema: "pa.Schema") -> None:
        self._options = options
        self._schema = schema
        self._made: DispositionsPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": None}

    @property
    def _planner(self) -> "DispositionsPlanner":
        if self._made is None:
            from partibus.spark.dispositions import DispositionsPlanner

            self._made = DispositionsPlanner(self._options, open_ranges)
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset of a query without a checkpoint."""
        return self._planner.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the run to messages that have left until now."""
        self._planner.prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch."""
        return self._planner.latest_offset(start)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest known offset."""
        return self._planner.reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch."""
        return [InputPartition(task) for task in self._planner.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Read one task."""
        from partibus.spark.dispositions import read_dispositions

        return read_dispositions(partition.value, self._options, self._schema, open_ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """Note the commit of a micro-batch."""
        self._planner.commit(end)

    def stop(self) -> None:
        """Close the connection."""
        if self._made is not None:
            self._made.stop()
