"""The foreign load generator: `foreign/generator.cpp`, compiled here against Qpid Proton C++."""

from __future__ import annotations

import os
import shutil
import subprocess
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

    def __init__(self, program: Path, port: int, user: str, password: str) -> None:
        self._program = program
        self._port = port
        self._environment = os.environ | {"PARTIBUS_BENCH_USER": user, "PARTIBUS_BENCH_PASSWORD": password}

    def start(self, job: Job) -> Running:
        command = [str(self._program), job.mode.value, f"127.0.0.1:{self._port}", job.address]
        command += ["--size", str(job.size_bytes)]
        if job.mode is Mode.LATENCY:
            command += ["--rate", str(job.rate), "--seconds", str(job.seconds)]
        else:
            command += ["--count", str(job.count), "--connections", str(job.connections)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._environment
        )
        return Running([process])
