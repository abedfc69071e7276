"""The job `telemetry`: rows or a stream of rows in, result and page out."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from partibus.pipeline import follow as stream
from partibus.pipeline.errors import JobError
from partibus.pipeline.interrupts import interruption
from partibus.pipeline.job import Job
from partibus.pipeline.local_rows import Chosen, PartFile, add_up_files, local_files
from partibus.pipeline.partial import DDL, SCHEMA
from partibus.pipeline.questions import Questions
from partibus.pipeline.questions_here import HELD_MAX, questions_here
from partibus.pipeline.questions_spark import SparkQuestions
from partibus.pipeline.rollup import Rollup, add_up, parts_of, roll_up
from partibus.pipeline.rows import follow_rows, of_entities, read_rows, within
from partibus.pipeline.telemetry import summarize
from partibus.pipeline.telemetry_page import telemetry_page

Values = dict[str, Any]


class Want(NamedTuple):
    """What is asked for."""

    paths: Sequence[str]
    entities: Sequence[str] = ()
    """Empty: all."""
    since: datetime | None = None
    until: datetime | None = None
    entities_max: int = 20
    keys_max: int = 10
    out: str | None = None


def run(job: Job, want: Want) -> Values:
    """The result of what is there now."""
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
            table.write.mode("overwrite").parquet(str(PurePosixPath(stream.tables(out), name)))


def follow(job: Job, want: Want, every_seconds: float, once: bool, show: Callable[[Values], None]) -> None:
    """Add up what comes, and tell after every batch, until interrupted; ``once``: until nothing is new."""
    assert want.out is not None
    out, spark = want.out, job.spark
    rows = of_entities(
        within(follow_rows(spark, want.paths[0], stream.FILES_MAX), want.since, want.until), want.entities
    )
    # The numbers of batches that nobody was told of; what a former run has left is told even when nothing is new.
    asked = [-1]
    query = stream.start(rows, out, trigger_seconds=every_seconds, once=once, after=asked.append)
    try:
        with interruption() as is_interrupted:
            while query.isActive and not is_interrupted():
                query.awaitTermination(1)
                if asked and asked[-1] >= 0 and query.isActive:
                    asked.clear()
                    show(_finish(job, SparkQuestions(stream.read(spark, out)), want))
    except StreamingQueryException as error:
        raise JobError(f"the stream over {want.paths[0]} ended: {error}") from error
    finally:
        query.stop()
    if asked:
        show(_finish(job, SparkQuestions(stream.read(spark, out)), want))


def _finish(job: Job, questions: Questions, want: Want) -> Values:
    with job.step("ask the sums"):
        found = job.watched(lambda: summarize(questions, entities_max=want.entities_max, keys_max=want.keys_max))
    job.finish(found, page=telemetry_page)
    return found
