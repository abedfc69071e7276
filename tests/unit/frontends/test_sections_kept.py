"""Sections of a message that a broker could drop: delivery annotations, and a header that says not durable.

AMQP means delivery annotations for the next hop alone; the service passes them on.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from partibus.amqp import Modified, Rejected
from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.types import Symbol, Timestamp
from partibus.amqp.section_encoding import (
    encode_annotations,
    encode_data,
    encode_header,
    encode_properties,
    encode_raw_map,
)
from partibus.amqp.section_fields import header, iter_map
from partibus.amqp.sections import DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, split_sections
from partibus.client.messages import IncomingMessage
from partibus.message import DELIVERY_ANNOTATIONS_KEY
from tests.unit.frontends.harness import Client, World
from tests.unit.frontends.node_requests import peek
from tests.unit.frontends.test_deferral import receive as receive_deferred
from tests.unit.frontends.test_deferral import settle as settle_deferred

MINE: dict[str, object] = {"x-opt-mine": 1, "x-opt-text": "é"}


@pytest.fixture(autouse=True)
def _forwarder(world: World) -> None:
    world.forward()


def sent(*, annotations: dict[str, object] | None = None, last: bool = False, given: dict[str, object] = MINE) -> bytes:
    """A message with delivery annotations in their place, or, as one client writes them, behind all other sections."""
    before = encode_annotations(given, DELIVERY_ANNOTATIONS)
    head = encode_header(durable=False, priority=5)
    others = encode_annotations(annotations or {}) + encode_properties(message_id="m") + encode_data(b"body")
    return head + others + before if last else head + before + others


def check(payload: bytes, **more: object) -> None:
    sections = split_sections(payload)
    assert sections.join() == payload, "sections in the order of the standard"
    found = {key: decode(raw)[0] for key, raw in iter_map(sections.delivery_annotations)}
    assert found == {**MINE, **more}
    assert (header(sections.header).durable, header(sections.header).priority) == (False, 5)
    message = IncomingMessage(payload)
    assert (message.body, message.message_id) == (b"body", "m")
    assert DELIVERY_ANNOTATIONS_KEY not in message.annotations


def received(client: Client, address: str, outcome: Any = None, **fields: Any) -> bytes:
    link = client.receiver(address, **fields)
    (delivery,) = client.receive(link, 1)
    if outcome is not None:
        client.settle(link, [delivery], outcome)
    link.detach()
    client.world.wait()
    return bytes(delivery.payload)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("partitioned", [False, True])
def test_they_come_back_from_a_queue(world: World, partitioned: bool, last: bool) -> None:
    client = world.client()
    queue = world.queue("q", EnablePartitioning=partitioned)
    client.send(client.sender(queue), sent(last=last))
    (seen,) = peek(client, queue)
    check(seen.payload)
    check(received(client, queue, Modified(delivery_failed=True)))
    check(received(client, queue, Modified(undeliverable_here=True)))
    (deferred,) = peek(client, queue)
    assert deferred.sequence_number is not None
    (item,) = receive_deferred(client, queue, [deferred.sequence_number])["messages"]
    check(item["message"], **{"x-opt-lock-token": item["lock-token"]})
    settle_deferred(client, queue, [item["lock-token"]], "Suspended", **{"dead-letter-reason": "why"})
    check(received(client, f"{queue}/$DeadLetterQueue"))


def test_they_go_through_a_topic_and_what_it_is_forwarded_to(world: World) -> None:
    client = world.client()
    world.queue("end", EnablePartitioning=True)
    world.queue("between", ForwardTo="end")
    world.broker.create_topic("t", {})
    world.broker.create_subscription("t", "kept", {})
    world.broker.create_subscription("t", "on", {"ForwardTo": "between"})
    due = Timestamp(world.timeline.now_ms() + 60_000)
    client.send(client.sender("t"), sent(annotations={"x-opt-scheduled-enqueue-time": due}))
    world.wait(120_000)
    check(received(client, "t/Subscriptions/kept", Rejected()))
    check(received(client, "t/Subscriptions/kept/$DeadLetterQueue"))
    check(received(client, "end"))


def test_many_alike_keep_theirs(world: World) -> None:
    """The link reads them by their pattern."""
    client = world.client()
    client.send(client.sender(world.queue("q")), *[sent()] * 40)
    link = client.receiver("q")
    for delivery in client.receive(link, 40):
        check(bytes(delivery.payload))


def test_the_lock_token_is_the_brokers_alone(world: World) -> None:
    client = world.client()
    client.send(client.sender(world.queue("q")), sent(given={**MINE, "x-opt-lock-token": 7}))
    check(received(client, "q"))


def test_read_by_position_and_sent_again_they_are_delivery_annotations_again(world: World) -> None:
    client = world.client()
    encoded = encode_annotations({**MINE, "x-opt-lock-token": 7}, DELIVERY_ANNOTATIONS)[3:]
    kept = encode_annotations({DELIVERY_ANNOTATIONS_KEY: encoded})
    head = encode_header(durable=False, priority=5)
    body = encode_properties(message_id="m") + encode_data(b"body")
    client.send(client.sender(world.queue("q")), head + kept + body)
    check(received(client, "q"))


@pytest.mark.parametrize("code", [DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS])
@pytest.mark.parametrize(
    ("section", "words"),
    [
        (encode_raw_map(0x71, [(f"k{n}", b"\x40") for n in range(4_097)]), "4097 .*annotations, at most 4096"),
        (b"\x00\x53\x71\xc1\x06\x02\xa3\x09abc", "missing|are needed"),
        (b"\x00\x53\x71\xc1\x03\x02\x43\x43", "no symbol or string"),
        (b"\x00\x53\x71\xc1\x04\x01\xa3\x01a", "odd number of elements"),
        (b"\x00\x53\x71\xc1\x05\x02\xa3\x01a\xff", "not defined"),
    ],
)
def test_damaged_annotations_are_refused(world: World, code: int, section: bytes, words: str) -> None:
    client = world.client()
    section = section[:2] + bytes((code,)) + section[3:]
    (state,) = client.send(client.sender(world.queue("q")), section + encode_data(b""))
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert re.search(words, str(state.error.description)), state.error.description


def test_annotations_of_all_encodings_are_kept(world: World) -> None:
    client = world.client()
    wide = b"\xb3\x00\x00\x00\x04wide\x71\x00\x00\x00\x07"
    pairs = b"\xa3\x01a\x40" + wide + b"\xa1\x04text\x43" + b"\xa3\x01b\xc0\x01\x00"
    section = b"\x00\x53\x72\xd1" + (4 + len(pairs)).to_bytes(4) + (8).to_bytes(4) + pairs
    client.send(client.sender(world.queue("q")), section + encode_data(b""))
    (found,) = peek(client, "q")
    kept = {key: value for key, value in found.annotations.items() if not key.startswith("x-opt-")}
    assert kept == {"a": None, "wide": 7, "text": 0, "b": []}
    keys: Any = decode(split_sections(found.payload).message_annotations, 3)[0]
    assert all(isinstance(key, Symbol) for key in keys)
