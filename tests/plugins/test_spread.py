"""Which worker runs which test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

RECORD_WORKER = """
import pathlib
import pytest

@pytest.mark.parametrize("i", range(4))
def test_x(worker_id, i):
    with pathlib.Path("log").open("a") as log:
        log.write(f"{worker_id} {pathlib.Path(__file__).stem}\\n")
"""


Run = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a project of these files with the plug-in: (worker, file) of each test, in the order in which they ran."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    pytester.makeini("[pytest]\naddopts = -p tests.plugins.spread")

    def run(*options: str, files: Sequence[str]) -> list[tuple[str, str]]:
        for name in files:
            path = pytester.path / "tests" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(RECORD_WORKER)
        pytester.runpytest_subprocess(*options).assert_outcomes(passed=4 * len(files))
        lines = (pytester.path / "log").read_text().splitlines()
        return [(worker, file) for worker, _, file in (line.partition(" ") for line in lines)]

    return run


def test_spark_files_share_one_worker(run: Run) -> None:
    # By file alone, the first two files would go to a worker each.
    files = ["spark/test_spark_a", "spark/test_spark_b", "unit/test_a"]
    log = run("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", files=files)
    spark = {worker for worker, file in log if file.startswith("test_spark")}
    others = {worker for worker, file in log if file == "test_a"}
    assert len(spark) == 1
    assert len(others) == 1
    assert spark != others


def test_long_tests_start_first(run: Run) -> None:
    files = ["conformance/test_client", "contract/test_store", "simulation/test_crash", "spark/test_spark"]
    ran = [file for _, file in run(files=files)]
    assert list(dict.fromkeys(ran)) == ["test_spark", "test_client", "test_crash", "test_store"]
