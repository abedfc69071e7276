"""A standalone Spark cluster on this machine, from the pip package, for tests that kill parts of it.

Every process leads a process group of its own, so that killing a worker takes its executors along and nothing else.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.error import URLError
from urllib.request import urlopen

from partibus.spark.java import find_java
from partibus.testing.broker_process import reserve_port

HOST = "127.0.0.1"
READY_SECONDS = 60
_LOOK_SECONDS = 0.1
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_DAEMON_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


class Worker(NamedTuple):
    """One worker process."""

    process: subprocess.Popen[bytes]
    folder: Path
    """Where its executors run and log."""


class SparkCluster:
    """Started by entering the context; ``master`` is its URL."""

    def __init__(self, folder: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None) -> None:
        """``folder`` gets logs and what executors write. ``environment`` is added to that of the processes: PYTHONPATH,
        say, so that executors find what is not installed."""
        self._folder = folder
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: list[Worker] = []
        self._port, self._web_port = reserve_port(self), reserve_port(self)
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(_spark_home()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
            **(environment or {}),
        }

    @property
    def master(self) -> str:
        """Return the address that a session takes for ``master``."""
        return f"spark://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start(_MASTER, "--host", HOST, "--port", str(self._port), "--webui-port", str(self._web_port))
            self._wait(lambda state: state is not None, "the master")
            for _ in range(self._count):
                self.add_worker()
            self.wait_for_workers(self._count)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def add_worker(self) -> Worker:
        """Start one more; `wait_for_workers` says when the master knows it."""
        folder = self._folder / f"worker-{len(self._workers)}"
        process = self._start(
            _WORKER, "--host", HOST, "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(folder),
            self.master,
        )  # fmt: skip
        worker = Worker(process, folder)
        self._workers.append(worker)
        return worker

    def wait_for_workers(self, count: int) -> None:
        """Wait until the master counts so many alive. Raises TimeoutError."""
        self._wait(lambda state: state is not None and state["aliveworkers"] >= count, f"{count} workers")

    def executors(self) -> list[int]:
        """Process ids of the executors' Java processes, of all workers."""
        children = [child for worker in self._workers for child in children_of(worker.process.pid)]
        return sorted(child for child in children if b"CoarseGrainedExecutorBackend" in _command_line(child))

    def stop(self) -> None:
        """Idempotent; takes executors along."""
        for process in reversed(self._processes):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
        self._processes.clear()
        self._workers.clear()

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "daemons.log").open("ab") as log:
            process = subprocess.Popen(
                [_spark_home() / "bin" / "spark-class", name, *arguments],
                stdout=log, stderr=log, env=self._environment, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _wait(self, holds: Callable[[dict[str, Any] | None], bool], what: str) -> None:
        for _ in range(int(READY_SECONDS / _LOOK_SECONDS)):
            if holds(self._state()):
                return
            with suppress(subprocess.TimeoutExpired):
                self._processes[-1].wait(_LOOK_SECONDS)
                break  # it ended: nothing will come up
        log = (self._folder / "daemons.log").read_text(errors="replace")[-4000:]
        raise TimeoutError(f"{what} did not come up within {READY_SECONDS} s\n{log}")

    def _state(self) -> dict[str, Any] | None:
        """Return the master's report on the cluster; None while it does not answer."""
        try:
            with urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except (OSError, URLError, ValueError):
            return None


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LookupError("no Spark: install partibus[spark]")
    return Path(spec.origin).parent


def children_of(process_id: int) -> list[int]:
    """Process ids of the children of a process."""
    try:
        threads = list(Path(f"/proc/{process_id}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []


def _command_line(process_id: int) -> bytes:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return b""
