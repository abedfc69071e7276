"""The broker's telemetry as a table (D28, `partibus.telemetry.schema`).

Sampling is by message, and a row stands for ``weight`` of its kind: whatever counts messages sums weights.
"""

from collections.abc import Sequence
from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from partibus.pipeline.errors import JobError
from partibus.telemetry.schema import COMMIT, DDL, USE


def read_rows(spark: SparkSession, paths: Sequence[str], *, uses: bool = False) -> DataFrame:
    """The rows of telemetry directories or files: those about messages and commits, or those of ``uses``. Columns that
    files of earlier versions do not have are null. Raises `JobError` when there are none."""
    try:
        rows = spark.read.schema(DDL).option("recursiveFileLookup", "true").parquet(*paths)
        return rows.where((sf.col("op") == USE) if uses else (sf.col("op") != USE))
    except AnalysisException as error:
        raise JobError(
            f"no telemetry at {', '.join(paths)}: {error.getCondition() or error}. Give the directory that the broker "
            "writes to (`partibus serve --telemetry sampled --telemetry-dir DIR`); the first file takes some seconds."
        ) from None


def follow_rows(spark: SparkSession, path: str, files_max: int) -> DataFrame:
    """The rows as a stream, file by file as the broker finishes them, at most ``files_max`` in one batch."""
    reader = spark.readStream.schema(DDL).option("recursiveFileLookup", "true")
    return reader.option("maxFilesPerTrigger", files_max).parquet(path).where(sf.col("op") != USE)


def within(rows: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Rows of ``since`` <= time < ``until``; None is open."""
    if since is not None:
        rows = rows.where(sf.col("time") >= sf.lit(since))
    return rows if until is None else rows.where(sf.col("time") < sf.lit(until))


def of_entities(rows: DataFrame, entities: Sequence[str]) -> DataFrame:
    """Rows of the named entities, of any case, and of commits, which are of all; of everything when none is named."""
    if not entities:
        return rows
    named = sf.lower("entity").isin([entity.lower() for entity in entities])
    return rows.where(named | (sf.col("op") == COMMIT))
