"""The program in docs/cursors.md works when it is pasted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from partibus.testing.broker_process import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "cursors.md"


@pytest.mark.row("D3")
def test_reader_takes_over_everything_and_completes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    with BrokerProcess(tmp_path) as broker:
        queue = broker.create_queue("orders", EnablePartitioning=True)
        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender(queue) as sender,
        ):
            sender.send_messages([ServiceBusMessage(b"x", partition_key=f"key-{n}") for n in range(40)])
        monkeypatch.setenv("PARTIBUS_CONNECTION", broker.connection_string)
        read: list[int] = []
        exec(
            compile(block.replace("        ...", "        read.append(frame.count)"), str(PAGE), "exec"),
            {"read": read},
        )
        assert sum(read) == 40
        assert broker.describe(queue).messages == 0
