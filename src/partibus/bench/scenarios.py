"""The scenarios, each a function that makes one run and returns one result; and the broker of a measurement."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from partibus.bench.load import BenchError, Generator, Job, Mode
from partibus.bench.measures import cpu_s, cpu_s_when_quiet, percentiles

_START_S: Final = 30.0
_STOP_S: Final = 30.0
_POLL_S: Final = 0.002


class TemporaryBroker:
    """`partibus serve` on free ports with its data in ``directory``, which stays. Stopped when it is left."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
    ) -> None:
        """``environment``: more variables than this process has. ``arguments``: more flags of ``serve``."""
        self.directory = directory
        self._environment = environment or {}
        self._arguments = list(arguments)
        self._ready_file = directory / "ready.json"
        self._log = directory / "serve.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: dict[str, Any] = {}
        self.start_s = 0.0
        """Seconds from the last start of the process to readiness."""

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        return int(self._ready["pid"])

    @property
    def broker_pids(self) -> list[int]:
        """The process ids of several brokers in the order of their starts; ``pid`` is their supervisor's then."""
        return [int(broker["pid"]) for broker in self._ready["brokers"]]

    @property
    def connection(self) -> str:
        """The connection string."""
        return str(self._ready["connection_string"])

    @property
    def amqp_port(self) -> int:
        """The port for AMQP."""
        return int(self._ready["amqp_port"])

    @property
    def ready(self) -> Mapping[str, Any]:
        """The content of the ready file."""
        return self._ready

    @property
    def tls_ports(self) -> tuple[int, int]:
        """The TLS ports of AMQP and of HTTP, of a broker that was told to serve over TLS."""
        return int(self._ready["amqps_port"]), int(self._ready["https_port"])

    def start(self) -> None:
        """Start the broker. Raises `BenchError` with its error output if it does not become ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        arguments = ["--data", str(self.directory / "data"), "--amqp-port", "0", "--http-port", "0"]
        arguments += ["--ready-file", str(self._ready_file), *self._arguments]
        started = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from partibus.cli.main import main; main()", "serve", *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() - started > _START_S:
                words = self._log.read_text(errors="replace").strip().splitlines()
                self.stop()
                raise BenchError(f"the broker did not start: {words[-1] if words else 'it said nothing'}")
            time.sleep(_POLL_S)
        self.start_s = time.monotonic() - started

    def _is_ready(self) -> bool:
        """Tell whether the ready file is complete: it may exist before."""
        try:
            self._ready = json.loads(self._ready_file.read_text())
        except (OSError, ValueError):
            return False
        return True

    def stop(self) -> None:
        """Stop the broker as an operator would; kill it if it needs too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


TIMEOUT_S = 180.0
"""The time limit of one run."""


class Target(NamedTuple):
    """A queue of a broker."""

    broker: str
    queue: str
    """The words ``plain``, ``partitioned``."""
    address: str
    pid: int | None
    """The broker's process; None where it is not on this machine, and nothing is known about its CPU."""
    subscription: str = ""
    """The subscription of a topic from which messages to ``address`` are received."""

    @property
    def receive_address(self) -> str:
        """The address to receive from."""
        return self.subscription or self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run. A field is None where it was not measured."""

    scenario: str
    broker: str
    queue: str
    generator: str
    size_bytes: int
    connections: int
    messages: int
    send_per_s: float | None = None
    receive_per_s: float | None = None
    cpu_us: float | None = None
    """Server CPU (user and system) per message."""
    gil_us: float | None = None
    """The part of the wall time per message in which a thread of the server held the GIL."""
    latency_ms: dict[str, float] | None = None
    """End to end: p50, p90, p99, p999, most."""

    def as_dict(self) -> dict[str, object]:
        """Return the measured fields, rounded to their precision."""
        return {key: _rounded(value) for key, value in asdict(self).items() if value is not None}


def send(target: Target, generator: Generator, *, count: int, size_bytes: int = 1024, connections: int = 1) -> Result:
    """Send into the queue; the messages stay there."""
    job = Job(mode=Mode.SEND, address=target.address, count=count, size_bytes=size_bytes, connections=connections)
    cpu_us = _cpu_per_message(target, count)
    with generator.start(job) as running:
        outcome = running.wait(TIMEOUT_S)
    return _result("send", target, generator, job, send_per_s=outcome.rate, cpu_us=cpu_us())


def receive(
    target: Target, generator: Generator, *, count: int, size_bytes: int = 1024, connections: int = 1
) -> Result:
    """Receive and settle the messages in the queue; ``size_bytes`` only describes them."""
    job = Job(
        mode=Mode.RECEIVE, address=target.receive_address, count=count, size_bytes=size_bytes, connections=connections
    )
    cpu_us = _cpu_per_message(target, count)
    with generator.start(job) as running:
        outcome = running.wait(TIMEOUT_S)
    return _result("receive", target, generator, job, receive_per_s=outcome.rate, cpu_us=cpu_us())


def both(target: Target, generator: Generator, *, count: int, size_bytes: int = 1024, connections: int = 1) -> Result:
    """Send and receive at once, ``connections`` each; CPU is per message that went through."""
    job = Job(mode=Mode.SEND, address=target.address, count=count, size_bytes=size_bytes, connections=connections)
    receiving = Job(
        mode=Mode.RECEIVE, address=target.receive_address, count=count, size_bytes=size_bytes, connections=connections
    )
    cpu_us = _cpu_per_message(target, count)
    with generator.start(receiving) as receiver, generator.start(job) as sender:
        sent = sender.wait(TIMEOUT_S)
        received = receiver.wait(TIMEOUT_S)
    return _result("both", target, generator, job, send_per_s=sent.rate, receive_per_s=received.rate, cpu_us=cpu_us())


def latency(target: Target, generator: Generator, *, rate: int, seconds: int, size_bytes: int = 1024) -> Result:
    """End to end at a fixed rate."""
    job = Job(
        mode=Mode.LATENCY,
        address=target.address,
        count=rate * seconds,
        size_bytes=size_bytes,
        rate=rate,
        seconds=seconds,
    )
    cpu_us = _cpu_per_message(target, job.count)
    with generator.start(job) as running:
        outcome = running.wait(TIMEOUT_S)
    found = percentiles([value / 1000 for value in outcome.latencies_us])
    return _result("latency", target, generator, job, cpu_us=cpu_us(), latency_ms=found._asdict())


def _cpu_per_message(target: Target, count: int) -> Callable[[], float | None]:
    """Return a function for after the run; call this one before it."""
    pid = target.pid
    if pid is None:
        return lambda: None
    before = cpu_s(pid)
    return lambda: (cpu_s_when_quiet(pid) - before) / count * 1e6


def _result(
    scenario: str,
    target: Target,
    generator: Generator,
    job: Job,
    *,
    send_per_s: float | None = None,
    receive_per_s: float | None = None,
    cpu_us: float | None = None,
    latency_ms: dict[str, float] | None = None,
) -> Result:
    return Result(
        scenario=scenario,
        broker=target.broker,
        queue=target.queue,
        generator=generator.name,
        size_bytes=job.size_bytes,
        connections=job.connections,
        messages=job.count,
        send_per_s=send_per_s,
        receive_per_s=receive_per_s,
        cpu_us=cpu_us,
        latency_ms=latency_ms,
    )


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, float):
        return round(value) if abs(value) >= 1000 else round(value, 2)
    return value
