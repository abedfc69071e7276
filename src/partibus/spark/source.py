"""The data source class, on the Python Data Source API of PySpark 4.2 and later.

The one file that follows the engine's versions. What it knows of them: batches must equal ``to_arrow_schema(schema,
timezone="UTC")`` to the letter, `partitions` must return a list, and a reader class with `pushFilters` makes every
read fail unless a session option is on, so there is none. Importing it is cheap and needs no pyarrow, because Spark
imports it to learn the source's name, in sessions too that read something else.
"""

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from partibus.client.browse import browse
from partibus.spark.options import Options
from partibus.spark.ports import BrowseClient, OpenClient
from partibus.spark.schema import DDL, check_subset

if TYPE_CHECKING:
    import pyarrow as pa


def open_browse_client(connection: str, entity: str) -> BrowseClient:
    """The real client."""
    return browse(connection, entity)


class PartibusSource(DataSource):
    """``spark.read.format("partibus")``. Options are checked when the source is made, which Spark does in `load`."""

    open_client: ClassVar[OpenClient] = staticmethod(open_browse_client)
    """What a test replaces in a subclass."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options.parse(options)

    @classmethod
    def name(cls) -> str:
        return "partibus"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> "SplitReader":
        from pyspark.sql.pandas.types import to_arrow_schema

        check_subset({field.name: field.dataType.simpleString() for field in schema.fields})
        return SplitReader(self._options, to_arrow_schema(schema, timezone="UTC"), type(self).open_client)


class SplitReader(DataSourceReader):
    """Made on the driver and pickled into every task: holds values only, no connection."""

    def __init__(self, options: Options, schema: "pa.Schema", open_client: OpenClient) -> None:
        self._options = options
        self._schema = schema
        self._open_client = open_client

    def partitions(self) -> list[InputPartition]:
        from partibus.spark.reader import plan

        return [InputPartition(split) for split in plan(self._options, self._open_client)]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        from partibus.spark.reader import read_split

        return read_split(partition.value, self._options, self._schema, self._open_client)
