"""The conformance page says what the recorded outcomes show, nothing more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.plugins import conformance, saboteurs, specification
from tests.plugins.specification import Row, Specification

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugins.rows import Outcome, Result

SPEC = Specification(
    rows=(Row("K1", "a | b", ("0",), "has"), Row("K2", "dict<str>", ("0",), "has"), Row("P1", "c", ("0",), "no")),
    groups={"P": "Partitions", "K": "Keys"},
    sources={"0": "a source"},
)


def result(outcome: Outcome, *rows: str) -> Result:
    return {"rows": list(rows), "outcome": outcome}


def row_line(results: dict[str, Result], row: str, *failed_without: str) -> str:
    page = conformance.page(SPEC, results, {row: frozenset(failed_without)})
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
    return line


def test_row_with_a_passing_test_is_shown_and_names_it() -> None:
    line = row_line({"tests/a.py::test_x": result("passed", "P1")}, "P1")
    assert line == "| P1 | c | shown | `tests/a.py`: test_x |"


def test_row_with_one_failing_test_among_passing_ones_is_failing() -> None:
    results = {
        "tests/a.py::test_x": result("passed", "P1", "K1"),
        "tests/a.py::test_y": result("failed", "P1"),
        "tests/b.py::test_z": result("passed", "P1"),
    }
    line = row_line(results, "P1")
    assert line == "| P1 | c | failing | `tests/a.py`: test_x, test_y (failed); `tests/b.py`: test_z |"
    assert "| shown |" in row_line(results, "K1")


def test_row_without_tests_is_open() -> None:
    assert row_line({}, "P1") == "| P1 | c | open |  |"


def test_skipped_test_shows_nothing() -> None:
    assert row_line({"tests/a.py::test_x": result("skipped", "P1")}, "P1") == "| P1 | c | open |  |"


@pytest.mark.parametrize("order", [("passed", "failed"), ("failed", "passed")])
def test_one_failing_parameter_makes_the_test_failing(order: tuple[Outcome, Outcome]) -> None:
    results = {f"tests/a.py::test_x[{i}]": result(outcome, "P1") for i, outcome in enumerate(order)}
    assert row_line(results, "P1") == "| P1 | c | failing | `tests/a.py`: test_x (failed) |"


def test_skipped_parameter_does_not_hide_the_one_that_passed() -> None:
    results = {"tests/a.py::test_x[0]": result("passed", "P1"), "tests/a.py::test_x[1]": result("skipped", "P1")}
    assert row_line(results, "P1") == "| P1 | c | shown | `tests/a.py`: test_x |"


def test_counts_are_per_group_and_in_total() -> None:
    results = {"a.py::x": result("passed", "K1", "K2"), "a.py::y": result("failed", "P1")}
    text = conformance.page(SPEC, results, {"K2": frozenset({"a.py::x"})})
    assert "| K: Keys | 2 | 1 | 1 | 0 | 0 |\n" in text
    assert "| P: Partitions | 1 | 0 | 0 | 1 | 0 |\n" in text
    assert "| **all** | 3 | 1 | 1 | 1 | 0 |\n" in text


def test_row_is_proved_when_each_of_its_tests_failed_without_the_capability() -> None:
    results = {"tests/a.py::x": result("passed", "P1"), "tests/a.py::y": result("passed", "P1")}
    assert "| shown |" in row_line(results, "P1", "tests/a.py::x")
    assert "| proved |" in row_line(results, "P1", "tests/a.py::x", "tests/a.py::y")
    assert "| open |" in row_line({}, "P1", "tests/a.py::x")


def test_page_does_not_depend_on_the_order_of_the_run() -> None:
    results = {"b.py::x": result("passed", "K1"), "a.py::y": result("passed", "K1")}
    assert conformance.page(SPEC, results, {}) == conformance.page(SPEC, dict(reversed(results.items())), {})


def test_text_of_a_row_stays_in_its_cell() -> None:
    assert row_line({}, "K1").startswith("| K1 | a \\| b |")
    assert row_line({}, "K2").startswith("| K2 | dict&lt;str> |")


def test_row_that_the_specification_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="x carries row K9"):
        conformance.page(SPEC, {"a.py::x": result("passed", "K9")}, {})


def test_program_writes_the_page_of_the_project(tmp_path: Path) -> None:
    report, target = tmp_path / "rows.json", tmp_path / "conformance.md"
    report.write_text(json.dumps({"tests/a.py::test_x": result("passed", "K6")}))
    assert conformance.main([str(report), str(target)]) == 0
    assert target.read_text() == conformance.page(
        specification.load(), json.loads(report.read_text()), saboteurs.verdicts()
    )


def test_program_without_its_arguments_says_how_to_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main([]) == 2
    assert "usage:" in capsys.readouterr().err
