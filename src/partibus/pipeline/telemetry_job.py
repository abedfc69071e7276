"""The job `telemetry`: rows, or a stream of rows, in; result and page out."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from partibus.pipeline.job import Job, JobError, Values, fault_of, interruption
from partibus.pipeline.partial import DDL, SCHEMA
from partibus.pipeline.place import Place, inside
from partibus.pipeline.questions import HELD_MAX, Questions, SparkQuestions, questions_here
from partibus.pipeline.rollup import KEYS_MAX, Rollup, add_up, added, parts_of, roll_up
from partibus.pipeline.rows import (
    GIVE_TELEMETRY,
    Chosen,
    PartFile,
    add_up_files,
    follow_rows,
    local_files,
    of_entities,
    read_rows,
    within,
)
from partibus.pipeline.telemetry import summarize
from partibus.pipeline.telemetry_page import telemetry_page

_TABLES = "tables"
_CHECKPOINT = "checkpoint"
FILES_MAX = 200
"""Files in one micro-batch. The first start on a full directory works in steps, and a crash repeats one of them."""


def start(
    rows: DataFrame, out: str, *, trigger_seconds: float, once: bool, after: Callable[[int], None]
) -> StreamingQuery:
    """Start the query over ``rows``, a stream. With ``once`` it adds up the present rows and ends.

    ``after`` is called with the batch's number when its part is written; an exception from it ends the query.
    """

    def write(batch: DataFrame, number: int) -> None:
        sums = add_up(batch).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for name, table in zip(Rollup._fields, roll_up(sums, KEYS_MAX), strict=True):
                path = inside(tables(out), name, f"batch={number}")
                table.coalesce(1).write.mode("overwrite").parquet(path)
        finally:
            sums.unpersist()
        after(number)

    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint(out))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{trigger_seconds} seconds")
    return writer.start()


def read(spark: SparkSession, out: str, since: int | None = None) -> Rollup:
    """Return the sums of all batches.

    ``since`` (Unix time, seconds) omits older ones, except of keys, which have no time.

    Raises `JobError` when there are none yet.
    """
    try:
        parts = Rollup(*(spark.read.parquet(inside(tables(out), name)) for name in Rollup._fields))
    except AnalysisException as error:
        raise JobError(f"{tables(out)} holds no sums of telemetry: {fault_of(error)}") from None
    parts = Rollup(*(part.drop("batch") for part in parts))
    if since is not None:
        minute = since // 60 * 60
        parts = parts._replace(
            activity=parts.activity.where(sf.col("second") >= minute),
            timing=parts.timing.where(sf.col("minute") >= minute),
        )
    return added(parts)


def tables(out: str) -> str:
    """Return the folder of the sums."""
    return inside(out, _TABLES)


def checkpoint(out: str) -> str:
    """Return the folder of the stream's checkpoint."""
    return inside(out, _CHECKPOINT)


class Want(NamedTuple):
    """The request for a report."""

    paths: Sequence[str]
    entities: Sequence[str] = ()
    """Entities; empty: all."""
    since: datetime | None = None
    until: datetime | None = None
    entities_max: int = 20
    keys_max: int = 10
    out: str | None = None


def run(job: Job, want: Want) -> Values:
    """Return the result of the present telemetry. Raises `JobError`, also if ``want.out`` belongs to `follow`."""
    job.check_paths(want.paths, GIVE_TELEMETRY)
    if want.out is not None and Place(job.spark, want.out).exists(_CHECKPOINT):
        raise JobError(
            f"{want.out} has the sums and the checkpoint of `telemetry --follow`, which this run would overwrite: give "
            "another --out, or continue with --follow"
        )
    files = local_files(job.spark, want.paths)
    return _of_rows(job, want) if files is None else _of_files(job, files, want)


def _of_rows(job: Job, want: Want) -> Values:
    rows = read_rows(job.spark, want.paths)
    sums = add_up(of_entities(within(rows, want.since, want.until), want.entities)).persist(
        StorageLevel.MEMORY_AND_DISK
    )
    try:
        with job.step("add up rows"):
            job.watched(sums.count)
        if want.out is not None:
            _write(job, sums, want.out)
        return _finish(job, SparkQuestions(parts_of(sums)), want)
    finally:
        sums.unpersist()


def _of_files(job: Job, files: Sequence[str], want: Want) -> Values:
    chosen = Chosen(want.since, want.until, frozenset(name.lower() for name in want.entities))
    with TemporaryDirectory(prefix="partibus-telemetry-") as folder:
        with job.step("add up rows"):
            parts = job.watched(lambda: add_up_files(job.spark, files, chosen, Path(folder)))
        if want.out is not None:
            _write(job, _in_spark(job, parts), want.out)
        if sum(part.rows for part in parts) > HELD_MAX:
            return _finish(job, SparkQuestions(parts_of(_in_spark(job, parts))), want)
        tables = [pq.read_table(part.path) for part in parts]
    return _finish(job, questions_here(pa.concat_tables(tables) if tables else SCHEMA.empty_table()), want)


def _in_spark(job: Job, parts: Sequence[PartFile]) -> DataFrame:
    return job.spark.read.schema(DDL).parquet(*(part.path for part in parts))


def _write(job: Job, sums: DataFrame, out: str) -> None:
    with job.step("write the tables"):
        for name, table in zip(Rollup._fields, roll_up(sums), strict=True):
            table.write.mode("overwrite").parquet(inside(tables(out), name))


def follow(job: Job, want: Want, every_seconds: float, once: bool, show: Callable[[Values], None]) -> None:
    """Add up new rows, and report after every batch, until interrupted. With ``once`` until no row is new.

    Raises `JobError`, also if ``want.out`` has the sums of `run`.
    """
    assert want.out is not None
    job.check_paths(want.paths, GIVE_TELEMETRY)
    out, spark = want.out, job.spark
    place = Place(spark, out)
    if place.exists(_TABLES) and not place.exists(_CHECKPOINT):
        raise JobError(
            f"{out} has sums without the checkpoint of a stream, as `telemetry` without --follow writes them: give "
            f"another --out, or remove {tables(out)}"
        )
    rows = of_entities(within(follow_rows(spark, want.paths[0], FILES_MAX), want.since, want.until), want.entities)
    # The numbers of unreported batches. Batches of a former run are reported even when no row is new.
    asked = [-1]
    query = start(rows, out, trigger_seconds=every_seconds, once=once, after=asked.append)
    try:
        with interruption() as is_interrupted:
            while query.isActive and not is_interrupted():
                query.awaitTermination(1)
                if asked and asked[-1] >= 0 and query.isActive:
                    asked.clear()
                    show(_finish(job, SparkQuestions(read(spark, out)), want))
    except StreamingQueryException as error:
        raise JobError(f"the stream over {want.paths[0]} ended: {error}") from error
    finally:
        query.stop()
    if asked:
        show(_finish(job, SparkQuestions(read(spark, out)), want))


def _finish(job: Job, questions: Questions, want: Want) -> Values:
    with job.step("ask the sums"):
        found = job.watched(lambda: summarize(questions, entities_max=want.entities_max, keys_max=want.keys_max))
    job.finish(found, page=telemetry_page)
    return found
