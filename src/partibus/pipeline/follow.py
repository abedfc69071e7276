"""Telemetry as a stream: each micro-batch is added up by itself, and the sums of all micro-batches are the result.

```text
 files of the broker ─▶ file stream ─▶ roll_up ─▶ OUT/tables/activity/batch=N  ┐
                           │                               timing/batch=N      ├─▶ added ─▶ result, report
                           └─ OUT/checkpoint                keys/batch=N       ┘
```

A batch that is repeated after a crash has its old number and replaces its own part, so nothing is counted twice.
"""

from collections.abc import Callable
from pathlib import PurePosixPath

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from partibus.pipeline.errors import JobError
from partibus.pipeline.rollup import KEYS_MAX, Rollup, add_up, added, roll_up

FILES_MAX = 200
"""Files in one micro-batch: the first start beside a full directory works in steps, and a crash repeats one of them."""


def start(
    rows: DataFrame, out: str, *, trigger_seconds: float, once: bool, after: Callable[[int], None]
) -> StreamingQuery:
    """Start the query over ``rows``, a stream. ``once``: add up what is there and end. ``after`` is called with the
    batch's number when its part is written; what it raises ends the query."""

    def write(batch: DataFrame, number: int) -> None:
        sums = add_up(batch).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for name, table in zip(Rollup._fields, roll_up(sums, KEYS_MAX), strict=True):
                path = str(PurePosixPath(tables(out), name, f"batch={number}"))
                table.coalesce(1).write.mode("overwrite").parquet(path)
        finally:
            sums.unpersist()
        after(number)

    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(PurePosixPath(out, "checkpoint")))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{trigger_seconds} seconds")
    return writer.start()


def read(spark: SparkSession, out: str, since: int | None = None) -> Rollup:
    """The sums of all batches; ``since`` (Unix time, seconds) leaves out what is older, except of keys, which have no
    time. Raises `JobError` when there is none yet."""
    try:
        parts = Rollup(*(spark.read.parquet(str(PurePosixPath(tables(out), name))) for name in Rollup._fields))
    except AnalysisException as error:
        raise JobError(f"{tables(out)} holds no sums of telemetry: {error.getCondition() or error}") from None
    parts = Rollup(*(part.drop("batch") for part in parts))
    if since is not None:
        minute = since // 60 * 60
        parts = parts._replace(
            activity=parts.activity.where(sf.col("second") >= minute),
            timing=parts.timing.where(sf.col("minute") >= minute),
        )
    return added(parts)


def tables(out: str) -> str:
    """The folder of the parts."""
    return str(PurePosixPath(out, "tables"))
