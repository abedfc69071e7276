"""The foreign load generators, compiled here.

`foreign/generator.cpp` uses Qpid Proton C++, `foreign/nats_generator.c` uses the C client of NATS.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from partibus.bench.load import BenchError, Job, Mode, Running

_SOURCES = Path(__file__).parent / "foreign"
KEEP_WINDOW = 200
"""Messages in flight on each connection of a generator that keeps sending, or receiving."""


def build(directory: Path) -> Path:
    """Compile the generator for AMQP 1.0 if it is missing or older than its source. Raises `BenchError`."""
    options = ("-std=c++17", "-lqpid-proton-cpp")
    return _compile("g++", "generator.cpp", directory, options, "g++ libqpid-proton-cpp12-dev libsasl2-modules")


def build_for_nats(directory: Path) -> Path:
    """Compile the generator for NATS if it is missing or older than its source. Raises `BenchError`."""
    return _compile("gcc", "nats_generator.c", directory, ("-std=gnu17", "-lnats", "-lpthread"), "gcc libnats-dev")


def _compile(compiler: str, name: str, directory: Path, options: Sequence[str], packages: str) -> Path:
    source = _SOURCES / name
    program = directory / source.stem
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    if shutil.which(compiler) is None:
        raise BenchError(f"there is no {compiler} for the load generator {name}: apt-get install {packages}")
    directory.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-Wall", "-Wextra", str(source), *options, "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
        raise BenchError(f"the load generator {name} does not compile ({first}): apt-get install {packages}")
    return program


@dataclass(frozen=True, slots=True)
class Kept:
    """The report of a generator that kept on while brokers failed."""

    messages: int
    """That were accepted, or came."""
    received: int
    """The messages that came, of a generator that passes messages through."""
    seconds: float
    refused: int
    """Messages that were refused and sent again, or whose fate the broker did not know."""
    lost_connections: int
    silences_ms: list[float]
    """The longest time without an accepted message, for each key, or for each connection that was there until the
    end."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


class Keeping:
    """A generator that keeps on; ends it when it is left."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def wait(self, timeout_s: float) -> Kept:
        """Raises `BenchError` with the generator's own words when it fails, or when the time is over."""
        try:
            out, err = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"a load generator was not done after {timeout_s:g} s") from None
        if self._process.returncode:
            raise BenchError(err.strip().splitlines()[-1] if err.strip() else "a load generator failed")
        return Kept(**json.loads(out))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


class ProtonGenerator:
    """One process with all connections: C++, so that the broker is what limits."""

    name = "qpid-proton C++"

    def __init__(
        self, program: Path, port: int, user: str, password: str, options: Mapping[Mode, Sequence[str]] | None = None
    ) -> None:
        """``options``: more of the program's options, by mode."""
        self._program = program
        self._port = port
        self._user = user
        self._password = password
        self._options = options or {}

    def with_sessions(self, count: int, *, held: bool = True) -> ProtonGenerator:
        """Messages in ``count`` sessions in turn; with ``held`` each is received on a link of its own."""
        option = ("--sessions", str(count))
        return self._with({Mode.SEND: option, Mode.RECEIVE: option if held else ()})

    def with_ids(self) -> ProtonGenerator:
        """Each message with an id of its own."""
        return self._with({Mode.SEND: ("--ids", "1")})

    def unforced(self) -> ProtonGenerator:
        """Messages that an express entity may keep in memory."""
        return self._with(dict.fromkeys((Mode.SEND, Mode.LATENCY), ("--unforced", "1")))

    def with_labels(self, count: int) -> ProtonGenerator:
        """Messages with ``count`` labels in turn."""
        return self._with({Mode.SEND: ("--labels", str(count))})

    def keep(
        self, mode: Mode, address: str, between_s: tuple[float, float], connections: int, keys: int = 0
    ) -> Keeping:
        """Send or receive from now until the second of two times, in seconds since 1970; what counts is what happens
        between them. ``keys``: partition keys in turn; 0 for none."""
        arguments = _steady(between_s, connections, KEEP_WINDOW, keys)
        return Keeping(self._run("keep-sending" if mode is Mode.SEND else "keep-receiving", address, arguments))

    def keep_passing(
        self, address: str, between_s: tuple[float, float], connections: int, window: int, keys: int
    ) -> Keeping:
        """Send and receive as `keep` does: every second connection receives.

        ``window`` messages for each connection are on their way through.
        """
        arguments = [*_steady(between_s, connections, window, keys), "--passing", "1"]
        return Keeping(self._run("keep-sending", address, arguments))

    def _with(self, options: Mapping[Mode, Sequence[str]]) -> ProtonGenerator:
        return ProtonGenerator(self._program, self._port, self._user, self._password, options)

    def start(self, job: Job) -> Running:
        arguments = ["--size", str(job.size_bytes), *self._options.get(job.mode, ())]
        if job.mode is Mode.LATENCY:
            arguments += ["--rate", str(job.rate), "--seconds", str(job.seconds)]
        else:
            arguments += ["--count", str(job.count), "--connections", str(job.connections)]
        process = self._run(job.mode.value, job.address, arguments)
        if job.mode is Mode.RECEIVE and self._options.get(job.mode):
            assert process.stdout is not None
            # Every session is held. A generator that failed has closed its output; `Running.wait` tells why.
            process.stdout.readline()
        return Running([process])

    def accept(self, address: str, count: int) -> Running:
        """The next session, one message of it, the end of the link, ``count`` times. Its latencies are those of the
        attach."""
        return Running([self._run("accept", address, ["--count", str(count)])])

    def _run(self, mode: str, address: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self._program), mode, f"127.0.0.1:{self._port}", address, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PARTIBUS_BENCH_USER": self._user, "PARTIBUS_BENCH_PASSWORD": self._password},
        )


class NatsGenerator:
    """One process with all connections, on JetStream."""

    name = "nats_generator.c"

    def __init__(self, program: Path, port: int) -> None:
        self._program = program
        self._port = port

    def declare(self, name: str) -> str:
        """Make a stream that is a work queue on files, and return its name. Raises `BenchError`."""
        process = self._run("declare", name, ())
        _, err = process.communicate()
        if process.returncode:
            raise BenchError(err.strip())
        return name

    def start(self, job: Job) -> Running:
        arguments = ["--size", str(job.size_bytes)]
        if job.mode is Mode.LATENCY:
            arguments += ["--rate", str(job.rate), "--seconds", str(job.seconds)]
        else:
            arguments += ["--count", str(job.count), "--connections", str(job.connections)]
        return Running([self._run(job.mode.value, job.address, arguments)])

    def _run(self, mode: str, name: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
        command = [str(self._program), mode, f"127.0.0.1:{self._port}", name, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _steady(between_s: tuple[float, float], connections: int, window: int, keys: int) -> list[str]:
    from_s, until_s = between_s
    arguments = ["--from", str(int(from_s * 1000)), "--until", str(int(until_s * 1000))]
    arguments += ["--connections", str(connections), "--window", str(window)]
    return [*arguments, "--keys", str(keys)] if keys else arguments
