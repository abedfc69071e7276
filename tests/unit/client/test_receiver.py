"""Receiving: what comes, what is given back, and settlement that is confirmed or refused."""

from __future__ import annotations

import pytest

from partibus.amqp import AmqpError
from partibus.client.errors import InvalidRequest, LockLost, SessionHeld, TimedOut
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.client.outcomes import ABANDON, NEXT_SESSION, ReceiveMode, dead_letter
from tests.kit.plain_client import Client
from tests.unit.client.broker import TinyBroker


def fill(broker: TinyBroker, count: int) -> None:
    broker.queues["q"].extend(OutgoingMessage(body=b"%d" % number).encode() for number in range(count))


def test_receive_takes_what_is_there_up_to_the_wish(broker: TinyBroker, client: Client) -> None:
    fill(broker, 5)
    receiver = client.receiver("q")
    assert [message.body for message in receiver.receive(3)] == [b"0", b"1", b"2"]
    assert [message.body for message in receiver.receive(3)] == [b"3", b"4"]


def test_receive_of_nothing_ends_when_the_time_is_over(client: Client) -> None:
    assert client.receiver("q").receive(1, timeout_s=0) == []


def test_message_that_has_begun_to_come_is_not_left_behind(broker: TinyBroker, client: Client) -> None:
    """Its credit is used up with its first frame, long before its last one."""
    body = bytes(4 << 20)
    broker.queues["q"].append(OutgoingMessage(body=body).encode())
    receiver = client.receiver("q", ReceiveMode.RECEIVE_AND_DELETE)
    assert [message.body for message in receiver.receive(1, timeout_s=0)] == [body]


def test_message_that_is_sent_later_ends_the_wait(broker: TinyBroker, client: Client) -> None:
    receiver = client.receiver("q")
    assert receiver.receive(1, timeout_s=0) == []
    client.sender("q").send([OutgoingMessage(body=b"late")])
    assert [message.body for message in receiver.receive(1)] == [b"late"]


def test_settlement_reaches_the_broker_with_its_outcome(broker: TinyBroker, client: Client) -> None:
    fill(broker, 3)
    receiver = client.receiver("q")
    first, second, third = receiver.receive(3)
    receiver.settle([first])
    receiver.settle([second], ABANDON)
    receiver.settle([third], dead_letter("bad", "very"))
    assert [outcome for _, outcome in broker.settled] == ["accepted", "modified", "rejected"]


def test_refused_settlement_raises_lock_lost(broker: TinyBroker, client: Client) -> None:
    fill(broker, 2)
    broker.refuse_settlement = AmqpError("com.microsoft:message-lock-lost", "too late")
    receiver = client.receiver("q")
    with pytest.raises(LockLost, match="too late"):
        receiver.settle(receiver.receive(2))
    receiver.flush()


def test_receive_and_delete_settles_nothing(broker: TinyBroker, client: Client) -> None:
    fill(broker, 2)
    receiver = client.receiver("q", ReceiveMode.RECEIVE_AND_DELETE)
    received = receiver.receive(2)
    receiver.settle(received)
    assert len(received) == 2
    assert broker.settled == []


def test_prefetched_messages_that_nobody_took_are_given_back(broker: TinyBroker, client: Client) -> None:
    fill(broker, 4)
    receiver = client.receiver("q", prefetch=10)
    receiver.receive(1)
    receiver.close()
    client.sender("q")
    assert [outcome for _, outcome in broker.settled] == ["released"] * 3


def test_prefetch_is_topped_up(broker: TinyBroker, client: Client) -> None:
    fill(broker, 500)
    receiver = client.receiver("q", prefetch=20)
    count = 0
    while received := receiver.receive(50, timeout_s=0 if count == 500 else 10):
        count += len(received)
        receiver.settle_nowait(received)
    receiver.flush()
    assert count == len(broker.settled) == 500


def test_peeked_message_can_not_be_settled(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="no lock"):
        client.receiver("q").settle([IncomingMessage(OutgoingMessage().encode())])


@pytest.mark.parametrize("session", ["red", ""])
def test_named_session(broker: TinyBroker, client: Client, session: str) -> None:
    receiver = client.receiver("q", session=session)
    assert receiver.session_id == session
    assert broker.attaches == [("q", session, None)]
    fill(broker, 1)
    assert [message.body for message in receiver.receive(1)] == [b"0"]


def test_next_session_waits_as_long_as_it_is_told(broker: TinyBroker, client: Client) -> None:
    broker.sessions["q"] = "blue"
    assert client.receiver("q", session=NEXT_SESSION, session_wait_s=2.5).session_id == "blue"
    ((address, wanted, properties),) = broker.attaches
    assert (address, wanted) == ("q", None)
    assert isinstance(properties, dict)
    assert 0 < properties["com.microsoft:timeout"] <= 2_500
    del broker.sessions["q"]
    with pytest.raises(TimedOut, match="no session with messages"):
        client.receiver("q", session=NEXT_SESSION)


def test_session_that_somebody_holds_can_be_tried_again(broker: TinyBroker, client: Client) -> None:
    with pytest.raises(SessionHeld) as caught:
        client.receiver("q", session="held")
    assert caught.value.retriable
    assert client.receiver("q").session_id is None
