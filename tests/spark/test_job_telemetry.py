"""The job `telemetry`: what it counts, batch and stream, against plain arithmetic over the same rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from bench.synthetic_telemetry import Shape, telemetry
from partibus.pipeline import telemetry_job
from partibus.pipeline.job import _ALWAYS, _LOCAL, Job, JobError, JobOptions
from partibus.pipeline.partial import percentile_name
from partibus.pipeline.rollup import add_up, busiest, roll_up
from partibus.pipeline.rows import absence, read_rows
from partibus.pipeline.telemetry_job import Want, run
from partibus.pipeline.telemetry_job import follow as follow_job
from partibus.telemetry.schema import COLUMNS, DDL

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [column.name for column in COLUMNS]
SHAPE = Shape(messages=2_000, seconds=100, entities=2, partitions=4, keys=50)


def row(op: str, seconds: float, **columns: Any) -> dict[str, Any]:
    """A row of telemetry."""
    return {
        "time": START + timedelta(seconds=seconds), "op": op, "namespace": "default", "entity": "q", "partition_id": 0,
        "store": 0, "broker": "b", "key": None, "slot": None, "size_bytes": 100, "delivery_count": 1, "dwell_ms": None,
        "latency_us": 1000, "messages": 1, "outcome": "ok", "weight": 1.0, **columns,
    }  # fmt: skip


def frame(spark: SparkSession, rows: Iterable[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame([tuple(one.get(name) for name in NAMES) for one in rows], DDL)


def summary(spark: SparkSession, folder: Path, rows: DataFrame, **want: Any) -> dict[str, Any]:
    path = str(folder / "telemetry")
    rows.write.mode("overwrite").parquet(path)
    options = JobOptions(spark=spark, json=folder / "result.json", report=folder / "report.html")
    with Job("telemetry", options, {}) as job:
        return run(job, Want([path], **want))


class Whole(NamedTuple):
    """Rows in files, and what the job says of them."""

    folder: Path
    rows: DataFrame
    found: dict[str, Any]


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    found = summary(spark, folder, telemetry(spark, SHAPE), keys_max=5)
    return Whole(folder, spark.read.parquet(str(folder / "telemetry")), found)


@pytest.mark.usefixtures("several_partitions")
@pytest.mark.row("D7")
def test_counts_rates_and_percentiles_are_those_of_the_rows(whole: Whole) -> None:
    found, tmp_path = whole.found, whole.folder
    every = [one.asDict() for one in whole.rows.collect()]
    assert found["rows"] == len(every)
    assert found["sampled_share"] == 1
    assert found["entity_count"] == 2
    for entity in found["entities"]:
        mine = [one for one in every if one["entity"] == entity["entity"]]
        done = [one for one in mine if one["outcome"] == "ok"]
        ops = Counter(one["op"] for one in done)
        assert (entity["sent"], entity["delivered"]) == (ops["send"], ops["deliver"])
        assert (entity["completed"], entity["abandoned"]) == (ops["complete"], ops["abandon"])
        again = sum(one["op"] == "deliver" and one["delivery_count"] > 1 for one in done)
        assert entity["redelivered"] == again > 0
        assert entity["redelivery_share"] == pytest.approx(again / ops["deliver"])
        assert entity["throttled"] == len(mine) - len(done) == sum(entity["refused"].values())
        peak = Counter(one["time"].replace(microsecond=0) for one in done if one["op"] == "send").most_common(1)[0][1]
        assert entity["per_second"]["sent"] == {"mean": ops["send"] / found["seconds"], "peak": peak}
        loads = Counter(one["partition_id"] for one in done if one["op"] == "send")
        assert {load["partition"]: load["sent"] for load in entity["partitions"]} == loads
        assert entity["skew"]["sent"]["largest_over_mean"] == pytest.approx(max(loads.values()) / (ops["send"] / 4))
        keys = Counter(one["key"] for one in done if one["op"] == "send" and one["key"])
        busy = Counter(one["key"] for one in done if one["op"] in ("send", "deliver") and one["key"])
        told = [(key["key"], key["sent"], key["sent"] + key["delivered"]) for key in entity["keys"]]
        assert told == [(key, keys[key], busy[key]) for key in sorted(busy, key=lambda key: (-busy[key], key))[:5]]
        assert entity["key_count"] == len(keys)
        assert_percentiles(entity, done)
        for load in entity["partitions"]:
            assert_percentiles(load, [one for one in done if one["partition_id"] == load["partition"]])
    assert sum(entity["throttled"] for entity in found["entities"]) > 0
    points = [point for point in found["series"] if point["entity"] == found["entities"][0]["entity"]]
    assert sum(point["sent"] for point in points) * found["step_seconds"] == pytest.approx(found["entities"][0]["sent"])
    assert json.loads((tmp_path / "result.json").read_text())["result"]["rows"] == len(every)
    assert found["entities"][0]["keys"][0]["key"] in (tmp_path / "report.html").read_text()


def assert_percentiles(told: dict[str, Any], done: list[dict[str, Any]]) -> None:
    for measure, op in (("latency_us", "send"), ("latency_us", "complete"), ("dwell_ms", "deliver")):
        values = sorted(one[measure] for one in done if one["op"] == op)
        assert told[measure][op]["count"] == len(values)
        assert told[measure][op]["largest"] == pytest.approx(values[-1], rel=0.0205)
        for share in (0.5, 0.9, 0.99):
            exact = values[math.ceil(share * len(values)) - 1]
            assert told[measure][op][percentile_name(share)] == pytest.approx(exact, rel=0.0205)


@pytest.mark.row("D7")
def test_sampled_rows_count_with_their_weights(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        row("send", 0, weight=10.0, key="a", slot=5, latency_us=100),
        row("send", 0, weight=1.0, key="b", slot=6, latency_us=5000),
        row("deliver", 1, weight=10.0, key="a", slot=5, delivery_count=3, dwell_ms=1000),
        row("send", 2, weight=10.0, outcome="com.microsoft:server-busy"),
        row("dead_letter", 2, weight=10.0),
        row("commit", 2, messages=40, latency_us=2000, weight=1.0, entity=None, partition_id=None),
        row("commit", 2, messages=60, latency_us=4000, weight=1.0, entity=None, partition_id=None),
        row("use", 2, messages=1000, weight=1.0),
    ]
    found = summary(spark, tmp_path, frame(spark, rows))
    (entity,) = found["entities"]
    assert (entity["sent"], entity["delivered"], entity["redelivered"], entity["dead_lettered"]) == (11, 10, 10, 10)
    assert (entity["throttled"], entity["refused"]) == (10, {"com.microsoft:server-busy": 10})
    assert entity["sent_bytes"] == 1100
    assert entity["latency_us"]["send"]["p50"] == pytest.approx(100, rel=0.02)
    assert entity["latency_us"]["send"]["p99"] == pytest.approx(5000, rel=0.02)
    assert [(key["key"], key["sent"], key["redelivered"]) for key in entity["keys"]] == [("a", 10, 10), ("b", 1, 0)]
    assert found["sampled_share"] == pytest.approx(5 / 41)
    commits = found["commits"]
    assert (commits["count"], commits["messages_per_commit"]) == (2, 50)
    assert commits["duration_us"]["largest"] == pytest.approx(4000, rel=0.02)
    monkeypatch.setattr(telemetry_job, "HELD_MAX", 0)
    assert comparable(summary(spark, tmp_path, frame(spark, rows))) == comparable(found)


def test_only_what_is_asked_for_is_told_whoever_holds_the_sums(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row("send", second, entity=name) for name in ("q", "Other", "third") for second in range(len(name) * 3)]
    since = START + timedelta(seconds=4)
    found = summary(spark, tmp_path, frame(spark, rows), entities=["OTHER", "q"], since=since, entities_max=1)
    assert [(entity["entity"], entity["sent"]) for entity in found["entities"]] == [("Other", 11)]
    assert (found["entity_count"], found["entities_left_out"]) == (1, 0)


def test_nothing_there_is_said_and_no_error(spark: SparkSession, tmp_path: Path) -> None:
    found = summary(spark, tmp_path, frame(spark, []))
    assert (found["rows"], found["entities"]) == (0, [])
    assert "no rows" in (tmp_path / "report.html").read_text()


def test_a_directory_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with (
        pytest.raises(JobError, match=r"no telemetry at .*nowhere"),
        Job("telemetry", JobOptions(spark=spark), {}) as job,
    ):
        run(job, Want([str(tmp_path / "nowhere")]))


@pytest.mark.row("D7")
def test_a_stream_tells_the_same_as_a_batch(spark: SparkSession, whole: Whole, tmp_path: Path) -> None:
    """Run until nothing is new, then on from there with more files. In between the first batch comes again, as it does
    after a crash before its end was noted: it takes the place of what it wrote before."""
    source, out = tmp_path / "source", tmp_path / "out"
    middle = sf.lit("2026-01-01 00:00:50").cast("timestamp")
    told: list[dict[str, Any]] = []
    for part in (sf.col("time") < middle, sf.col("time") >= middle):
        whole.rows.where(part).coalesce(1).write.mode("append").parquet(str(source))
        with Job("telemetry", JobOptions(spark=spark), {}) as job:
            follow_job(job, Want([str(source)], out=str(out), keys_max=5), 1, True, told.append)
        for name in ("0", ".0.crc"):
            (out / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    assert 0 < told[0]["rows"] < whole.found["rows"]
    assert comparable(told[-1]) == comparable(whole.found)
    assert len(list((out / "tables" / "activity").glob("batch=*"))) == 2


def comparable(found: dict[str, Any]) -> Any:
    return json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 6))


def test_keys_beyond_the_most_are_one_row_and_sums_stay(spark: SparkSession) -> None:
    rows = frame(spark, [row("send", 0, key=f"k{n}", slot=n) for n in range(5) for _ in range(n + 1)])
    kept = busiest(busiest(roll_up(add_up(rows)).keys, 3), 2).collect()
    assert {one["key"]: one["sent"] for one in kept} == {"k4": 5, "k3": 4, None: 6}
    assert {one["key"]: one["others"] for one in kept} == {"k4": False, "k3": False, None: True}


def test_sums_of_a_stream_and_of_a_batch_never_replace_each_other(spark: SparkSession, tmp_path: Path) -> None:
    stream, batch = tmp_path / "stream", tmp_path / "batch"
    part = stream / "tables" / "activity" / "batch=0" / "part.parquet"
    for file in (part, stream / "checkpoint" / "metadata", batch / "tables" / "activity" / "part.parquet"):
        file.parent.mkdir(parents=True)
        file.write_text("kept")
    want = Want([str(tmp_path)])
    with pytest.raises(JobError, match=f"{stream} has .* give another --out"), job_of(spark) as job:
        run(job, want._replace(out=str(stream)))
    with pytest.raises(JobError, match=f"{batch} has .* give another --out"), job_of(spark) as job:
        follow_job(job, want._replace(out=str(batch)), 1, True, lambda found: None)
    assert part.read_text() == "kept"


def job_of(spark: SparkSession) -> Job:
    return Job("telemetry", JobOptions(spark=spark), {})


def test_entities_without_rows_are_named_beside_those_that_have_some(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "telemetry")
    frame(spark, [row("send", 0, entity="Orders"), row("commit", 0, entity=None)]).write.parquet(path)
    assert absence(spark, [path], ["orders"], ["Orders"]) is None
    assert absence(spark, [path], ["orders", "nosuch"], ["Orders"]) == "no rows for entity 'nosuch'; there are: Orders"
    assert absence(spark, [path], [], []) == "no rows that count: look at --since and --until"
    (tmp_path / "empty").mkdir()
    why = absence(spark, [str(tmp_path / "empty")], [], [])
    assert why is not None
    assert why.startswith("no rows about messages at ")
    assert "--telemetry-dir DIR" in why


def test_files_that_a_broker_removes_are_passed_over_in_telemetry_only(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("old", "new"):
        frame(spark, [row("send", 1)]).coalesce(1).write.parquet(str(tmp_path / name))
    rows, table = read_rows(spark, [str(tmp_path)]), spark.read.parquet(str(tmp_path / "*"))
    for file in (tmp_path / "old").glob("*.parquet"):
        file.unlink()
    assert rows.count() == 1
    assert not any("ignoreMissingFiles" in name for name in {**_LOCAL, **_ALWAYS})
    with pytest.raises(Py4JJavaError, match="FILE_NOT_EXIST"):
        table.count()
