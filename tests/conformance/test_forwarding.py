"""Messages that go on by themselves: each arrives once and in order, and what can't go on is kept with its reason."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient as AzureClient
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSender,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError

from partibus.client.extensions.entities import Entities
from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.azure_python import to_time
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Trouble,
    nothing_left,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import CountMessages
from tests.kit.azure_receiving import receive_exactly
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import connect

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""The Python library leaves the sockets of broken connections to the garbage collector, which warns."""

CLOCK = "manual"
MakeQueue = Callable[..., str]
LOCK_MS = 60_000
KEYS = ("red", "green", "blue", "white")
PARTITIONS = 16


@pytest.fixture
def azure(broker: BrokerProcess) -> Iterator[AzureClient]:
    with AzureClient.from_connection_string(broker.connection_string) as client:
        yield client


def transfer_dead_letters(azure: AzureClient, queue: str, count: int) -> list[ServiceBusReceivedMessage]:
    """Take out so many transfer dead letters."""
    with azure.get_queue_receiver(
        queue,
        sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
    ) as receiver:
        return receive_exactly(receiver, count)


@pytest.mark.row("F1", "F3", "K1")
@pytest.mark.parametrize("to_partitioned", [False, True], ids=["to-plain", "to-partitioned"])
@pytest.mark.parametrize("from_partitioned", [False, True], ids=["from-plain", "from-partitioned"])
def test_each_message_arrives_once_and_in_the_order_of_its_key(
    sdk: ServiceBusClient,
    make_queue: MakeQueue,
    messages_in: CountMessages,
    from_partitioned: bool,
    to_partitioned: bool,
) -> None:
    target = make_queue(EnablePartitioning=to_partitioned)
    source = make_queue(EnablePartitioning=from_partitioned, ForwardTo=target)
    sdk.send_list(
        source,
        [
            Outgoing(b"%d" % i, str(i), KEYS[i % 4] if i % 5 else None, subject="s", properties={"i": i})
            for i in range(200)
        ],
    )
    found = receive_all(sdk, target, 200, delete=True)
    assert sorted(int(one.body) for one in found) == list(range(200))
    assert all(one.message_id == one.body.decode() and one.subject == "s" for one in found)
    assert all(one.properties["i"] == int(one.body) and one.delivery_count in (0, 1) for one in found)
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for one in found:
        by_key[one.partition_key].append(int(one.body))
    for key in KEYS:
        assert by_key[key] == sorted(by_key[key])
    if to_partitioned:
        places = {one.partition_key: one.partition for one in found if one.partition_key is not None}
        assert places == {key: partition_for_key(key, PARTITIONS) for key in KEYS}
    assert messages_in(source) == messages_in(target) == 0


def test_forwarding_begins_and_ends_by_update(
    broker: BrokerProcess,
    python: PythonSync,
    javascript: JavaScriptServiceBus,
    make_queue: MakeQueue,
    messages_in: CountMessages,
) -> None:
    target = make_queue()
    source = make_queue(EnablePartitioning=True)
    keys = [str(i) for i in range(50)]
    python.send_list(source, [Outgoing(key.encode(), partition_key=key) for key in keys])
    (held, *_) = python.receive(source, 1)
    elsewhere = [key for key in keys if partition_for_key(key, PARTITIONS) != held.partition]
    broker.update_queue(source, ForwardTo=target)
    eventually("all that can has gone on", lambda: messages_in(target) >= len(elsewhere))
    with pytest.raises(ClientTrouble) as refused:
        python.receive(source, 1)
    assert refused.value.kind is Trouble.NOT_ALLOWED
    assert "auto-forwarding" in str(refused.value)
    assert held.body in {one.body for one in peek_all(javascript, source)}  # still under lock
    broker.update_queue(source, ForwardTo="")
    before = messages_in(target)
    python.send(source, Outgoing(b"stays", partition_key="another"))
    assert b"stays" in {one.body for one in peek_all(javascript, source)}
    assert messages_in(target) == before


@pytest.mark.row("F1")
def test_what_was_locked_goes_on_when_it_is_settled(
    broker: BrokerProcess, azure: AzureClient, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    target = make_queue()
    source = make_queue(LockDuration="PT1M")
    with azure.get_queue_sender(source) as sender, azure.get_queue_receiver(source) as receiver:
        sender.send_messages([ServiceBusMessage(str(i)) for i in range(10)])
        received = receive_exactly(receiver, 4)
        receiver.complete_message(received[0])
        receiver.dead_letter_message(received[3], "reason")
        receiver.abandon_message(received[2])
        broker.update_queue(source, ForwardTo=target)
    # The second one is under lock, and holds up what comes after it.
    assert messages_in(target) == 0
    broker.advance(LOCK_MS)
    with azure.get_queue_receiver(target, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        found = receive_exactly(receiver, 8)
    assert [str(one) for one in found] == ["1", "2", *map(str, range(4, 10))]
    assert messages_in(source, dead=True) == 1


@pytest.mark.row("F1")
def test_dead_letters_are_forwarded_with_their_reason_and_source(
    sdk: ServiceBusClient, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    target = make_queue(EnablePartitioning=True)
    source = make_queue(ForwardDeadLetteredMessagesTo=target)
    sdk.send(source, Outgoing(b"0", partition_key="k"))
    (received,) = receive_all(sdk, source, 1)
    sdk.dead_letter(source, received, "reason", "description")
    (found,) = receive_all(sdk, target, 1)
    facts = (found.dead_letter_reason, found.dead_letter_description, found.dead_letter_source)
    assert facts == ("reason", "description", source)
    assert messages_in(source, dead=True) == 0
    sdk.dead_letter(target, found, "again", "")
    (dead,) = receive_all(sdk, target + DEAD_LETTER, 1)
    assert (dead.dead_letter_reason, dead.dead_letter_source) == ("again", source)
    sdk.complete(target + DEAD_LETTER, dead)
    with pytest.raises(ClientTrouble) as refused:
        sdk.receive(source + DEAD_LETTER, 1)
    assert refused.value.kind is Trouble.NOT_ALLOWED


@pytest.mark.row("F1")
def test_four_hops_and_no_more(azure: AzureClient, make_queue: MakeQueue, python: PythonSync) -> None:
    last = make_queue()
    chain = [last]
    for _ in range(5):
        chain.insert(0, make_queue(ForwardTo=chain[0], EnablePartitioning=True))
    python.send(chain[1], Outgoing(b"four"), Outgoing(b"four"))
    python.send(chain[0], Outgoing(b"five"))
    found = receive_all(python, last, 2)
    assert [one.body for one in found] == [b"four", b"four"]
    (dead,) = transfer_dead_letters(azure, chain[4], 1)
    assert (str(dead), dead.dead_letter_reason) == ("five", "MaxTransferHopCountExceeded")
    assert dead.dead_letter_source == chain[4]
    assert nothing_left(python, last)


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_queue_that_forwards_to_itself_ends_messages_by_the_bound_of_hops(
    broker: BrokerProcess, azure: AzureClient, make_queue: MakeQueue, python: PythonSync, partitioned: bool
) -> None:
    queue = make_queue(EnablePartitioning=partitioned)
    with connect(broker.connection_string) as client:
        Entities(client).update(queue, {"ForwardTo": queue})
    python.send(queue, Outgoing(b"round"), Outgoing(b"round"))
    found = transfer_dead_letters(azure, queue, 2)
    assert [one.dead_letter_reason for one in found] == ["MaxTransferHopCountExceeded"] * 2


def test_dead_letters_that_a_queue_forwards_to_itself_come_back(
    broker: BrokerProcess, make_queue: MakeQueue, python: PythonSync
) -> None:
    queue = make_queue(MaxDeliveryCount=1)
    with connect(broker.connection_string) as client:
        Entities(client).update(queue, {"ForwardDeadLetteredMessagesTo": queue.upper()})
    python.send(queue, Outgoing(b"round"))
    for _ in range(3):
        (message,) = python.receive(queue, 1)
        python.abandon(queue, message)


def test_a_subscription_that_forwards_to_its_own_topic_ends_messages_by_the_bound_of_hops(
    broker: BrokerProcess, azure: AzureClient, make_queue: MakeQueue, python: PythonSync
) -> None:
    topic = make_queue("topic")
    kept = broker.create_subscription(topic, "kept")
    broker.create_subscription(topic, "back", ForwardTo=topic)
    python.send(topic, Outgoing(b"round"))
    assert [one.body for one in receive_all(python, kept, 5)] == [b"round"] * 5


@pytest.mark.row("F1")
def test_what_has_no_destination_is_kept(
    broker: BrokerProcess, azure: AzureClient, make_queue: MakeQueue, python: PythonSync
) -> None:
    disabled, deleted = make_queue(Status="SendDisabled"), make_queue()
    to_disabled = make_queue(ForwardTo=disabled, EnablePartitioning=True)
    to_deleted = make_queue(ForwardTo=deleted)
    python.send(to_deleted, Outgoing(b"before"))
    receive_all(python, deleted, 1)
    broker.delete_queue(deleted)
    for queue in (to_disabled, to_deleted):
        python.send(queue, Outgoing(b"kept"))
    (one,) = transfer_dead_letters(azure, to_disabled, 1)
    (other,) = transfer_dead_letters(azure, to_deleted, 1)
    assert (one.dead_letter_reason, other.dead_letter_reason) == (
        "MessagingEntityDisabled",
        "MessagingEntityNotFound",
    )
    assert disabled in (one.dead_letter_error_description or "")


@pytest.mark.row("F1", "K3")
def test_sessions_at_the_destination(azure: AzureClient, make_queue: MakeQueue, python: PythonSync) -> None:
    target = make_queue(RequiresSession=True, EnablePartitioning=True)
    source = make_queue(ForwardTo=target, EnablePartitioning=True)
    python.send_list(source, [Outgoing(b"%d" % i, session_id="s") for i in range(20)])
    python.send(source, Outgoing(b"of none"))
    with azure.get_queue_receiver(target, session_id="s", receive_mode="receiveanddelete") as receiver:
        found = receive_exactly(receiver, 20)
    assert [str(one) for one in found] == [str(i) for i in range(20)]
    (dead,) = transfer_dead_letters(azure, source, 1)
    assert (str(dead), dead.dead_letter_reason) == ("of none", "Session ID is null")


@pytest.mark.row("F1", "K9")
def test_duplicates_at_the_destination(make_queue: MakeQueue, python: PythonSync, messages_in: CountMessages) -> None:
    target = make_queue(RequiresDuplicateDetection=True, EnablePartitioning=True)
    source = make_queue(ForwardTo=target)
    python.send_list(source, [Outgoing(b"%d" % i, message_id=str(i // 2)) for i in range(20)])
    python.send(source, Outgoing(b"last", message_id="last"))
    found = receive_all(python, target, 11, delete=True)
    assert sorted(one.body for one in found) == sorted([*(b"%d" % i for i in range(0, 20, 2)), b"last"])
    assert messages_in(source) == messages_in(target) == 0


@pytest.mark.row("F1")
def test_number_at_the_first_entity_and_messages_that_are_scheduled(
    broker: BrokerProcess, azure: AzureClient, make_queue: MakeQueue
) -> None:
    last = make_queue(EnablePartitioning=True)
    middle = make_queue(ForwardTo=last)
    first = make_queue(ForwardTo=middle, EnablePartitioning=True)
    with azure.get_queue_sender(first) as sender:
        at = to_time(broker.now_ms() + LOCK_MS)
        sender.schedule_messages(ServiceBusMessage("later", partition_key="k"), at)
        sender.send_messages([ServiceBusMessage(str(i), partition_key="k") for i in range(3)])
        broker.advance(LOCK_MS)
    with azure.get_queue_receiver(last, receive_mode="receiveanddelete") as receiver:
        found = receive_exactly(receiver, 4)
    assert [str(one) for one in found] == ["0", "1", "2", "later"]
    numbers = [one.enqueued_sequence_number or 0 for one in found]
    assert {number >> 48 for number in numbers} == {partition_for_key("k", PARTITIONS)}
    assert numbers == sorted(set(numbers))


@pytest.mark.row("F1", "C38")
@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_through_a_topic_and_its_subscriptions(
    broker: BrokerProcess, sdk: ServiceBusClient, make_queue: MakeQueue, messages_in: CountMessages, partitioned: bool
) -> None:
    last = make_queue(EnablePartitioning=partitioned)
    topic = broker.create_topic(f"{last}-topic", EnablePartitioning=partitioned)
    every = broker.create_subscription(topic, "every")
    on = broker.create_subscription(topic, "on", ForwardTo=last)
    first = make_queue(ForwardTo=topic, EnablePartitioning=partitioned)
    count = 60
    sdk.send_list(first, [Outgoing(b"%d" % i, partition_key=KEYS[i % 4]) for i in range(count)])
    found = receive_all(sdk, last, count, delete=True)
    assert sorted(int(one.body) for one in found) == list(range(count))
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for one in found:
        by_key[one.partition_key].append(int(one.body))
    assert all(bodies == sorted(bodies) for bodies in by_key.values())
    kept = receive_all(sdk, every, count, delete=True)
    assert sorted(int(one.body) for one in kept) == list(range(count))
    assert [messages_in(one) for one in (first, every, on, last)] == [0, 0, 0, 0]


@pytest.mark.row("F1", "C38")
def test_dead_letters_of_a_subscription(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    last = make_queue()
    topic = broker.create_topic(f"{last}-topic")
    one = broker.create_subscription(topic, "one", ForwardDeadLetteredMessagesTo=last)
    other = broker.create_subscription(topic, "other")
    python.send(topic, Outgoing(b"0"))
    (received,) = receive_all(python, one, 1)
    python.dead_letter(one, received, "reason", "")
    (found,) = receive_all(python, last, 1, delete=True)
    assert (found.body, found.dead_letter_reason, found.dead_letter_source) == (b"0", "reason", one)
    (left,) = receive_all(python, other, 1, delete=True)
    assert left.body == b"0"


# Losses ------------------------------------------------------------------------------------------------------------


def opened_sender(client: AzureClient, queue: str) -> ServiceBusSender:
    """The system may hand a connection to a broker that has just been killed: then another one is made."""
    while True:
        sender = client.get_queue_sender(queue)
        try:
            return sender.__enter__()
        except ServiceBusConnectionError:
            continue


def fill(broker: BrokerProcess, queue: str, first: int, count: int) -> list[str]:
    """Send so many; those that were accepted. Nothing is sent again: of a batch that was refused parts may be stored,
    which the library would repeat."""
    accepted: list[str] = []
    azure = AzureClient.from_connection_string(broker.connection_string, retry_total=0)
    with azure as client, opened_sender(client, queue) as s:
        for start in range(first, first + count, 100):
            names = [str(i) for i in range(start, start + 100)]
            try:
                s.send_messages([ServiceBusMessage(name, partition_key=f"k{int(name) % 9}") for name in names])
            except ServiceBusError:
                continue
            accepted += names
    return accepted


def drain(broker: BrokerProcess, queue: str, count: int) -> list[str]:
    found: list[str] = []
    with (
        AzureClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver,
    ):
        while came := receiver.receive_messages(500, max_wait_time=EVENTUALLY_S if len(found) < count else 1):
            found += map(str, came)
    return found


@pytest.mark.row("F1")
def test_killed_in_the_middle(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("last", EnablePartitioning=True)
        broker.create_queue("middle", ForwardTo="last")
        broker.create_queue("first", EnablePartitioning=True, ForwardTo="middle")
        accepted = []
        for turn in range(2):
            accepted += fill(broker, "first", turn * 1_000, 1_000)
            broker.kill()  # while the last of them are on their way
            broker.start()
        found = drain(broker, "last", len(accepted))
        assert len(found) == len(set(found))
        assert set(found) >= set(accepted)


@pytest.mark.row("F1")
def test_one_of_several_brokers_killed_in_the_middle(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, arguments=("--brokers", "2")) as broker:
        broker.create_queue("last", EnablePartitioning=True)
        broker.create_queue("first", EnablePartitioning=True, ForwardTo="last")
        accepted = fill(broker, "first", 0, 1_000)
        os.kill(broker.ready["brokers"][1]["pid"], signal.SIGKILL)
        accepted += fill(broker, "first", 1_000, 1_000)
        found = drain(broker, "last", len(accepted))
        assert len(found) == len(set(found))
        assert set(found) >= set(accepted)
