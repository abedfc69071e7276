"""Spark reads a queue: a batch, a capture to Parquet, small micro-batches, and a query with nothing to do.

Everything shares two cores: the broker, Spark's Java process and its Python workers, which is how a laptop is.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.brokers import Partibus, partibus
from partibus.bench.measures import median
from partibus.client.messages import OutgoingMessage
from partibus.spark.session import make_session, silence_query_context
from tests.kit.plain_client import connect

MASTER = "local[2]"
CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}
SIZE = 200
PROPERTIES: dict[str, object] = {"carrier": "UA", "delay": 11.5, "origin": "EWR", "late": True}
"""And the message's number."""
KEYS = 1_000
_BATCH = 500
"""Messages of one transfer while the queue is filled."""
_LEAST = {"includeProperties": "false"}
MICRO_BATCHES = 20
_REST_S = 5.0
"""The pause after the last micro-batch: Java still compiles what it has run."""
_IDLE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Messages of 200 bytes with five application properties, warm; medians."""

    scenario: str
    """``batch``, ``parquet`` (Spark's own scan of the same columns) or ``capture`` (a stream into Parquet files)."""
    columns: str
    """``all``, or ``none``: those that are there with includeProperties=false."""
    messages: int
    rows_per_s: float
    ratio: float
    """The ratio to the scan of Parquet files in the same run."""
    cpu_us: float
    """Per message, of everything: Spark with its Python processes, and the broker."""
    broker_cpu_us: float
    """CPU time of the broker alone; about 0 where it is not asked."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """A stream of 4 partitions with 10 messages of each in a micro-batch, into nothing; then one without messages."""

    scenario: str = "micro-batch"
    batches: int
    median_ms: float
    longest_ms: float
    idle_cpu_share: float
    """The share of a core that Spark, its Python processes and the broker use together, while nothing comes."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_spark(directory: Path, program: Path, *, messages: int, rounds: int) -> Iterator[Read | Micro]:
    """A queue of so many messages is read whole, with all columns and with few."""
    with partibus(directory / "broker", program) as peer:
        spark = make_session(
            "bench", MASTER, {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        )
        spark.sparkContext.setLogLevel("OFF")
        silence_query_context()
        try:
            queue = peer.queue("partitioned").address
            _fill(peer, queue, messages)
            for name, options in (("all", {}), ("none", _LEAST)):
                yield from _reads(Runs(spark, peer, queue, directory), name, options, messages, rounds)
            yield _micro(spark, peer, directory)
        finally:
            spark.stop()
    shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Runs:
    """The session, the broker and the directory of the runs."""

    spark: SparkSession
    peer: Partibus
    queue: str
    directory: Path

    def table(self, options: dict[str, str]) -> DataFrame:
        return self.spark.read.format("partibus").options(**self.where, **options).load()

    def stream(self, options: dict[str, str]) -> DataFrame:
        given = {"failOnDataLoss": "false", **options}
        return self.spark.readStream.format("partibus").options(**self.where, **given).load()

    @property
    def where(self) -> dict[str, str]:
        return {"connection": self.peer.broker.connection, "entity": self.queue}

    def folder(self, name: str) -> str:
        """A new, empty one."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        return str(path)


def _reads(runs: Runs, columns: str, options: dict[str, str], messages: int, rounds: int) -> Iterator[Read]:
    files = runs.folder("parquet")
    runs.table(options).write.mode("overwrite").parquet(files)

    def batch() -> None:
        runs.table(options).write.format("noop").mode("overwrite").save()

    def parquet() -> None:
        runs.spark.read.parquet(files).write.format("noop").mode("overwrite").save()

    def capture() -> None:
        writer = runs.stream(options).writeStream.format("parquet").option("path", runs.folder("captured"))
        writer.option("checkpointLocation", runs.folder("checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()

    scans = [_timed(parquet, runs)[0] for _ in range(rounds + 1)][1:]
    for scenario, run in (("batch", batch), ("parquet", parquet), ("capture", capture)):
        found = [_timed(run, runs) for _ in range(rounds + 1)][1:]
        seconds = median([one[0] for one in found])
        yield Read(
            scenario=scenario,
            columns=columns,
            messages=messages,
            rows_per_s=messages / seconds,
            ratio=median(scans) / seconds,
            cpu_us=median([one[1] for one in found]) / messages * 1e6,
            broker_cpu_us=median([one[2] for one in found]) / messages * 1e6,
        )


def _timed(act: Callable[[], None], runs: Runs) -> tuple[float, float, float]:
    """Seconds; CPU seconds of everything; those of the broker."""
    broker = runs.peer.broker.pid
    spent, spent_broker, started = _spark_cpu_s(runs.spark), _cpu_s(broker), time.perf_counter()
    act()
    took, broker_s = time.perf_counter() - started, _cpu_s(broker) - spent_broker
    return took, _spark_cpu_s(runs.spark) - spent + broker_s, broker_s


def _micro(spark: SparkSession, peer: Partibus, directory: Path) -> Micro:
    queue = peer.queue("partitioned").address
    keys = _keys_of_partitions(4)
    runs = Runs(spark, peer, queue, directory)
    query = runs.stream({}).writeStream.format("noop").option("checkpointLocation", runs.folder("checkpoint")).start()
    try:
        with connect(peer.broker.connection) as client:
            sender = client.sender(queue)
            for _ in range(MICRO_BATCHES):
                before = _batches(query)
                sender.send_batch([_message(0, key) for key in keys for _ in range(10)])
                while _batches(query) == before:
                    time.sleep(0.01)
        took = [
            float(progress["durationMs"]["triggerExecution"] - progress["durationMs"].get("latestOffset", 0))
            for progress in query.recentProgress
            if progress["numInputRows"]
        ][3:]
        time.sleep(_REST_S)
        before_s = _spark_cpu_s(spark) + _cpu_s(peer.broker.pid)
        time.sleep(_IDLE_S)
        idle = (_spark_cpu_s(spark) + _cpu_s(peer.broker.pid) - before_s) / _IDLE_S
    finally:
        query.stop()
    return Micro(batches=len(took), median_ms=median(took), longest_ms=max(took), idle_cpu_share=idle)


def _batches(query: StreamingQuery) -> int:
    return sum(1 for progress in query.recentProgress if progress["numInputRows"])


def _keys_of_partitions(count: int) -> list[str]:
    """A key of each of the first partitions."""
    from partibus.routing.slots import partition_for_key

    found: dict[int, str] = {}
    for number in range(10_000):
        found.setdefault(partition_for_key(f"key-{number}", 16), f"key-{number}")
    return [found[partition_id] for partition_id in range(count)]


def _fill(peer: Partibus, queue: str, messages: int) -> None:
    with connect(peer.broker.connection) as client:
        sender = client.sender(queue)
        for start in range(0, messages, _BATCH):
            # A batch goes to one partition, by the key of its first message.
            key = f"key-{start // _BATCH % KEYS}"
            sender.send_batch([_message(start + place, key) for place in range(min(_BATCH, messages - start))])


def _message(number: int, key: str) -> OutgoingMessage:
    return OutgoingMessage(
        body=b"x" * SIZE,
        message_id=f"id-{number}",
        partition_key=key,
        application_properties={**PROPERTIES, "n": number},
    )


def _cpu_s(pid: int) -> float:
    """User and system time of a process and of those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / 100


def _spark_cpu_s(spark: SparkSession) -> float:
    """Return the CPU time of Spark's Java process and every process below it."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "a session that was started here has one"
    seconds, left = 0.0, [int(gateway.proc.pid)]
    while left:
        pid = left.pop()
        seconds += _cpu_s(pid)
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            left += map(int, children.read_text().split())
    return seconds
