"""The row marker is checked while collecting, and outcomes are recorded, with and without workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

SAMPLE = """
import unittest
import pytest

@pytest.mark.row("K6")
def test_passes(): pass

@pytest.mark.row("K6", "K1")
def test_fails(): assert False

@pytest.fixture
def broken_at_the_end():
    yield
    raise RuntimeError

@pytest.mark.row("P1")
def test_fails_in_tear_down(broken_at_the_end): pass

@pytest.mark.row("P1")
@pytest.mark.skip(reason="a sample")
def test_skipped(): pass

@pytest.mark.row("P2")
@pytest.mark.xfail(reason="a sample", strict=True)
def test_expected_to_fail(): assert False

@pytest.mark.row("P3")
class TestUnitTest(unittest.TestCase):
    @pytest.mark.row("P4")
    def test_method(self): pass

def test_without_rows(): pass
"""

RECORDED = {
    "test_sample.py::test_passes": {"rows": ["K6"], "outcome": "passed"},
    "test_sample.py::test_fails": {"rows": ["K1", "K6"], "outcome": "failed"},
    "test_sample.py::test_fails_in_tear_down": {"rows": ["P1"], "outcome": "failed"},
    "test_sample.py::test_skipped": {"rows": ["P1"], "outcome": "skipped"},
    "test_sample.py::test_expected_to_fail": {"rows": ["P2"], "outcome": "skipped"},
    "test_sample.py::TestUnitTest::test_method": {"rows": ["P3", "P4"], "outcome": "passed"},
}


@pytest.fixture
def sample(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of its own that uses the plug-in; runs in a child process."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    # Others that are installed here take two seconds to load, in each process.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p xdist.plugin -p tests.plugins.rows --strict-markers\nmarkers = row: rows")
    return pytester


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "with a worker"])
def test_outcomes_are_recorded_per_test(sample: pytest.Pytester, workers: tuple[str, ...]) -> None:
    sample.makepyfile(test_sample=SAMPLE)
    run = sample.runpytest_subprocess("--rows-report", "build/rows.json", *workers)
    run.assert_outcomes(passed=4, failed=1, errors=1, skipped=1, xfailed=1)
    assert json.loads((sample.path / "build" / "rows.json").read_text()) == RECORDED


def test_nothing_is_written_unless_asked_for(sample: pytest.Pytester) -> None:
    sample.makepyfile(test_sample=SAMPLE)
    sample.runpytest_subprocess()
    assert not list(sample.path.rglob("*.json"))


WRONG = {
    "unknown": ('row("K6", "K99")', "*test_x: no row K99 in spec/rows.toml"),
    "none": ("row()", "*test_x: the row marker takes one or more ids as strings"),
    "number": ("row(6)", "*test_x: the row marker takes one or more ids as strings"),
    "keyword": ('row("K6", because="it must")', "*test_x: the row marker takes one or more ids as strings"),
}


def test_wrong_markers_are_collection_errors(sample: pytest.Pytester) -> None:
    for name, (marker, _) in WRONG.items():
        sample.makepyfile(**{f"test_{name}": f"import pytest\n\n@pytest.mark.{marker}\ndef test_x(): pass\n"})
    run = sample.runpytest_subprocess()
    assert run.ret == pytest.ExitCode.INTERRUPTED
    run.assert_outcomes(errors=len(WRONG))
    for name, (_, complaint) in WRONG.items():
        run.stdout.fnmatch_lines([f"*test_{name}.py{complaint}"])
