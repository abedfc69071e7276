"""A broker that is killed, stopped, frozen or has no room: what it has acknowledged is there, exactly as settled."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from partibus.client.errors import ClientError, ConnectionLost, TimedOut
from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.kit.plain_client import Client, Receiver
from tests.robustness.raw import check_serves
from tests.robustness.ways import client_of, drained, number_of

KEYS = 40


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("alive")
        yield broker
    assert "Traceback" not in broker.log


def message(number: int) -> OutgoingMessage:
    return OutgoingMessage(body=b"%d" % number, partition_key=f"key-{number % KEYS}" if number % 3 else None)


def send_until(client: Client, queue: str, numbers: Iterator[int], accepted: int) -> int:
    """Send until so many are acknowledged, with more under way; how many are. Answers come in the order of sending."""
    sender = client.sender(queue)
    while sender.accepted < accepted:
        sender.send_nowait([message(next(numbers)) for _ in range(100)])
    return sender.accepted


def peeked(broker: BrokerProcess, queue: str) -> set[int]:
    """The numbers in a plain queue, those under lock too."""
    found: set[int] = set()
    with client_of(broker) as client:
        node = client.management(queue)
        start = 1
        while messages := node.peek(start, 1_000):
            found |= {number_of(message) for message in messages}
            start = max(message.sequence_number or 0 for message in messages) + 1
    return found


@pytest.mark.row("R14")
@pytest.mark.parametrize("partitioned", [False, True])
def test_what_was_acknowledged_survives_a_kill(broker: BrokerProcess, partitioned: bool) -> None:
    broker.create_queue("q", EnablePartitioning=partitioned)
    numbers = count()
    acknowledged: set[int] = set()
    for accepted in (1, 700, 2_500):
        client = client_of(broker)
        first = next(numbers)
        sent = count(first)
        stored = send_until(client, "q", sent, accepted)
        broker.kill()
        acknowledged |= set(range(first, first + stored))
        numbers = count(next(sent))
        client.close()
        broker.start()
    found = drained(broker, "q")
    assert len(found) == len(set(found))
    assert acknowledged <= set(found) <= set(range(next(numbers)))
    for key in range(KEYS) if partitioned else ():
        of_key = [number for number in found if number % KEYS == key and number % 3]
        assert of_key == sorted(of_key)


def test_what_was_settled_survives_a_kill(broker: BrokerProcess) -> None:
    broker.create_queue("q")
    left = set(range(3_000))
    with client_of(broker) as client:
        client.sender("q").send([OutgoingMessage(body=b"%d" % number) for number in sorted(left)])
    for confirmed in (50, 600):
        client = client_of(broker)
        receiver: Receiver = client.receiver("q", prefetch=500)
        settled: list[int] = []
        while len(settled) - receiver.unconfirmed < confirmed:
            messages = receiver.receive(100)
            receiver.settle_nowait(messages)
            settled += [number_of(message) for message in messages]
        done = settled[: len(settled) - receiver.unconfirmed]  # answers of one partition come in order
        broker.kill()
        client.close()
        broker.start()
        found = peeked(broker, "q")
        assert found.isdisjoint(done)
        assert left - set(settled) <= found <= left
        left = found


def test_what_was_acknowledged_survives_a_stop_under_load(broker: BrokerProcess) -> None:
    broker.create_queue("q", EnablePartitioning=True)
    client = client_of(broker)
    sender = client.sender("q")
    numbers = count()
    sender.send_nowait([message(next(numbers)) for _ in range(1_000)])
    os.kill(broker.ready["pid"], signal.SIGTERM)
    with pytest.raises(ConnectionLost):  # noqa: PT012 (some send of many is the last)
        while True:
            sender.send_nowait([message(next(numbers)) for _ in range(100)])
    stored = sender.accepted
    client.close()
    broker.stop()
    broker.start()
    found = drained(broker, "q")
    assert len(found) == len(set(found))
    assert set(range(stored)) <= set(found) <= set(range(next(numbers)))


def test_a_broker_that_was_frozen_goes_on(broker: BrokerProcess) -> None:
    with client_of(broker) as client:
        sender = client.sender("alive")
        sender.send([b"\x00\x53\x75\xa0\x011"])
        os.kill(broker.ready["pid"], signal.SIGSTOP)
        try:
            with pytest.raises(TimedOut):
                sender.send([b"\x00\x53\x75\xa0\x012"], timeout_s=0.3)
        finally:
            os.kill(broker.ready["pid"], signal.SIGCONT)
        sender.flush()
    assert drained(broker, "alive") == [1, 2]


BULK = bytes(60_000)


def test_files_that_may_not_grow(broker: BrokerProcess) -> None:
    """Sends fail by name, nothing acknowledged is lost, and it goes on by itself when files may grow again."""
    broker.create_queue("q")
    pid = broker.ready["pid"]
    stored = 0
    with client_of(broker) as client:
        sender = client.sender("q")
        sender.send([message(number) for number in range(10)])
        stored = 10
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (6 << 20, before[1]))
        try:
            with pytest.raises(ClientError) as refused:  # noqa: PT012 (some send of many is the first)
                while stored < 1_000:
                    sender.send([OutgoingMessage(body=b"%d" % stored + BULK)])
                    stored += 1
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        assert "store" in str(refused.value)
    check_serves(broker)
    found = drained(broker, "q")  # the store is opened again now and then
    assert found[:stored] == list(range(stored))
    assert len(found) <= stored + 1
