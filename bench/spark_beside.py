"""The cost of a rate-limited Spark reader for receivers of the same queue.

It has a cursor: without one it would find next to nothing in a queue that a receiver keeps empty.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.brokers import Partibus, partibus
from bench.spark import CONFIG, MASTER
from partibus.bench.measures import median
from partibus.bench.scenarios import Target, both
from partibus.spark.session import make_session, silence_query_context

ROWS_PER_S = 20_000
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Medians of runs with the reader and without, in turn."""

    messages: int
    rows_per_s: float
    """The rate of the reader while the generators worked."""
    base_cpu_us: float
    """The broker's, per message through, without a reader."""
    cpu_us: float
    scenario: str = "beside"

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_beside(directory: Path, program: Path, *, messages: int, rounds: int) -> Iterator[Beside]:
    """Each run has a queue of its own."""
    with partibus(directory / "broker", program) as peer:
        spark = make_session("bench", MASTER, CONFIG)
        spark.sparkContext.setLogLevel("OFF")
        silence_query_context()
        try:
            found = [(_alone(peer, messages), *_read(spark, peer, directory, messages)) for _ in range(rounds)]
            yield Beside(
                messages=messages,
                rows_per_s=median([rows for _, _, rows in found]),
                base_cpu_us=median([base for base, _, _ in found]),
                cpu_us=median([cpu for _, cpu, _ in found]),
            )
        finally:
            spark.stop()
    shutil.rmtree(directory, ignore_errors=True)


def _alone(peer: Partibus, messages: int) -> float:
    return _cpu_us(peer, peer.queue("partitioned"), messages)


def _read(spark: SparkSession, peer: Partibus, directory: Path, messages: int) -> tuple[float, float]:
    """CPU µs of the broker per message, and rows/s that were read meanwhile."""
    target = peer.queue("partitioned")
    checkpoint = directory / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    options = {
        "connection": peer.broker.connection,
        "entity": target.address,
        "maxMessagesPerTrigger": str(ROWS_PER_S),
        "cursor": "bench",
    }
    rows = spark.readStream.format("partibus").options(**options).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="1 second").start()
    try:
        while not query.recentProgress:  # it has begun
            time.sleep(_LOOK_S)
        before, started = _rows(query), time.perf_counter()
        cpu_us = _cpu_us(peer, target, messages)
        return cpu_us, (_rows(query) - before) / (time.perf_counter() - started)
    finally:
        query.stop()


def _cpu_us(peer: Partibus, target: Target, messages: int) -> float:
    result = both(target, peer.foreign, count=messages)
    assert result.cpu_us is not None, "of our own broker it is known"
    return result.cpu_us


def _rows(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)
