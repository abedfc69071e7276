"""docs/telemetry.md has every column, operation and outcome."""

from __future__ import annotations

from pathlib import Path

from partibus.telemetry.schema import COLUMNS, OPS
from partibus.telemetry.table import OUTCOMES

PAGE = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()


def test_columns_are_told_as_they_are() -> None:
    for column in COLUMNS:
        assert f"| `{column.name}` | {column.type} | {column.meaning} |" in PAGE


def test_operations_and_outcomes_are_told() -> None:
    told = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    for op in OPS:
        assert any(f"`{op}`" in cell for cell in told), op
    for outcome in OUTCOMES.values():
        assert f"`{outcome}`" in PAGE
