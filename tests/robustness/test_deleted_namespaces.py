"""A namespace that is deleted in the midst of everything: its clients, its messages in the stores, brokers that are
killed, and the next one of its name."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from partibus.client.errors import ClientError
from partibus.client.extensions.cluster import FaultInjections
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import NamespaceInfo, Namespaces, host_of
from partibus.client.messages import OutgoingMessage
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import eventually
from tests.kit.plain_client import Client, connect
from tests.kit.postgresql_server import PostgreSQLServer
from tests.robustness.machines import Machines

MESSAGES = 800
TABLES = ("partition", "subqueue", "body", "entry")
"""The tables of a store in which messages leave rows."""


def left_in_stores(data: Path) -> dict[str, int]:
    """Rows by table, over all stores."""
    found = dict.fromkeys(TABLES, 0)
    for file in sorted((data / "stores").glob("*.db")):
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            for table in TABLES:
                ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")
                found[table] += count
    return found


def catalog_rows(data: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"file:{data / 'catalog.db'}?mode=ro", uri=True)) as connection:
        tables = ("namespace", "entity", "placement", "rule", "policy", "dropped_partition")
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}


def made(
    operator: Client, name: str = "acme-1", options: Mapping[str, object] | None = None
) -> tuple[NamespaceInfo, str]:
    """A namespace, and its connection string."""
    info = Namespaces(operator).create(name, options)
    return info, info.connection_string(operator.endpoint)


def fill(client: Client) -> None:
    """Queues of both kinds and a topic, with messages; some are locked by a receiver that stays."""
    entities = Entities(client)
    entities.create_queue("plain", {})
    entities.create_queue("partitioned", {"EnablePartitioning": True, "LockDuration": "PT5M"})
    entities.create_topic("topic", {"EnablePartitioning": True})
    entities.create_subscription("topic", "all", {})
    for number in range(20):
        entities.create_queue(f"more-{number}", {})
    for address in ("plain", "partitioned", "topic"):
        for key in range(16):
            messages = [OutgoingMessage(body=bytes(200), partition_key=str(key)) for _ in range(MESSAGES // 16)]
            client.sender(address).send(messages)


def test_its_clients_are_sent_away_and_nothing_of_it_stays(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path, arguments=("--brokers", "2")))
        operator = stack.enter_context(connect(broker.connection_string))
        info, string = made(operator)
        client = stack.enter_context(connect(string))
        fill(client)
        others = [stack.enter_context(connect(string)) for _ in range(6)]
        receivers = [other.receiver("partitioned") for other in others]
        held = [receiver.receive(20, timeout_s=5) for receiver in receivers]
        assert any(held)
        Entities(operator).create_queue("bystander", {})
        operator.sender("bystander").send([OutgoingMessage(body=b"stays")])
        assert [one.connections for one in Namespaces(operator).list() if one.name == "acme-1"] == [7]
        Namespaces(operator).delete("Acme-1")
        for other in (client, *others):
            with pytest.raises(ClientError, match=r"was deleted|closed the connection|in this namespace"):
                other.sender("plain").send([OutgoingMessage(body=b"too late")])
        with pytest.raises(ClientError, match="not signed"), connect(string) as late:
            late.sender("plain")
        assert [one.name for one in Namespaces(operator).list()] == ["default"]
        eventually("nothing is left to drop", lambda: catalog_rows(broker.data)["dropped_partition"] == 0)
        assert catalog_rows(broker.data) == {
            "namespace": 0, "entity": 1, "placement": 1, "rule": 0, "policy": 0, "dropped_partition": 0
        }  # fmt: skip
        (message,) = operator.receiver("bystander").receive(1)
        assert message.body == b"stays"
        again, string = made(operator)
        assert again.primary_key != info.primary_key
        with connect(string) as new:
            assert Entities(new).list() == []
            Entities(new).create_queue("plain", {})
            assert Entities(new).get("plain").messages == 0
            assert new.receiver("plain").receive(1, timeout_s=0.2) == []
            Entities(new).delete("plain")
        Entities(operator).delete("bystander")
        broker.stop()
    assert left_in_stores(broker.data) == dict.fromkeys(TABLES, 0)


def test_a_kill_right_after_leaves_it_deleted_and_the_next_start_clears_up(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with connect(broker.connection_string) as operator:
            _, string = made(operator)
            with connect(string) as client:
                fill(client)
            Namespaces(operator).delete("acme-1")
            broker.kill()
        broker.start()
        with connect(broker.connection_string) as operator:
            assert [one.name for one in Namespaces(operator).list()] == ["default"]
            made(operator)
        eventually("nothing is left to drop", lambda: catalog_rows(broker.data)["dropped_partition"] == 0)
    assert left_in_stores(broker.data) == dict.fromkeys(TABLES, 0)


def test_with_stores_away_it_is_gone_and_they_are_cleared_when_they_are_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, connect(broker.connection_string) as operator:
        _, string = made(operator)
        with connect(string) as client:
            fill(client)
        fault_injections = FaultInjections(operator)
        for store in ("store-03", "store-04"):
            fault_injections.fail(store=store)
        Namespaces(operator).delete("acme-1")
        assert [one.name for one in Namespaces(operator).list()] == ["default"]
        _, string = made(operator)
        with connect(string) as client:
            Entities(client).create_queue("plain", {})
            assert Entities(client).get("plain").messages == 0
            Entities(client).delete("plain")
        fault_injections.heal(store="store-03")
        fault_injections.heal(store="store-04")
        eventually("nothing is left to drop", lambda: catalog_rows(broker.data)["dropped_partition"] == 0)
        broker.stop()
        assert left_in_stores(broker.data) == dict.fromkeys(TABLES, 0)


@pytest.mark.row("R10")
def test_namespaces_of_several_machines_are_those_of_all(tmp_path: Path, server: PostgreSQLServer) -> None:
    with ExitStack() as stack:
        machines = Machines(tmp_path, server).start("one", "two")
        for broker in machines.brokers.values():
            stack.callback(broker.stop)
        first, second = (stack.enter_context(machines.client(name)) for name in ("one", "two"))
        info, string = made(first, options={"limits": {"entities": 3}})
        there = parse_connection_string(string)
        elsewhere = replace(there, host=host_of("acme-1", second.endpoint.host), port=second.endpoint.port).text
        assert Namespaces(second).get("acme-1").primary_key == info.primary_key
        with connect(string) as here, connect(elsewhere) as client:
            Entities(here).create_queue("q", {"EnablePartitioning": True})
            client.sender("q").send([OutgoingMessage(body=b"over there")])
            (message,) = here.receiver("q").receive(1)
            assert message.body == b"over there"
            eventually("both connections are counted", lambda: Namespaces(first).get("acme-1").connections == 2)
            assert Entities(second).list() == []
            became = Namespaces(second).migrate("acme-1", {"partitions": 2})
            assert (became.tier, Namespaces(first).get("acme-1").options["partitions"]) == ("premium", 2)
            Entities(client).create_queue("new", {})
            assert Entities(here).get("new").partitions == 2
            assert Entities(here).get("q").partitions == 16
            Namespaces(second).delete("acme-1")
            for one in (here, client):
                with pytest.raises(ClientError):
                    one.sender("q").send([OutgoingMessage(body=b"too late")])
        assert [one.name for one in Namespaces(first).list()] == ["default"]
