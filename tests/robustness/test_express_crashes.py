"""A broker with express entities that is killed, or stopped: what is gone was younger than the loss bound (D18)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.robustness.ways import client_of, drained, message

BOUND_MS = 600
HALF_MS = BOUND_MS // 2
TOGETHER = 40


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, arguments=("--clock", "manual")) as broker:
        yield broker
    assert "Traceback" not in broker.log


@pytest.mark.row("C22")
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_kill_loses_young_messages_only_and_no_forced_ones(broker: BrokerProcess, partitioned: bool) -> None:
    """Use a clock that stands still: the speed of the machine does not decide how old a message is."""
    broker.create_queue(
        "q", EnableExpress=True, PartibusExpressBoundInMilliseconds=BOUND_MS, EnablePartitioning=partitioned
    )
    old, middle, young, forced = (range(first, first + TOGETHER) for first in range(0, 4 * TOGETHER, TOGETHER))
    client = client_of(broker)
    sender = client.sender("q")
    sender.send([OutgoingMessage(body=b"%d" % number, force_persistence=True) for number in forced])
    for numbers in (old, middle):
        sender.send([message(number, f"k{number}" if number % 3 else None) for number in numbers])
        broker.advance(HALF_MS)
    sender.send([message(number, f"k{number}" if number % 3 else None) for number in young])
    broker.kill()
    client.close()
    broker.start()
    found = drained(broker, "q")
    assert len(found) == len(set(found))
    assert {*forced, *old} <= {*found}
    assert not {*young} & {*found}, "nothing was in memory only"


def test_a_broker_that_is_stopped_loses_nothing(broker: BrokerProcess) -> None:
    broker.create_queue("q", EnableExpress=True, EnablePartitioning=True)
    broker.create_topic("t", EnableExpress=True)
    path = broker.create_subscription("t", "s")
    with client_of(broker) as client:
        for entity in ("q", "t"):
            client.sender(entity).send([OutgoingMessage(body=b"%d" % number) for number in range(200)])
    broker.restart()
    assert sorted(drained(broker, "q")) == sorted(drained(broker, path)) == list(range(200))


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
