"""The audit finds each planted fault, and nothing else."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from partibus.pipeline.audit import KINDS, Logs, Want, doubled, lost, normalized, reconciled, run
from partibus.pipeline.job import Job, JobError, JobOptions
from partibus.pipeline.logs import CONSUMED, PRODUCED, fitted, read_log

START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS, PER_KEY = 5, 8
Row = dict[str, Any]
Log = dict[str, Row]


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def good() -> tuple[Log, Log]:
    """Logs of a run in which every promise was kept; rows by message id. Redeliveries and repeated sends, which break
    none, are among them."""
    produced: Log = {}
    consumed: Log = {}
    for place in range(PER_KEY):
        for key in range(KEYS):
            name, began = f"k{key}-{place}", place * 10.0 + key
            produced[name] = {
                "message_id": name, "sent_time": at(began), "key": f"k{key}", "key_sequence": place, "outcome": "ok"
            }  # fmt: skip
            consumed[name] = {
                "message_id": name, "received_time": at(began + 1), "completed_time": at(began + 2),
                "released_time": None, "locked_until": at(began + 31), "lock_token": f"t-{name}", "delivery_count": 1,
                "consumer": f"c{key % 2}", "key": f"k{key}",
            }  # fmt: skip
    # Refused, and rightly not there:
    produced["refused"] = {**produced["k0-0"], "message_id": "refused", "key_sequence": 99, "outcome": "failed"}
    # Its outcome is unknown, and it was not stored:
    produced["maybe"] = {**produced["k0-0"], "message_id": "maybe", "key_sequence": 98, "outcome": "unknown"}
    # Given back, and delivered again under a new lock, while later ones of its key had passed:
    again = consumed["k1-2"]
    consumed["k1-2 again"] = {
        **again, "received_time": at(60), "completed_time": at(61), "lock_token": "t2", "delivery_count": 2,
        "consumer": "c0",
    }  # fmt: skip
    consumed["k1-2"] = {**again, "completed_time": None, "released_time": at(23)}
    # Its lock ran out, then another receiver got it:
    again = consumed["k2-3"]
    consumed["k2-3 again"] = {
        **again,
        "received_time": at(70),
        "completed_time": at(71),
        "lock_token": "t3",
        "delivery_count": 2,
    }
    consumed["k2-3"] = {**again, "completed_time": None}
    # Its first delivery never reached the application, which logged the second one, late:
    consumed["k3-1"] = {**consumed["k3-1"], "received_time": at(75), "completed_time": at(76), "delivery_count": 2,
                        "locked_until": at(105)}  # fmt: skip
    # Sent twice, as the first answer was lost, and both were stored:
    produced["k4-4 again"] = {**produced["k4-4"], "sent_time": at(45), "outcome": "ok"}
    produced["k4-4"]["outcome"] = "unknown"
    consumed["k4-4 copy"] = {**consumed["k4-4"], "received_time": at(46), "completed_time": at(47), "lock_token": "t4",
                             "locked_until": at(76)}  # fmt: skip
    consumed["k4-4"]["completed_time"] = at(45.5)
    return produced, consumed


def keep(_: Log, __: Log) -> None:
    """Every promise."""


def lose(_: Log, consumed: Log) -> None:
    del consumed["k0-3"]


def leave_incomplete(_: Log, consumed: Log) -> None:
    consumed["k0-3"]["completed_time"] = None


def invent(_: Log, consumed: Log) -> None:
    consumed["new"] = {**consumed["k0-3"], "message_id": "new"}


def store_a_refused_one(_: Log, consumed: Log) -> None:
    consumed["refused"] = {**consumed["k0-0"], "message_id": "refused", "lock_token": "tr", "delivery_count": 1,
                           "received_time": at(99), "locked_until": at(130), "completed_time": at(100)}  # fmt: skip


def complete_twice(_: Log, consumed: Log) -> None:
    """Complete a message by two receivers: the second got it after the first one's lock, before its completion."""
    first = consumed["k0-3"]
    first["locked_until"] = at(33)
    first["completed_time"] = at(40)
    consumed["k0-3 again"] = {**first, "received_time": at(35), "lock_token": "t5", "delivery_count": 2,
                              "locked_until": at(65), "consumer": "c1"}  # fmt: skip


def deliver_after_completion(_: Log, consumed: Log) -> None:
    first = consumed["k0-3"]
    consumed["k0-3 again"] = {**first, "received_time": at(50), "completed_time": None, "lock_token": "t5",
                              "delivery_count": 2, "locked_until": at(80)}  # fmt: skip


def swap(_: Log, consumed: Log) -> None:
    """The fourth of a key comes before the third."""
    consumed["k0-3"]["received_time"] = at(19.5)
    consumed["k0-3"]["locked_until"] = at(60)


def lock_for_two(_: Log, consumed: Log) -> None:
    first = consumed["k0-3"]
    consumed["k0-3 again"] = {**first, "received_time": at(40), "completed_time": at(41), "lock_token": "t5",
                              "delivery_count": 2, "locked_until": at(70), "consumer": "c1"}  # fmt: skip
    first["completed_time"] = None


PLANTED: list[tuple[Callable[[Log, Log], None], str, str]] = [
    (lose, "lost", "k0-3"),
    (leave_incomplete, "lost", "k0-3"),
    (invent, "unsent", "new"),
    (store_a_refused_one, "refused", "refused"),
    (complete_twice, "doubled", "k0-3"),
    (deliver_after_completion, "after_completion", "k0-3"),
    (swap, "out_of_order", "k0-2"),
    (lock_for_two, "lock_overlap", "k0-3"),
]


def write(folder: Path, name: str, log: Log) -> str:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in log.values()))
    return str(path)


def audit(spark: SparkSession, folder: Path, produced: Log, consumed: Log, **want: Any) -> dict[str, Any]:
    asked = Want([write(folder, "produced", produced)], [write(folder, "consumed", consumed)], **want)
    with Job("audit", JobOptions(spark=spark, json=folder / "result.json", report=folder / "report.html"), {}) as job:
        return run(job, asked)


@pytest.mark.usefixtures("several_partitions")
@pytest.mark.row("D12")
def test_each_planted_fault_is_found_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    """Each in an entity of its own, and two without any, all in one run. Nor is a message lost that waits for a
    receiver."""
    all_produced: Log = {}
    all_consumed: Log = {}
    plants = {"whole": keep, "waiting": lose} | {plant.__name__: plant for plant, _, _ in PLANTED}
    for entity, plant in plants.items():
        produced, consumed = good()
        plant(produced, consumed)
        for every, log in ((all_produced, produced), (all_consumed, consumed)):
            every.update({f"{entity} {name}": {**row, "entity": entity} for name, row in log.items()})
    remaining = [write(tmp_path, "remaining", {"one": {"message_id": "k0-3", "entity": "waiting"}})]
    found = audit(
        spark, tmp_path, all_produced, all_consumed, remaining=remaining, samples_max=100, out=str(tmp_path / "out")
    )
    seen = sorted((one["entity"], one["kind"], one["message_id"]) for one in found["samples"])
    assert seen == sorted((plant.__name__, kind, id_) for plant, kind, id_ in PLANTED)
    assert sum(found["counts"].values()) == len(PLANTED)
    assert found["unchecked"] == []
    assert not found["holds"]
    # Of the last three of the faults a message is delivered again that is not in the others.
    again = (complete_twice, deliver_after_completion, lock_for_two)
    assert found["totals"]["delivered_more_than_once"] == 3 * len(plants) + len(again)
    assert found["totals"]["messages"] == len(plants) * (KEYS * PER_KEY + 2) + 1, "and the one that was invented"
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "findings"
    assert spark.read.parquet(found["findings"]).count() == len(PLANTED)
    details = {one["entity"]: one["detail"] for one in found["samples"]}
    assert details["lose"] == "never received"
    assert details["leave_incomplete"] == "deliveries: 1, completions: 0"
    assert details["swap"] == "number 2 of its key came after number 3, 'k0-3'"
    assert details["lock_for_two"] == "c0 held it until 2026-01-01 00:01:01, and it was delivered to c1"
    assert "doubled" in (tmp_path / "report.html").read_text()


def test_logs_may_be_csv_and_have_the_needed_columns_only(spark: SparkSession, tmp_path: Path) -> None:
    """A received message counts as completed where no consumer logs completions: it was received and deleted. With what
    remains, nothing is found."""
    produced, consumed = tmp_path / "p.csv", tmp_path / "c.csv"
    remaining = write(tmp_path, "remaining", {"one": {"message_id": "m4"}})
    with produced.open("w") as file:
        csv.writer(file).writerows([("message_id", "sent_time"), *((f"m{n}", at(n)) for n in range(5))])
    with consumed.open("w") as file:
        csv.writer(file).writerows([("message_id", "received_time"), *((f"m{n}", at(n + 1)) for n in range(4))])
    with Job("audit", JobOptions(spark=spark, json=tmp_path / "result.json", report=tmp_path / "page.html"), {}) as job:
        found = run(job, Want([str(produced)], [str(consumed)], [remaining]))
    assert found["counts"] == dict.fromkeys(KINDS, 0)
    assert found["unchecked"] == ["out_of_order", "lock_overlap"], "the columns that these checks need are absent"
    assert found["holds"]
    assert found["totals"]["messages"] == 5
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "done"
    page = (tmp_path / "page.html").read_text()
    assert "NOTHING FOUND" in page
    assert page.count("not checked") == 2

    # No consumer has logged the last one: it is lost.
    logs = normalized(
        Logs(read_log(spark, [str(produced)], PRODUCED, None), read_log(spark, [str(consumed)], CONSUMED, None), None)
    )
    assert [row.message_id for row in lost(reconciled(logs), logs).collect()] == ["m4"]


def test_a_folder_of_another_format_is_refused_with_the_option_that_names_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "log.json").write_text('{"message_id": "1"}\n')
    with pytest.raises(JobError, match=r"are no parquet log: .*FAILED_READ_FILE.*--format"):
        read_log(spark, [str(tmp_path / "p")], PRODUCED)


def test_an_exception_of_java_ends_a_job_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("no Parquet")
    with pytest.raises(JobError, match="FAILED_READ_FILE") as caught, Job("x", JobOptions(spark=spark), {}):
        spark.read.parquet(str(tmp_path / "p"))
    assert "\n" not in str(caught.value)


def test_a_log_without_a_needed_column_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, "p", {"a": {"id": "x", "sent_time": at(0)}})
    with (
        pytest.raises(JobError, match="no column message_id; it has id, sent_time"),
        Job("audit", JobOptions(spark=spark), {}) as job,
    ):
        run(job, Want([path], [path]))


def test_a_time_that_is_none_ends_the_job_with_what_it_was(spark: SparkSession, tmp_path: Path) -> None:
    produced = write(tmp_path, "p", {"a": {"message_id": "x", "sent_time": "yesterday"}})
    consumed = write(tmp_path, "c", {"a": {"message_id": "x", "received_time": at(0)}})
    result = tmp_path / "result.json"
    with pytest.raises(JobError, match="yesterday"), Job("audit", JobOptions(spark=spark, json=result), {}) as job:
        run(job, Want([produced], [consumed]))
    assert json.loads(result.read_text())["status"] == "failed"


def test_times_in_nanoseconds_are_read_as_pandas_writes_them(spark: SparkSession, tmp_path: Path) -> None:
    times = pd.to_datetime([at(0.5)], utc=True).as_unit("ns")
    pd.DataFrame({"message_id": ["a"], "sent_time": times, "key_sequence": [7]}).to_parquet(tmp_path / "p.parquet")
    pd.DataFrame({"message_id": ["a"], "received_time": times, "completed_time": times}).to_parquet(
        tmp_path / "c.parquet"
    )
    (row,) = read_log(spark, [str(tmp_path / "p.parquet")], PRODUCED).collect()
    assert (row.sent_time.timestamp(), row.key_sequence) == (START.timestamp() + 0.5, 7)
    want = Want([str(tmp_path / "p.parquet")], [str(tmp_path / "c.parquet")])
    with Job("audit", JobOptions(spark=spark), {}) as job:
        assert run(job, want)["holds"]


def test_a_doubled_message_without_consumers_names_none(spark: SparkSession) -> None:
    produced = fitted(spark.createDataFrame([("a", at(0))], "message_id string, sent_time string"), PRODUCED, "p")
    twice = [("a", at(1)), ("a", at(2))]
    consumed = fitted(spark.createDataFrame(twice, "message_id string, received_time string"), CONSUMED, "c")
    (found,) = doubled(reconciled(normalized(Logs(produced, consumed)))).collect()
    assert found.detail == "sends: 1, completions: 2"


def test_logs_that_prove_nothing_end_the_job_with_an_error(spark: SparkSession, tmp_path: Path) -> None:
    produced, consumed = good()
    for outcome in ("Success", "sent"):
        for row in produced.values():
            row["outcome"] = outcome
        with pytest.raises(
            JobError, match=f"outcomes such as '{outcome.lower()}'; an outcome is ok, failed or unknown"
        ):
            audit(spark, tmp_path, produced, consumed)
    empty = [tmp_path / f"{name}.parquet" for name in ("p", "c")]
    for path, columns in zip(empty, (PRODUCED, CONSUMED), strict=True):
        pd.DataFrame({column.name: pd.Series([], dtype=str) for column in columns}).to_parquet(path)
    with (
        pytest.raises(JobError, match="no rows, so nothing was audited"),
        Job("audit", JobOptions(spark=spark), {}) as job,
    ):
        run(job, Want([str(empty[0])], [str(empty[1])]))


def test_lost_is_not_checked_without_an_acknowledged_send_and_no_key_is_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    produced: Log = {"a": {"message_id": "a", "sent_time": at(0), "outcome": "unknown"}}
    consumed: Log = {"a": {"message_id": "a", "received_time": at(1)}}
    found = audit(spark, tmp_path, produced, consumed)
    assert found["unchecked"] == ["lost", "out_of_order", "lock_overlap"]
    assert found["totals"]["keys"] == 0
    assert "the producers have no acknowledged send" in (tmp_path / "report.html").read_text()


def test_times_since_1970_are_read_in_any_unit(spark: SparkSession) -> None:
    seconds = int(START.timestamp())
    rows = [("s", seconds), *((name, seconds * 10**power + 1) for name, power in (("ms", 3), ("us", 6), ("ns", 9)))]
    for kind in ("bigint", "double"):
        table = spark.createDataFrame(
            [(name, float(time) if kind == "double" else time) for name, time in rows],
            f"message_id string, sent_time {kind}",
        )
        found = {row.message_id: row.sent_time.astimezone(UTC) for row in fitted(table, PRODUCED, "p").collect()}
        micros = {name: time - START for name, time in found.items()}
        expected = {"s": 0, "ms": 1000, "us": 1, "ns": 0}
        assert micros == {name: timedelta(microseconds=late) for name, late in expected.items()}


def test_a_log_whose_lines_are_no_json_is_refused_as_such(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text("no JSON\n")
    with (
        pytest.raises(JobError, match=r"the log .*bad\.json has no line that is a JSON object"),
        Job("audit", JobOptions(spark=spark), {}) as job,
    ):
        run(job, Want([str(path)], [str(path)]))


def test_a_log_that_is_not_there_is_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere.json")
    with (
        pytest.raises(JobError, match=r"no json log at .*nowhere\.json: the path does not exist\. Give another path"),
        Job("audit", JobOptions(spark=spark), {}) as job,
    ):
        run(job, Want([path], [path]))


def test_times_since_1970_are_read_as_text_too(spark: SparkSession, tmp_path: Path) -> None:
    """Files without types have text: JSON lines and CSV."""
    seconds = int(START.timestamp())
    times = [seconds, f"{seconds}.25", seconds * 1000 + 1, seconds * 10**9 + 1, at(7), "2026-01-01"]
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"message_id": str(n), "sent_time": time}) + "\n" for n, time in enumerate(times))
    )
    with (tmp_path / "p.csv").open("w") as file:
        csv.writer(file).writerows([("message_id", "sent_time"), *enumerate(times)])
    for name in ("p.jsonl", "p.csv"):
        rows = read_log(spark, [str(tmp_path / name)], PRODUCED).orderBy("message_id").collect()
        late = [(row.sent_time.astimezone(UTC) - START).total_seconds() for row in rows]
        assert late == [0, 0.25, 0.001, 0, 7, 0], name


def test_a_line_that_is_cut_short_is_no_lost_message(spark: SparkSession, tmp_path: Path) -> None:
    whole = json.dumps({"message_id": "a", "sent_time": at(0), "received_time": at(1)}) + "\n"
    (tmp_path / "whole.jsonl").write_text(whole)
    (tmp_path / "cut.jsonl").write_text(whole + whole[:20])
    whole_path, cut_path = str(tmp_path / "whole.jsonl"), str(tmp_path / "cut.jsonl")
    for want, side in ((Want([cut_path], [whole_path]), "producers"), (Want([whole_path], [cut_path]), "consumers")):
        with (
            pytest.raises(JobError, match=f"the log of the {side} has 1 rows without a message_id"),
            Job("audit", JobOptions(spark=spark), {}) as job,
        ):
            run(job, want)
