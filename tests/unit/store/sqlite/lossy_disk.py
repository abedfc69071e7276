"""Stores on a disk whose syncs fail, and what is left of them after a loss of power: see ``lossy_disk.c``.

Run as a program, this module is the process that uses a store there: its arguments are a directory, the file of faults
and a plan. It prints the number of each commit that was acknowledged.

```text
commit:7   commit message 7           random:S,A,B   commits A to B, with faults drawn from the seed S
fail:P*N   N syncs of a file fail     copy           make a checkpoint
hold       begin to read              release        end that
trusting, checkpoints_go_on           plant a bug
```
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from partibus.partition.protocol.ports import StoreError
from partibus.store.sqlite import checkpoint, writer
from partibus.store.sqlite.sql import connect, connect_reader
from tests.contract.stores import complete, enqueued
from tests.unit.store.sqlite.places import SETTINGS, open_store

ROOT = Path(__file__).parents[4]
LOG = "-wal"
DATABASE = ".db"


class LossyDisk:
    """A directory of this disk."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._library = library
        self.cached = folder / "cached"
        """The directory that processes see as long as the power is on."""
        self.device = folder / "device"
        self.faults = folder / "faults"
        self.cached.mkdir()
        self.device.mkdir()

    def run(self, *plan: str, program: Sequence[str] = ("-m", __name__), seed: int | None = None) -> list[int]:
        """Have a process go through a plan; the numbers that it printed. ``seed``: failed syncs have brought some pages
        to the device."""
        environment = os.environ | {
            "LD_PRELOAD": str(self._library),
            "LOSSY_ROOT": str(self.cached),
            "LOSSY_DEVICE": str(self.device),
            "LOSSY_FAULTS": str(self.faults),
        }
        if seed is not None:
            environment["LOSSY_SEED"] = str(seed)
        command = [sys.executable, *program, str(self.cached), str(self.faults), *plan]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return [int(line) for line in done.stdout.split()]

    def lose_power(self) -> Path:
        """Lose power; return the directory of the device."""
        shutil.rmtree(self.cached)
        return self.device


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk as a library to be loaded before others."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("a disk whose syncs fail is a library that Linux loads first: it needs a C compiler (cc)")
    built = tmp_path_factory.mktemp("lossy") / "lossy_disk.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, source, "-ldl", "-lpthread"], check=True)
    return built


@pytest.fixture
def disk(library: Path, tmp_path: Path) -> LossyDisk:
    return LossyDisk(library, tmp_path)


def trusting() -> None:
    """Plant the bug: what the cache has is taken for what the disk has."""
    _replace(writer, "rewrite", lambda *_: None)


def checkpoints_go_on() -> None:
    """Plant the bug: a checkpoint takes for written what one before it has copied, whose sync failed."""

    def close(self: writer.Writer, *, keep_log: bool) -> None:
        self.connection.close()
        os.close(self._descriptor)

    _replace(checkpoint, "is_failed_sync", lambda _: False)
    _replace(writer.Writer, "close", close)


def _replace(owner: object, name: str, by: object) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, by)


PLANTED = {bug.__name__: bug for bug in (trusting, checkpoints_go_on)}


def main() -> None:
    """Go through a plan, then end as a killed process does."""
    directory, faults = Path(sys.argv[1]), Path(sys.argv[2])
    settings = SETTINGS._replace(checkpoint_bytes=600_000)
    store = reading = None
    for verb, argument in _steps(sys.argv[3:]):
        if verb in PLANTED:
            PLANTED[verb]()
            continue
        if verb == "fail":
            faults.write_text("".join(f"{one.replace('*', ' ')}\n" for one in argument.split(",")))
            continue
        while store is None:
            with suppress(StoreError):
                store = open_store(directory, settings)
        if verb == "hold":
            reading = connect_reader(directory / "store-00.db", settings)
            reading.execute("BEGIN")
            reading.execute("SELECT count(*) FROM entry").fetchall()
            continue
        if verb == "release":
            assert reading is not None
            reading.close()
            continue
        if verb == "copy":
            with closing(connect(directory / "store-00.db", 0, settings)) as connection:  # no commit is under way
                store.checkpoints.run_now(connection)
            continue
        number = int(argument)
        try:
            writes = enqueued(number, data=bytes(30_000))
            store.commit(complete(writes, number - 20, number - 20) if number >= 20 else writes)
            print(number, flush=True)
        except StoreError:
            store.close()
            store = None
    os._exit(0)


def _steps(plan: Sequence[str]) -> Iterator[tuple[str, str]]:
    for step in plan:
        verb, _, argument = step.partition(":")
        if verb == "random":
            yield from _random(*map(int, argument.split(",")))
        else:
            yield verb, argument


def _random(seed: int, first: int, end: int) -> Iterator[tuple[str, str]]:
    """Commits among which syncs of both files fail, one or several in a row."""
    chance = random.Random(seed)
    for number in range(first, end):
        if chance.random() < 0.15:
            faults = [f"{part}*{chance.randrange(4)}" for part in (LOG, DATABASE)]
            yield "fail", ",".join(faults)
        yield "commit", str(number)


if __name__ == "__main__":
    main()
