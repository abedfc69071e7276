"""The commands: what they refuse, how they end, what they hand on; and the frame of a result."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError

from partibus.cli.jobs.common import job_options, time_option
from partibus.cli.main import JOBS, main, pipeline
from partibus.pipeline import audit, capture, plan, redrive, telemetry_job
from partibus.pipeline.audit import KINDS
from partibus.pipeline.job import Job, JobError, JobOptions
from partibus.pipeline.logs import CONSUMED, PRODUCED
from partibus.pipeline.report.page import Page

DOC = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["pipeline", *arguments])
    return result.exit_code, result.output


def audited(counts: dict[str, int]) -> dict[str, Any]:
    every = {**dict.fromkeys(KINDS, 0), **counts}
    totals = dict.fromkeys(("messages", "sends", "deliveries", "completions"), 1)
    return {
        "holds": not any(counts.values()),
        "counts": every,
        "unchecked": ["lock_overlap"],
        "totals": totals,
        "samples": [],
    }


@pytest.mark.parametrize(("counts", "code"), [({}, 0), ({"lost": 2}, 3)])
def test_audit_ends_with_3_when_something_was_found(
    monkeypatch: pytest.MonkeyPatch, counts: dict[str, int], code: int
) -> None:
    seen: list[audit.Want] = []

    def run(job: Job, want: audit.Want) -> dict[str, Any]:
        seen.append(want)
        return audited(counts)

    monkeypatch.setattr(audit, "run", run)
    ended, output = call("audit", "--produced", "p1", "--produced", "p2", "--consumed", "c", "--slack", "2s")
    assert ended == code
    assert "lost" in output
    assert seen == [audit.Want(("p1", "p2"), ("c",), (), None, 2000, 10, None)]


def test_a_job_that_fails_ends_with_1_one_line_and_a_result_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(job: Job, want: plan.Want) -> dict[str, Any]:
        raise JobError("no telemetry at x")

    monkeypatch.setattr(plan, "run", run)
    result = tmp_path / "made" / "result.json"
    ended, output = call("plan", "x", "--json", str(result))
    assert (ended, output) == (1, "Error: no telemetry at x\n")
    framed = json.loads(result.read_text())
    assert (framed["status"], framed["error"], framed["job"]) == ("failed", "no telemetry at x", "plan")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["telemetry"], "Missing argument"),
        (["telemetry", "x", "--follow"], "--out DIR"),
        (["telemetry", "x", "y", "--follow", "--out", "o"], "one TELEMETRY"),
        (["telemetry", "x", "--once"], "belongs to --follow"),
        (["telemetry", "x", "--conf", "spark.a"], "spark.name=value"),
        (["telemetry", "x", "--since", "soon"], "neither a time"),
        (["plan", "x", "--counts", "4,0"], "from 1 to 1024"),
        (["plan", "x", "--counts", "four"], "from 1 to 1024"),
        (["plan", "x", "--messages"], "one --entity"),
        (["audit", "--produced", "p"], "Missing option"),
    ],
)
def test_wrong_calls_are_refused_before_spark_starts(arguments: list[str], why: str) -> None:
    ended, output = call(*arguments)
    assert ended == 2
    assert why in " ".join(output.split())


@pytest.mark.row("D14")
def test_json_to_standard_output_is_alone_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(job: Job, want: telemetry_job.Want) -> dict[str, Any]:
        job.finish({"rows": 0, "entities": []}, page=lambda _: Page("t", "l", []))
        return {"rows": 0, "entities": []}

    monkeypatch.setattr(telemetry_job, "run", run)
    result = CliRunner().invoke(main, ["pipeline", "telemetry", "x", "--json", "-"])
    framed = json.loads(result.stdout)
    assert (framed["status"], framed["result"]) == ("done", {"rows": 0, "entities": []})
    assert framed["parameters"]["telemetry"] == ["x"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["pipeline", "telemetry", "x", "--report", "-"],
        ["serve", "--ready-file", "-"],
        ["restore", "x", "q", "--into", "r", "--progress", "-"],
    ],
)
def test_a_dash_is_never_the_name_of_a_file(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "'-' is standard output" in " ".join(result.output.split())
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


@pytest.mark.row("D14")
def test_a_report_takes_the_place_of_the_former_one_at_once(tmp_path: Path) -> None:
    report = tmp_path / "new" / "report.html"
    with Job("x", JobOptions(report=report), {"a": datetime(2026, 1, 1, tzinfo=UTC)}) as job:
        job.finish({"n": 1}, page=lambda found: Page(f"title {found['n']}", "", []))
        framed = job.finish({"n": 2}, page=lambda found: Page(f"title {found['n']}", "", []))
    assert "title 2" in report.read_text()
    assert [path.name for path in report.parent.iterdir()] == ["report.html"]
    documented = json.loads(DOC.split("```json\n")[1].split("```")[0])
    assert framed.keys() == documented.keys()


def test_settings_and_dry_runs_reach_the_job() -> None:
    seen: list[JobOptions] = []

    @click.command()
    @job_options(changes=True)
    def command(options: JobOptions) -> None:
        seen.append(options)

    line = ["--master", "local[1]", "--conf", "a=b=c", "--conf", "d=", "--dry-run"]
    assert CliRunner().invoke(command, line).exit_code == 0
    assert seen == [JobOptions("local[1]", {"a": "b=c", "d": ""}, None, None, True)]


def test_a_duration_is_a_time_ago() -> None:
    def parsed(text: str) -> datetime:
        found = time_option(click.Context(pipeline), click.Option(["--since"]), text)
        assert found is not None
        return found

    assert abs(parsed("2h") - (datetime.now(UTC) - timedelta(hours=2))) < timedelta(minutes=1)
    assert parsed("2026-01-31T12:00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_columns_of_logs_are_documented() -> None:
    for column in (*PRODUCED, *CONSUMED):
        name = f"**`{column.name}`**" if column.needed else f"`{column.name}`"
        assert f"| {name} | {column.type} |" in DOC
    for kind in KINDS:
        assert f"| `{kind}` |" in DOC


def test_every_job_is_listed_and_documented() -> None:
    for name in JOBS:
        assert f"[`{name}`](#{name})" in DOC


@pytest.mark.row("D13")
def test_spark_submit_is_told_where_the_jobs_are() -> None:
    line = [sys.executable, "-m", "partibus.pipeline"]
    where = subprocess.run([*line, "--where"], capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    assert Path(where).name == "__main__.py"
    shown = subprocess.run([sys.executable, where, "-h"], capture_output=True, text=True, timeout=60, check=True)
    assert "telemetry" in shown.stdout


def test_texts_of_messages_reach_the_terminal_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = {"message_id": "\x1b[2J", "properties": "{}", "body": "\x1b]0;title\x07"}
    source: dict[str, Any] = {
        "entity": "orders", "to": "orders", "dead_letters": 1, "matched": 1, "sent": 0, "left": 0, "samples": [sample],
        "reasons": [{"reason": "\x1b[31mred", "messages": 1}],
    }  # fmt: skip
    entity: dict[str, Any] = {
        "entity": "orders", "load": 1, "keys": 1, "partitions": 1, "plan": {"actions": [], "largest_share": 1.0},
        "now": {"skew": {"largest_over_mean": 1.0, "gini": 0.0}, "effective_partitions": 1.0},
        "advice": ["The key '\x1b[1m' is hot."],
    }  # fmt: skip
    monkeypatch.setattr(redrive, "run", lambda job, want: {"sources": [source]})
    monkeypatch.setattr(plan, "run", lambda job, want: {"unit": "messages", "entities": [entity]})
    for arguments in (["redrive", "--connection", "c", "--entity", "orders", "--dry-run"], ["plan", "x"]):
        ended, output = call(*arguments)
        assert ended == 0
        assert "\\x1b[" in output
        assert "\x1b" not in output


def test_folders_of_an_out_keep_the_scheme_of_its_url() -> None:
    for out in ("s3a://b/x", "s3a://b/x/"):
        assert telemetry_job.tables(out) == "s3a://b/x/tables"
        assert telemetry_job.checkpoint(out) == "s3a://b/x/checkpoint"
        assert audit.findings_in(out) == "s3a://b/x/findings"
    assert telemetry_job.tables("build/usage") == "build/usage/tables"


def test_replay_is_told_times_as_they_were_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[capture.Replay] = []

    def replay(job: Job, want: capture.Replay) -> dict[str, Any]:
        seen.append(want)
        return {"resumed": False, "sent": 0, "messages": 0}

    monkeypatch.setattr(capture, "replay", replay)
    ended, output = call("capture", "--connection", "c", "--out", "o", "--replay-to", "q", "--since", "2h")
    assert ended == 0, output
    (want,) = seen
    assert want.typed == ("2h", None)
    assert want.chosen.since is not None
    assert want.chosen.until is None


def test_a_master_that_does_not_answer_is_refused_before_spark_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answers = f"spark://127.0.0.1:1,127.0.0.1:{port}"
        assert "Missing argument" in call("telemetry", "--master", answers)[1]
    ended, output = call("telemetry", "x", "--master", f"spark://127.0.0.1:{port}")
    assert ended == 1
    assert f"--master spark://127.0.0.1:{port} does not answer: 127.0.0.1:{port}: Connection refused." in output
    ended, output = call("telemetry", "x", "--master", "spark://127.0.0.1")
    assert ended == 2
    assert "port from 1 to 65535" in " ".join(output.split())


def test_a_master_that_spark_gives_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        java = SimpleNamespace(_target_id="o1", _gateway_client=SimpleNamespace(send_command=lambda _: "yro0"))
        error = Py4JJavaError("An error occurred.\n", java)
        monkeypatch.setattr(Py4JJavaError, "__str__", lambda _: "Cannot call methods on a stopped SparkContext.")
        raise error

    monkeypatch.setattr("partibus.pipeline.job.job_session", start)
    with pytest.raises(JobError, match="--master spark://h:8080 does not answer as one of Spark"):
        _ = Job("x", JobOptions("spark://h:8080"), {}).spark


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["telemetry", "nowhere"], "give the directory that the broker writes to"),
        (["telemetry", "nowhere", "--follow", "--out", "o"], "give the directory that the broker writes to"),
        (["credits", "nowhere"], "give the directory that the broker writes to"),
        (["fifo", "nowhere"], "give the directory that the broker writes to"),
        (["plan", "nowhere"], "give the directory that the broker writes to"),
        (["plan", "nowhere", "--messages", "--entity", "q"], "give the folder of `partibus pipeline capture --out`"),
        (["compact", "nowhere"], "give the folder of `partibus pipeline capture --out`"),
        (["capture", "--connection", "c", "--out", "nowhere", "--replay-to", "q"], "give the folder of"),
        (["audit", "--produced", "there", "--consumed", "nowhere"], "give the logs with --produced, --consumed"),
    ],
)
def test_paths_that_do_not_exist_are_refused_before_spark_starts(
    arguments: list[str], advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").touch()
    ended, output = call(*arguments)
    assert (ended, output.split(advice)[0]) == (1, "Error: nowhere does not exist: ")


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("s3a://b/nowhere", JobOptions()),
        ("file:/nowhere", JobOptions()),
        ("nowhere/day=*", JobOptions()),
        ("nowhere", JobOptions("yarn")),
        ("nowhere", JobOptions(config={"spark.hadoop.fs.defaultFS": "hdfs://h"})),
    ],
)
def test_paths_that_only_spark_resolves_are_left_to_it(path: str, options: JobOptions) -> None:
    Job("x", options, {}).check_paths([path], "advice")


def test_a_job_without_entities_prints_why_in_place_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def absence(*arguments: object) -> str:
        asked.append(arguments[1:])
        return "no rows for entity 'nosuch'"

    monkeypatch.setattr("partibus.pipeline.job.job_session", lambda *_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr("partibus.pipeline.rows.absence", absence)
    monkeypatch.setattr(telemetry_job, "run", lambda job, want: {"rows": 0, "entities": []})
    monkeypatch.setattr(plan, "run", lambda job, want: {"unit": "messages", "entities": []})
    for job in ("telemetry", "plan"):
        assert call(job, "x", "--entity", "nosuch") == (0, "no rows for entity 'nosuch'\n")
    assert asked == [(("x",), ("nosuch",), [])] * 2
