"""How many rows a long run has brought, of which Spark remembers the last hundred micro-batches only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from partibus.pipeline.capture import Rows


def progress(batch: int, rows: int) -> SimpleNamespace:
    return SimpleNamespace(batchId=batch, numInputRows=rows)


def test_rows_of_forgotten_micro_batches_are_counted_once() -> None:
    query: Any = SimpleNamespace(recentProgress=[])
    rows = Rows(cast("Any", query))
    assert rows.count() == 0
    query.recentProgress = [progress(0, 5), progress(1, 0), progress(1, 7)]  # idle, then with what came
    assert rows.count() == rows.count() == 12
    query.recentProgress = [progress(1, 7), progress(2, 3)]
    assert rows.count() == 15
    query.recentProgress = [progress(3, 1), progress(4, 0)]
    assert rows.count() == 16
