"""The job `plan`: from telemetry or messages to predictions that a replay of the keys confirms."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from bench.synthetic_telemetry import Shape, telemetry
from partibus.pipeline.balance import partition_of, slot_of
from partibus.pipeline.job import Job, JobError, JobOptions
from partibus.pipeline.loads import ENTITY, range_of
from partibus.pipeline.plan import Want, run
from partibus.routing.slots import partition_for_key, slot_for_key
from tests.spark.test_job_telemetry import frame, row

SHAPE = Shape(messages=3_000, seconds=60, entities=2, partitions=8, keys=200)


def planned(spark: SparkSession, folder: Path, paths: list[str], **want: Any) -> dict[str, Any]:
    options = JobOptions(spark=spark, json=folder / "result.json", report=folder / "report.html")
    with Job("plan", options, {}) as job:
        return run(job, Want(paths, **want))


@pytest.mark.usefixtures("several_partitions")
@pytest.mark.row("D8")
def test_predictions_are_what_a_replay_of_the_keys_gives(spark: SparkSession, tmp_path: Path) -> None:
    rows = telemetry(spark, SHAPE)
    path = str(tmp_path / "telemetry")
    rows.write.parquet(path)
    found = planned(spark, tmp_path, [path], counts=(3, 8, 20))
    sent = (
        spark.read.parquet(path)
        .where((sf.col("op") == "send") & (sf.col("outcome") == "ok"))
        .select("entity", "key")
        .collect()
    )
    assert len(found["entities"]) == 2
    for entity in found["entities"]:
        keys = [one["key"] for one in sent if one["entity"] == entity["entity"]]
        keyed = [key for key in keys if key is not None]
        assert entity["partitions"] == 8
        assert entity["keyed_share"] == pytest.approx(len(keyed) / len(keys))
        assert entity["keys"] == len(set(keyed))
        for prediction in entity["predictions"]:
            count = prediction["partitions"]
            replayed = Counter(partition_for_key(key, count) for key in keyed)
            even = (len(keys) - len(keyed)) / count
            shares = [(replayed[partition] + even) / len(keys) for partition in range(count)]
            assert prediction["shares"] == pytest.approx(shares, abs=1e-6)
        top, sends = Counter(keyed).most_common(1)[0]
        assert (entity["largest_keys"][0]["key"], entity["largest_keys"][0]["load"]) == (top, sends)
        assert entity["largest_keys"][0]["partition"] == partition_for_key(top, 8)
        assert [one["partition"] for one in entity["hot_partitions"]]
        assert entity["plan"]["largest_share"] < entity["now"]["largest_share"]
        assert entity["plan"]["actions"][0]["action"] == "split"
    assert json.loads((tmp_path / "result.json").read_text())["result"] == json.loads(json.dumps(found))
    assert "HOT" in (tmp_path / "report.html").read_text()


@pytest.mark.row("D8")
def test_messages_of_an_entity_serve_as_well_as_telemetry(spark: SparkSession, tmp_path: Path) -> None:
    keys = [f"k{n % 7}" for n in range(100)]
    rows = [(partition_for_key(key, 4), None, key, b"x" * 10 * (1 + n % 3)) for n, key in enumerate(keys)]
    path = str(tmp_path / "messages")
    table = "partition_id int, session_id string, partition_key string, body binary"
    spark.createDataFrame(rows, table).write.parquet(path)
    (entity,) = planned(spark, tmp_path, [path], messages_of="q", partitions=4)["entities"]
    assert entity["observed"] == [Counter(partition_for_key(key, 4) for key in keys)[n] for n in range(4)]
    assert [round(share * 100) for share in entity["now"]["shares"]] == entity["observed"]
    (weighed,) = planned(spark, tmp_path, [path], messages_of="q", partitions=4, by_bytes=True)["entities"]
    assert weighed["load"] == sum(len(body) for *_, body in rows)


@pytest.mark.row("D8")
def test_a_hot_key_is_named_and_no_split_is_proposed_for_it(spark: SparkSession, tmp_path: Path) -> None:
    keys = ["hot"] * 80 + [f"k{n}" for n in range(20)]
    rows = [
        row("send", n, key=key, slot=slot_for_key(key), partition_id=partition_for_key(key, 8))
        for n, key in enumerate(keys)
    ]
    path = str(tmp_path / "telemetry")
    frame(spark, rows).write.parquet(path)
    (entity,) = planned(spark, tmp_path, [path], partitions=8)["entities"]
    assert "The key 'hot' alone has 80.0 % of the load, 6.4 times" in entity["advice"][0]
    assert entity["plan"]["stuck"] == [partition_for_key("hot", 8)]
    assert not [one for one in entity["plan"]["actions"] if one["action"] == "split"]


def test_messages_of_pandas_with_nanoseconds_are_read(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "messages.parquet"
    times = pd.to_datetime(["2026-01-01T00:00:00.000000001Z", "2026-01-02T00:00:00.000000000Z"])
    pd.DataFrame({"partition_id": [0, 0], "partition_key": ["a", "b"], "enqueued_time": times}).to_parquet(path)
    found = planned(spark, tmp_path, [str(path)], messages_of="q")
    assert (found["rows"], found["from"][:19], found["to"][:19]) == (2, "2026-01-01 00:00:00", "2026-01-02 00:00:00")
    assert "2 messages are known, which is every one" in (tmp_path / "report.html").read_text()
    since = datetime(2026, 1, 1, 12, tzinfo=UTC)
    later = planned(spark, tmp_path, [str(path)], messages_of="q", since=since)
    assert (later["rows"], later["from"][:10]) == (1, "2026-01-02")


@pytest.mark.row("D8")
def test_slots_and_partitions_are_the_brokers(spark: SparkSession) -> None:
    keys = ["a", "ä", "x" * 200, "", None, *(f"k{n}" for n in range(50))]
    rows = spark.createDataFrame([(key,) for key in keys], "key string").select(
        "key", slot_of(sf.col("key")).alias("slot")
    )
    for one in rows.select("*", partition_of(sf.col("slot"), sf.lit(7)).alias("partition")).collect():
        assert one["slot"] == (None if one["key"] is None else slot_for_key(one["key"]))
        assert one["partition"] == (None if one["key"] is None else partition_for_key(one["key"], 7))


@pytest.mark.row("D8")
def test_plan_file_names_the_slots_that_relieve_a_hot_partition(spark: SparkSession, tmp_path: Path) -> None:
    hot = [key for n in range(2_000) if partition_for_key(key := f"k{n}", 4) == 1][:60]
    cold = [f"c{n}" for n in range(60)]
    keys = [*hot * 20, *cold]
    rows = [
        row("send", n, key=key, slot=slot_for_key(key), partition_id=partition_for_key(key, 4))
        for n, key in enumerate(keys)
    ]
    path, file = str(tmp_path / "telemetry"), tmp_path / "plans" / "plan.json"
    frame(spark, rows).write.parquet(path)
    planned(spark, tmp_path, [path], partitions=4, plan_file=str(file))
    document = json.loads(file.read_text())
    (plan,) = document["entities"]
    assert (document["partibus_plan"], plan["partitions"]) == (1, 4)

    def largest(runs: list[list[int]], partitions: int) -> float:
        owner = {slot: target for first, last, target in runs for slot in range(first, last + 1)}
        placed = Counter(owner.get(slot_for_key(key), partition_for_key(key, 4)) for key in keys)
        assert max(placed) < partitions
        return max(placed.values()) / len(keys)

    same, other = plan["same_count"], plan["other_count"]
    assert largest([], 4) == pytest.approx(same["largest_share_before"])
    assert largest(same["slots"], 4) == pytest.approx(same["largest_share_after"])
    assert same["largest_share_after"] < 0.3 < 0.9 < same["largest_share_before"]
    assert largest(other["slots"], other["partitions"]) == pytest.approx(other["largest_share_after"])
    assert sum(last - first + 1 for first, last, _ in other["slots"]) == 16_384
    assert {target for *_, target in other["slots"]} == set(range(other["partitions"]))


@pytest.mark.row("D8")
def test_entity_whose_slots_have_moved_is_described_beside_others(spark: SparkSession, tmp_path: Path) -> None:
    """An elastic queue after a split: its last third went to partition 2. One slot moved in the time of the rows."""
    owners = {0: 0, 6_000: 2, 9_000: 1, 14_000: 2}
    rows = [
        row("send", n, entity="moved", key=f"k{slot}", slot=slot, partition_id=owner)
        for n in range(50) for slot, owner in owners.items()
    ]  # fmt: skip
    rows += [row("send", -1, entity="moved", key="k6000", slot=6_000, partition_id=0)]
    keys = [f"k{n}" for n in range(100)]
    rows += [
        row("send", n, entity="still", key=key, slot=slot_for_key(key), partition_id=partition_for_key(key, 4))
        for n, key in enumerate(keys)
    ]
    path, file = str(tmp_path / "telemetry"), tmp_path / "plan.json"
    frame(spark, rows).write.parquet(path)
    found = {one["entity"]: one for one in planned(spark, tmp_path, [path], plan_file=str(file))["entities"]}
    moved, still = found["moved"], found["still"]
    assert [still["slots_moved"], still["partitions"]] == [False, 4]
    assert [moved["slots_moved"], moved["partitions"]] == [True, 3]
    assert moved["now"]["shares"] == pytest.approx([50 / 201, 50 / 201, 101 / 201], abs=1e-6)
    assert {key["key"]: key["partition"] for key in moved["largest_keys"]} == {
        f"k{slot}": owners[slot] for slot in owners
    }
    assert (moved["plan"]["actions"], moved["plan"]["partitions"]) == ([], [])
    assert any("Slots of this entity have moved" in sentence for sentence in moved["advice"])
    other = next(one for one in json.loads(file.read_text())["entities"] if one["entity"] == "moved")["other_count"]
    assert (other["partitions"], other["slots"]) == (3, [])
    counted = planned(spark, tmp_path, [path], partitions=4)["entities"]
    assert [one["partitions"] for one in counted] == [4, 4]
    with pytest.raises(JobError, match="--partitions is 1, but messages of 'moved' are in partition 2"):
        planned(spark, tmp_path, [path], partitions=1)


def test_times_of_a_plan_are_utc_in_any_zone(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    at = sf.timestamp_seconds(sf.lit(1_767_225_600))
    keys = spark.range(1).select(
        at.alias("first"), at.alias("last"), sf.lit(1).alias("rows"), *(sf.lit("x").alias(name) for name in ENTITY)
    )
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        found = range_of(keys)
    time.tzset()
    assert found["from"] == found["to"] == "2026-01-01 00:00:00+00:00"
