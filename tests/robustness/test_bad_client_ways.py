"""Connections of clients that are cut, late, slow, deaf or half closed. Faults come from `FaultProxy`."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient as AzureClient
from azure.servicebus import ServiceBusMessage

from partibus.client.errors import ClientError, ConnectionLost, TimedOut
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.fault_proxy import FaultProxy
from tests.kit.plain_client import connect
from tests.robustness.raw import check_serves
from tests.robustness.ways import (
    KEYS,
    client_of,
    drained,
    message,
    number_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""The Python library leaves the sockets of broken connections to the garbage collector, which warns."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        broker.create_queue("alive")
        yield broker


@pytest.fixture
def way(broker: BrokerProcess) -> Iterator[FaultProxy]:
    """Connect to the broker, which serves others as ever once the test is over."""
    with FaultProxy(("127.0.0.1", broker.port)) as way:
        yield way
    check_serves(broker)


def over(way: FaultProxy, broker: BrokerProcess) -> str:
    """The connection string by way of a proxy."""
    name = broker.connection_string
    assert f":{broker.port}" in name
    return name.replace(f":{broker.port}", f":{way.port}")


def test_a_client_library_goes_on_over_cut_connections(broker: BrokerProcess, way: FaultProxy) -> None:
    """The unmodified library repeats what it was not answered: everything is there, some perhaps twice."""
    broker.create_queue("cut")
    azure = AzureClient.from_connection_string(over(way, broker), retry_backoff_factor=0.05)
    with azure, azure.get_queue_sender("cut") as sender:
        for number in range(30):
            if number % 6 == 5:
                way.cut()
            sender.send_messages(ServiceBusMessage(b"%d" % number))
    assert way.cuts >= 5
    del azure, sender
    gc.collect()  # the library leaves the sockets of broken connections to it
    assert set(drained(broker, "cut")) == set(range(30))


def test_a_late_and_slow_connection_loses_nothing(broker: BrokerProcess, way: FaultProxy) -> None:
    broker.create_queue("slow", EnablePartitioning=True)
    way.to_target.delay_s = way.to_client.delay_s = 0.02
    way.to_client.bytes_per_s = 100_000
    with connect(over(way, broker), timeout_s=EVENTUALLY_S) as client:
        client.sender("slow").send([message(number, KEYS[number % 64]) for number in range(200)])
        receiver = client.receiver("slow")
        found: list[int] = []
        while len(found) < 200:
            messages = receiver.receive(200, timeout_s=EVENTUALLY_S)
            receiver.settle(messages)
            found += [number_of(one) for one in messages]
    assert sorted(found) == list(range(200))


def test_what_a_client_did_not_hear_has_happened(broker: BrokerProcess, way: FaultProxy) -> None:
    """Deaf towards the client: it learns nothing, the broker has it."""
    broker.create_queue("deaf")
    with connect(over(way, broker), timeout_s=EVENTUALLY_S) as client:
        sender = client.sender("deaf")
        sender.send([message(1)])
        way.to_client.swallows = True
        with pytest.raises(TimedOut):
            sender.send([message(2)], timeout_s=0.5)
        eventually("the broker has it", lambda: broker.describe("deaf").messages == 2)
        way.heal()
        with pytest.raises(ConnectionLost):
            sender.send([message(3)])
    assert drained(broker, "deaf") == [1, 2]


def test_what_the_broker_did_not_hear_has_not_happened(broker: BrokerProcess, way: FaultProxy) -> None:
    """Deaf towards the broker: nothing is stored, also not later, and the messages of the client's receiver come to
    others once their connection is over."""
    broker.create_queue("mute")
    with client_of(broker) as client:
        client.sender("mute").send([message(1)])
    with connect(over(way, broker), timeout_s=EVENTUALLY_S) as client:
        sender = client.sender("mute")
        receiver = client.receiver("mute")
        (taken,) = receiver.receive(1, timeout_s=EVENTUALLY_S)
        way.to_target.swallows = True
        with pytest.raises(ClientError):
            receiver.settle([taken], timeout_s=0.5)
        with pytest.raises(ClientError):
            sender.send([message(2)], timeout_s=0.5)
        way.heal()
    with client_of(broker) as client:
        node = client.management("mute")
        assert [number_of(one) for one in node.peek(1, 10)] == [1]


def test_a_client_that_says_nothing_more_is_closed(broker: BrokerProcess, way: FaultProxy) -> None:
    """Half closed by the client: the broker takes it as the end and lets go of what was handed out to it."""
    broker.create_queue("half", EnablePartitioning=True)
    with connect(over(way, broker), timeout_s=EVENTUALLY_S) as client:
        client.sender("half").send([message(number) for number in range(50)])
        (locked,) = client.receiver("half").receive(1, timeout_s=EVENTUALLY_S)
        way.half_close(way.to_target)
        with pytest.raises(ConnectionLost):
            client.sender("half").send([message(99)])
    rest = {*range(50)} - {number_of(locked)}
    assert sorted(drained(broker, "half", rest)) == sorted(rest)
