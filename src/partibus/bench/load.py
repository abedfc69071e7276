"""Load generators as processes: their jobs and their results.

A generator is a program that prints one line of JSON when it has finished. Its own rate limits the measurable rate, so
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
    """The operation of a generator."""

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
    """The result of a generator.

    Times are Unix seconds: when the first message was begun or received, and when the last one was answered or
    received.
    """

    messages: int
    first_s: float
    last_s: float
    latencies_us: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The seconds between the first and the last message."""
        return self.last_s - self.first_s

    @property
    def rate(self) -> float:
        """Messages per second; 0 for a run too short to tell."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0


def parse_outcome(line: str) -> Outcome:
    """Parse the output of a generator. Raises `BenchError`."""
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
    """Return the sum of the results of several generators that worked side by side."""
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
        """Wait for the result.

        Raises `BenchError` with the generator's error output when it fails or takes too long.
        """
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
    def name(self) -> str:
        """The name of the client, for results."""
        ...

    def start(self, job: Job) -> Running:
        """Start the processes for a job."""
        ...


class OwnGenerator:
    """The project's own client, one process per connection."""

    name = "partibus.client"

    def __init__(self, connection: str, module: str = "partibus.bench.worker") -> None:
        """Start processes of ``module``; another module may connect in another way."""
        self._connection = connection
        self._module = module

    def start(self, job: Job) -> Running:
        """Start a process for each connection of a job."""
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
