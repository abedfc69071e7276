"""Topics behind several brokers: what one has answered holds for whatever is published through any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from partibus.client.errors import ClientError
from partibus.client.management import RuleInfo
from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import receive_all
from tests.conformance.clients.python_sync import PythonSync
from tests.kit.plain_client import Client, connect

CONNECTIONS = 9
"""The kernel deals connections out by chance; with so many, each broker has one in all but a few of a hundred runs, and
the rest of them are no less right."""
ROUNDS = 8
PATH = "t/Subscriptions/s"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("shared"), arguments=("--brokers", "3")) as broker:
        yield broker


@pytest.fixture
def connections(broker: BrokerProcess) -> Iterator[list[Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connect(broker.connection_string)) for _ in range(CONNECTIONS)]


@pytest.fixture
def topic(broker: BrokerProcess) -> Iterator[str]:
    name = broker.create_topic("t", EnablePartitioning=True)
    yield name
    broker.delete_queue(name)


@pytest.mark.row("C38")
def test_a_rule_that_was_answered_holds_through_every_broker(
    broker: BrokerProcess, connections: list[Client], topic: str
) -> None:
    """Each round another connection replaces the rule; at once all connections send, keyed to all partitions."""
    broker.create_subscription(topic, "s")
    rules = [connection.rules(PATH) for connection in connections]
    senders = [connection.sender(topic) for connection in connections]
    before = "$Default"
    for turn in range(ROUNDS):
        mine = rules[turn % CONNECTIONS]
        mine.add(RuleInfo(f"r{turn}", f"turn = {turn}"))
        mine.remove(before)
        before = f"r{turn}"
        for number, sender in enumerate(senders):
            for wanted in (turn, turn - 1):
                key = f"{turn}-{number}"
                properties = {"turn": wanted}
                message = OutgoingMessage(body=b"%d" % wanted, partition_key=key, application_properties=properties)
                sender.send([message])
    with closing(PythonSync(broker.connection_string)) as python:
        found = sorted(int(message.body) for message in receive_all(python, PATH, ROUNDS * CONNECTIONS))
    assert found == [turn for turn in range(ROUNDS) for _ in range(CONNECTIONS)]


def test_a_subscription_is_there_and_gone_for_everybody_at_once(
    broker: BrokerProcess, connections: list[Client], topic: str
) -> None:
    for turn in range(4):
        path = broker.create_subscription(topic, f"s{turn}")
        for number, connection in enumerate(connections):
            connection.sender(topic).send([OutgoingMessage(body=b"x", partition_key=f"{turn}-{number}")])
        with closing(PythonSync(broker.connection_string)) as python:
            assert len(receive_all(python, path, CONNECTIONS)) == CONNECTIONS
        broker.delete_queue(path)
        for connection in connections:
            with pytest.raises(ClientError, match="could not be found"):
                connection.rules(path).list()
