"""Partitions and stores that are away: only their share of the traffic fails, and all is there when they are back.

Most losses are injected faults (`partibus partition fail`): nothing breaks, and the test chooses the partition. A real
one, a database file that another process has locked, shows that an injected fault is like it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient as AzureClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from partibus.client.errors import Busy, InvalidRequest, NotFound, TimedOut
from partibus.client.extensions.cluster import FaultInjections
from partibus.client.extensions.entities import Entities
from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    QUIET_S,
    Client,
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Trouble,
    nothing_left,
    peek_all,
    receive_all,
)
from tests.conformance.clients.python_sync import PythonSync
from tests.kit.eventually import eventually
from tests.kit.plain_client import Client as OwnClient
from tests.kit.plain_client import connect

MakeQueue = Callable[..., str]
PARTITIONS = 16
LOST = 5
LOCKED = (0, 3, LOST, 9)
KEYS = [f"key-{i}" for i in range(64)]
LOST_KEYS = [key for key in KEYS if partition_for_key(key, PARTITIONS) == LOST]
OTHER_KEYS = [key for key in KEYS if partition_for_key(key, PARTITIONS) != LOST]
KEPT_KEY = next(key for key in KEYS if partition_for_key(key, PARTITIONS) not in LOCKED)
FALL_BACK_S = 15
"""Within what time a send without a key must have gone elsewhere (row K14)."""


@pytest.fixture
def own(broker: BrokerProcess) -> Iterator[OwnClient]:
    with connect(broker.connection_string) as client:
        yield client


@pytest.fixture
def fault_injections(own: OwnClient) -> Iterator[FaultInjections]:
    fault_injections = FaultInjections(own)
    yield fault_injections
    fault_injections.heal()


@pytest.fixture
def partitioned(make_queue: MakeQueue) -> str:
    return make_queue(EnablePartitioning=True)


@pytest.mark.row("K12", "P3")
def test_messages_without_a_key_go_to_partitions_that_are_there(
    client: Client, python: PythonSync, partitioned: str, fault_injections: FaultInjections
) -> None:
    fault_injections.fail(entity=partitioned, partitions=[one for one in range(PARTITIONS) if one != LOST])
    client.send(partitioned, *(Outgoing(b"%d" % i) for i in range(5)))
    found = receive_all(python, partitioned, 5, delete=True)
    assert Counter(message.partition for message in found) == {LOST: 5}


@pytest.mark.row("K2", "A1")
def test_messages_with_the_key_of_a_lost_partition_are_refused_and_others_are_not(
    sdk: ServiceBusClient, python: PythonSync, partitioned: str, fault_injections: FaultInjections
) -> None:
    fault_injections.fail(entity=partitioned, partitions=[LOST])
    with pytest.raises(ClientTrouble) as refused:
        sdk.send(partitioned, Outgoing(b"lost", partition_key=LOST_KEYS[0]))
    assert refused.value.kind is Trouble.BUSY
    sdk.send(partitioned, *(Outgoing(b"kept", partition_key=key) for key in OTHER_KEYS[:20]))
    fault_injections.heal()
    sdk.send(partitioned, Outgoing(b"late", partition_key=LOST_KEYS[0]))
    found = receive_all(python, partitioned, 21, delete=True)
    assert Counter(message.body for message in found) == {b"kept": 20, b"late": 1}
    assert python.receive(partitioned, 1, delete=True, wait_s=QUIET_S) == []


@pytest.mark.row("K2", "A1")
def test_who_sends_again_gets_through_when_the_partition_is_back(
    broker: BrokerProcess, partitioned: str, fault_injections: FaultInjections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is told to try again, and does so by itself."""
    fault_injections.fail(entity=partitioned, partitions=[LOST])
    with (
        AzureClient.from_connection_string(
            broker.connection_string, retry_total=10, retry_backoff_factor=0.2, retry_mode="fixed"
        ) as azure,
        azure.get_queue_sender(partitioned) as sender,
    ):
        sender.send_messages(ServiceBusMessage(b"opens the link"))
        refusals: list[BaseException] = []
        original = sender._handle_exception

        def heal_after_two(error: BaseException, **arguments: Any) -> BaseException:
            refusals.append(error)
            if len(refusals) == 2:
                fault_injections.heal()
            return original(error, **arguments)

        monkeypatch.setattr(sender, "_handle_exception", heal_after_two)
        sender.send_messages(ServiceBusMessage(b"kept", partition_key=LOST_KEYS[0]))
    assert len(refusals) == 2
    assert broker.describe(partitioned).messages == 2


@pytest.mark.row("K2", "K7", "A1")
def test_the_message_id_is_a_key_where_duplicates_are_detected(
    sdk: ServiceBusClient, make_queue: MakeQueue, fault_injections: FaultInjections
) -> None:
    queue = make_queue(EnablePartitioning=True, RequiresDuplicateDetection=True)
    fault_injections.fail(entity=queue, partitions=[LOST])
    with pytest.raises(ClientTrouble) as refused:
        sdk.send(queue, Outgoing(b"lost", message_id=LOST_KEYS[0]))
    assert refused.value.kind is Trouble.BUSY
    sdk.send(queue, Outgoing(b"kept", message_id=OTHER_KEYS[0]))


@pytest.mark.row("K2", "A1")
def test_sessions_of_a_lost_partition_are_away_and_others_are_not(
    python: PythonSync, make_queue: MakeQueue, fault_injections: FaultInjections
) -> None:
    queue = make_queue(EnablePartitioning=True, RequiresSession=True)
    lost, other = LOST_KEYS[0], OTHER_KEYS[0]
    python.send(queue, *(Outgoing(session.encode(), session_id=session) for session in (lost, other)))
    held = python.accept_session(queue, lost)
    fault_injections.fail(entity=queue, partitions=[LOST])
    with pytest.raises(ClientTrouble) as ended:
        held.receive()
    assert ended.value.kind is Trouble.SESSION_LOST
    with pytest.raises(ClientTrouble) as refused:
        python.send(queue, Outgoing(b"", session_id=lost))
    assert refused.value.kind is Trouble.BUSY
    with pytest.raises(ClientTrouble):
        python.accept_session(queue, lost)
    session = python.accept_session(queue, None)
    assert session.id == other
    session.complete(*session.receive())
    fault_injections.heal()
    again = python.accept_session(queue, lost)
    assert [message.body for message in again.receive()] == [lost.encode()]


@pytest.mark.row("P3", "P13")
def test_receivers_get_what_the_other_partitions_have_and_the_rest_later(
    sdk: ServiceBusClient, python: PythonSync, partitioned: str, fault_injections: FaultInjections
) -> None:
    python.send(partitioned, *(Outgoing(b"x") for _ in range(2 * PARTITIONS)))
    fault_injections.fail(entity=partitioned, partitions=[LOST])
    found = receive_all(sdk, partitioned, 2 * PARTITIONS - 2, delete=True)
    assert Counter(message.partition for message in found) == {
        partition: 2 for partition in range(PARTITIONS) if partition != LOST
    }
    assert sdk.receive(partitioned, 1, delete=True, wait_s=QUIET_S) == []
    fault_injections.heal()
    assert [message.partition for message in receive_all(sdk, partitioned, 2, delete=True)] == [LOST, LOST]


def test_a_plain_queue_is_as_available_as_its_store(
    python: PythonSync, make_queue: MakeQueue, fault_injections: FaultInjections
) -> None:
    queue = make_queue()
    python.send(queue, Outgoing(b"1"))
    fault_injections.fail(entity=queue)
    with pytest.raises(ClientTrouble) as refused:
        python.send(queue, Outgoing(b"2"))
    assert refused.value.kind is Trouble.BUSY
    fault_injections.heal()
    assert [message.body for message in receive_all(python, queue, 1, delete=True)] == [b"1"]


def test_what_is_locked_in_a_lost_partition_is_settled_when_it_is_back(
    python: PythonSync, partitioned: str, fault_injections: FaultInjections, broker: BrokerProcess
) -> None:
    python.send(partitioned, Outgoing(b"x", partition_key=LOST_KEYS[0]))
    (message,) = receive_all(python, partitioned, 1)
    fault_injections.fail(entity=partitioned, partitions=[LOST])
    with pytest.raises(ClientTrouble):
        python.complete(partitioned, message)
    fault_injections.heal()
    python.complete(partitioned, message)
    assert broker.describe(partitioned).messages == 0


@pytest.mark.row("A9")
def test_peek_shows_what_is_there(
    sdk: ServiceBusClient, python: PythonSync, partitioned: str, fault_injections: FaultInjections
) -> None:
    python.send(partitioned, *(Outgoing(b"x") for _ in range(PARTITIONS)))
    fault_injections.fail(entity=partitioned, partitions=[0, LOST, PARTITIONS - 1])
    found = peek_all(sdk, partitioned)
    assert sorted(message.partition for message in found) == [
        partition for partition in range(1, PARTITIONS - 1) if partition != LOST
    ]


@pytest.mark.row("A3", "A4")
def test_counts_are_of_what_is_there_and_the_entity_is_limited(
    python: PythonSync, partitioned: str, fault_injections: FaultInjections, own: OwnClient
) -> None:
    python.send(partitioned, *(Outgoing(b"x") for _ in range(PARTITIONS)))
    whole = Entities(own).get(partitioned)
    assert (whole.availability, whole.messages, whole.partitions_away) == ("Available", PARTITIONS, ())
    fault_injections.fail(entity=partitioned, partitions=[LOST, 7])
    limited = Entities(own).get(partitioned)
    assert (limited.availability, limited.messages, limited.partitions_away) == ("Limited", PARTITIONS - 2, (LOST, 7))
    assert next(info for info in Entities(own).list() if info.name == partitioned) == limited
    fault_injections.heal()
    assert Entities(own).get(partitioned) == whole


@pytest.mark.row("A2")
def test_nothing_is_made_of_a_queue_that_needs_a_lost_store(own: OwnClient, fault_injections: FaultInjections) -> None:
    entities = Entities(own)
    fault_injections.fail(store="store-03")
    with pytest.raises(Busy, match="Nothing was made"):
        entities.create_queue("needs-all", {"EnablePartitioning": True})
    assert "needs-all" not in [info.name for info in entities.list()]
    plain = [entities.create_queue(f"needs-one-{i}", {}) for i in range(PARTITIONS + 1)]
    assert {info.availability for info in plain} == {"Available"}
    fault_injections.heal()
    assert entities.create_queue("needs-all", {"EnablePartitioning": True}).availability == "Available"


def test_a_change_reaches_a_lost_partition_when_it_is_back(
    python: PythonSync, own: OwnClient, fault_injections: FaultInjections, make_queue: MakeQueue
) -> None:
    queue = make_queue(EnablePartitioning=True, MaxDeliveryCount=10)
    python.send(queue, Outgoing(b"x", partition_key=LOST_KEYS[0]))
    fault_injections.fail(entity=queue, partitions=[LOST])
    with pytest.raises(TimedOut, match=f"number {LOST}"):
        Entities(own).update(queue, {"MaxDeliveryCount": 1})
    fault_injections.heal()
    assert Entities(own).get(queue).properties["MaxDeliveryCount"] == 1
    python.abandon(queue, *receive_all(python, queue, 1))
    info = Entities(own).get(queue)
    assert (info.messages, info.dead_letter_messages) == (0, 1)


@pytest.mark.row("A2")
def test_a_deleted_queue_leaves_nothing_in_a_lost_store_when_that_is_back(
    python: PythonSync, own: OwnClient, fault_injections: FaultInjections, partitioned: str, broker: BrokerProcess
) -> None:
    python.send(partitioned, Outgoing(b"x", partition_key=LOST_KEYS[0]))
    fault_injections.fail(entity=partitioned, partitions=[LOST])
    with pytest.raises(TimedOut, match="is deleted"):
        Entities(own).delete(partitioned)
    with pytest.raises(NotFound):
        Entities(own).get(partitioned)

    def waiting() -> int:
        with closing(sqlite3.connect(broker.data / "catalog.db")) as catalog:
            return int(catalog.execute("SELECT count(*) FROM dropped_partition").fetchone()[0])

    assert waiting() > 0
    Entities(own).create_queue(partitioned, {"EnablePartitioning": True})
    assert Entities(own).get(partitioned).messages == 0
    assert fault_injections.heal(entity=partitioned) == 1
    eventually("nobody waits", lambda: waiting() == 0)


def test_slow_partitions_do_everything_later(
    python: PythonSync, partitioned: str, fault_injections: FaultInjections
) -> None:
    fault_injections.slow(100, entity=partitioned)
    python.send(partitioned, *(Outgoing(b"%d" % i, partition_key="k") for i in range(3)))
    found = receive_all(python, partitioned, 3)
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    python.complete(partitioned, found[0])
    fault_injections.heal()
    for message in found[1:]:
        python.complete(partitioned, message)
    assert nothing_left(python, partitioned)


@pytest.mark.row("K12", "K14", "K2", "P3", "A4")
def test_databases_that_another_process_has_locked(
    python: PythonSync, own: OwnClient, partitioned: str, broker: BrokerProcess
) -> None:
    """Inject no fault: the store's commits fail, and the sends end in time, whatever it cost."""
    sender = python.sender(partitioned)
    sender.send_messages(ServiceBusMessage(b"opens the link", partition_key=KEPT_KEY))
    place = {partition: f"store-{store_no:02}" for partition, store_no in places(broker, partitioned)}
    with ExitStack() as intruders:
        for partition in LOCKED:
            path = broker.data / "stores" / f"{place[partition]}.db"
            intruder = intruders.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            intruder.execute("BEGIN IMMEDIATE")
        for _ in range(PARTITIONS):
            sender.send_messages(ServiceBusMessage(b"x"), timeout=FALL_BACK_S)
        eventually("all are found", lambda: Entities(own).get(partitioned).partitions_away == LOCKED)
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage(b"", partition_key=LOST_KEYS[0]), timeout=FALL_BACK_S)
        found = receive_all(python, partitioned, PARTITIONS + 1, delete=True)
        assert not {message.partition for message in found} & {*LOCKED}
    eventually("all partitions are there", lambda: Entities(own).get(partitioned).availability == "Available")
    python.send(partitioned, Outgoing(b"back", partition_key=LOST_KEYS[0]))
    assert [message.partition for message in receive_all(python, partitioned, 1, delete=True)] == [LOST]


def places(broker: BrokerProcess, queue: str) -> list[tuple[int, int]]:
    """Partition and store number, as the catalog has them."""
    with closing(sqlite3.connect(broker.data / "catalog.db")) as catalog:
        return catalog.execute(
            "SELECT partition_no, store_no FROM placement JOIN entity USING (entity_id) WHERE name = ?", (queue,)
        ).fetchall()


def test_what_can_not_be_rehearsed_is_refused_and_nothing_begins(
    fault_injections: FaultInjections, partitioned: str
) -> None:
    with pytest.raises(InvalidRequest, match="store-00, store-01"):
        fault_injections.fail(store="store-99")
    with pytest.raises(InvalidRequest, match="0 to 15"):
        fault_injections.fail(entity=partitioned, partitions=[3, 16])
    with pytest.raises(InvalidRequest, match="delay-ms"):
        fault_injections.slow(0, entity=partitioned)
    for begin in (fault_injections.fail, fault_injections.heal):
        with pytest.raises(NotFound):
            begin(entity="nobody")
    with pytest.raises(InvalidRequest, match="no store is named"):
        fault_injections.fail()
    assert fault_injections.all() == []
    assert fault_injections.heal(entity=partitioned) == 0
