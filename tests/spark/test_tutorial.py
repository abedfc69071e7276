"""docs/spark.md: pasted one block after the other, shell and Python, it works."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from partibus.spark.options import Options
from partibus.spark.sink_options import SinkOptions
from partibus.testing.broker_process import BrokerProcess
from tests.plugins import snippets

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def blocks() -> list[tuple[str, str]]:
    """Find the blocks before the section on clusters, which has tests of its own: (language, text)."""
    return snippets.blocks(PAGE.read_text(encoding="utf-8").partition("\n# On a cluster")[0])


@pytest.mark.timeout(600)
@pytest.mark.row("D1", "D2", "D3", "D5")
def test_blocks_work_when_they_are_pasted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker") as broker:
        monkeypatch.setenv("PARTIBUS_CONNECTION", broker.connection_string)
        pasted: dict[str, object] = {}
        for language, text in blocks():
            if language == "python":
                snippets.run_python(text.replace('"data/', f'"{data}/'), PAGE, pasted)
            else:
                snippets.run_shell(text)
        assert pasted["spark"] is spark
        printed = capsys.readouterr().out.replace(" ", "")
        assert "|1|Ada|1|" in printed
        assert "|2|Bo|0|" in printed
        for folder in ("orders", "work"):
            assert spark.read.parquet(str(data / folder)).count() == 2
        assert broker.describe("orders").messages == 0, "the consuming query has completed what it wrote"
        there = spark.read.format("partibus").option("connection", broker.connection_string)
        for queue in ("flights", "copy"):
            rows = there.option("entity", queue).load().collect()
            assert sorted((row.message_id is not None, row.partition_key) for row in rows) == [
                (True, "N14228"), (True, "N24211"), (True, "N619AA"),
            ]  # fmt: skip
            assert {row.application_properties["carrier"] for row in rows} == {"UA", "AA"}


def test_connection_that_is_shown_can_be_used() -> None:
    """The line that exports it is not run above."""
    (line,) = (one for _, text in blocks() for one in text.splitlines() if one.startswith("export PARTIBUS_CONNECTION"))
    connection = line.partition("=")[2].strip('"')
    for options in (Options, SinkOptions):
        assert "sb://localhost" in repr(options.parse({"connection": connection, "entity": "orders"}))


def test_the_readmes_program_works(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = PAGE.parents[1] / "README.md"
    (program,) = [text for _, text in snippets.blocks(readme.read_text(encoding="utf-8")) if "make_session" in text]
    for folder in ("orders", "checkpoint"):  # Java's working directory is not ours
        program = program.replace(f', "{folder}")', f', "{tmp_path / folder}")')
    with BrokerProcess(tmp_path) as broker:
        monkeypatch.setenv("PARTIBUS_CONNECTION", broker.connection_string)
        snippets.run_shell("partibus entity create queue orders --partitioned\npartibus send orders 1")
        snippets.run_python(program, readme, {"connection_string": broker.connection_string})
        assert not spark.streams.active, "the program waits for its query"
    rows = spark.read.parquet(str(tmp_path / "orders")).collect()
    assert [bytes(row.body) for row in rows] == [b"1"]


@pytest.mark.row("D1", "D2", "D3")
def test_block_for_spark_connect_works_over_a_server(spark: SparkSession, tmp_path: Path) -> None:
    """The server runs in the session's JVM; the client is a process of its own, as one process can't be both."""
    page = PAGE.read_text(encoding="utf-8")
    (text,) = [text for _, text in snippets.blocks(page) if "SPARK_REMOTE" in text]
    gateway: Any = spark.sparkContext._jvm
    service = gateway.org.apache.spark.sql.connect.service.SparkConnectService
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    context = spark.sparkContext._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.port", str(port))
    service.start(context)
    try:
        with BrokerProcess(tmp_path) as broker:
            broker.create_queue("orders", EnablePartitioning=True)
            remote = f"sc://localhost:{port}"
            environment = os.environ | {"PARTIBUS_CONNECTION": broker.connection_string, "SPARK_REMOTE": remote}
            client = subprocess.run(
                [sys.executable, "-c", text.replace('"data/', f'"{tmp_path}/data/')],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert client.returncode == 0, client.stderr
            said = client.stdout.splitlines()
            assert said[:2] == ["2 messages", "2 rows in the stream"]
            assert said[2].startswith("completed up to {0: ")
            assert broker.describe("orders").messages == 0
        assert spark.read.parquet(str(tmp_path / "data" / "remote")).count() == 2
    finally:
        service.stop(gateway.scala.Option.empty(), gateway.scala.Option.empty())
