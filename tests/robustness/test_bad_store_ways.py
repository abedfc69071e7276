"""Connections between a broker and the database of its stores that are cut, late or deaf. Faults come from
`FaultProxy`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from partibus.client.errors import ClientError
from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.fault_proxy import FaultProxy
from tests.kit.postgresql_server import PostgreSQLServer, new_schema
from tests.robustness.ways import (
    DISTANT,
    KEYS,
    LOST_S,
    NEAR,
    broker_with_distant_stores,
    client_of,
    drained,
    health_of,
    message,
    send_all,
)

COMMIT_BYTES = 20_000
"""More than anything but a commit with such a body sends to the database at once."""
BULK = bytes(COMMIT_BYTES)


@pytest.fixture(scope="module")
def far(
    tmp_path_factory: pytest.TempPathFactory, server: PostgreSQLServer
) -> Iterator[tuple[BrokerProcess, FaultProxy]]:
    way = FaultProxy(("127.0.0.1", server.port))
    with broker_with_distant_stores(tmp_path_factory.mktemp("broker"), way, server) as broker:
        yield broker, way


@pytest.fixture
def way(far: tuple[BrokerProcess, FaultProxy]) -> Iterator[FaultProxy]:
    """Connect to the database; it is healed, and the queue empty, before and after a test."""
    broker, way = far
    yield way
    way.heal()
    drained(broker, "orders")


@pytest.fixture
def broker(far: tuple[BrokerProcess, FaultProxy]) -> BrokerProcess:
    return far[0]


@pytest.mark.row("R14")
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_connection_that_is_cut_during_a_commit(broker: BrokerProcess, way: FaultProxy, lost: str) -> None:
    """Whether the commit happened is found out: the client is told what is true, and no message is there twice."""
    cuts = way.cuts
    assert send_all(broker) == list(range(64))
    with client_of(broker) as client:
        sender = client.sender("orders")
        for number, key in enumerate(KEYS, start=100):
            if lost == "request":
                way.lose_next(way.to_target, COMMIT_BYTES)
            else:
                way.lose_next_answer(COMMIT_BYTES)
            sender.send([message(number, key, BULK)])
    assert way.cuts >= cuts + 10, "some keys lead to stores in the database"
    assert sorted(drained(broker, "orders")) == [*range(64), *range(100, 164)]


def refuse(way: FaultProxy) -> None:
    way.refuses = True
    way.cut()


WAYS_TO_FAIL: dict[str, Callable[[FaultProxy], object]] = {
    "refused": refuse,
    "no answers": lambda way: setattr(way.to_client, "swallows", True),
    "standing still": lambda way: setattr(way.to_client, "holds", True),
}


@pytest.mark.row("P3", "K2", "K12", "A1")
@pytest.mark.parametrize("fail", WAYS_TO_FAIL)
def test_while_the_database_is_not_reached(broker: BrokerProcess, way: FaultProxy, fail: str) -> None:
    """Accept everything without a key, and with one the messages of stores in files. No accepted message is lost."""
    accepted = set(send_all(broker))
    assert accepted == set(range(64))
    WAYS_TO_FAIL[fail](way)
    with client_of(broker) as client:
        # Commits on their way to the database when it falls silent have no outcome; a client that asks again gets one.
        sent = 0
        while sent < 100:
            with suppress(ClientError):
                client.sender("orders").send([message(1_000 + sent)], timeout_s=LOST_S)
                accepted.add(1_000 + sent)
            sent += 1
    assert len(accepted) >= 64 + 80, "sends without a key go elsewhere"
    near = [key for key in KEYS if partition_for_key(key, NEAR + DISTANT) < NEAR]
    far = [key for key in KEYS if key not in near]

    def is_accepted(number: int, key: str, timeout_s: float = EVENTUALLY_S) -> bool:
        with suppress(ClientError), client_of(broker) as client:
            client.sender("orders").send([message(number, key)], timeout_s=timeout_s)
            return True
        return False

    keyed = range(2_000, 2_000 + len(near))
    assert all(map(is_accepted, keyed, near))
    with ThreadPoolExecutor(len(far)) as pool:
        assert not any(pool.map(partial(is_accepted, timeout_s=LOST_S / 2), range(3_000, 3_000 + len(far)), far))
    way.heal()
    found = drained(broker, "orders", accepted | set(keyed))
    assert len(found) == len(set(found))


def test_a_late_database_is_slow_and_nothing_else(broker: BrokerProcess, way: FaultProxy) -> None:
    way.to_target.delay_s = way.to_client.delay_s = 0.05
    assert send_all(broker) == list(range(64))
    assert sorted(drained(broker, "orders")) == list(range(64))


def test_a_database_without_connections_to_spare(tmp_path: Path, server: PostgreSQLServer) -> None:
    """Its stores are away with the reason, the others serve; when there are connections again, so do they."""
    role = f"r{os.getpid()}"
    server.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    server.sql(f"GRANT CREATE ON DATABASE postgres TO {role}")
    way = FaultProxy(("127.0.0.1", server.port))
    schema = new_schema()
    url = f"postgresql://{role}:secret@127.0.0.1:{way.port}/postgres?schema={schema}&stores=6"
    with way, BrokerProcess(tmp_path, arguments=("--store", url, "--store", "sqlite:10")) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        assert send_all(broker) == list(range(64))
        server.sql(f"ALTER ROLE {role} CONNECTION LIMIT 3")
        way.cut()
        accepted = set()
        for number in range(100, 150):
            # A commit under way when the connections are cut has no outcome.
            with suppress(ClientError), client_of(broker) as client:
                client.sender("orders").send([message(number)])
                accepted.add(number)
        assert len(accepted) >= 40
        trouble = health_of(broker)
        assert any("too many connections" in text for text in trouble.values()), trouble
        server.sql(f"ALTER ROLE {role} CONNECTION LIMIT -1")
        found = drained(broker, "orders", {*range(64), *accepted})
        assert {*found} <= {*range(64), *range(100, 150)}
