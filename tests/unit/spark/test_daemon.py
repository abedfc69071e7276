"""The process from which Spark's Python processes are forked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from partibus.spark.daemon import main, other_threads


def test_what_is_imported_starts_no_thread_that_a_fork_would_be_wrong_beside() -> None:
    program = (
        "from importlib import import_module\n"
        "from partibus.spark import daemon\n"
        "for name in daemon.IMPORTED: import_module(name)\n"
        "print(daemon.other_threads())"
    )
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_beside_a_thread_it_becomes_pysparks_own_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Replaced(Exception):
        """An exec does not return."""

    def execv(program: str, arguments: list[str]) -> None:
        started.append(arguments)
        raise Replaced

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "argv", ["daemon", "pyspark.worker"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert other_threads(), f"of {list(Path('/proc/self/task').iterdir())}"
        with pytest.raises(Replaced):
            main()
    finally:
        over.set()
        thread.join()
    assert started == [[sys.executable, "-m", "pyspark.daemon", "pyspark.worker"]]


_FRAME_BYTES, _COPIES, _ROUNDS = 5 << 20, 3, 20


def test_memory_of_frames_that_come_and_go_is_not_cleared_anew_each_time() -> None:
    program = (
        "import resource\n"
        "from partibus.spark.daemon import keep_memory\n"
        "def come_and_go():\n"
        f"    frames = [b'x' * {_FRAME_BYTES} for _ in range({_COPIES})]\n"
        "kept = keep_memory()\n"
        "come_and_go()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        f"for _ in range({_ROUNDS}): come_and_go()\n"
        "print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kept, faults = found.stdout.split()
    if kept == "False":
        pytest.skip("another C library than GNU's")
    touched = _ROUNDS * _COPIES * _FRAME_BYTES // os.sysconf("SC_PAGESIZE")
    assert int(faults) < touched / 10, f"{faults} pages of {touched} were new"
