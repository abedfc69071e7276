"""Which worker runs which test."""

from __future__ import annotations

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


@pytest.fixture
def log(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(worker, file) of each test of a small project, in the order in which they ran."""
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    pytester.makeini("[pytest]\naddopts = -p tests.plugins.spread")
    for name in ("spark/test_spark_a", "spark/test_spark_b", "conformance/test_client", "unit/test_a", "unit/test_b"):
        path = pytester.path / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RECORD_WORKER)
    run = pytester.runpytest_subprocess("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
    run.assert_outcomes(passed=20)
    lines = (pytester.path / "log").read_text().splitlines()
    return [(worker, file) for worker, _, file in (line.partition(" ") for line in lines)]


def test_all_spark_tests_share_one_worker_and_every_file_keeps_its_own(log: list[tuple[str, str]]) -> None:
    files = sorted({file for _, file in log})
    workers = {file: {worker for worker, f in log if f == file} for file in files}
    assert all(len(used) == 1 for used in workers.values())
    assert workers["test_spark_a"] == workers["test_spark_b"]


def test_each_worker_starts_with_its_longest_tests(log: list[tuple[str, str]]) -> None:
    order = ["test_spark_a", "test_spark_b", "test_client", "test_a", "test_b"]
    for worker in {worker for worker, _ in log}:
        ranks = [order.index(file) for w, file in log if w == worker]
        assert ranks == sorted(ranks)
