"""Capture: every message of an entity as a row of one table, what became of it as a row of another.

```text
 entity ──▶ stream of messages ──▶ OUT/messages ┐
   cursor ─▶ stream of fates ────▶ OUT/fates    ├─▶ captured: each message with its fate
                                                ┘
```

A cursor keeps both for the two streams, and is moved by each apart. A message is captured where it was accepted, so it
is there before its fate, whichever of both tables is ahead.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from partibus.pipeline.errors import JobError
from partibus.spark.schema import DDL, FATE_DDL

Values = dict[str, Any]

HERE = "here"
"""The fate of a message that has not left, as far as is captured."""
MESSAGES, FATES, CHECKPOINTS = "messages", "fates", "checkpoints"
NOT_CAPTURED = ("state",)
"""Of a message when it was read, which depends on when that was."""
_KEY = ["entity_id", "partition_id", "sequence_number"]
FATE_NAMES = (
    HERE, "completed", "received_and_deleted", "dead_lettered", "expired", "purged", "forwarded", "consumed", "lost",
)  # fmt: skip


class Chosen(NamedTuple):
    """Which of the captured messages."""

    since: datetime | None = None
    """By the time that the broker accepted them."""
    until: datetime | None = None
    partitions: Sequence[int] = ()
    """Empty: all."""
    fates: Sequence[str] = ()


def start(spark: SparkSession, options: Mapping[str, str], out: str, *, seconds: float | None) -> list[StreamingQuery]:
    """The two streams: messages and fates. ``options``: of the data source, with the cursor; ``seconds``: the trigger,
    None: what is there now."""
    queries = []
    for table in (MESSAGES, FATES):
        rows = spark.readStream.format("partibus").options(**{**options, "table": table}).load()
        writer = (
            rows.drop(*NOT_CAPTURED)
            .writeStream.format("parquet")
            .queryName(f"capture of {table}")
            .option("path", f"{out}/{table}")
            .option("checkpointLocation", f"{out}/{CHECKPOINTS}/{table}")
        )
        every = {"availableNow": True} if seconds is None else {"processingTime": f"{seconds} seconds"}
        writer = writer.trigger(**every)
        queries.append(writer.start())
    return queries


def messages(spark: SparkSession, out: str) -> DataFrame:
    """The captured messages, without their fates. Raises `JobError`."""
    return _table(spark, out, MESSAGES, DDL).drop(*NOT_CAPTURED)


def captured(spark: SparkSession, out: str) -> DataFrame:
    """The captured messages with their fates: columns of the data source, and ``fate`` (`HERE`: not left),
    ``fate_time`` and ``dwell_ms``, from acceptance to that. Raises `JobError`."""
    found = messages(spark, out)
    fates = _table(spark, out, FATES, FATE_DDL).select(
        *_KEY, "fate", "fate_time", sf.col("delivery_count").alias("_deliveries")
    )
    joined = found.join(fates, _KEY, "left")
    return joined.select(
        *(sf.col(name) for name in found.columns if name != "delivery_count"),
        sf.coalesce("_deliveries", "delivery_count").alias("delivery_count"),
        sf.coalesce("fate", sf.lit(HERE)).alias("fate"),
        "fate_time",
        (sf.unix_millis("fate_time") - sf.unix_millis("enqueued_time")).alias("dwell_ms"),
    )


def chosen(rows: DataFrame, want: Chosen) -> DataFrame:
    """Those rows of `captured`."""
    tests: list[Column] = []
    if want.since is not None:
        tests.append(sf.col("enqueued_time") >= sf.lit(want.since))
    if want.until is not None:
        tests.append(sf.col("enqueued_time") < sf.lit(want.until))
    if want.partitions:
        tests.append(sf.col("partition_id").isin(list(want.partitions)))
    if want.fates:
        tests.append(sf.col("fate").isin(list(want.fates)))
    for test in tests:
        rows = rows.where(test)
    return rows


def summary(rows: DataFrame) -> Values:
    """Of `captured`: totals, messages and milliseconds by fate, and both over time in minutes."""
    by_fate = (
        rows.groupBy("fate")
        .agg(
            sf.count("*").alias("messages"),
            *(sf.percentile_approx("dwell_ms", share).alias(name) for name, share in _SHARES.items()),
        )
        .orderBy(sf.desc("messages"))
        .collect()
    )
    by_partition = rows.groupBy("partition_id").count().orderBy("partition_id").collect()
    return {
        "messages": sum(row.messages for row in by_fate),
        "fates": {
            row.fate: {"messages": row.messages, "dwell_ms": {name: row[name] for name in _SHARES}} for row in by_fate
        },
        "partitions": {str(row.partition_id): row["count"] for row in by_partition},
        "series": {
            "accepted": _per_minute(rows, "enqueued_time"),
            **{row.fate: _per_minute(rows.where(sf.col("fate") == row.fate), "fate_time") for row in by_fate
               if row.fate != HERE},
        },
    }  # fmt: skip


_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_MINUTES_MAX = 1_440
"""In a series: a day; of longer ones the last."""


def _per_minute(rows: DataFrame, time: str) -> list[list[int]]:
    """[Unix time, messages] of minutes that have some."""
    minute = (sf.unix_seconds(time) / 60).cast("bigint") * 60
    counted = rows.groupBy(minute.alias("at")).count().orderBy(sf.desc("at")).limit(_MINUTES_MAX).collect()
    return [[row.at, row["count"]] for row in reversed(counted)]


def _table(spark: SparkSession, out: str, name: str, ddl: str) -> DataFrame:
    try:
        return spark.read.schema(ddl).parquet(f"{out}/{name}")
    except AnalysisException as error:
        raise JobError(f"{out} holds no capture: {error.getCondition() or error}") from None
