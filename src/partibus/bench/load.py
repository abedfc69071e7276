"""Load generators as processes: what they are told, and what they saw.

A generator is a program that prints one line of JSON when it is done. Its own rate limits what can be measured, so
there are several processes where one is not enough, and a foreign one in C++ in the repository's `bench/`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Protocol

from partibus.errors import PartibusError


class BenchError(PartibusError):
    """A run could not be made; the text names what failed."""


class Mode(Enum):
    SEND = "send"
    RECEIVE = "receive"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One generator's task. Receiving means completing, too."""

    mode: Mode
    address: str
    count: int = 0
    """Messages over all connections; for latency rate times seconds."""
    size_bytes: int = 1024
    connections: int = 1
    rate: int = 0
    """Messages per second, for latency."""
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a generator saw. Times are Unix seconds: first message begun or come, last one answered or come."""

    messages: int
    first_s: float
    last_s: float
    latencies_us: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.last_s - self.first_s

    @property
    def rate(self) -> float:
        """Messages per second; 0 for a run too short to tell."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0


def parse_outcome(line: str) -> Outcome:
    """What a generator printed. Raises `BenchError`."""
    try:
        values = json.loads(line)
        return Outcome(
            int(values["messages"]),
            float(values["first_s"]),
            float(values["last_s"]),
            [int(value) for value in values.get("latencies_us", ())],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"a load generator printed {line[:80]!r}, not its result") from error


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """Of several generators that worked side by side."""
    return Outcome(
        sum(outcome.messages for outcome in outcomes),
        min(outcome.first_s for outcome in outcomes),
        max(outcome.last_s for outcome in outcomes),
        [value for outcome in outcomes for value in outcome.latencies_us],
    )


class Running:
    """Generator processes that were started; ends them when it is left."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def wait(self, timeout_s: float) -> Outcome:
        """Raises `BenchError` with the generator's own words when one fails, or when the time is over."""
        outcomes: list[Outcome] = []
        for process in self._processes:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                raise BenchError(f"a load generator was not done after {timeout_s:g} s; use fewer messages") from None
            if process.returncode:
                raise BenchError(err.strip().splitlines()[-1] if err.strip() else "a load generator failed")
            outcomes.append(parse_outcome(out))
        return merge(outcomes)

    def stop(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Generator(Protocol):
    """A kind of client that makes load."""

    @property
    def name(self) -> str: ...

    def start(self, job: Job) -> Running: ...


class OwnGenerator:
    """The project's own client, one process per connection."""

    name = "partibus.client"

    def __init__(self, connection: str, module: str = "partibus.bench.worker") -> None:
        """``module`` is what a process runs: another one may connect in another way."""
        self._connection = connection
        self._module = module

    def start(self, job: Job) -> Running:
        processes: list[subprocess.Popen[str]] = []
        for number in range(job.connections):
            share = job.count // job.connections + (number < job.count % job.connections)
            order = asdict(job) | {"mode": job.mode.value, "count": share, "connection": self._connection}
            process = subprocess.Popen(
                [sys.executable, "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
            processes.append(process)
            assert process.stdin is not None
            # On standard input, so that no process list shows the key.
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        _start_together(processes)
        return Running(processes)


def _start_together(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until every worker is connected, then let all of them go."""
    for process in processes:
        assert process.stdout is not None
        # A worker that failed has closed its output; `Running.wait` tells why.
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        try:
            process.stdin.write("go\n")
            process.stdin.flush()
        except BrokenPipeError:
            continue
