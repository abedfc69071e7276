"""The logs of producers and consumers, as tables: Parquet, JSON lines or CSV, with the columns of docs/pipeline.md."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from partibus.pipeline.job import JobError, fault_of, said


class LogColumn(NamedTuple):
    """A column of a log; one without ``needed`` may be absent, or null in any row."""

    name: str
    type: str
    needed: bool
    meaning: str
    instead: str | None = None
    """The column that replaces it in a log without it."""


PRODUCED: Final = (
    LogColumn("message_id", "string", True, "what consumers know it by; of one entity, no two messages have the same"),
    LogColumn("sent_time", "timestamp", True, "when the send began"),
    LogColumn("key", "string", False, "session id or partition key: what order is promised within"),
    LogColumn("key_sequence", "bigint", False, "place of the message in its key: rises with every send, gaps are fine"),
    LogColumn("outcome", "string", False, "`ok`, `failed` (refused: must not arrive) or `unknown`; `ok` without it"),
    LogColumn("entity", "string", False, "queue or topic, where the log is of several"),
)
CONSUMED: Final = (
    LogColumn("message_id", "string", True, "as in the producers' log"),
    LogColumn("received_time", "timestamp", True, "when the application got it"),
    LogColumn(
        "completed_time",
        "timestamp",
        False,
        "when the broker acknowledged its completion; null: it did not. Without the column: what was received is "
        "completed",
        instead="received_time",
    ),
    LogColumn("released_time", "timestamp", False, "when it was given back, deferred or dead-lettered"),
    LogColumn(
        "locked_until",
        "timestamp",
        False,
        "end of the lock, as last renewed; null: received and deleted, or of a session",
    ),
    LogColumn("lock_token", "string", False, "of this delivery"),
    LogColumn("delivery_count", "int", False, "as the client shows it; a first delivery has the least of the log"),
    LogColumn("consumer", "string", False, "who received it"),
    LogColumn("key", "string", False, "as in the producers' log, which counts"),
    LogColumn("entity", "string", False, "queue, or the topic of the subscription that the log is of"),
)


_CORRUPT: Final = "_corrupt_record"
"""Spark's column of JSON lines that it can't parse."""
_NANOSECONDS: Final = "spark.sql.legacy.parquet.nanosAsLong"
_MS_LEAST, _US_LEAST, _NS_LEAST = 10**10, 10**13, 10**16
"""The least numbers that are taken for times in milliseconds, microseconds and nanoseconds: April 1970. Up to the year
2286, times in the next larger unit are below them.
"""
_NUMBERS: Final = ("bigint", "float", "double", "decimal")
_TEXT_OF_NUMBER: Final = r"^\d{9,19}(\.\d+)?$"
"""A number in a file without types. A shorter one may be a year or a day."""


def read_parquet(spark: SparkSession, paths: Sequence[str], *, recursive: bool = True) -> DataFrame:
    """Read the Parquet files in folders and below. Raises `AnalysisException`.

    Without ``recursive`` the names of folders are columns, as in `date=2026-01-31`.

    Spark refuses files with times in nanoseconds, as pandas writes them. It then reads these columns as numbers, for
    which the session's setting stays on, since rows are read later; `fitted` makes times of them.
    """
    reader = spark.read.option("recursiveFileLookup", str(recursive).lower())
    try:
        return reader.parquet(*paths)
    except AnalysisException as error:
        if error.getCondition() != "PARQUET_TYPE_ILLEGAL" or "NANOS" not in str(error):
            raise
    spark.conf.set(_NANOSECONDS, "true")
    return reader.parquet(*paths)


def read_log(
    spark: SparkSession, paths: Sequence[str], columns: Sequence[LogColumn], form: str | None = None
) -> DataFrame:
    """Return the log with exactly ``columns``, absent ones as nulls.

    ``form``: parquet, json or csv; None: by the first path, of which a folder is one of
    Parquet. Raises `JobError` for files of another format, and for a missing column.
    """
    form = form or _form_of(paths[0])
    reader = spark.read.option("recursiveFileLookup", "true")
    try:
        # Files without types are read as text: this job then finds and reports values that do not fit.
        table = (
            reader.option("header", "true").csv(list(paths))
            if form == "csv"
            else reader.option("primitivesAsString", "true").json(list(paths))
            if form == "json"
            else read_parquet(spark, paths)
        )
    except AnalysisException as error:
        raise JobError(
            f"no {form} log at {', '.join(paths)}: {fault_of(error)}. Give another path, or name the format with "
            "--format."
        ) from None
    except Py4JJavaError as error:
        raise JobError(
            f"the files at {', '.join(paths)} are no {form} log: {said(error)} Name their format with --format."
        ) from None
    if form == "json" and table.columns == [_CORRUPT]:
        raise JobError(
            f"the log {', '.join(paths)} has no line that is a JSON object. Write each row as one object on a line of "
            "its own, or name another format with --format."
        )
    return fitted(table, columns, ", ".join(paths))


def fitted(table: DataFrame, columns: Sequence[LogColumn], name: str) -> DataFrame:
    """Return the table with exactly ``columns``. Raises `JobError` when a needed one is missing."""
    have = {column.lower(): column for column in table.columns}
    missing = [column.name for column in columns if column.needed and column.name not in have]
    if missing:
        raise JobError(
            f"the log {name} has no column {', '.join(missing)}; it has {', '.join(table.columns) or 'none'}. "
            "Rename its columns to those of docs/pipeline.md."
        )
    return table.select(
        *(_cast(table, have.get(column.name) or have.get(column.instead or ""), column) for column in columns)
    )


def _cast(table: DataFrame, found: str | None, column: LogColumn) -> Column:
    if found is None:
        return sf.lit(None).cast(column.type).alias(column.name)
    value = sf.col(f"`{found}`")
    kind = dict(table.dtypes)[found]
    if kind.startswith(_NUMBERS) and column.type == "timestamp":
        return _time_of(value if kind == "bigint" else value.cast("double")).alias(column.name)
    if kind == "string" and column.type != "string":
        # Empty is null, as in CSV. Any other value that does not fit ends the job with an error that shows it.
        value = sf.nullif(sf.trim(value), sf.lit(""))
        if column.type == "timestamp":
            number = _time_of(value.try_cast("decimal(25,6)"))
            return sf.when(value.rlike(_TEXT_OF_NUMBER), number).otherwise(value.cast("timestamp")).alias(column.name)
    return value.cast(column.type).alias(column.name)


def _time_of(number: Column) -> Column:
    """Return the time that a number is, in the unit that follows from its size."""
    micros = (
        sf.when(number < _MS_LEAST, number * 1_000_000)
        .when(number < _US_LEAST, number * 1000)
        .when(number < _NS_LEAST, number)
        .otherwise(sf.floor(number / 1000))
    )
    return sf.timestamp_micros(micros.cast("bigint"))


def _form_of(path: str) -> str:
    name = path.rstrip("/").lower()
    if name.endswith((".csv", ".csv.gz")):
        return "csv"
    return "json" if name.endswith((".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz")) else "parquet"
