"""Messages that are as the one before but for body and id: stored as if each had been taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from partibus.amqp import Delivery
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol, Timestamp
from partibus.amqp.section_encoding import (
    encode_annotations,
    encode_application_properties,
    encode_batch,
    encode_data,
    encode_header,
    encode_properties,
    encode_value,
)
from partibus.amqp.sections import BATCH_FORMAT
from partibus.errors import PartibusError
from partibus.frontends.amqp.ingress import KEY_CHARS_MAX, Ingress
from partibus.frontends.amqp.pattern import MISSES_MAX, Pattern, Repeats
from partibus.message import Message, StoredMessage
from partibus.namespace.namespace import Queue
from tests.unit.frontends.harness import World

MADE = "0123456789abcdef" * 2
FACTS = ("data", "message_id", "partition_key", "session_id", "scheduled_ms", "ttl_ms")
SHORT, LONG = encode_data(b"short"), encode_data(bytes(1024))
WIDE = b"\x00\x53\x75\xb0\x00\x00\x00\x04wide"


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> list[Queue]:
    """A plain one, with sessions, with duplicate detection."""
    world = World(tmp_path_factory.mktemp("queues"))
    properties: tuple[dict[str, Any], ...] = ({}, {"RequiresSession": True}, {"RequiresDuplicateDetection": True})
    return [world.namespace.queue(world.queue(f"q{number}", **given)) for number, given in enumerate(properties)]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    world = World(tmp_path)
    return world.namespace.queue(world.queue("q"))


def outcome(ingress: Ingress, payload: bytes, queue: Queue, repeats: Repeats | None = None) -> object:
    """All that is known of the message, or why it is refused."""
    try:
        return facts(ingress.message_of(payload, queue, repeats))
    except PartibusError as refusal:
        return type(refusal), str(refusal)


def facts(message: Message) -> list[object]:
    return [getattr(message, fact) for fact in FACTS]


def pattern_of_two(ingress: Ingress, payload: bytes, queue: Queue) -> Pattern:
    repeats = Repeats()
    for _ in range(2):
        ingress.message_of(payload, queue, repeats)
    assert repeats.pattern is not None
    return repeats.pattern


def batch(payloads: list[bytes]) -> Delivery:
    payload = encode_batch(payloads)
    return Delivery(None, 0, b"tag", BATCH_FORMAT, settled=False, state=None, payload=payload)  # type: ignore[arg-type]


HEADERS = (b"", encode_header(durable=True, ttl=5_000))
ANNOTATIONS = (b"", encode_annotations({"x-opt-partition-key": "s", "x-opt-sequence-number": 1}))
OF_SESSION = encode_properties(message_id="id", group_id="s")
PROPERTIES = (
    b"",
    b"\x00\x53\x73\x45",
    encode_properties(message_id="id"),
    OF_SESSION,
    encode_properties(subject="s"),
)
BODIES = (SHORT, WIDE, encode_value(b"b"))
PROPERTIES_OF_APPLICATION = encode_application_properties({"a": 1})
FOOTER = b"\x00\x53\x78" + encode({Symbol("f"): 1})
IDS = ("other", "é", "", "x" * KEY_CHARS_MAX, "é" * 100, "a" * 200, b"bytes", 7, "\0")


def edits(payload: bytes) -> Iterator[bytes]:
    """Nearly the same, in every place: another byte, one more, one less, nothing behind it."""
    for at in range(len(payload)):
        for byte in b"\x00\x01\x45\x77a\xff":
            yield payload[:at] + bytes([byte]) + payload[at + 1 :]
        yield payload[:at] + b"a" + payload[at:]
        yield payload[:at] + payload[at + 1 :]
        yield payload[:at]
    yield payload + b"\x00"
    yield from (payload + section for section in (SHORT, WIDE, FOOTER))


@pytest.mark.parametrize("properties", PROPERTIES)
def test_nearly_the_same_is_told_from_the_same(queues: list[Queue], properties: bytes) -> None:
    ingress = Ingress(lambda: MADE)
    for number, (header, notes, body) in enumerate(product(HEADERS, ANNOTATIONS, BODIES)):
        queue = queues[1 if properties == OF_SESSION else number % 2 * 2]
        payload = header + notes + properties + (PROPERTIES_OF_APPLICATION if number % 4 else b"") + body
        pattern = pattern_of_two(ingress, payload, queue)
        found = 0
        for one in (payload, *edits(payload)):
            message = pattern.read(one, lambda: MADE, is_id_key=queue.requires_duplicate_detection)
            if message is not None:
                found += 1
                assert facts(message) == outcome(ingress, one, queue), one
        assert found > 1, "another body is told to be like it"


def test_whatever_comes_again_and_again_is_as_it_was(queues: list[Queue]) -> None:
    """Use sections that make a pattern impossible, or look like one."""
    notes = (*ANNOTATIONS, encode_annotations({"x-opt-scheduled-enqueue-time": Timestamp(1)}))
    ids = [encode_properties(message_id=given, subject="s") for given in IDS]
    for queue, *parts in product(queues, notes, (*PROPERTIES, *ids), (*BODIES, SHORT + WIDE, b""), (b"", FOOTER)):
        for payload in (b"".join(parts), b"".join(reversed(parts))):
            ingress, repeats = Ingress(lambda: MADE), Repeats()
            plain = outcome(ingress, payload, queue)
            assert [outcome(ingress, payload, queue, repeats) for _ in range(3)] == [plain] * 3, payload


def test_ids_of_one_length_are_each_looked_at(queue: Queue) -> None:
    ingress = Ingress(lambda: MADE)
    for first in ("abcd", "éé", "€a", "a" * 200, "é" * 100):
        repeats = Repeats()
        same_length = [first, first, "abcd", "éé", "é" * 100, "a" * 200, "b" * 200]
        for payload in [encode_properties(message_id=given) + SHORT for given in same_length]:
            assert outcome(ingress, payload, queue, repeats) == outcome(ingress, payload, queue)


def test_messages_like_the_last_ones_are_not_taken_apart(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    ingress, repeats = Ingress(lambda: f"made-{next(numbers):08}"), Repeats()
    head = encode_header(ttl=1_000) + encode_properties(subject="order")
    for _ in range(2):
        ingress.message_of(head + LONG, queue, repeats)

    def taken_apart(_: bytes) -> None:
        raise AssertionError("it has the pattern")

    monkeypatch.setattr("partibus.frontends.amqp.ingress.split_sections", taken_apart)
    found = [ingress.message_of(head + encode_data(bytes([number]) * 300), queue, repeats) for number in range(3)]
    assert [StoredMessage(message.data).rest[-1] for message in found] == [0, 1, 2]
    assert [number for number in range(5) if f"made-{number:08}".encode() in found[0].data] == [2], "ids of their own"
    with pytest.raises(AssertionError):
        ingress.message_of(head + SHORT, queue, repeats)  # its size is written in another way


def test_sessions_of_one_length_are_each_looked_at(queues: list[Queue]) -> None:
    ingress = Ingress(lambda: MADE)
    with_key = encode_annotations({"x-opt-partition-key": "abcd"})
    for first, message_id, notes in product(("abcd", "éé", "s" * KEY_CHARS_MAX), (None, "id"), (b"", with_key)):
        repeats = Repeats()
        for group in (first, first, "abcd", "dcba", "éé", "\0" * 4, "é" * 64, "t" * KEY_CHARS_MAX, "abcde", ""):
            for reply_group in ("abcd", group):
                head = encode_properties(
                    message_id=message_id, subject="s", group_id=group, reply_to_group_id=reply_group
                )
                payload = notes + head + SHORT
                assert outcome(ingress, payload, queues[1], repeats) == outcome(ingress, payload, queues[1])


@pytest.mark.parametrize("message_id", [None, "id"])
def test_messages_of_other_sessions_are_not_taken_apart(
    queues: list[Queue], message_id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingress, repeats = Ingress(lambda: MADE), Repeats()
    payloads = [encode_properties(message_id=message_id, group_id=f"s{number}") + SHORT for number in range(8)]
    decoded = [
        ingress.message_of(one, queues[1], repeats if number < 2 else None) for number, one in enumerate(payloads)
    ]

    def taken_apart(_: bytes) -> None:
        raise AssertionError("it has the pattern")

    monkeypatch.setattr("partibus.frontends.amqp.ingress.split_sections", taken_apart)
    found = [ingress.message_of(one, queues[1], repeats) for one in payloads]
    assert [facts(message) for message in found] == [facts(message) for message in decoded]


def test_those_of_a_batch_share_the_pattern(queue: Queue) -> None:
    ingress, repeats = Ingress(lambda: MADE), Repeats()
    many = [encode_properties(message_id=f"m{number:03}") + SHORT for number in range(20)]
    found = ingress.messages_of(batch(many), queue, repeats)
    assert repeats.pattern is not None
    assert [message.data for message in found] == [ingress.message_of(one, queue).data for one in many]


def test_who_never_repeats_itself_is_hardly_looked_at(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Message] = []
    monkeypatch.setattr(
        "partibus.frontends.amqp.pattern.pattern_of", lambda _, __, message, is_id_made: made.append(message)
    )
    ingress, repeats = Ingress(lambda: MADE), Repeats()
    for number in range(4 * MISSES_MAX):
        ingress.message_of(encode_application_properties({"n": number}) + SHORT, queue, repeats)
    assert len(made) == 6 + 3, "the 2nd, 4th, 8th ... 64th, then every 64th"
