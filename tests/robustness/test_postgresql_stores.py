"""A broker whose stores are in a PostgreSQL server: it keeps what it acknowledged, and loses with the server no more
than the partitions that are there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from partibus.client import Client, ClientError, IncomingMessage, OutgoingMessage, connect
from partibus.testing.broker_process import BrokerProcess
from partibus.testing.patience import PATIENCE_S
from partibus.testing.postgresql_server import PostgreSQLServer

KEYS = [f"key-{number}" for number in range(64)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQLServer]:
    with PostgreSQLServer() as server:
        yield server


def client_of(broker: BrokerProcess) -> Client:
    return connect(broker.connection_string, timeout_s=PATIENCE_S)


def message(number: int, key: str | None = None) -> OutgoingMessage:
    return OutgoingMessage(body=b"%d" % number, partition_key=key)


def number_of(message: IncomingMessage) -> int:
    assert isinstance(message.body, bytes)
    return int(message.body)


def drained(client: Client, queue: str) -> list[int]:
    """The numbers in a queue, each message taken out."""
    found: list[int] = []
    receiver = client.receiver(queue)
    while messages := receiver.receive(500, timeout_s=0.7):
        found += [number_of(message) for message in messages]
        receiver.settle(messages)
    return sorted(found)


@pytest.mark.row("S1", "P11")
def test_what_was_acknowledged_is_there_after_broker_and_server_were_killed(
    tmp_path: Path, server: PostgreSQLServer
) -> None:
    url = server.url(parameters="schema=killed&stores=16")
    with BrokerProcess(tmp_path, arguments=("--store", url)) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        with client_of(broker) as client:
            sender = client.sender("orders")
            sender.send([message(number, KEYS[number % 64]) for number in range(0, 400, 2)])
            sender.send([message(number) for number in range(1, 400, 2)])
            receiver = client.receiver("orders")
            taken = receiver.receive(100, timeout_s=PATIENCE_S)
            receiver.settle(taken)
        completed = {number_of(one) for one in taken}
        broker.kill()
        server.kill()
        server.start()
        broker.start()
        with client_of(broker) as client:
            assert drained(client, "orders") == sorted(set(range(400)) - completed)
    assert list((tmp_path / "data" / "stores").iterdir()) == []


@pytest.mark.row("P3", "K2", "K12", "A1")
def test_without_the_server_the_partitions_in_files_go_on(tmp_path: Path, server: PostgreSQLServer) -> None:
    url = server.url(parameters="schema=lost&stores=6")
    with BrokerProcess(tmp_path, arguments=("--store", url, "--store", "sqlite:10")) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        with client_of(broker) as client:
            sender = client.sender("orders")
            sender.send([message(number, KEYS[number]) for number in range(64)])
            server.kill()
            # Without a key every one finds a partition; with a key those in files, the others are told to try again.
            sender.send([message(number) for number in range(100, 200)])
            accepted = []
            for number, key in enumerate(KEYS, start=1_000):
                try:
                    sender.send([message(number, key)])
                    accepted.append(number)
                except ClientError:
                    sender = client.sender("orders")
            assert 0 < len(accepted) < len(KEYS)
            server.start()
            there = drained_when_back(client, {*range(64), *range(100, 200), *accepted})
            assert len(there) == len(set(there))
            # A send that was refused may have been stored when nobody could tell; none that was accepted is missing.
            assert set(there) <= {*range(64), *range(100, 200), *range(1_000, 1_064)}


def drained_when_back(client: Client, awaited: set[int]) -> list[int]:
    """Until all of them have come."""
    found: list[int] = []
    for _ in range(20):
        found += drained(client, "orders")
        if awaited <= set(found):
            return found
    raise AssertionError(f"missing: {sorted(awaited - set(found))}")


@pytest.mark.row("P1", "P2", "P11")
def test_the_stores_of_a_broker_that_is_killed_go_to_the_others(tmp_path: Path, server: PostgreSQLServer) -> None:
    url = server.url(parameters="schema=many&stores=16")
    with BrokerProcess(tmp_path, arguments=("--brokers", "3", "--store", url)) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        with client_of(broker) as client:
            client.sender("orders").send([message(number, KEYS[number % 64]) for number in range(200)])
        taken_over = broker.ready["brokers"][1]
        os.kill(taken_over["pid"], signal.SIGKILL)
        found: set[int] = set()
        while len(found) < 200:
            with suppress(ClientError), client_of(broker) as client:
                found |= set(drained(client, "orders"))
        assert found == set(range(200))
        epochs = [server.sql(f"SELECT epoch FROM many_{index:02}.owner") for index in range(16)]
        assert sum(epoch > ["1"] for epoch in epochs) >= taken_over["stores"]
