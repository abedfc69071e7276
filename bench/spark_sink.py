"""Spark writes to a queue: rows that are named by a column and stored once, and rows that are stored at least once.

Everything shares two cores, as in `bench.spark`: the broker, Spark's Java process and its Python workers.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.brokers import partibus
from bench.spark import CONFIG, MASTER, SIZE
from partibus.bench.measures import cpu_s, median
from partibus.spark.session import make_session, silence_query_context

KEYS = 1_000
TASKS = 4
NAMINGS = ("ids", "none")
_WARM_UP = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows of 200 bytes with five application properties, warm; medians. Each write is durable when it ends."""

    naming: str
    keyed: bool
    rows: int
    rows_per_s: float
    broker_cpu_us: float
    """Per row."""
    scenario: str = "write"

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_spark_sink(directory: Path, program: Path, *, rows: int, rounds: int) -> Iterator[Write]:
    """The same rows go to new queues."""
    with partibus(directory / "broker", program) as peer:
        spark = make_session("bench", MASTER, CONFIG)
        spark.sparkContext.setLogLevel("OFF")
        silence_query_context()
        try:
            warm_up = _rows(spark, _WARM_UP)
            _write(warm_up, peer.broker.connection, peer.queue("partitioned").address, "ids")
            table = _rows(spark, rows)
            for naming in NAMINGS:
                for keyed in (True, False):
                    found = []
                    for _ in range(rounds):
                        queue = peer.queue("partitioned")
                        spent_s, started = cpu_s(peer.broker.pid), time.perf_counter()
                        chosen = table if keyed else table.drop("partition_key")
                        _write(chosen, peer.broker.connection, queue.address, naming)
                        found.append((time.perf_counter() - started, cpu_s(peer.broker.pid) - spent_s))
                        peer.delete(queue)
                    yield Write(
                        naming=naming,
                        keyed=keyed,
                        rows=rows,
                        rows_per_s=rows / median([took for took, _ in found]),
                        broker_cpu_us=median([cpu for _, cpu in found]) / rows * 1e6,
                    )
        finally:
            spark.stop()
    shutil.rmtree(directory, ignore_errors=True)


def _rows(spark: SparkSession, count: int) -> DataFrame:
    properties = ", ".join(f"'{name}', string(id % {n})" for n, name in enumerate(("a", "b", "c", "d", "e"), 3))
    return spark.range(0, count, numPartitions=TASKS).selectExpr(
        "id",
        f"lpad(string(id), {SIZE}, 'x') AS body",
        f"concat('key-', id % {KEYS}) AS partition_key",
        f"map({properties}) AS application_properties",
    )


def _write(table: DataFrame, connection: str, entity: str, naming: str) -> None:
    named = {"idColumn": "id"} if naming == "ids" else {}
    chosen = table if named else table.drop("id")
    options = {"connection": connection, "entity": entity, "keyOrder": "ignore", "naming": naming, **named}
    chosen.write.format("partibus").options(**options).mode("append").save()
