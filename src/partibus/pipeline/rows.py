"""The broker's telemetry as a table (D28, `partibus.telemetry.schema`).

Sampling is by message, and a row stands for ``weight`` of its kind: a count of messages is a sum of weights.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from partibus.pipeline.job import JobError, fault_of
from partibus.pipeline.partial import CHUNK_ROWS, KEY, NAMES, READ, SCHEMA, partial_sums
from partibus.telemetry.schema import COMMIT, DDL, MOVE, USE

OTHERS = (USE, MOVE)
"""Operations that are about neither messages nor commits."""
GIVE_TELEMETRY = (
    "give the directory that the broker writes to (`partibus serve --telemetry sampled --telemetry-dir DIR`); the "
    "first file takes some seconds"
)


_READING = {
    "recursiveFileLookup": "true",
    # A broker removes the oldest files while a job reads. Only here: any other table would lack rows in silence.
    "ignoreMissingFiles": "true",
}


def read_rows(spark: SparkSession, paths: Sequence[str], *, uses: bool = False, moves: bool = False) -> DataFrame:
    """Read telemetry directories or files: the rows about messages and commits, or those of ``uses`` or ``moves``.

    Columns that files of earlier versions lack are null. Raises `JobError` when there are no rows.
    """
    try:
        rows = spark.read.schema(DDL).options(**_READING).parquet(*paths)
        op = sf.col("op")
        return rows.where(op == USE if uses else op == MOVE if moves else ~op.isin(*OTHERS))
    except AnalysisException as error:
        raise JobError(f"no telemetry at {', '.join(paths)}: {fault_of(error)}; {GIVE_TELEMETRY}") from None


def follow_rows(spark: SparkSession, path: str, files_max: int) -> DataFrame:
    """Read the rows as a stream, file by file as the broker finishes them, at most ``files_max`` in one batch."""
    reader = spark.readStream.schema(DDL).options(**_READING)
    return reader.option("maxFilesPerTrigger", files_max).parquet(path).where(~sf.col("op").isin(*OTHERS))


NAMES_MAX = 20
"""Entities that `absence` lists."""


def absence(spark: SparkSession, paths: Sequence[str], asked: Sequence[str], found: Collection[str]) -> str | None:
    """Return why entities are missing in ``found``, in which ``asked`` ones are expected; without any, at least one.

    None: nothing is missing.
    """
    there = {name.lower() for name in found}
    missing = [name for name in asked if name.lower() not in there]
    if not missing and found:
        return None
    names = read_rows(spark, paths).where(sf.col("op") != COMMIT).select("entity").distinct().sort("entity")
    listed = [row[0] for row in names.limit(NAMES_MAX + 1).collect()]
    if not listed:
        return f"no rows about messages at {', '.join(paths)}; {GIVE_TELEMETRY}"
    unknown = [name for name in missing if not names.where(sf.lower("entity") == name.lower()).take(1)]
    if unknown:
        others = ", ".join(listed[:NAMES_MAX]) + (", ..." if len(listed) > NAMES_MAX else "")
        return f"no rows for entity {', '.join(map(repr, unknown))}; there are: {others}"
    of = f" for {', '.join(map(repr, missing))}" if missing else ""
    return f"no rows that count{of}: look at --since and --until"


def within(rows: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Select rows of ``since`` <= time < ``until``; None is open."""
    if since is not None:
        rows = rows.where(sf.col("time") >= sf.lit(since))
    return rows if until is None else rows.where(sf.col("time") < sf.lit(until))


def of_entities(rows: DataFrame, entities: Sequence[str]) -> DataFrame:
    """Select rows of the named entities and of commits; all rows when none is named.

    Names match in any case. Commits concern all entities.
    """
    if not entities:
        return rows
    named = sf.lower("entity").isin([entity.lower() for entity in entities])
    return rows.where(named | (sf.col("op") == COMMIT))


TASKS_PER_CORE = 2


class Chosen(NamedTuple):
    """A choice of rows in files (`within`, `of_entities`)."""

    since: datetime | None = None
    until: datetime | None = None
    entities: frozenset[str] = frozenset()
    """Names in lower case."""


class PartFile(NamedTuple):
    """The sums of one task, rows of `partial.SCHEMA`."""

    path: str
    rows: int


def local_files(spark: SparkSession, paths: Sequence[str]) -> list[str] | None:
    """Return the files below ``paths``; None when tasks run elsewhere, or one of ``paths`` is not on this machine."""
    context = spark.sparkContext
    if not (context.master or "").startswith("local"):
        return None
    hadoop: Any = context._jvm  # noqa: SLF001 (the way to Hadoop)
    found: list[str] = []
    for path in paths:
        place = hadoop.org.apache.hadoop.fs.Path(path)
        files = place.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
        there = files.globStatus(place) if files.getScheme() == "file" else None
        if not there:
            return None
        for one in there:
            found += _files_below(Path(one.getPath().toUri().getPath()))
    return found


def _files_below(place: Path) -> Iterator[str]:
    """Yield files as Spark finds them: files and folders whose names begin with a dot or an underscore are not data."""
    if place.is_file():
        yield str(place)
    for folder, inner, names in os.walk(place):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "_")))
        yield from (str(Path(folder, name)) for name in sorted(names) if not name.startswith((".", "_")))


def add_up_files(spark: SparkSession, files: Sequence[str], chosen: Chosen, folder: Path) -> list[PartFile]:
    """Add up all files, as `rollup.add_up` does, into files in ``folder``."""
    shares = _shares(files, TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    if not shares:
        return []

    def add_up(share: list[str]) -> PartFile:
        # A repeated task leaves a file that no reader asks for.
        path, rows = str(folder / f"{uuid4()}.parquet"), 0
        with pq.ParquetWriter(path, SCHEMA, compression="lz4") as writer:
            for batch in partial_sums(chain.from_iterable(rows_of(one, chosen) for one in share)):
                writer.write_batch(batch)
                rows += batch.num_rows
        return PartFile(path, rows)

    return spark.sparkContext.parallelize(shares, len(shares)).map(add_up).collect()


def rows_of(path: str, chosen: Chosen) -> Iterator[pa.RecordBatch]:
    """Read the rows of one file about messages and commits; none when the broker has removed the file meanwhile.

    Raises `JobError` for a file of something else.
    """
    try:
        file = pq.ParquetFile(path, read_dictionary=[*NAMES, KEY])
    except FileNotFoundError:
        return
    except pa.ArrowInvalid as error:
        raise JobError(f"{path} is no whole Parquet file ({error}): remove it, or name the other files") from None
    with file:
        there = [name for name in READ if name in file.schema_arrow.names]
        for batch in file.iter_batches(CHUNK_ROWS, columns=there, use_threads=False):
            columns = {
                name: batch.column(name) if name in there else pa.nulls(batch.num_rows, _TYPES.get(name, pa.int64()))
                for name in READ
            }
            yield _choose(_without_others(pa.RecordBatch.from_pydict(columns)), chosen)


_TYPES = {"time": pa.timestamp("us"), "weight": pa.float64(), **dict.fromkeys((*NAMES, KEY), pa.string())}


def _without_others(batch: pa.RecordBatch) -> pa.RecordBatch:
    op = batch.column("op")
    if isinstance(op, pa.DictionaryArray) and not {*OTHERS} & {*op.dictionary.to_pylist()}:
        return batch
    return batch.filter(pc.invert(pc.is_in(pc.cast(op, pa.string()), pa.array(OTHERS))))


def _choose(batch: pa.RecordBatch, chosen: Chosen) -> pa.RecordBatch:
    if chosen == Chosen():
        return batch
    wanted = np.ones(batch.num_rows, bool)
    time_us = pc.cast(pc.cast(batch.column("time"), pa.timestamp("us")), pa.int64()).to_numpy(zero_copy_only=False)
    if chosen.since is not None:
        wanted &= time_us >= _microseconds(chosen.since)
    if chosen.until is not None:
        wanted &= time_us < _microseconds(chosen.until)
    if chosen.entities:
        entity, op = (pc.cast(batch.column(name), pa.string()) for name in ("entity", "op"))
        named = pc.is_in(pc.utf8_lower(entity), pa.array(sorted(chosen.entities), pa.string()))
        wanted &= pc.fill_null(pc.or_(named, pc.equal(op, COMMIT)), False).to_numpy(zero_copy_only=False)
    return batch.filter(pa.array(wanted))


def _microseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def _shares(files: Sequence[str], count: int) -> list[list[str]]:
    """Divide files among tasks, with about the same size for each."""
    sized = sorted(((Path(path).stat().st_size if Path(path).exists() else 0, path) for path in files), reverse=True)
    shares: list[list[str]] = [[] for _ in range(min(count, len(files)))]
    bytes_of = [0] * len(shares)
    for size, path in sized:
        least = bytes_of.index(min(bytes_of))
        shares[least].append(path)
        bytes_of[least] += size
    return shares
