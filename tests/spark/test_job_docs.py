"""docs/pipeline.md and docs/telemetry.md: the commands of jobs work in the order of the page."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from partibus.cli.main import main
from partibus.client.messages import OutgoingMessage
from partibus.client.sync import connect
from partibus.pipeline.job import JobOptions
from partibus.testing.broker_process import BrokerProcess
from tests.plugins import snippets

DOCS = Path(__file__).parents[2] / "docs"
ELSEWHERE = ("s3a://", "spark-submit ", "# until Ctrl-C")
"""Lines that need a cluster or an operator's Ctrl-C."""
FOLDERS = ("data/", "build/", "logs/", "captured/", "redriven/", "moves/")
"""Begins of paths for Spark, whose working directory is another one."""


class Operator:
    """A person who pastes the page's commands, with this test's session and folder in place of the page's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, line: str) -> str:
        """Run one command; return what it prints."""
        words = [
            str(self.folder / word) if word.startswith(FOLDERS) else word for word in shlex.split(line, comments=True)
        ]
        ran = CliRunner().invoke(main, words[1:])
        assert ran.exit_code == 0, f"{line}\n{ran.output}\n{ran.exception!s}"
        return ran.output

    def entities(self, name: str) -> list[dict[str, Any]]:
        """Read the entities of a result that a command has written."""
        found: list[dict[str, Any]] = json.loads((self.folder / name).read_text())["result"]["entities"]
        return found


def commands() -> list[str]:
    page = (DOCS / "pipeline.md").read_text(encoding="utf-8")
    found = [line for language, text in snippets.blocks(page) if language == "sh" for line in snippets.lines(text)]
    return [line for line in found if not any(word in line for word in ELSEWHERE)]


def prepare(broker: BrokerProcess) -> None:
    """Make the page's entities, and work on them, so that telemetry and dead letters are there."""
    broker.create_queue("orders")
    broker.create_queue("orders-test")
    broker.create_queue("orders.fifo", RequiresSession=True, PartibusElasticPartitions=4)
    with connect(broker.connection_string) as client:
        with client.sender("orders") as sender, client.receiver("orders") as receiver:
            sender.send([OutgoingMessage(body=f"to {city}".encode()) for city in ("Berlin", "Paris", "Rome", "Oslo")])
            for message in receiver.receive(2):
                receiver.dead_letter(message, reason="Timeout")
        with client.sender("orders.fifo") as sender:
            sender.send([OutgoingMessage(body=b"first", session_id="group")])
    broker.restart()  # the writer of telemetry ends its files


def complete_one(broker: BrokerProcess) -> None:
    with connect(broker.connection_string) as client, client.receiver("orders") as receiver:
        (message,) = receiver.receive(1)
        receiver.complete(message)


def write_logs(folder: Path) -> None:
    """Write what an application logs: one message, sent and received."""
    for name, row in {
        "produced": {"message_id": "1", "sent_time": "2026-01-01T12:00:00Z"},
        "consumed": {"message_id": "1", "received_time": "2026-01-01T12:00:01Z"},
    }.items():
        (folder / "logs" / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row]), folder / "logs" / name / "log.parquet")


@pytest.fixture
def operator(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("partibus.pipeline.job.JobOptions", functools.partial(JobOptions, spark=spark))
    return Operator(tmp_path)


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, arguments=("--telemetry", "full")) as broker:
        monkeypatch.setenv("PARTIBUS_CONNECTION", broker.connection_string)
        prepare(broker)
        yield broker


def test_the_first_job_and_the_query_read_what_a_broker_wrote(
    spark: SparkSession, operator: Operator, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    operator.run(commands()[0])
    orders, fifo = operator.entities("build/result.json")
    assert (orders["entity"], orders["sent"], orders["dead_lettered"]) == ("orders", 4, 2)
    assert (fifo["entity"], fifo["sent"]) == ("orders.fifo", 1)
    page = DOCS / "telemetry.md"
    (query,) = [text for language, text in snippets.blocks(page.read_text(encoding="utf-8")) if language == "python"]
    snippets.run_python(query.replace("partibus-data", str(broker.data)), page, {"spark": spark})
    assert "|orders|send|4|" in capsys.readouterr().out.replace(" ", "")


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_every_command_of_the_page_works(operator: Operator, broker: BrokerProcess) -> None:
    write_logs(operator.folder)
    of_a_capture = []
    for line in commands():
        if "--messages" in line:
            of_a_capture.append(line)  # it reads what a later section writes
            continue
        operator.run(line)
        if "capture --entity" in line:
            complete_one(broker)
            operator.run(line)  # the timer comes again
            for waiting in of_a_capture:
                operator.run(waiting)
    assert broker.describe("orders-16").partitions == 16
    assert broker.describe("orders-test").messages == 1, "the replay sends what was completed"
    assert broker.describe("orders").dead_letter_messages == 0, "both redriven"
