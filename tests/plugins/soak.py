"""pytest plug-in and command: what is long or random runs for as long as `make soak` is told.

    python -m tests.plugins.soak SEED SECONDS

`make test` runs each history, crash and simulation with one seed, which `seed_of` and `seeds` give, and leaves out the
tests marked `soak`: each of those is a longer or another form of one that stays, its canary. The command runs both, and
the property tests with other examples, round after round. It prints the seed of each round before the round, and after
a failure the command that repeats it; then it ends with status 1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

PROJECT = Path(__file__).parents[2]
VARIABLE = "PARTIBUS_SOAK"
ROUND = int(os.environ[VARIABLE]) if VARIABLE in os.environ else None
"""The seed of this round of a soak; None in `make test`."""

SLOWNESS = 6 if ROUND is None else 1
"""A factor for the pauses of senders during crashes: their load takes a third of the processor time of such a test."""

RANDOM = ("tests/property/", "tests/simulation/", "tests/contract/test_store_model")
"""Folders whose tests draw from a seed; elsewhere the marker `seeded` says so."""
TIMES = 5
"""A round's factor for the examples of `make test` and the histories of its simulations."""
FUZZ_SECONDS = 2
"""Seconds for each parser in a round."""
END_S = 60
"""Seconds for tests that are told to end, to stop the processes that they started."""


def seed_of(canary: int) -> int:
    """Return the seed of a test: always `canary` in `make test`, another one in each round of a soak."""
    return canary if ROUND is None else ROUND * 1_000 + canary


def seeds(count: int) -> range:
    """Return the seeds of a simulation: from 0 on in `make test`, others and more of them in each round of a soak."""
    return range(count) if ROUND is None else range(ROUND * 100_000, ROUND * 100_000 + TIMES * count)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked `soak` to `make soak`, which runs these and the tests with a seed, and no others."""
    kept = [item for item in items if _belongs(item)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if not _belongs(item)])
        items[:] = kept


def _belongs(item: pytest.Item) -> bool:
    long = item.get_closest_marker("soak") is not None
    if ROUND is None:
        return not long
    return long or item.get_closest_marker("seeded") is not None or item.nodeid.startswith(RANDOM)


def commands(seed: int, folder: Path) -> list[tuple[str, ...]]:
    """Return what a round runs, one after the other."""
    python = sys.executable
    return [
        (
            python, "-m", "pytest", "-q", "-x", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider",
            f"--hypothesis-seed={seed}", "tests",
        ),
        (python, "-m", "tests.kit.chaos", str(seed), "60", str(folder / "chaos")),
        (python, "-m", "tests.robustness.fuzz", str(seed), str(FUZZ_SECONDS)),
    ]  # fmt: skip


def run_until(ends_s: float, command: Sequence[str], environment: dict[str, str]) -> int | None:
    """Run a command of a round: its status, or None when the time was over first."""
    # A shell starts a background job with SIGINT ignored, and the child would inherit that and never end by it.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A session of its own: its tests and their brokers get the signal with it.
    child = subprocess.Popen(command, cwd=PROJECT, env=os.environ | environment, start_new_session=True)
    try:
        return child.wait(max(0.0, ends_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGINT)
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return None


def main(arguments: list[str]) -> int:
    """Run rounds until the time is over; returns 1 after a failure."""
    if len(arguments) != 2:
        print("usage: python -m tests.plugins.soak SEED SECONDS", file=sys.stderr)
        return 2
    seed, ends_s = int(arguments[0]), time.monotonic() + float(arguments[1])
    rounds = 0
    while time.monotonic() < ends_s:
        print(f"soak: round with seed {seed}", flush=True)
        environment = {VARIABLE: str(seed), "PARTIBUS_PROPERTY_EXAMPLES": str(TIMES)}
        for command in commands(seed, PROJECT / "build" / "soak"):
            status = run_until(ends_s, command, environment)
            if status is None:
                break
            if status != 0:
                again = " ".join([*(f"{name}={value}" for name, value in environment.items()), *command])
                print(f"soak: round with seed {seed} failed with status {status}; again with\n{again}", flush=True)
                return 1
        else:
            rounds += 1
        seed += 1
    print(f"soak: the time is over after {rounds} whole rounds without a failure", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
