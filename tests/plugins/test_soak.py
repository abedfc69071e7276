"""The tests that `make test` leaves out, the tests that a soak runs, and its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugins import soak

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PROJECT = Path(__file__).parents[2]

SAMPLE = """
import pytest
from tests.plugins.soak import seed_of, seeds

@pytest.mark.soak
def test_long(): pass

@pytest.mark.seeded
def test_random(): assert (seed_of(5), seeds(2)) == EXPECTED

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_cases(n): pass

def test_other(): pass
"""


@pytest.mark.parametrize(
    ("seed", "expected", "names"),
    [
        (None, "(5, range(2))", ["test_random", "test_cases[1]", "test_other"]),
        ("7", "(7005, range(700000, 700010))", ["test_long", "test_random", "test_cases[2]"]),
    ],
    ids=["make test", "make soak"],
)
def test_the_long_and_the_random_are_for_a_soak(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, seed: str | None, expected: str, names: list[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv(soak.VARIABLE, raising=False)
    if seed is not None:
        monkeypatch.setenv(soak.VARIABLE, seed)
    pytester.makeini("[pytest]\naddopts = -p tests.plugins.soak\nmarkers =\n    soak: x\n    seeded: x")
    pytester.makepyfile(SAMPLE.replace("EXPECTED", expected))
    run = pytester.runpytest_subprocess("-v")
    run.assert_outcomes(passed=len(names), deselected=5 - len(names))
    run.stdout.fnmatch_lines([f"*::{name.replace('[', '[[]')} PASSED*" for name in names])


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_a_failure_ends_a_soak_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = f"import os; raise SystemExit(int(os.environ['{soak.VARIABLE}']) == 9)"
    monkeypatch.setattr(soak, "commands", lambda seed, folder: [python(code)])
    assert soak.main(["8", "300"]) == 1
    said = capfd.readouterr().out
    assert "round with seed 8\n" in said
    assert f"round with seed 9 failed with status 1; again with\n{soak.VARIABLE}=9 " in said


def test_the_commands_of_a_round_exist_and_have_its_seed() -> None:
    for command in soak.commands(7, Path("folder")):
        assert find_spec(command[command.index("-m") + 1])
        assert any(word in ("7", "--hypothesis-seed=7") for word in command)


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background job"])
def test_a_soak_ends_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, handler: Callable[[int, FrameType | None], Any] | signal.Handlers
) -> None:
    sent = []
    kill = os.killpg

    def record(group: int, number: int) -> None:
        sent.append(number)
        kill(group, number)

    monkeypatch.setattr(os, "killpg", record)
    before = signal.signal(signal.SIGINT, handler)
    try:
        began_s = time.monotonic()
        assert soak.run_until(began_s, python("import time; time.sleep(300)"), {}) is None
    finally:
        signal.signal(signal.SIGINT, before)
    assert sent == [signal.SIGINT], "the child had to be killed"
    assert soak.run_until(began_s + 300, python("import os; exit(os.environ['X'] == '1')"), {"X": "1"}) == 1
    assert soak.main(["1", "0"]) == 0
    assert soak.main([]) == 2
