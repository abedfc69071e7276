"""What tests of bad connections have in common: brokers behind `FaultProxy`, and what is in their queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from partibus.client import Client, ClientError, IncomingMessage, OutgoingMessage, connect
from partibus.testing.broker_process import BrokerProcess
from partibus.testing.fault_proxy import FaultProxy
from partibus.testing.patience import PATIENCE_S
from partibus.testing.postgresql_server import PostgreSQLServer

KEYS = [f"key-{number}" for number in range(64)]
AT_A_TIME = 16
"""Who waits for an answer that does not come need not wait alone."""
LOST_S = 6.0
"""For an answer that may never come: more than a broker itself waits for what is silent."""


def client_of(broker: BrokerProcess) -> Client:
    return connect(broker.connection_string, timeout_s=PATIENCE_S)


def number_of(message: IncomingMessage) -> int:
    assert isinstance(message.body, bytes)
    return int(message.body.rstrip(b"\0"))


def message(number: int, key: str | None = None, bulk: bytes = b"") -> OutgoingMessage:
    return OutgoingMessage(body=b"%d" % number + bulk, partition_key=key)


def drained(broker: BrokerProcess, queue: str) -> list[int]:
    """The numbers in a queue, each message taken out; asked until there is an answer."""
    found: list[int] = []
    for _ in range(20):
        with suppress(ClientError), client_of(broker) as client:
            receiver = client.receiver(queue)
            while messages := receiver.receive(500, timeout_s=0.7):
                receiver.settle(messages)
                found += [number_of(one) for one in messages]
            return sorted(found)
    raise AssertionError("no answer")


@contextmanager
def broker_with_distant_stores(folder: Path, way: FaultProxy, server: PostgreSQLServer) -> Iterator[BrokerProcess]:
    """Six stores in a database behind a way, ten in files."""
    schema = f"s{way.port}"
    url = server.url(parameters=f"schema={schema}&stores=6").replace(f":{server.port}/", f":{way.port}/")
    with (
        way,
        BrokerProcess(folder, arguments=("--store", url, "--store", "sqlite:10")) as broker,
    ):
        broker.create_queue("orders", EnablePartitioning=True)
        yield broker
        way.heal()


def send_all(broker: BrokerProcess, bulk: bytes = b"") -> list[int]:
    """One message for each key; those that were accepted."""
    accepted: list[int] = []
    with client_of(broker) as client:
        sender = client.sender("orders")
        for number, key in enumerate(KEYS):
            try:
                sender.send([message(number, key, bulk)])
                accepted.append(number)
            except ClientError:
                sender = client.sender("orders")
    return accepted


def drained_until(broker: BrokerProcess, count: int) -> list[int]:
    found: list[int] = []
    for _ in range(20):
        found += drained(broker, "orders")
        if len(found) >= count:
            break
    return sorted(found)


def health_of(broker: BrokerProcess) -> dict[str, str]:
    """What /health says of each store, whatever its status."""
    try:
        with urlopen(f"{broker.http_url}/health", timeout=PATIENCE_S) as answer:
            return dict(json.load(answer)["stores"])
    except HTTPError as error:
        return dict(json.load(error)["stores"])
