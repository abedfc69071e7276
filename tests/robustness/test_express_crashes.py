"""A broker with express entities that is killed, or stopped: what is gone was younger than the loss bound (D18)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from partibus.client import Client, OutgoingMessage, connect
from partibus.testing.broker_process import BrokerProcess
from partibus.testing.patience import PATIENCE_S

BOUND_MS = 600
"""Short, so that many messages become older while somebody sends."""
SENDING_S = 2.2
SLACK_MS = 60
"""Between the moment at which a broker takes a message and the one at which its sender hears of it, and from the signal
to its effect: on a machine with a lot else to do."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker
    assert "Traceback" not in broker.log


def client_of(broker: BrokerProcess) -> Client:
    return connect(broker.connection_string, timeout_s=PATIENCE_S)


def send_for_a_while(broker: BrokerProcess, queue: str) -> dict[int, float]:
    """Number -> when it was acknowledged. Every tenth is forced, in a batch of its own."""
    acknowledged: dict[int, float] = {}
    ends_s = time.monotonic() + SENDING_S
    client = client_of(broker)
    sender = client.sender(queue)
    for number in count():
        if time.monotonic() > ends_s:
            break
        key = str(number % 40) if number % 3 else None
        sender.send([OutgoingMessage(body=b"%d" % number, partition_key=key, force_persistence=number % 10 == 0)])
        acknowledged[number] = time.monotonic()
    broker.kill()
    client.close()
    return acknowledged


def left_in(broker: BrokerProcess, queue: str) -> list[int]:
    found: list[int] = []
    with client_of(broker) as client:
        receiver = client.receiver(queue)
        while messages := receiver.receive(500, timeout_s=0.7):
            found += [int(bytes(message.body or b"")) for message in messages]  # type: ignore[call-overload]
            receiver.settle(messages)
    return found


@pytest.mark.row("C22", "C24")
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_kill_loses_young_messages_only_and_no_forced_ones(broker: BrokerProcess, partitioned: bool) -> None:
    broker.create_queue(
        "q", EnableExpress=True, PartibusExpressBoundInMilliseconds=BOUND_MS, EnablePartitioning=partitioned
    )
    acknowledged = send_for_a_while(broker, "q")
    killed_s = max(acknowledged.values())
    broker.start()
    found = left_in(broker, "q")
    assert len(found) == len(set(found))
    lost = acknowledged.keys() - set(found)
    assert lost, "nothing was in memory only"
    assert not {number for number in lost if number % 10 == 0}, "forced messages are gone"
    oldest_ms = max(1_000 * (killed_s - acknowledged[number]) for number in lost)
    assert oldest_ms < BOUND_MS + SLACK_MS, f"a message is gone that was acknowledged {oldest_ms} ms before the kill"
    assert len(found) > len(lost), "too few were as old as the bound to prove anything"


@pytest.mark.row("C22")
def test_a_broker_that_is_stopped_loses_nothing(broker: BrokerProcess) -> None:
    broker.create_queue("q", EnableExpress=True, EnablePartitioning=True)
    broker.create_topic("t", EnableExpress=True)
    path = broker.create_subscription("t", "s")
    with client_of(broker) as client:
        for entity in ("q", "t"):
            client.sender(entity).send([OutgoingMessage(body=b"%d" % number) for number in range(200)])
    broker.restart()
    assert sorted(left_in(broker, "q")) == sorted(left_in(broker, path)) == list(range(200))


@pytest.mark.row("C22")
def test_numbers_that_were_seen_are_never_given_again(broker: BrokerProcess) -> None:
    broker.create_queue("q", EnableExpress=True)
    seen: set[int] = set()
    for _ in range(3):
        client = client_of(broker)
        client.sender("q").send([OutgoingMessage(body=b"%d" % number) for number in range(20)])
        messages = client.receiver("q", prefetch=20).receive(20)
        numbers = {message.sequence_number or 0 for message in messages}
        assert len(numbers) == len(messages)
        assert not numbers & seen
        seen |= numbers
        broker.kill()
        client.close()
        broker.start()
    assert len(seen) >= 3
