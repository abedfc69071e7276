"""The cost of TLS and websockets: the own client on each way to the broker, beside plain TCP."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import count as counter
from pathlib import Path

from bench.pairs import Pairs, Side, compare
from bench.websocket_worker import URL
from partibus.bench.load import OwnGenerator
from partibus.bench.scenarios import Target, TemporaryBroker
from partibus.client.extensions.entities import Entities
from tests.kit.plain_client import connect

_FLAG = "UseDevelopmentEmulator=true;"


def measure_transports(directory: Path, *, pairs: int, count: int) -> Iterator[Pairs]:
    """Plain queues; one connection. Workers trust the development certificate and find their way in variables."""
    shutil.rmtree(directory, ignore_errors=True)
    arguments = ("--amqps-port", "0", "--https-port", "0")
    with TemporaryBroker(directory, arguments=arguments) as broker:
        amqps_port, https_port = broker.tls_ports
        os.environ["SSL_CERT_FILE"] = str(directory / "data" / "certs" / "ca.pem")
        os.environ[URL] = f"wss://localhost:{https_port}/$servicebus/websocket"
        numbers = counter(1)

        def new_queue() -> Target:
            name = f"bench-{next(numbers)}"
            with connect(broker.connection) as client:
                Entities(client).create_queue(name, {"MaxSizeInMegabytes": 5120})
            return Target("partibus", "plain", name, broker.pid)

        base = Side(new_queue, OwnGenerator(broker.connection))
        tls = broker.connection.replace(_FLAG, "").replace(f":{broker.amqp_port}", f":{amqps_port}")
        for name, generator in (
            ("TLS", OwnGenerator(tls)),
            ("websocket over TLS", OwnGenerator(broker.connection, "bench.websocket_worker")),
        ):
            yield from compare("transports", name, base, Side(new_queue, generator), pairs=pairs, count=count)
    shutil.rmtree(directory)
