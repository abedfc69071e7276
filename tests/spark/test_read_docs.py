"""The chapters of docs/spark.md that read: pasted one block after the other, they work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import SparkSession

from partibus.testing.broker_process import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
COUNT = 30


def blocks() -> list[str]:
    reading, _, _ = PAGE.read_text(encoding="utf-8").partition("# Writing to a queue")
    return re.findall(r"^```python\n(.*?)^```", reading, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(240)
@pytest.mark.row("D1", "D2", "D3")
def test_blocks_work_when_they_are_pasted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker") as broker:
        queue = broker.create_queue("orders", EnablePartitioning=True)
        bodies = [{"id": n, "customer": f"c{n}", "lines": [{"sku": "a", "n": 1}] * (n % 3)} for n in range(COUNT)]
        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender(queue) as sender,
        ):
            sender.send_messages([ServiceBusMessage(json.dumps(body).encode()) for body in bodies])
        monkeypatch.setenv("PARTIBUS_CONNECTION", broker.connection_string)
        pasted: dict[str, object] = {}
        for block in blocks():
            exec(compile(block.replace("/data/", f"{data}/"), str(PAGE), "exec"), pasted)
        assert pasted["spark"] is spark
        assert "|customer|" in capsys.readouterr().out.replace(" ", "")
        for folder in ("orders", "work"):
            assert spark.read.parquet(str(data / folder)).count() == COUNT
        assert broker.describe(queue).messages == 0
