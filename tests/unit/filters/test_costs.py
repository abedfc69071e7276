"""The costs of rules, on the page of benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

from bench.filters import EVALUATION_US_MAX, Cost
from bench.page import write_page
from bench.targets import verdicts


def test_costs_have_a_table_and_the_evaluation_a_verdict(tmp_path: Path) -> None:
    costs = [Cost("evaluating", 3.5, EVALUATION_US_MAX), Cost("publishing", 12.3456)]
    rows = [cost.as_dict() | {"part": "filters"} for cost in costs]
    assert list(verdicts(rows)) == [("evaluating", "≤ 3 µs", "3.5 µs", "**missed**")]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_page(results, tmp_path / "page.md")
    assert "| publishing | 12.35 |" in (tmp_path / "page.md").read_text()
