"""A broker whose stores are in a PostgreSQL server: it keeps what it acknowledged, and loses with the server no more
than the partitions that are there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from partibus.client.errors import ClientError
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.postgresql_server import PostgreSQLServer, new_schema
from tests.robustness.ways import KEYS, client_of, drained, message, number_of


def test_what_was_acknowledged_is_there_after_broker_and_server_were_killed(
    tmp_path: Path, server: PostgreSQLServer
) -> None:
    schema = new_schema()
    url = server.url(parameters=f"schema={schema}&stores=16")
    with BrokerProcess(tmp_path, arguments=("--store", url)) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        with client_of(broker) as client:
            sender = client.sender("orders")
            sender.send([message(number, KEYS[number % 64]) for number in range(0, 400, 2)])
            sender.send([message(number) for number in range(1, 400, 2)])
            receiver = client.receiver("orders")
            taken = receiver.receive(100, timeout_s=EVENTUALLY_S)
            receiver.settle(taken)
        completed = {number_of(one) for one in taken}
        broker.kill()
        server.kill()
        server.start()
        broker.start()
        assert sorted(drained(broker, "orders")) == sorted(set(range(400)) - completed)
    assert list((tmp_path / "data" / "stores").iterdir()) == []


@pytest.mark.row("K2", "A1")
def test_without_the_server_the_partitions_in_files_go_on(tmp_path: Path, server: PostgreSQLServer) -> None:
    schema = new_schema()
    url = server.url(parameters=f"schema={schema}&stores=6")
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
        there = drained(broker, "orders", {*range(64), *range(100, 200), *accepted})
        assert len(there) == len(set(there))
        # A refused send with an unknown outcome may have been stored; none that was accepted is missing.
        assert set(there) <= {*range(64), *range(100, 200), *range(1_000, 1_064)}


def test_the_stores_of_a_broker_that_is_killed_go_to_the_others(tmp_path: Path, server: PostgreSQLServer) -> None:
    schema = new_schema()
    url = server.url(parameters=f"schema={schema}&stores=16")
    with BrokerProcess(tmp_path, arguments=("--brokers", "3", "--store", url)) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        with client_of(broker) as client:
            client.sender("orders").send([message(number, KEYS[number % 64]) for number in range(200)])
        taken_over = broker.ready["brokers"][1]
        os.kill(taken_over["pid"], signal.SIGKILL)
        assert sorted(drained(broker, "orders", range(200))) == list(range(200))
        epochs = [server.sql(f"SELECT epoch FROM {schema}_{index:02}.owner") for index in range(16)]
        assert sum(epoch > ["1"] for epoch in epochs) >= taken_over["stores"]
