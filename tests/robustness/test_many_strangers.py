"""More idle connections than the process may have files: those with claims, and new ones, are served on."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import COMMAND, BrokerProcess
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import connect

FILES = 300
STRANGERS = 320


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=EVENTUALLY_S)


@pytest.mark.parametrize("over", ["amqp", "http"])
def test_idle_connections_beyond_the_limit_of_files_keep_nobody_out(tmp_path: Path, over: str) -> None:
    limited = ("/bin/sh", "-c", f'ulimit -n {FILES}; exec "$0" "$@"', *COMMAND)
    with BrokerProcess(tmp_path, command=limited) as broker, ExitStack() as stack:
        broker.create_queue("q")
        before = stack.enter_context(connect(broker.connection_string, timeout_s=EVENTUALLY_S))
        sender = before.sender("q")
        port = broker.port if over == "amqp" else int(broker.ready["http_port"])
        for _ in range(STRANGERS):
            stack.callback(connected(port).close)
        for _ in range(5):
            with urlopen(f"{broker.http_url}/health", timeout=EVENTUALLY_S) as answer:
                assert answer.status == 200
        sender.send([OutgoingMessage(body=b"before")])
        with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as late:
            late.sender("q").send([OutgoingMessage(body=b"late")])
            assert late.management("q").peek(1, 2)

        def dropped() -> bool:
            with urlopen(f"{broker.http_url}/metrics", timeout=EVENTUALLY_S) as answer:
                lines = answer.read().decode().splitlines()
            (line,) = [one for one in lines if one.startswith("partibus_broker_dropped_connections_total{")]
            return float(line.split()[-1]) > 0

        eventually("connections are counted as dropped", dropped)
        assert "connections without a claim were dropped" in broker.log
        assert f"may have {FILES} files open" in broker.log
