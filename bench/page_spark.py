"""The sections of docs/benchmarks.md about Spark: reading, small micro-batches, writing, reading beside consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.cells import fine, number, percent, rate, section
from bench.results import Row

_READ = ("what", "columns", "rows", "rows/s", "beside Parquet", "CPU µs per row", "of the broker")
_READ_NOTE = """\
Messages of 200 bytes with five application properties, in a partitioned queue; warm, medians. Broker, Spark
(`local[2]`) and its Python processes share the machine, and their CPU is counted together. *batch*: all rows into
nothing. *parquet*: Spark's own scan of files with the same columns. *capture*: a stream of all there is into Parquet
files. Columns *none* are those of `includeProperties=false`.
"""
_MICRO = ("micro-batches", "median ms", "longest ms", "idle: share of a core")
_MICRO_NOTE = """\
A stream into nothing, ten messages in each of four partitions at a time, without what it waits for them. *Idle* is the
CPU of Spark, its Python processes and the broker while nothing comes.
"""
_WRITE = ("named by", "keys", "rows", "rows/s", "broker's CPU µs per row")
_WRITE_NOTE = """\
Rows like those above into a partitioned queue; durable when the write ends. *ids*: each is stored once, by a column.
"""
_BESIDE = ("rows/s read", "broker's CPU µs per message, alone", "with the reader", "more")
_BESIDE_NOTE = """\
A sender and a receiver work on a partitioned queue, as under *Throughput*, while a stream reads the same queue into
nothing, 20,000 positions a second at the most. It has a cursor, for which is kept what the receiver completes.
"""


def spark_sections(rows: Sequence[Row]) -> Iterator[str]:
    yield from section("Spark reads", _READ, _reads(rows), _READ_NOTE)
    yield from section("Spark reads a little at a time", _MICRO, _micro(rows), _MICRO_NOTE)
    yield from section("Spark writes", _WRITE, _writes(rows), _WRITE_NOTE)
    yield from section("Spark beside a receiver", _BESIDE, _beside(rows), _BESIDE_NOTE)


def reads(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the part that reads: other parts have scenarios of their own names."""
    return [row for row in rows if row["scenario"] in ("batch", "parquet", "capture") and "columns" in row]


def _reads(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in reads(rows):
        yield [
            row["scenario"], row["columns"], f"{row['messages']:,}", rate(row["rows_per_s"]), percent(row["ratio"]),
            fine(row["cpu_us"]), fine(row["broker_cpu_us"]),
        ]  # fmt: skip


def _micro(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "micro-batch":
            idle = f"{row['idle_cpu_share'] * 100:.1f} %"
            yield [str(row["batches"]), number(row["median_ms"]), number(row["longest_ms"]), idle]


def _writes(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "write":
            keys = "yes" if row["keyed"] else "no"
            yield [row["naming"], keys, f"{row['rows']:,}", rate(row["rows_per_s"]), number(row["broker_cpu_us"])]


def _beside(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "beside":
            more = percent(row["cpu_us"] / row["base_cpu_us"] - 1)
            yield [rate(row["rows_per_s"]), number(row["base_cpu_us"]), number(row["cpu_us"]), more]
