"""The meaning of partitions to clients.

The partition id is read from the top 16 bits of the sequence number, the one place where it shows (row K13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.conformance.clients.interface import (
    DEAD_LETTER,
    Client,
    Outgoing,
    Received,
    ServiceBusClient,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import Clients, CountMessages
from tests.kit.eventually import EVENTUALLY_S

MakeQueue = Callable[..., str]
PARTITIONS = 16
KEYS = [f"key-{i}" for i in range(64)]


@pytest.fixture
def partitioned(make_queue: MakeQueue) -> str:
    return make_queue(EnablePartitioning=True)


def partitions_by(found: list[Received]) -> dict[str | None, set[int]]:
    """Partition key -> the partitions in which its messages are."""
    seen: dict[str | None, set[int]] = {}
    for message in found:
        seen.setdefault(message.partition_key, set()).add(message.partition)
    return seen


@pytest.mark.row("K1", "K5", "P12")
def test_equal_keys_meet_in_one_partition_whoever_sends_them(
    client: Client, python: PythonSync, partitioned: str
) -> None:
    python.send_list(partitioned, [Outgoing(b"p", partition_key=key) for key in KEYS])
    client.send(partitioned, *(Outgoing(b"c", partition_key=key) for key in KEYS))
    seen = partitions_by(receive_all(python, partitioned, 2 * len(KEYS), delete=True))
    assert set(seen) == set(KEYS)
    assert {key: len(partitions) for key, partitions in seen.items()} == dict.fromkeys(KEYS, 1)
    assert len({partition for partitions in seen.values() for partition in partitions}) > PARTITIONS // 2


@pytest.mark.row("K3")
def test_session_id_acts_as_the_key(javascript: JavaScriptServiceBus, python: PythonSync, partitioned: str) -> None:
    javascript.send(partitioned, *(Outgoing(b"s", session_id=key) for key in KEYS[:8]))
    python.send_list(partitioned, [Outgoing(b"k", partition_key=key) for key in KEYS[:8]])
    places: dict[str, set[int]] = {}
    for message in receive_all(python, partitioned, 16, delete=True):
        places.setdefault(message.session_id or message.partition_key or "", set()).add(message.partition)
    assert {key: len(found) for key, found in places.items()} == dict.fromkeys(KEYS[:8], 1)


@pytest.mark.row("K10", "K11", "P7")
def test_messages_without_a_key_are_spread_evenly_over_all_partitions(
    client: Client, python: PythonSync, partitioned: str
) -> None:
    """Equal message ids are no key while duplicate detection is off."""
    client.send(partitioned, *(Outgoing(b"x", message_id="same") for _ in range(4 * PARTITIONS)))
    found = Counter(message.partition for message in receive_all(python, partitioned, 4 * PARTITIONS, delete=True))
    assert found == dict.fromkeys(range(PARTITIONS), 4)


def test_list_without_keys_stays_together(sdk: ServiceBusClient, partitioned: str) -> None:
    """A batch goes whole to one partition, so it is stored whole or not at all, and keeps its order."""
    sdk.send_list(partitioned, [Outgoing(b"%d" % i) for i in range(20)])
    found = receive_all(sdk, partitioned, 20, delete=True)
    assert [message.body for message in found] == [b"%d" % i for i in range(20)]
    assert len({message.partition for message in found}) == 1


def test_sequence_numbers_count_from_one_in_each_partition(python: PythonSync, partitioned: str) -> None:
    python.send_list(partitioned, [Outgoing(b"x", partition_key=KEYS[i % 8]) for i in range(80)])
    counters: dict[int, list[int]] = {}
    for message in receive_all(python, partitioned, 80, delete=True):
        assert message.sequence_number is not None
        counters.setdefault(message.partition, []).append(message.sequence_number & (1 << 48) - 1)
    assert len(counters) > 1
    for found in counters.values():
        assert found == list(range(1, len(found) + 1))


def test_sequence_numbers_of_a_plain_queue_count_from_one(sdk: ServiceBusClient, make_queue: MakeQueue) -> None:
    queue = make_queue()
    sdk.send_list(queue, [Outgoing(b"x") for _ in range(10)])
    assert [message.sequence_number for message in receive_all(sdk, queue, 10, delete=True)] == list(range(1, 11))


@pytest.mark.row("K13")
def test_no_address_names_a_partition(clients: Clients, partitioned: str) -> None:
    """Neither a sender nor a receiver can ask for one partition, in any spelling that other brokers have."""
    rhea = clients.get("rhea")
    for name in (f"{partitioned}/0", f"{partitioned}/Partitions/0", f"{partitioned}-0", f"{partitioned}|0"):
        with pytest.raises(Exception, match=r"could not be found|must be"):
            rhea.receive(name, 1)
        with pytest.raises(Exception, match=r"could not be found|must be"):
            rhea.send(name, Outgoing(b"x"))


@pytest.mark.row("K13")
def test_application_sees_no_property_with_a_partition(python: PythonSync, partitioned: str) -> None:
    python.send(partitioned, Outgoing(b"x", partition_key="key", properties={"mine": 1}))
    (message,) = receive_all(python, partitioned, 1)
    assert message.properties == {"mine": 1}
    public = {name for name in dir(message.token) if not name.startswith("_") and "partition" in name}
    assert public == {"partition_key"}
    python.complete(partitioned, message)


@pytest.mark.row("P5", "P25")
def test_plain_and_partitioned_queues_stand_side_by_side(python: PythonSync, make_queue: MakeQueue) -> None:
    plain, partitioned = make_queue(EnablePartitioning=False), make_queue(EnablePartitioning=True)
    for queue in (plain, partitioned):
        python.send(queue, *(Outgoing(b"x", partition_key=key) for key in KEYS[:16]))
    assert {message.partition for message in receive_all(python, plain, 16, delete=True)} == {0}
    assert len({message.partition for message in receive_all(python, partitioned, 16, delete=True)}) > 1


@pytest.mark.row("P15")
def test_receiver_with_prefetch_gets_every_message_once_from_all_partitions(
    python: PythonSync, partitioned: str, messages_in: CountMessages
) -> None:
    python.send_list(partitioned, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(200)])
    found: list[int] = []
    with python.azure.get_queue_receiver(partitioned, prefetch_count=50) as receiver:
        while len(found) < 200:
            for message in receiver.receive_messages(min(64, 200 - len(found)), 20):
                found.append(int(b"".join(message.body)))
                receiver.complete_message(message)
    assert sorted(found) == list(range(200))
    assert messages_in(partitioned) == 0


@pytest.mark.row("P13")
def test_receive_finds_the_one_message_in_whichever_partition_it_is(client: Client, partitioned: str) -> None:
    partitions = set()
    for key in KEYS[:32]:
        client.send(partitioned, Outgoing(b"x", partition_key=key))
        (message,) = receive_all(client, partitioned, 1, delete=True)
        assert message.partition_key == key
        partitions.add(message.partition)
    assert len(partitions) > PARTITIONS // 2


def test_messages_kept_at_a_front_end_are_handed_out_by_later_receives(
    client: Client, python: PythonSync, partitioned: str, messages_in: CountMessages
) -> None:
    """All partitions answer the first receive; what they gave beyond one message comes with the next ones."""
    python.send_list(partitioned, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(48)])
    found = []
    for _ in range(48):
        (message,) = client.receive(partitioned, 1)
        assert message.delivery_count == 0
        client.complete(partitioned, message)
        found.append(int(message.body))
    assert sorted(found) == list(range(48))
    assert messages_in(partitioned) == 0


def test_messages_kept_at_a_front_end_are_not_locked_for_others(
    clients: Clients, python: PythonSync, partitioned: str
) -> None:
    """The first receiver may have left, or wait elsewhere: the rest is free for another client at once."""
    python.send_list(partitioned, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(32)])
    first = clients.another("proton")
    (taken,) = first.receive(partitioned, 1)
    first.close()
    rest = receive_all(python, partitioned, 31)
    assert sorted([taken.body, *(m.body for m in rest)]) == sorted(b"%d" % i for i in range(32))
    assert {message.delivery_count for message in rest} == {0}


@pytest.mark.row("P15")
def test_several_receivers_share_a_queue_without_doubles(
    clients: Clients, python: PythonSync, queue: str, messages_in: CountMessages
) -> None:
    python.send_list(queue, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(120)])
    receivers = [clients.get(library) for library in ("javascript", "rhea", "proton")]
    found: list[int] = []
    while len(found) < 120:
        for receiver in receivers:
            for message in receiver.receive(queue, 10) if len(found) < 120 else ():
                found.append(int(message.body))
                receiver.complete(queue, message)
    assert sorted(found) == list(range(120))
    assert messages_in(queue) == 0


def test_dead_letters_of_all_partitions_are_in_one_sub_queue(python: PythonSync, partitioned: str) -> None:
    python.send_list(partitioned, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(20)])
    sent = receive_all(python, partitioned, 20)
    for message in sent:
        python.dead_letter(partitioned, message, "r", "d")
    peeked = peek_all(python, partitioned + DEAD_LETTER)
    dead = receive_all(python, partitioned + DEAD_LETTER, 20, delete=True)
    assert {m.sequence_number for m in dead} == {m.sequence_number for m in peeked} == {m.sequence_number for m in sent}


def test_released_leftovers_keep_their_order_and_their_count(
    python: PythonSync, javascript: JavaScriptServiceBus, queue: str
) -> None:
    """Trap 14: on closing, this library gives back one by one what it has fetched and never handed out."""
    python.send_list(queue, [Outgoing(b"%d" % i, partition_key="one") for i in range(30)])
    with python.azure.get_queue_receiver(queue, prefetch_count=30) as receiver:
        (message,) = receiver.receive_messages(1, EVENTUALLY_S)
        assert b"".join(message.body) == b"0"
        receiver.complete_message(message)
    again = receive_all(javascript, queue, 29)
    assert [message.body for message in again] == [b"%d" % i for i in range(1, 30)]
    assert {message.delivery_count for message in again} == {0}
