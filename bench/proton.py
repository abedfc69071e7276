"""The foreign load generator: `foreign/generator.cpp`, compiled here against Qpid Proton C++."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from partibus.bench.load import BenchError, Job, Mode, Running

SOURCE = Path(__file__).parent / "foreign" / "generator.cpp"
PACKAGES = "g++ libqpid-proton-cpp12-dev libsasl2-modules"


def build(directory: Path) -> Path:
    """Compile if the program is missing or older than its source. Raises `BenchError` with the packages it needs."""
    program = directory / "generator"
    if program.exists() and program.stat().st_mtime >= SOURCE.stat().st_mtime:
        return program
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise BenchError(f"there is no C++ compiler for the foreign load generator: apt-get install {PACKAGES}")
    directory.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-std=c++17", "-Wall", "-Wextra", str(SOURCE), "-lqpid-proton-cpp", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
        raise BenchError(f"the foreign load generator does not compile ({first}): apt-get install {PACKAGES}")
    return program


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
