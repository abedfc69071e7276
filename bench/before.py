"""Figures before and after: brokers from two states of the sources, in one run, by the same clients."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from bench.brokers import Partibus, attach
from bench.pairs import Pairs, Side, compare
from partibus.bench.load import BenchError
from partibus.bench.scenarios import TemporaryBroker

FOUNDATION = "9ad26a6"
"""The last commit of the foundation: plain and partitioned queues without sessions, schedules and duplicate
detection."""
ONE_BROKER = "3d91952"
"""The last commit without several brokers of one namespace at work together, stores in PostgreSQL, topics and
forwarding."""

_ROOT = Path(__file__).parents[1]


def measure_before(
    directory: Path, program: Path, *, pairs: int, count: int, what: str = "foundation", commit: str = FOUNDATION
) -> Iterator[Pairs]:
    """Plain and partitioned queue, one connection; ``what`` the state of ``commit`` is called."""
    shutil.rmtree(directory, ignore_errors=True)
    sources = check_out(commit, directory / "sources")
    with (
        TemporaryBroker(directory / "before", {"PYTHONPATH": str(sources)}) as old,
        TemporaryBroker(directory / "after") as new,
    ):
        before, after = attach(old, program), attach(new, program)
        for kind in ("plain", "partitioned"):
            yield from compare(what, kind, _side(before, kind), _side(after, kind), pairs=pairs, count=count)
    shutil.rmtree(directory)


def check_out(commit: str, directory: Path) -> Path:
    """The folder with the packages of a commit, for PYTHONPATH. Raises `BenchError`."""
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), "archive", commit, "src"], capture_output=True, check=False)
    except OSError as error:
        raise BenchError(f"git can't be run, and without it there is no state before: {error}") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()
        raise BenchError(f"commit {commit} is not in this repository ({words}): fetch its whole history")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"


def _side(peer: Partibus, kind: str) -> Side:
    return Side(lambda: peer.queue(kind), peer.foreign)
