"""Which worker runs which test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.plugins import spread

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
    # Others that are installed here take two seconds to load, in each process.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p xdist.plugin -p tests.plugins.spread")

    def run(*options: str, files: Sequence[str]) -> list[tuple[str, str]]:
        for name in files:
            path = pytester.path / "tests" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(RECORD_WORKER)
        pytester.runpytest_subprocess(*options).assert_outcomes(passed=4 * len(files))
        lines = (pytester.path / "log").read_text().splitlines()
        return [(worker, file) for worker, _, file in (line.partition(" ") for line in lines)]

    return run


def test_each_spark_session_is_on_one_worker_and_holds_up_no_other(run: Run) -> None:
    # By file alone, each file would go to the next worker.
    units = [
        {"test_demo", "test_job_audit", "test_job_plan"},
        {"test_broker", "test_job_capture", "test_sink"},
        {"test_cluster"},
    ]
    files = [f"spark/{name}" for unit in units for name in sorted(unit)]
    log = run("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", files=files)
    workers = [{worker for worker, file in log if file in unit} for unit in units]
    assert [len(found) for found in workers] == [1, 1, 1]
    assert len(set.union(*workers)) == 3


def test_long_tests_start_first(run: Run) -> None:
    files = [
        "conformance/test_client", "contract/test_store", "property/test_codec", "robustness/test_bytes",
        "robustness/test_machines", "simulation/test_crash", "spark/test_cluster", "spark/test_source", "unit/test_a",
    ]  # fmt: skip
    ran = [file for _, file in run(files=files)]
    assert list(dict.fromkeys(ran)) == [
        "test_source", "test_cluster", "test_machines", "test_bytes", "test_client", "test_crash", "test_codec",
        "test_store", "test_a",
    ]  # fmt: skip


def test_names_in_the_order_are_of_tests_that_there_are() -> None:
    files = [str(path.relative_to(PROJECT)) for path in (PROJECT / "tests").rglob("test_*.py")]
    units = {spread.unit_of(file) for file in files}
    for start in spread.LONG:
        assert any(name.startswith(start) for name in (*files, *units)), start
