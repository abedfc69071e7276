"""Two brokers behind one port: what one front end caches, and what is rehearsed through one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from partibus.client import Client, OutgoingMessage, connect
from partibus.client.entities import Entities
from partibus.client.errors import Busy, SendFailed
from partibus.client.rehearsals import Rehearsals
from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import BrokerProcess

PARTITIONS = 16
CONNECTIONS = 14
"""The system deals them over two brokers by their ports: all to one of them once in 8,000 times."""
QUIET_S = 0.3
RESERVED_MS = 5_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("brokers")
    with BrokerProcess(folder, arguments=("--brokers", "2", "--clock", "manual")) as broker:
        yield broker


@pytest.fixture
def connections(broker: BrokerProcess) -> Iterator[list[Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connect(broker.connection_string)) for _ in range(CONNECTIONS)]


@pytest.mark.row("A5", "A6")
def test_what_one_front_end_caches_another_one_does_not_get_before_its_time(
    broker: BrokerProcess, connections: list[Client]
) -> None:
    queue = broker.create_queue("cached", EnablePartitioning=True)
    one, *others = connections
    sender = one.sender(queue)
    for i in range(PARTITIONS):  # what is sent together would be in one partition
        sender.send([OutgoingMessage(body=b"%d" % i)])
    receiver = one.receiver(queue)
    (first,) = receiver.receive(1)
    receivers = [other.receiver(queue) for other in others]
    found = [one.receive(1, timeout_s=QUIET_S) for one in receivers]
    empty = [one for one, messages in zip(receivers, found, strict=True) if not messages]
    assert empty, "every other connection is with the same front end"
    # The same connection profits from the cache, as the others of that front end have.
    (second,) = receiver.receive(1)
    broker.advance(RESERVED_MS)
    (late,) = empty[0].receive(1)
    bodies = [message.body for message in (first, second, late, *(message for came in found for message in came))]
    assert len(set(bodies)) == len(bodies)


@pytest.mark.row("K2", "K12", "A4")
def test_a_rehearsal_holds_whichever_broker_is_asked(broker: BrokerProcess, connections: list[Client]) -> None:
    queue = broker.create_queue("rehearsed", EnablePartitioning=True)
    lost = partition_for_key("k", PARTITIONS)
    Rehearsals(connections[0]).fail(entity=queue, partitions=[lost])
    for one in connections:
        assert Entities(one).get(queue).partitions_away == (lost,)
        sender = one.sender(queue)
        with pytest.raises(SendFailed) as refused:
            sender.send([OutgoingMessage(body=b"x", partition_key="k")])
        assert isinstance(refused.value.failures[0][1], Busy)
        sender.send([OutgoingMessage(body=b"x")])
        assert len(Rehearsals(one).all()) == 1
    assert Rehearsals(connections[-1]).heal() == 1
    for one in connections:
        assert Entities(one).get(queue).partitions_away == ()
        one.sender(queue).send([OutgoingMessage(body=b"x", partition_key="k")])
    assert Entities(connections[0]).get(queue).messages == 2 * CONNECTIONS
