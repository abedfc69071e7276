"""A broker that is killed in the middle of moves of slots: sessions stay whole and in order, and the moves finish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.client.errors import ClientError
from partibus.client.extensions.cluster import Partitions
from partibus.client.management import integer, maps
from partibus.client.messages import OutgoingMessage
from partibus.client.outcomes import NextSession
from partibus.routing.slots import SlotMap
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import eventually
from tests.kit.plain_client import Client
from tests.robustness.ways import client_of, number_of

HOT = [key for key in (f"item{n}" for n in range(400)) if SlotMap(16).partition_of(key) == 0][:12]
"""Keys of one partition: rebalancing moves most of them."""
BEFORE = 4
"""Messages of each key before the move."""


class Sending:
    """Each key's messages in order; one that is in doubt is sent again, with the same id."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.sent = dict.fromkeys(HOT, 0)
        self._client: Client | None = None

    def send(self, key: str) -> None:
        """Send the next message of a key, whatever it takes."""
        number = self.sent[key]
        message = OutgoingMessage(body=b"%d" % number, session_id=key, message_id=f"{key}/{number}")

        def accepted() -> bool:
            try:
                self._connected().sender("q").send([message])
            except (ClientError, OSError):
                self.hang_up()
                raise
            return True

        eventually(f"{key}/{number} is accepted", accepted)
        self.sent[key] = number + 1

    def _connected(self) -> Client:
        if self._client is None:
            self._client = client_of(self.broker)
        return self._client

    def hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def received(broker: BrokerProcess, count: int) -> dict[str, list[int]]:
    """Receive that many messages, session by session, and return their numbers in the order of the first delivery.

    The lock of a session ends when its old partition has no messages left, so the outcome of a settlement may be lost.
    """
    found: dict[str, list[int]] = {key: [] for key in HOT}

    def take() -> bool:
        with client_of(broker) as client:
            receiver = client.receiver("q", session=NextSession.NEXT, session_wait_s=2)
            while messages := receiver.receive(5, timeout_s=0.5):
                assert receiver.session_id is not None
                numbers = found[receiver.session_id]
                numbers += [number for message in messages if (number := number_of(message)) not in numbers]
                receiver.settle(messages)
        return sum(map(len, found.values())) >= count

    eventually("all messages come", take)
    return found


def rebalanced(broker: BrokerProcess) -> dict[str, object]:
    """Rebalance at a broker that has seen the load; return its plan."""
    plan: dict[str, object] = {}

    def is_planned() -> bool:
        with client_of(broker) as client:
            plan.update(Partitions(client).rebalance("q"))
        return len(maps(plan, "moves")) > 3

    eventually("a broker knows the load", is_planned)
    return plan


@pytest.fixture
def arguments() -> tuple[str, ...]:
    return ()


@pytest.fixture
def broker(tmp_path: Path, arguments: tuple[str, ...]) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        broker.create_queue(
            "q", EnablePartitioning=True, RequiresSession=True, RequiresDuplicateDetection=True, LockDuration="PT30S"
        )
        yield broker
    assert "Traceback" not in broker.log


@pytest.mark.row("S5")
@pytest.mark.row("S6")
@pytest.mark.parametrize(
    ("messages", "arguments"),
    [*((n, ()) for n in (0, 1, 3, 8, 20, 50)), (2, ("--brokers", "2")), (10, ("--brokers", "2"))],
)
def test_kill_in_the_middle_of_a_move(broker: BrokerProcess, messages: int) -> None:
    """The moves take as long as some tens of messages: each case is killed at another step of them."""
    sending = Sending(broker)
    for _ in range(BEFORE):
        for key in HOT:
            sending.send(key)
    plan = rebalanced(broker)
    for n in range(messages):
        sending.send(HOT[n % len(HOT)])
    broker.kill()
    sending.hang_up()
    broker.start()
    for key in HOT:
        sending.send(key)
        sending.send(key)
    found = received(broker, sum(sending.sent.values()))
    assert found == {key: list(range(count)) for key, count in sending.sent.items()}

    def finished() -> bool:
        with client_of(broker) as client:
            report = Partitions(client).of("q")
        return not maps(report, "moves") and len(maps(report, "history")) == len(maps(plan, "moves"))

    eventually("the moves finish", finished)
    with client_of(broker) as client:
        slots = [integer(one, "slots") for one in maps(Partitions(client).of("q"), "partitions")]
    assert sum(slots) == 16_384
    assert slots[0] < 1_024
    sending.hang_up()
