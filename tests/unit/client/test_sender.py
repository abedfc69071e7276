"""Sending: pipelined, answered per message, refused by name."""

from __future__ import annotations

import pytest

from partibus.amqp import AmqpError
from partibus.client.errors import (
    AccessDenied,
    EntityDisabled,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    SendFailed,
)
from partibus.client.messages import IncomingMessage, OutgoingMessage
from tests.kit.plain_client import Client
from tests.unit.client.broker import TinyBroker


def bodies(broker: TinyBroker) -> list[object]:
    return [IncomingMessage(payload).body for payload in broker.queues["q"]]


def messages(count: int) -> list[OutgoingMessage]:
    return [OutgoingMessage(body=b"%d" % number, message_id=f"m{number}") for number in range(count)]


def test_send_returns_when_everything_is_stored_in_order(broker: TinyBroker, client: Client) -> None:
    assert client.sender("q").send(messages(2_500)) == 2_500
    assert bodies(broker) == [b"%d" % number for number in range(2_500)]


def test_send_waits_for_credit_when_there_is_little(broker: TinyBroker, client: Client) -> None:
    broker.credit = 1
    assert client.sender("q").send(messages(20)) == 20
    assert len(broker.queues["q"]) == 20


def test_message_larger_than_a_frame_arrives_whole(broker: TinyBroker, client: Client) -> None:
    body = bytes(range(256)) * 1_000
    client.sender("q").send([OutgoingMessage(body=body)])
    assert bodies(broker) == [body]


def test_batch_is_one_transfer(broker: TinyBroker, client: Client) -> None:
    assert client.sender("q").send_batch(messages(3)) == 3
    assert broker.arrived == 1
    assert bodies(broker) == [b"0", b"1", b"2"]


def test_refused_messages_are_named_by_index(broker: TinyBroker, client: Client) -> None:
    full = AmqpError("amqp:resource-limit-exceeded", "the queue is full")
    broker.refuse_send = lambda number: full if number in (2, 5) else None
    sender = client.sender("q")
    with pytest.raises(SendFailed, match="2 of 10") as caught:
        sender.send(messages(10))
    assert [index for index, _ in caught.value.failures] == [2, 5]
    assert all(type(error) is QuotaExceeded for _, error in caught.value.failures)
    assert sender.accepted == 8
    assert sender.send(messages(1)) == 1


def test_unknown_entity_is_refused_at_once(client: Client) -> None:
    with pytest.raises(NotFound, match="could not be found") as caught:
        client.sender("no-such-queue")
    assert caught.value.condition == "amqp:not-found"


def test_wrong_key_is_denied_and_not_repeated_in_the_text(broker: TinyBroker, client: Client) -> None:
    broker.token_status = 401
    with pytest.raises(AccessDenied, match="no such key") as caught:
        client.sender("q")
    assert "c2VjcmV0" not in str(caught.value)


def test_entity_disabled_while_sending_has_its_own_class(broker: TinyBroker, client: Client) -> None:
    broker.refuse_send = lambda number: AmqpError("com.microsoft:entity-disabled", "off")
    with pytest.raises(SendFailed) as caught:
        client.sender("q").send(messages(1))
    assert type(caught.value.failures[0][1]) is EntityDisabled


def test_property_that_no_type_holds_is_refused_before_anything_is_sent(broker: TinyBroker, client: Client) -> None:
    with pytest.raises(InvalidRequest):
        client.sender("q").send([OutgoingMessage(application_properties={"k": 2**64})])
    assert broker.arrived == 0


def test_one_token_serves_all_links_of_an_entity(broker: TinyBroker, client: Client) -> None:
    client.sender("q")
    client.receiver("q")
    assert broker.tokens == [f"sb://127.0.0.1:{broker.port}/q"]
