"""The job `credits`: from rows of telemetry to who would have been throttled, against plain arithmetic (row D9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from partibus.pipeline.credits import MESSAGES, USES, PeriodSum, Want, _totals, replay, run
from partibus.pipeline.job import Job, JobOptions
from partibus.telemetry.schema import COLUMNS, DDL
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [column.name for column in COLUMNS]
RULES = "a/$Default\nb/red\n(2 others)"
SETTINGS = ThrottlingSettings(ThrottlingPolicy.ENFORCE, 100)


def use(second: int, asked_for: str, units: int, requests: int = 1, **columns: Any) -> dict[str, Any]:
    return {
        "time": START + timedelta(seconds=second), "op": "use", "namespace": "default", "entity": "q", "client": "c",
        "broker": "b", "messages": units, "outcome": "ok", "weight": 1.0, "asked_for": asked_for, "requests": requests,
        **columns,
    }  # fmt: skip


def write(spark: SparkSession, folder: Path, rows: Iterable[dict[str, Any]]) -> str:
    frame: DataFrame = spark.createDataFrame([tuple(one.get(name) for name in NAMES) for one in rows], DDL)
    frame.write.mode("overwrite").parquet(str(folder / "telemetry"))
    return str(folder / "telemetry")


def result(spark: SparkSession, folder: Path, path: str, **want: Any) -> dict[str, Any]:
    options = JobOptions(spark=spark, json=folder / "result.json", report=folder / "report.html")
    with Job("credits", options, {}) as job:
        return run(job, Want([path], SETTINGS, **want))


@pytest.mark.usefixtures("several_partitions")
@pytest.mark.row("D9")
def test_who_would_have_been_throttled_and_by_whom(spark: SparkSession, tmp_path: Path) -> None:
    """Two namespaces; one sends to a topic of four rules in bursts, beside small users of a queue."""
    chance = Random(7)
    rows = []
    for second in range(60):
        rows.append(use(second, "send", 20, 20, client="steady"))
        rows.append(use(second, "receive", 20, 20, client="reader"))
        rows.append(use(second, "send", chance.randrange(5, 150), namespace="acme", client="tenant"))
        if 20 <= second < 30:
            rows.append(use(second, "send", 40, 40, entity="events", client="burst"))
            rows.append(use(second, "filter", 160, 40, entity="events", client="burst", rules=RULES))
    rows.append(use(3, "management", 2, 2, entity="", client="admin"))
    rows.append(use(4, "send", 5) | {"op": "send", "partition_id": 0})  # of a message: no use
    path = write(spark, tmp_path, rows)
    found = result(spark, tmp_path, path)
    assert found["source"] == USES
    assert found["throttled"]

    costs: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        if row["op"] == "use":
            of = costs[row["namespace"], int(row["time"].timestamp())]
            of[0] += row["messages"] * (10 if row["asked_for"] == "management" else 1)
            of[1] += row["requests"] if row["asked_for"] != "filter" else 0
    expected = list(replay((PeriodSum(*key, *of) for key, of in sorted(costs.items())), 100))
    by_name = {one["namespace"]: one for one in found["namespaces"]}
    assert by_name.keys() == {"default", "acme"}
    for name, told in by_name.items():
        own = [one for one in expected if one.namespace == name]
        assert told["throttled_seconds"] == len(own)
        assert told["refused_requests"] == pytest.approx(sum(one.requests for one in own))
        assert told["refused_credits"] == pytest.approx(sum(one.refused for one in own))
        assert told["seconds"] == 60
        assert len(told["series"]) == 60
        assert sum(point["refused_per_s"] for point in told["series"]) == pytest.approx(told["refused_credits"])

    default = by_name["default"]
    assert default["first_at"] == "2026-01-01T00:00:20+00:00"
    assert default["throttled_seconds"] >= 10
    assert default["longest_seconds"] >= 10
    assert [one["name"] for one in default["entities"]] == ["events", "q"]
    assert default["clients"][0]["name"] == "burst"
    assert default["clients"][0]["throttled_cost"] == pytest.approx(2_000)
    assert sum(one["refused"] for one in default["operations"]) == pytest.approx(default["refused_credits"])
    rules = {one["name"]: one["cost"] for one in default["rules"]}
    assert rules == {
        "events/a/$Default": pytest.approx(400), "events/b/red": pytest.approx(400),
        "events/(2 others)": pytest.approx(800),
    }  # fmt: skip
    assert {one["name"]: one["cost"] for one in default["operations"]}["management"] == 20
    page = (tmp_path / "report.html").read_text()
    assert "THROTTLED" in page
    assert page.count("<svg") >= 5


@pytest.mark.row("D9")
def test_files_without_the_columns_and_rows_of_uses_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """Read files of earlier brokers: the cost of each message is known, and unknown values are left out."""
    old = NAMES[: NAMES.index("weight") + 1]
    rows = []
    for number in range(150):
        at = START + timedelta(milliseconds=number)
        common = {"time": at, "namespace": "default", "partition_id": 0, "outcome": "ok", "weight": 2.0, "messages": 1}
        rows.append({"op": "send", "entity": "events", **common})
        rows.append({"op": "send", "entity": "events/Subscriptions/a", **common})
        rows.append({"op": "deliver", "entity": "events/Subscriptions/a", **common})
        rows.append({"op": "complete", "entity": "events/Subscriptions/a", **common})
    kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}
    fields = [
        pa.field(column.name, pa.timestamp("us", "UTC") if column.type == "timestamp" else kinds[column.type])
        for column in COLUMNS[: len(old)]
    ]
    folder = tmp_path / "telemetry"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), folder / "old.parquet")
    found = result(spark, tmp_path, str(folder))
    assert found["source"] == MESSAGES
    (namespace,) = found["namespaces"]
    assert namespace["credits"] == 600
    assert namespace["refused_credits"] == pytest.approx(500)
    assert {one["name"]: one["cost"] for one in namespace["entities"]} == {"events": 300, "events/Subscriptions/a": 300}
    assert namespace["clients"] == namespace["rules"] == []


def test_nothing_is_throttled_of_what_is_left(spark: SparkSession, tmp_path: Path) -> None:
    path = write(spark, tmp_path, [use(0, "send", 500), use(5, "send", 50), use(5, "send", 50, namespace="acme")])
    found = result(spark, tmp_path, path, since=START + timedelta(seconds=1), namespaces=("DEFAULT",))
    assert not found["throttled"]
    (namespace,) = found["namespaces"]
    assert (namespace["credits"], namespace["first_at"], namespace["peak_per_s"]) == (50, None, 50)
    assert "NEVER THROTTLED" in (tmp_path / "report.html").read_text()
    nothing = result(spark, tmp_path, path, since=START + timedelta(days=1))
    assert nothing["namespaces"] == []


@pytest.mark.parametrize("periods", [(3, 5, 9), (9, 5, 3)])
def test_first_of_equally_busy_seconds_is_the_peak(spark: SparkSession, periods: Iterable[int]) -> None:
    rows = [PeriodSum("default", period, 7.0, 1.0) for period in periods]
    sums = spark.createDataFrame(rows, "namespace string, period bigint, cost double, requests double").coalesce(1)
    assert [total["peak_period"] for total in _totals(sums)] == [3]
