"""Telemetry files of this machine, read by the tasks themselves.

Spark's reader makes rows of columns, and columns again for Python: 10 million rows take 22 s of processor time so, and
2 s without it.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from partibus.pipeline.partial import CHUNK_ROWS, DDL, KEY, NAMES, READ, partial_sums
from partibus.telemetry.schema import COMMIT

TASKS_PER_CORE = 2


class Chosen(NamedTuple):
    """Which rows of the files count; see `rows.within` and `rows.of_entities`."""

    since: datetime | None = None
    until: datetime | None = None
    entities: frozenset[str] = frozenset()
    """In small letters."""


def local_files(spark: SparkSession, rows: DataFrame) -> list[str] | None:
    """The files of a table as paths, where tasks run on this machine and the files are on it; else None."""
    if not (spark.sparkContext.master or "").startswith("local"):
        return None
    places = [urlsplit(uri) for uri in rows.inputFiles()]
    return [unquote(place.path) for place in places] if all(place.scheme == "file" for place in places) else None


def add_up_files(spark: SparkSession, files: Sequence[str], chosen: Chosen) -> DataFrame:
    """As `rollup.add_up`, of all files."""
    shares = _shares(files, TASKS_PER_CORE * spark.sparkContext.defaultParallelism)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [path for batch in numbers for number in batch.column(0).to_pylist() for path in shares[number]]
        return partial_sums(chain.from_iterable(rows_of(path, chosen) for path in mine))

    return spark.range(0, len(shares), 1, max(1, len(shares))).mapInArrow(read, DDL)


def rows_of(path: str, chosen: Chosen) -> Iterator[pa.RecordBatch]:
    """The rows of one file; none of one that the broker has removed meanwhile."""
    try:
        file = pq.ParquetFile(path, read_dictionary=[*NAMES, KEY])
    except FileNotFoundError:
        return
    with file:
        there = [name for name in READ if name in file.schema_arrow.names]
        for batch in file.iter_batches(CHUNK_ROWS, columns=there, use_threads=False):
            columns = {
                name: batch.column(name) if name in there else pa.nulls(batch.num_rows, _TYPES.get(name, pa.int64()))
                for name in READ
            }
            yield _choose(pa.RecordBatch.from_pydict(columns), chosen)


_TYPES = {"time": pa.timestamp("us"), "weight": pa.float64(), **dict.fromkeys((*NAMES, KEY), pa.string())}


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
    """Files by task, of about the same size."""
    sized = sorted(((Path(path).stat().st_size if Path(path).exists() else 0, path) for path in files), reverse=True)
    shares: list[list[str]] = [[] for _ in range(min(count, len(files)))]
    bytes_of = [0] * len(shares)
    for size, path in sized:
        least = bytes_of.index(min(bytes_of))
        shares[least].append(path)
        bytes_of[least] += size
    return shares
