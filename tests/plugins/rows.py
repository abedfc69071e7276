"""pytest plug-in: `@pytest.mark.row("K6")` says which rows of the specification a test carries.

An id that the specification does not have is a collection error. With `--rows-report PATH` the outcome of every
test that carries rows is written as JSON for `tests.plugins.conformance`:

    {"tests/unit/test_keys.py::test_x": {"rows": ["K6"], "outcome": "passed" | "failed" | "skipped"}}

Parameters of a test are one entry each. Under pytest-xdist the workers send the rows along with their reports,
and only the controlling process writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

import pytest

from tests.plugins import specification

if TYPE_CHECKING:
    from collections.abc import Generator

Outcome = Literal["passed", "failed", "skipped"]
_PROPERTY = "row"


class Result(TypedDict):
    """The outcome of one test."""

    rows: list[str]
    outcome: Outcome


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rows-report` and `--only-row`."""
    parser.addoption("--only-row", metavar="ROW", help="run only the tests that carry this row")
    parser.addoption(
        "--rows-report", type=Path, metavar="PATH", help="write the outcome of each test that carries rows, as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that sees every report: the only one, or the controller of the workers."""
    path: Path | None = config.getoption("--rows-report")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path), "rows-recorder")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Check the ids in the markers and attach them to the tests, so that they travel with the reports."""
    report = yield
    wrong = []
    for item in report.result:
        if not isinstance(item, pytest.Item):
            continue
        rows = marked_rows(item)
        if rows is None:
            wrong.append(f"{item.nodeid}: the row marker takes one or more ids as strings")
        elif unknown := [row for row in rows if row not in specification.load().ids]:
            wrong.append(f"{item.nodeid}: no row {', '.join(unknown)} in spec/rows.toml")
        else:
            item.user_properties.extend((_PROPERTY, row) for row in rows)
    if wrong:
        report.outcome, report.longrepr, report.result = "failed", "\n".join(wrong), []
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what `--only-row` names; a run that expects failures needs no long time limits."""
    if row := config.getoption("--only-row"):
        items[:] = [item for item in items if row in (marked_rows(item) or ())]
        for item in items:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "timeout"]


def marked_rows(item: pytest.Item) -> list[str] | None:
    """The ids in the row markers of a test, its class and its module; None when a marker is misused."""
    rows: set[str] = set()
    for mark in item.iter_markers("row"):
        if mark.kwargs or not mark.args or not all(isinstance(row, str) for row in mark.args):
            return None
        rows.update(mark.args)
    return sorted(rows)


class Recorder:
    """Collects the outcomes of a run and writes them at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: dict[str, Result] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has passed when its call has and neither set-up nor tear-down failed."""
        rows = [str(value) for name, value in report.user_properties if name == _PROPERTY]
        if not rows:
            return
        result = self._results.setdefault(report.nodeid, {"rows": rows, "outcome": "skipped"})
        if report.failed:
            result["outcome"] = "failed"
        elif report.when == "call" and report.passed and result["outcome"] != "failed":
            result["outcome"] = "passed"

    def pytest_sessionfinish(self) -> None:
        """Write the report, also after failures."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
