"""The job `telemetry`: rows or a stream of rows in, result and page out."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.errors import StreamingQueryException

from partibus.pipeline import follow as stream
from partibus.pipeline.errors import JobError
from partibus.pipeline.job import Job
from partibus.pipeline.local_rows import Chosen, add_up_files, local_files
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
    spark = job.spark
    rows = read_rows(spark, want.paths)
    files = local_files(spark, rows)
    if files is None:
        parts = add_up(of_entities(within(rows, want.since, want.until), want.entities))
    else:
        named = frozenset(name.lower() for name in want.entities)
        parts = add_up_files(spark, files, Chosen(want.since, want.until, named))
    sums = parts.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with job.step("add up rows"):
            job.watched(sums.count)
        if want.out is not None:
            with job.step("write the tables"):
                for name, table in zip(Rollup._fields, roll_up(sums), strict=True):
                    table.write.mode("overwrite").parquet(str(PurePosixPath(stream.tables(want.out), name)))
        return _finish(job, parts_of(sums), want)
    finally:
        sums.unpersist()


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
        while query.isActive:
            query.awaitTermination(1)
            if asked and asked[-1] >= 0 and query.isActive:
                asked.clear()
                show(_finish(job, stream.read(spark, out), want))
    except StreamingQueryException as error:
        raise JobError(f"the stream over {want.paths[0]} ended: {error}") from error
    finally:
        query.stop()
    if asked:
        show(_finish(job, stream.read(spark, out), want))


def _finish(job: Job, rollup: Rollup, want: Want) -> Values:
    with job.step("ask the sums"):
        found = job.watched(lambda: summarize(rollup, entities_max=want.entities_max, keys_max=want.keys_max))
    job.finish(found, page=telemetry_page)
    return found
