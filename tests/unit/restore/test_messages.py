"""A stored message as it is sent anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from partibus.amqp.codec.types import Timestamp, UInt
from partibus.amqp.section_encoding import (
    encode_annotations,
    encode_application_properties,
    encode_data,
    encode_header,
    encode_properties,
    encode_value,
)
from partibus.client.messages import IncomingMessage
from partibus.frontends.amqp.ingress import Ingress
from partibus.message import StoredMessage
from partibus.restore.run import RESTORED_FROM, RESTORED_NUMBER, outgoing
from tests.unit.frontends.harness import World

NUMBER = 3 << 48 | 9
SENT = (
    encode_header(durable=True, priority=7, ttl=60_000),
    encode_annotations(
        {"x-opt-partition-key": "s", "x-opt-scheduled-enqueue-time": Timestamp(5_000), "x-own": UInt(1)}
    ),
    encode_properties(message_id=b"\x00\x01", subject="sub", group_id="s", correlation_id=8),
    encode_application_properties({"DeadLetterReason": "why", "n": 1.5}),
    encode_data(b"one") + encode_data(b"two"),
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def stored(world: World, payload: bytes) -> bytes:
    """The stored form of a message."""
    queue = world.namespace.queue(world.queue("q"))
    ingress = Ingress(lambda: "made")
    return ingress.message_of(payload, queue).data


def test_everything_of_the_sender_is_in_it_and_where_it_was(world: World) -> None:
    again = IncomingMessage(outgoing(stored(world, b"".join(SENT)), "orders/$DeadLetterQueue", NUMBER))
    assert again.annotations == {
        "x-opt-partition-key": "s",
        "x-opt-scheduled-enqueue-time": 5_000,
        "x-own": 1,
        RESTORED_FROM: "orders/$DeadLetterQueue",
        RESTORED_NUMBER: NUMBER,
    }
    sections = again.sections
    assert (again.header.durable, again.header.priority, again.header.ttl) == (True, 7, 60_000)
    assert (sections.properties, sections.application_properties, sections.body) == SENT[2:]


def test_the_broker_keeps_of_it_what_it_kept_before(world: World) -> None:
    before = StoredMessage(stored(world, b"".join(SENT)))
    queue = world.namespace.queue("q")
    payload = outgoing(before.pack(), "orders", NUMBER)
    message = Ingress(lambda: "made").message_of(payload, queue)
    after = StoredMessage(message.data)
    assert (message.session_id, message.partition_key, message.scheduled_ms, message.ttl_ms) == (
        "s",
        "s",
        5_000,
        60_000,
    )
    assert after.annotations.startswith(before.annotations)
    assert (after.properties, after.application_properties, after.rest, after.priority) == (
        before.properties, before.application_properties, before.rest, before.priority,
    )  # fmt: skip


def test_a_message_with_nothing_but_a_value(world: World) -> None:
    again = IncomingMessage(outgoing(stored(world, encode_value("v")), "orders", 1))
    assert (again.body, again.header.ttl, again.message_id) == ("v", None, "made")


def test_a_stored_form_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="form 255"):
        outgoing(b"\xff" * 40, "orders", 1)


def test_a_message_that_was_restored_before_has_each_annotation_once(world: World) -> None:
    queue, ingress = world.namespace.queue(world.queue("q")), Ingress(lambda: "made")
    once = ingress.message_of(outgoing(ingress.message_of(b"".join(SENT), queue).data, "first", 7), queue).data
    twice = outgoing(once, "second", NUMBER)
    found = StoredMessage(ingress.message_of(twice, queue).data)
    assert found.annotation_count == 5
    assert found.annotations.count(RESTORED_FROM.encode()) == found.annotations.count(RESTORED_NUMBER.encode()) == 1
    annotations = IncomingMessage(twice).annotations
    assert (annotations[RESTORED_FROM], annotations[RESTORED_NUMBER], annotations["x-own"]) == ("second", NUMBER, 1)
