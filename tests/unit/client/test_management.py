"""Requests to `$management`: replies, refusals, and what is built on them."""

from __future__ import annotations

import pytest

from partibus.client.errors import AlreadyExists, ClientError, InvalidRequest, NotFound
from partibus.client.extensions.cluster import FaultInjectionInfo, FaultInjections
from partibus.client.extensions.entities import Entities
from partibus.client.messages import OutgoingMessage
from tests.kit.plain_client import Client
from tests.unit.client.broker import Answer, TinyBroker

QUEUE = {
    "kind": "queue",
    "name": "orders",
    "properties": {"LockDuration": "PT1M"},
    "partitions": 16,
    "messages": 3,
    "dead-letter-messages": 1,
    "size-bytes": 4096,
    "status": "Active",
    "availability": "Available",
}


def test_peek_hands_out_messages(broker: TinyBroker, client: Client) -> None:
    encoded = OutgoingMessage(body=b"x", message_id="1").encode()
    broker.answers["com.microsoft:peek-message"] = lambda body: (200, None, "OK", {"messages": [{"message": encoded}]})
    (message,) = client.management("q").peek(from_sequence=7, count=3)
    assert message.body == b"x"
    assert broker.requests == [
        ("q/$management", "com.microsoft:peek-message", {"from-sequence-number": 7, "message-count": 3})
    ]


def test_peek_at_one_session(broker: TinyBroker, client: Client) -> None:
    broker.answers["com.microsoft:peek-message"] = lambda body: (204, None, "nothing left", None)
    assert client.management("q").peek(session="") == []
    assert broker.requests[-1][2] == {"from-sequence-number": 1, "message-count": 1, "session-id": ""}


def test_no_content_is_an_empty_answer(broker: TinyBroker, client: Client) -> None:
    broker.answers["com.microsoft:peek-message"] = lambda body: (204, None, "nothing left", None)
    assert client.management("q").peek() == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((409, "com.microsoft:entity-already-exists", "is there", None), AlreadyExists),
        ((404, "amqp:not-found", "is not there", None), NotFound),
        ((400, "com.microsoft:argument-error", "is bad", None), InvalidRequest),
        ((404, None, "no condition", None), NotFound),
    ],
)
def test_refusal_has_a_class_and_the_words_of_the_broker(
    broker: TinyBroker, client: Client, answer: Answer, kind: type[ClientError]
) -> None:
    broker.answers["op"] = lambda body: answer
    with pytest.raises(kind, match=answer[2]) as caught:
        client.management().request("op", {})
    assert caught.value.condition == answer[1]


def test_rejected_request_fails_alone(broker: TinyBroker, client: Client) -> None:
    broker.answers["good"] = lambda body: (200, None, "OK", {"x": 1})
    node = client.management("q")
    with pytest.raises(InvalidRequest, match="no operation bad"):
        node.request("bad", {})
    assert node.request("good", {}) == {"x": 1}


def test_entities_are_created_listed_and_deleted(broker: TinyBroker, client: Client) -> None:
    broker.answers["partibus:create-entity"] = lambda body: (200, None, "OK", QUEUE)
    broker.answers["partibus:get-entity"] = lambda body: (200, None, "OK", QUEUE)
    broker.answers["partibus:list-entities"] = lambda body: (
        200, None, "OK", {"entities": [QUEUE, {**QUEUE, "name": "Alpha"}]},
    )  # fmt: skip
    broker.answers["partibus:delete-entity"] = lambda body: (200, None, "OK", {})
    entities = Entities(client)
    assert entities.create_queue("orders", {"EnablePartitioning": True}).partitions == 16
    assert [info.name for info in entities.list()] == ["Alpha", "orders"]
    broker.answers["partibus:update-entity"] = lambda body: (200, None, "OK", QUEUE)
    assert entities.update("orders", {"LockDuration": "PT1M"}).properties == {"LockDuration": "PT1M"}
    assert broker.requests[-1][1:] == (
        "partibus:update-entity",
        {"name": "orders", "properties": {"LockDuration": "PT1M"}},
    )
    entities.delete("orders")
    assert broker.requests[0] == (
        "$management",
        "partibus:create-entity",
        {"kind": "queue", "name": "orders", "properties": {"EnablePartitioning": True}},
    )
    assert broker.tokens == [f"sb://127.0.0.1:{broker.port}/"]


def test_entity_with_stores_away_says_whose_counts_are_missing(broker: TinyBroker, client: Client) -> None:
    limited = {**QUEUE, "availability": "Limited", "partitions-away": [3, 11]}
    broker.answers["partibus:get-entity"] = lambda body: (200, None, "OK", limited)
    info = Entities(client).get("orders")
    assert (info.availability, info.partitions_away) == ("Limited", (3, 11))
    assert info.messages == QUEUE["messages"]


def test_rehearsals_name_a_store_or_partitions(broker: TinyBroker, client: Client) -> None:
    rule = {"store": "", "entity": "orders", "partition": 3, "row": 7, "fails": True, "delay-ms": 0}
    for name in ("rehearse-failure", "rehearse-delay"):
        broker.answers[f"partibus:{name}"] = lambda body: (200, None, "OK", {})
    broker.answers["partibus:end-rehearsals"] = lambda body: (200, None, "OK", {"ended": 1})
    broker.answers["partibus:list-rehearsals"] = lambda body: (200, None, "OK", {"rehearsals": [rule]})
    fault_injections = FaultInjections(client)
    fault_injections.fail(entity="orders", partitions=[3])
    fault_injections.slow(500, store="store-03")
    assert fault_injections.heal(store="store-03") == fault_injections.heal() == 1
    assert fault_injections.all() == [FaultInjectionInfo("", "orders", 3, fails=True, delay_ms=0)]
    assert [request[1:] for request in broker.requests[:4]] == [
        ("partibus:rehearse-failure", {"entity": "orders", "partitions": [3]}),
        ("partibus:rehearse-delay", {"store": "store-03", "delay-ms": 500}),
        ("partibus:end-rehearsals", {"store": "store-03"}),
        ("partibus:end-rehearsals", {"all": True}),
    ]


def test_reply_of_another_shape_is_a_client_error(broker: TinyBroker, client: Client) -> None:
    broker.answers["partibus:get-entity"] = lambda body: (200, None, "OK", {"kind": "queue", "name": 7})
    with pytest.raises(ClientError, match="'name'"):
        Entities(client).get("x")


def test_a_value_that_amqp_has_no_type_for_is_an_invalid_request(broker: TinyBroker, client: Client) -> None:
    broker.answers["good"] = lambda body: (200, None, "OK", {"x": 1})
    node = client.management("q")
    with pytest.raises(InvalidRequest, match="9223372036854775808 does not fit"):
        node.request("good", {"a": {"b": 1 << 63}})
    assert node.request("good", {}) == {"x": 1}
