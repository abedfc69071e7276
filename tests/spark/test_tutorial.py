"""docs/spark.md: pasted one block after the other, shell and Python, it works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from partibus.spark.options import Options
from partibus.spark.sink_options import SinkOptions
from partibus.testing.broker_process import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
NOT_HERE = ("pip install", "partibus serve", "export ")
"""Lines of the shell that prepare a machine: the test's broker and environment stand in for them."""


def blocks() -> list[tuple[str, str]]:
    """(language, text) of each in order; a cluster has tests of its own."""
    tutorial, _, _ = PAGE.read_text(encoding="utf-8").partition("\n# On a cluster")
    return re.findall(r"^```(python|sh)\n(.*?)^```", tutorial, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(240)
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
                exec(compile(text.replace('"data/', f'"{data}/'), str(PAGE), "exec"), pasted)
            else:
                paste_into_shell(text)
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


def paste_into_shell(text: str) -> None:
    """Run the lines that are the tutorial's own."""
    lines = [line for line in text.splitlines() if not line.startswith(NOT_HERE)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["sh", "-ec", "\n".join(lines)], env={**os.environ, "PATH": path}, check=True, timeout=60)


def test_connection_that_is_shown_can_be_used() -> None:
    """The line that exports it is not run above."""
    (line,) = (one for _, text in blocks() for one in text.splitlines() if one.startswith("export PARTIBUS_CONNECTION"))
    connection = line.partition("=")[2].strip('"')
    for options in (Options, SinkOptions):
        assert "sb://localhost" in repr(options.parse({"connection": connection, "entity": "orders"}))
