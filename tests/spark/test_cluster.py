"""Two streams on a standalone cluster, one into Parquet files and one into another queue, while an executor, the broker
and the driver are killed: both have each message once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from partibus.client.extensions.ranges import open_ranges
from partibus.client.messages import OutgoingMessage
from partibus.routing.slots import partition_for_key
from partibus.spark.programs import worker_python
from partibus.spark.tail import complete_tail
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect
from tests.kit.spark_cluster import SparkCluster
from tests.spark.conftest import CONFIG

pytestmark = [pytest.mark.row("D13"), pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
PARTITIONS = (0, 6, 15)
"""Few have messages, so that micro-batches have few tasks."""
KEYS = [key for key in (f"key-{number}" for number in range(100)) if partition_for_key(key, 16) in PARTITIONS]
LIMIT = 200
PART = 2 * LIMIT
"""Messages that are sent at a time, before each kill: what is killed then has some micro-batches to do."""
EVENTUALLY_S = 90


class Pipeline:
    """A queue, the driver of two streams from it, and what was sent."""

    def __init__(self, folder: Path, cluster: SparkCluster, broker: BrokerProcess) -> None:
        self.cluster, self.broker = cluster, broker
        self.checkpoints = folder / "checkpoints"
        self._log = folder / "driver.log"
        self.source, self.copy = (broker.create_queue(name, EnablePartitioning=True) for name in ("source", "copy"))
        self.given = {
            "master": cluster.master,
            "connection": broker.connection_string,
            "source": self.source,
            "copy": self.copy,
            "files": str(folder / "files"),
            "checkpoints": str(self.checkpoints),
            "limit": str(LIMIT),
        }
        self.config = {
            # Not with adaptive plans: Spark 4.3 has failed to serialize the tasks of two queries that began at the
            # same moment.
            **CONFIG,
            "spark.executor.extraJavaOptions": CONFIG["spark.driver.extraJavaOptions"],
            "spark.executor.memory": "512m",
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder),
        }
        self.sent: list[str] = []
        self.driver: subprocess.Popen[str] | None = None

    def start_driver(self) -> None:
        """Start a driver, which gets an executor of each worker."""
        given = {**self.given, "config": self.config}
        with self._log.open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, str(PROJECT / "tests/spark/cluster_driver.py"), json.dumps(given)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                # All of the cluster is on this machine; the executors use the driver's.
                env={**os.environ, "PYSPARK_PYTHON": worker_python()},
            )  # fmt: skip
        what, _, found = self._answer().rpartition(" ")
        assert what == "ready on", what
        assert int(found) > 0, "tasks run in the driver, not on the cluster"

    def kill_driver(self) -> None:
        """Kill the driver with its JVM and its Python planners, at one stroke."""
        driver = self._running()
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        for stream in (driver.stdin, driver.stdout):
            assert stream is not None
            stream.close()
        self.driver = None

    def stop_driver(self) -> None:
        driver = self._running()
        driver.communicate(timeout=EVENTUALLY_S)
        assert driver.returncode == 0, self._failed("driver")
        self.driver = None

    def send_part(self) -> int:
        """More messages, the keys in turn; answers how many were sent before."""
        before = len(self.sent)
        numbers = range(before, before + PART)
        with connect(self.broker.connection_string) as client:
            client.sender(self.source).send(
                [
                    OutgoingMessage(body=b"body", message_id=f"{n:06}", partition_key=KEYS[n % len(KEYS)])
                    for n in numbers
                ]
            )
        self.sent += [f"{number:06}" for number in numbers]
        return before

    def wait_for_more_than(self, count: int) -> None:
        """Wait until more messages than that have reached the copy."""
        with closing(open_ranges(self.broker.connection_string, self.copy)) as ranges:

            def copied() -> bool:
                assert self._running().poll() is None, "the driver has ended"
                return sum(one.messages for one in ranges.map().partitions) > count

            try:
                eventually(f"more than {count} messages are copied", copied)
            except AssertionError as error:
                raise AssertionError(self._failed(f"{error}; driver")) from error

    def settled(self) -> dict[str, Any]:
        """Return the content of the sinks when the streams have read all that was sent."""
        driver = self._running()
        assert driver.stdin is not None
        driver.stdin.write("\n")
        driver.stdin.flush()
        found: dict[str, Any] = json.loads(self._answer())
        return found

    def check(self) -> None:
        """Both sinks have each message once, the copy those of a key in their order."""
        found = self.settled()
        assert Counter(found["files"]) == Counter(self.sent)
        assert Counter(id_ for *_, id_ in found["copy"]) == Counter(self.sent)
        by_key: defaultdict[str, list[str]] = defaultdict(list)
        for _, _, key, id_ in sorted(found["copy"]):
            by_key[key].append(id_)
        assert all(ids == sorted(ids) for ids in by_key.values())

    def _running(self) -> subprocess.Popen[str]:
        assert self.driver is not None, "no driver runs"
        return self.driver

    def _answer(self) -> str:
        driver = self._running()
        assert driver.stdout is not None
        line = driver.stdout.readline()
        assert line, self._failed("driver")
        return line.rstrip("\n")

    def _failed(self, what: str) -> str:
        return f"{what}; its log:\n{self._log.read_text(errors='replace')[-6000:]}"


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.soak)])
def pipeline(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    """Start two streams on so many workers. Each process of Java costs 5 to 12 s of processor time."""
    folder, workers = tmp_path, request.param
    # As on machines where the project is not installed, but brought along:
    environment = {"PYTHONPATH": str(PROJECT / "src")}
    with (
        BrokerProcess(folder) as broker,
        SparkCluster(folder / "spark", workers=workers, environment=environment) as cluster,
    ):
        pipeline = Pipeline(folder, cluster, broker)
        pipeline.start_driver()
        yield pipeline
        if pipeline.driver is not None:
            pipeline.kill_driver()


def kill_executor(pipeline: Pipeline) -> None:
    os.kill(pipeline.cluster.executors()[0], signal.SIGKILL)


def kill_broker(pipeline: Pipeline) -> None:
    pipeline.broker.kill()
    pipeline.broker.start()


def kill_driver(pipeline: Pipeline) -> None:
    pipeline.kill_driver()
    pipeline.start_driver()


def test_each_message_is_in_both_sinks_once_whatever_is_killed(pipeline: Pipeline) -> None:
    """One after the other, when the streams have begun with what was sent last; in the end the consumed queue is
    empty."""
    for kill in (kill_executor, kill_broker, kill_driver):
        pipeline.wait_for_more_than(pipeline.send_part())
        kill(pipeline)
    pipeline.check()
    pipeline.stop_driver()
    source = {"connection": pipeline.broker.connection_string, "entity": pipeline.source, "cursor": "files"}
    complete_tail(pipeline.checkpoints / "files", {**source, "mode": "consume"})
    assert pipeline.broker.describe(pipeline.source).messages == 0
