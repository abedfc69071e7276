"""Common parts of tests of bad connections: brokers behind `FaultProxy`, and the content of their queues."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from partibus.client.errors import ClientError
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.fault_proxy import FaultProxy
from tests.kit.plain_client import Client, connect
from tests.kit.postgresql_server import PostgreSQLServer, new_schema

KEYS = [f"key-{number}" for number in range(64)]
NEAR, DISTANT = 10, 6
"""The numbers of stores in files, and of those in a database, which come after them: the partitions of the first
entity."""
QUIET_S = 0.3
"""Seconds to wait for messages that should not come."""
RECONNECT_S = 2.0
"""Seconds to wait for messages that have not come yet, before the test asks anew."""
LOST_S = 6.0
"""Seconds to wait for an answer that may never come: more than a broker itself waits for a silent peer."""


def client_of(broker: BrokerProcess) -> Client:
    return connect(broker.connection_string, timeout_s=EVENTUALLY_S)


def number_of(message: IncomingMessage) -> int:
    assert isinstance(message.body, bytes)
    return int(message.body.rstrip(b"\0"))


def message(number: int, key: str | None = None, bulk: bytes = b"") -> OutgoingMessage:
    return OutgoingMessage(body=b"%d" % number + bulk, partition_key=key)


def drained(broker: BrokerProcess, queue: str, awaited: Collection[int] | None = None) -> list[int]:
    """The numbers of messages as they come, each taken out: until those awaited are among them (None: as many as there
    are), and no more come for a moment."""
    found: list[int] = []
    in_doubt: set[int] = set()
    """Taken, and perhaps not gone: their settlement has no outcome."""
    wanted = set(awaited or ())
    least = message_count(broker, queue) if awaited is None else 0

    def is_enough() -> bool:
        return wanted.issubset(found) and len(found) >= least

    def take_all() -> bool:
        with client_of(broker) as client:
            receiver = client.receiver(queue)
            while messages := receiver.receive(500, timeout_s=QUIET_S if is_enough() else RECONNECT_S):
                numbers = [number_of(one) for one in messages]
                found.extend(number for number in numbers if number not in in_doubt)
                in_doubt.update(numbers)
                receiver.settle(messages)
                in_doubt.difference_update(numbers)
        return is_enough()

    try:
        eventually(f"'{queue}' is empty", take_all)
    except AssertionError as error:
        error.add_note(f"{len(found)} have come; missing: {sorted(wanted.difference(found)) or least - len(found)}")
        raise
    return found


def message_count(broker: BrokerProcess, queue: str) -> int:
    """Count the messages of all partitions, once all can be reached."""
    counts: list[int] = []

    def is_told() -> bool:
        info = broker.describe(queue)
        counts[:] = [info.messages]
        return not info.partitions_away

    eventually(f"every partition of '{queue}' is there", is_told)
    return counts[0]


@contextmanager
def broker_with_distant_stores(folder: Path, way: FaultProxy, server: PostgreSQLServer) -> Iterator[BrokerProcess]:
    """`DISTANT` stores in a database behind a way, the others in files."""
    url = server.url(parameters=f"schema={new_schema()}&stores={DISTANT}").replace(f":{server.port}/", f":{way.port}/")
    with (
        way,
        BrokerProcess(folder, arguments=("--store", url, "--store", f"sqlite:{NEAR}")) as broker,
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


def health_of(broker: BrokerProcess) -> dict[str, str]:
    """Return the report of /health on each store, whatever its status."""
    try:
        with urlopen(f"{broker.http_url}/health", timeout=EVENTUALLY_S) as answer:
            return dict(json.load(answer)["stores"])
    except HTTPError as error:
        return dict(json.load(error)["stores"])
