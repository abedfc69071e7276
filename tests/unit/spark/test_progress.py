"""Numbers from the progress of a query, as Spark tells it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from partibus.spark.planning import Offset
from partibus.spark.progress import behind, query_metrics


def offset(**positions: int) -> str:
    return json.dumps(Offset("e", 1, {int(name[1:]): pos for name, pos in positions.items()}).to_json())


def progress(rows: int, took_ms: int, end: str | None, latest: str | None) -> StreamingQueryProgress:
    source: dict[str, Any] = {
        "description": "PythonMicroBatchStream", "startOffset": None, "endOffset": end, "latestOffset": latest,
        "numInputRows": rows, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0, "metrics": {},
    }  # fmt: skip
    return StreamingQueryProgress.fromJson(
        {
            "id": "00000000-0000-0000-0000-000000000001", "runId": "00000000-0000-0000-0000-000000000002",
            "name": None, "timestamp": "2026-01-01T00:00:00.000Z", "batchId": 1, "batchDuration": took_ms,
            "durationMs": {"triggerExecution": took_ms}, "eventTime": {}, "stateOperators": [], "sources": [source],
            "sink": {"description": "noop", "numOutputRows": rows}, "numInputRows": rows,
            "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0, "observedMetrics": {},
        }
    )  # fmt: skip


@pytest.mark.row("D14")
def test_query_is_behind_by_the_positions_that_it_has_yet_to_read() -> None:
    one = progress(7, 10, offset(p0=5, p1=9), offset(p0=8, p1=9, p2=4))
    assert behind(one) == {0: 3, 1: 0, 2: 4}


def test_other_sources_and_what_has_not_begun_are_behind_by_nothing() -> None:
    assert behind(progress(1, 1, '{"logOffset": 3}', '{"logOffset": 4}')) is None
    assert behind(progress(1, 1, "3", "4")) is None
    assert behind(progress(0, 1, None, offset(p0=1))) is None


@pytest.mark.row("D14")
def test_metrics_are_of_micro_batches_with_rows_and_of_the_last_look() -> None:
    found = query_metrics(
        [
            progress(100, 200, offset(p0=100), offset(p0=300)),
            progress(200, 400, offset(p0=300), offset(p0=300)),
            progress(0, 1_000, offset(p0=300), offset(p0=310)),
        ]
    )
    assert found == {
        "batches": 2, "rows": 300, "rows_per_s": 500.0, "batch_ms": {"median": 300, "longest": 400}, "behind": 10,
    }  # fmt: skip
    nothing = {"batches": 0, "rows": 0, "rows_per_s": None, "batch_ms": None, "behind": None}
    assert query_metrics([]) == nothing
    json.dumps(found)
