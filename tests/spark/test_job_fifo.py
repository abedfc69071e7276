"""The job `fifo`: partitions, splits, merges, rate and age over time, from rows of telemetry."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from partibus.pipeline.fifo import Want, run
from partibus.pipeline.job import Job, JobOptions
from partibus.telemetry.schema import COLUMNS, DDL

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [column.name for column in COLUMNS]


def row(second: float, op: str, partition: int, entity: str = "orders.fifo", **columns: Any) -> dict[str, Any]:
    return {
        "time": START + timedelta(seconds=second), "op": op, "namespace": "default", "entity": entity, "broker": "b",
        "partition_id": partition, "outcome": "ok", "weight": 2.0, "messages": 1, **columns,
    }  # fmt: skip


def move(second: float, step: str, source: int, target: int, partitions: int, **columns: Any) -> dict[str, Any]:
    of_move: dict[str, Any] = {
        "position": source, "requests": partitions, "asked_for": step, "messages": 8_192, "weight": 1.0,
        "rules": "busy", "latency_us": 5_000,
    }  # fmt: skip
    return row(second, "move", target, **of_move | {"sequence_number": int(second * 10)} | columns)


def result(spark: SparkSession, folder: Path, rows: list[dict[str, Any]], **want: Any) -> dict[str, Any]:
    path = str(folder / "telemetry")
    spark.createDataFrame([tuple(one.get(name) for name in NAMES) for one in rows], DDL).write.parquet(path)
    options = JobOptions(spark=spark, json=folder / "result.json", report=folder / "report.html")
    with Job("fifo", options, {}) as job:
        return run(job, Want([path], **want))


@pytest.mark.usefixtures("several_partitions")
def test_partitions_rate_and_age_over_time(spark: SparkSession, tmp_path: Path) -> None:
    rows = []
    for second in range(10):
        for n in range(10):
            partition = n % 2 if 3 <= second < 8 else 0
            rows.append(row(second, "send", partition))
            rows.append(row(second, "deliver", partition, dwell_ms=100 * second))
            rows.append(row(second, "complete", partition, dwell_ms=100 * second))
        rows.append(row(second, "send", 3, "plain"))
    rows += [row(5, "send", 0, outcome="refused"), row(5, "use", 0, entity="orders.fifo", asked_for="send")]
    rows += [move(2.5, "route", 0, 1, 2), move(4, "finish", 0, 1, 2, latency_us=1_500_000)]
    rows += [move(8, "route", 1, 0, 1, rules="calm"), move(8.1, "finish", 1, 0, 1)]
    found = result(spark, tmp_path, rows)
    (entity,) = found["entities"]
    assert (entity["entity"], entity["sent"], entity["delivered"], entity["completed"]) == ("orders.fifo", *[200] * 3)
    assert (entity["splits"], entity["merges"], entity["longest_move_ms"]) == (1, 1, 1_500)
    assert [entity[f"partitions_{name}"] for name in ("first", "most", "last")] == [1, 2, 1]
    assert [point["partitions"] for point in entity["series"]] == [1, 1, 2, 2, 2, 2, 2, 2, 1, 1]
    assert {point["sent_per_s"] for point in entity["series"]} == {20}
    assert [point["sent_per_s_of"] for point in entity["series"]][2:4] == [[20, 0], [10, 10]]
    assert [point["median_ms"] for point in entity["series"]] == [100 * second for second in range(10)]
    assert [(one["kind"], one["source"], one["target"], one["why"]) for one in entity["changes"]] == [
        ("split", 0, 1, "busy"),
        ("merge", 1, 0, "calm"),
    ]
    assert entity["by_partition"] == {"0": 150, "1": 50}
    assert json.loads((tmp_path / "result.json").read_text())["result"] == json.loads(json.dumps(found))
    page = (tmp_path / "report.html").read_text()
    assert "SPLIT AND MERGED" in page
    assert "1 split and 1 merge of 1 queue, 2 partitions at most." in page
    assert (
        'Telemetry recorded <span class="unbroken">50.0 %</span> of the operations; figures are estimates for all.'
        in page
    )


def test_entity_by_name_without_moves(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row(second, "send", second % 4, "plain") for second in range(8)]
    (entity,) = result(spark, tmp_path, rows, entities=["PLAIN"])["entities"]
    assert (entity["partitions_first"], entity["changes"], entity["series"][0]["median_ms"]) == (4, [], None)


def test_telemetry_without_fifo_queues_says_so(spark: SparkSession, tmp_path: Path) -> None:
    assert result(spark, tmp_path, [row(1, "send", 0, "plain")])["entities"] == []
    assert "NO QUEUE" in (tmp_path / "report.html").read_text()
