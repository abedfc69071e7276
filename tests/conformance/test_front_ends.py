"""Two brokers behind one port: what one front end caches, and faults injected through one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from partibus.client.errors import Busy, SendFailed
from partibus.client.extensions.cluster import FaultInjections
from partibus.client.extensions.entities import Entities
from partibus.client.messages import OutgoingMessage
from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import Client, connect
from tests.kit.reached import connections_of

PARTITIONS = 16
CONNECTIONS = 19
"""The system deals them over two brokers by their ports: all to one of them once in 260,000 times."""
QUIET_S = 0.3
LOCK_MS = 60_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("brokers")
    with BrokerProcess(folder, arguments=("--brokers", "2", "--clock", "manual")) as broker:
        yield broker


@pytest.fixture
def connections(broker: BrokerProcess) -> Iterator[list[Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connect(broker.connection_string)) for _ in range(CONNECTIONS)]


@pytest.mark.row("A5", "A6", "P14")
def test_what_one_front_end_caches_another_one_does_not_get_before_its_time(tmp_path: Path) -> None:
    """Use locks while cached, as in the service: then the time is the manual clock's. Else what is cached goes back to
    the others when its front end is asked for nothing for a quarter of a second of real time."""
    arguments = ("--brokers", "2", "--clock", "manual", "--lock-cached")
    with BrokerProcess(tmp_path, arguments=arguments) as broker, ExitStack() as stack:
        queue = broker.create_queue("cached", EnablePartitioning=True, LockDuration="PT1M")
        homes = {one["id"]: one["pid"] for one in broker.ready["brokers"]}
        clients: dict[str, Client] = {}
        while len(clients) < len(homes):  # one with each front end
            before = {id_: connections_of(pid, broker.port) for id_, pid in homes.items()}
            client = stack.enter_context(connect(broker.connection_string))
            (home,) = [id_ for id_, pid in homes.items() if connections_of(pid, broker.port) - before[id_]]
            clients[home] = client
        one, other = clients.values()
        sender = one.sender(queue)
        for i in range(PARTITIONS):  # what is sent together would be in one partition
            sender.send([OutgoingMessage(body=b"%d" % i)])
        receiver, far = one.receiver(queue), other.receiver(queue)
        done = receiver.receive(1)
        receiver.settle(done)
        while found := far.receive(1, timeout_s=QUIET_S):  # what the first one has not cached
            far.settle(found)
            done += found
        # The same connection profits from the cache.
        again = receiver.receive(1)
        receiver.settle(again)
        broker.advance(LOCK_MS)
        (late,) = far.receive(1)
        while not late.delivery_count:  # not cached, and not here in time
            far.settle([late])
            done.append(late)
            (late,) = far.receive(1)
        assert late.delivery_count == 1, "it was locked for the front end that cached it"
        bodies = [message.body for message in (*done, *again, late)]
        assert len(set(bodies)) == len(bodies)


@pytest.mark.row("K2", "K12", "A4")
def test_a_rehearsal_holds_whichever_broker_is_asked(broker: BrokerProcess, connections: list[Client]) -> None:
    queue = broker.create_queue("rehearsed", EnablePartitioning=True)
    lost = partition_for_key("k", PARTITIONS)
    FaultInjections(connections[0]).fail(entity=queue, partitions=[lost])
    for one in connections:
        assert Entities(one).get(queue).partitions_away == (lost,)
        sender = one.sender(queue)
        with pytest.raises(SendFailed) as refused:
            sender.send([OutgoingMessage(body=b"x", partition_key="k")])
        assert isinstance(refused.value.failures[0][1], Busy)
        sender.send([OutgoingMessage(body=b"x")])
        assert len(FaultInjections(one).all()) == 1
    assert FaultInjections(connections[-1]).heal() == 1
    for one in connections:
        assert Entities(one).get(queue).partitions_away == ()
        one.sender(queue).send([OutgoingMessage(body=b"x", partition_key="k")])
    assert Entities(connections[0]).get(queue).messages == 2 * CONNECTIONS


def test_health_says_that_a_store_is_rehearsed_to_be_away_whichever_broker_is_asked(
    broker: BrokerProcess, connections: list[Client]
) -> None:
    fault_injections = FaultInjections(connections[0])
    fault_injections.slow(1, store="store-04")
    fault_injections.fail(store="store-05")
    for _ in range(CONNECTIONS):
        with pytest.raises(HTTPError) as unhealthy:
            urlopen(f"{broker.http_url}/health", timeout=EVENTUALLY_S)
        assert unhealthy.value.code == 503
        said = json.load(unhealthy.value)["stores"]
        assert said.pop("store-05") == "store-05 fails by fault injection; end it with `partibus partition heal`"
        assert set(said.values()) == {"ok"}
    fault_injections.heal()
    for _ in range(CONNECTIONS):
        urlopen(f"{broker.http_url}/health", timeout=EVENTUALLY_S).close()
