"""Spark finds the format without being told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from partibus.spark.programs import worker_python
from partibus.spark.session import register


def test_spark_finds_the_format_by_itself(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="option 'entity' is missing"):
        spark.read.format("partibus").option(
            "connection", "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k"
        ).load()


def test_registered_by_hand_it_is_the_same_format(spark: SparkSession) -> None:
    register(spark)
    with pytest.raises(PySparkException, match="option 'connection' is missing"):
        spark.read.format("partibus").option("entity", "q").load()


def test_stream_is_refused_at_once(spark: SparkSession) -> None:
    options = {"connection": "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k", "entity": "q"}
    table = spark.readStream.format("partibus").options(**options).load()
    with pytest.raises(PySparkException, match="streamReader"):
        table.writeStream.format("noop").start().awaitTermination()


def test_session_speaks_utc_and_runs_workers_of_this_python(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    (row,) = spark.range(1).mapInArrow(_with_executable, "path string").collect()
    assert row.path == sys.executable
    # The planner of a source that Spark has found: from zipped sources each start of a query would compile PySpark.
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == worker_python()


def _with_executable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_arrays([[sys.executable]], ["path"])


@pytest.mark.parametrize(
    ("imported", "heavy"),
    [
        # To find the source, in every session.
        ("pyspark_partibus", {"pyarrow", "pandas", "asyncio"}),
        # To plan a stream, in a new process for each that starts.
        ("partibus.spark.stream", {"pyarrow.compute", "pandas", "asyncio"}),
    ],
)
def test_what_spark_imports_before_any_message_is_read_is_light(imported: str, heavy: set[str]) -> None:
    script = f"import sys, {imported}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
