"""The stored form of a message, and the head of a delivery as any AMQP decoder reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Described, Int, Short, Symbol, Timestamp, UByte, UInt, ULong
from partibus.message import (
    TTL_MAX_MS,
    DeliveryEncoder,
    Message,
    StoredMessage,
    hops_of,
    pack,
    with_application_properties,
    with_hop,
)

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, FOOTER = 0x70, 0x72, 0x73, 0x74, 0x75, 0x78


def section(code: int, value: object) -> bytes:
    return b"\x00\x53" + bytes([code]) + encode(value)


def pairs(annotations: Mapping[Symbol, object]) -> bytes:
    return b"".join(encode(key) + encode(value) for key, value in annotations.items())


def sections(parts: Iterable[bytes | memoryview]) -> list[tuple[int, object]]:
    """(code, value) of each section of an encoded message."""
    encoded = b"".join(parts)
    found = []
    pos = 0
    while pos < len(encoded):
        value, pos = decode(encoded, pos)
        assert isinstance(value, Described)
        assert isinstance(value.descriptor, ULong)
        found.append((int(value.descriptor), value.value))
    return found


def types(annotations: object) -> dict[str, type]:
    assert isinstance(annotations, dict)
    assert all(type(key) is Symbol for key in annotations)
    return {str(key): type(value) for key, value in annotations.items()}


PROPERTIES_SECTION = section(PROPERTIES, ["id", None, None, "subject"])
APPLICATION_SECTION = section(APPLICATION, {"color": "red", "n": UInt(7), "when": Timestamp(5)})
REST = section(DATA, b"one") + section(DATA, b"two") + section(FOOTER, {Symbol("x"): 1})

parts = st.fixed_dictionaries(
    {
        "durable": st.booleans(),
        "priority": st.integers(0, 255),
        "ttl_ms": st.none() | st.sampled_from([0, 1, TTL_MAX_MS]) | st.integers(0, TTL_MAX_MS),
        "annotation_count": st.integers(0, 65_535),
        "annotations": st.binary(max_size=40),
        "properties": st.binary(max_size=40),
        "application_properties": st.binary(max_size=40),
        "rest": st.binary(max_size=40),
    }
)


@given(parts)
def test_stored_form_gives_back_its_parts(given_parts: dict[str, object]) -> None:
    data = pack(**given_parts)  # type: ignore[arg-type]
    stored = StoredMessage(data)
    assert {name: getattr(stored, name) for name in given_parts} == given_parts
    assert stored.pack() == data


def test_stored_form_of_another_version_is_refused_by_number() -> None:
    with pytest.raises(ValueError, match="form 9, this program knows form 1"):
        StoredMessage(b"\x09" + pack()[1:])


def test_session_id_comes_before_partition_key() -> None:
    assert Message(b"", session_id="s", partition_key="p").key == "s"
    assert Message(b"", partition_key="p").key == "p"
    assert Message(b"", session_id="").key == ""
    assert Message(b"").key is None


# -- application properties -------------------------------------------------------------------------------------------


def test_application_properties_are_set_and_the_rest_stays_byte_for_byte() -> None:
    before = pack(
        durable=True, priority=9, ttl_ms=50, annotation_count=1, annotations=pairs({Symbol("x-opt-a"): 1}),
        properties=PROPERTIES_SECTION, application_properties=APPLICATION_SECTION, rest=REST,
    )  # fmt: skip
    after = with_application_properties(before, {"color": "blue", "DeadLetterReason": "größer"})
    old, new = StoredMessage(before), StoredMessage(after)
    ((code, properties),) = sections([new.application_properties])
    assert code == APPLICATION
    assert properties == {"color": "blue", "n": 7, "when": 5, "DeadLetterReason": "größer"}
    assert types_of_values(properties) == [str, UInt, Timestamp, str]
    new.application_properties = old.application_properties
    assert new.pack() == before


def types_of_values(properties: object) -> list[type]:
    assert isinstance(properties, dict)
    return [type(value) for value in properties.values()]


def test_message_without_application_properties_gets_some() -> None:
    after = StoredMessage(with_application_properties(pack(rest=REST), {"a": "b"}))
    assert sections([after.application_properties]) == [(APPLICATION, {"a": "b"})]
    assert after.rest == REST


# -- deliveries -------------------------------------------------------------------------------------------------------


@given(
    durable=st.booleans(),
    priority=st.integers(0, 255),
    ttl_ms=st.none() | st.integers(0, TTL_MAX_MS),
    delivery_count=st.integers(0, 2**32 - 1),
)
def test_header_is_there_with_its_types(durable: bool, priority: int, ttl_ms: int | None, delivery_count: int) -> None:
    data = pack(durable=durable, priority=priority, ttl_ms=ttl_ms, rest=REST)
    encoded = DeliveryEncoder(None).encode(data, sequence=1, enqueued_ms=2, delivery_count=delivery_count)
    (code, header), *_ = sections(encoded)
    assert (code, header) == (HEADER, [durable, priority, ttl_ms, None, delivery_count])
    assert isinstance(header, list)
    assert [type(field) for field in header] == [
        bool, UByte, type(None) if ttl_ms is None else UInt, type(None), UInt,
    ]  # fmt: skip


def test_delivery_from_a_plain_entity_has_the_annotations_that_clients_read() -> None:
    encoded = DeliveryEncoder(None).encode(
        pack(rest=REST), sequence=42, enqueued_ms=1_700_000_000_123, delivery_count=0
    )
    annotations = dict(sections(encoded))[ANNOTATIONS]
    assert annotations == {
        "x-opt-enqueued-time": 1_700_000_000_123,
        "x-opt-sequence-number": 42,
        "x-opt-message-state": 0,
        "x-opt-enqueue-sequence-number": 0,
    }
    assert types(annotations) == {
        "x-opt-enqueued-time": Timestamp,
        "x-opt-sequence-number": int,
        "x-opt-message-state": Int,
        "x-opt-enqueue-sequence-number": int,
    }
    assert b"x-opt-sequence-number\x81" in b"".join(encoded), "one client takes no shorter form of it"


@pytest.mark.parametrize("partition_id", [0, 1, 15, 63])
def test_partition_is_in_the_top_16_bits_of_the_sequence_number(partition_id: int) -> None:
    encoder = DeliveryEncoder(partition_id)
    encoded = encoder.encode(pack(rest=REST), sequence=2**48 - 1, enqueued_ms=0, delivery_count=0)
    annotations = dict(sections(encoded))[ANNOTATIONS]
    assert isinstance(annotations, dict)
    number = annotations["x-opt-sequence-number"]
    assert number == encoder.sequence_number(2**48 - 1)
    assert (number >> 48, number & (2**48 - 1)) == (partition_id, 2**48 - 1)
    assert (annotations["x-opt-partition-id"], types(annotations)["x-opt-partition-id"]) == (partition_id, Short)


@pytest.mark.parametrize("locked_until_ms", [None, 1_700_000_060_000])
@pytest.mark.parametrize("source", [None, "orders", "ü" * 260])
@pytest.mark.parametrize("partition_id", [None, 3])
@pytest.mark.parametrize("count", [0, 2, 60])
def test_senders_sections_follow_the_brokers_whatever_is_present(
    locked_until_ms: int | None, source: str | None, partition_id: int | None, count: int
) -> None:
    own = {Symbol(f"x-opt-own-{index}"): f"value {index}" for index in range(count)}
    data = pack(
        annotation_count=count, annotations=pairs(own),
        properties=PROPERTIES_SECTION, application_properties=APPLICATION_SECTION, rest=REST,
    )  # fmt: skip
    encoded = DeliveryEncoder(partition_id, source).encode(
        data, sequence=1, enqueued_ms=2, delivery_count=3, locked_until_ms=locked_until_ms, state=2
    )
    found = sections(encoded)
    assert [code for code, _ in found] == [
        HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, DATA, FOOTER,
    ]  # fmt: skip
    annotations = found[1][1]
    assert isinstance(annotations, dict)
    assert {key: annotations[key] for key in own} == own
    assert annotations.get("x-opt-deadletter-source") == source
    assert annotations.get("x-opt-locked-until") == locked_until_ms
    assert locked_until_ms is None or types(annotations)["x-opt-locked-until"] is Timestamp
    assert annotations["x-opt-message-state"] == 2
    assert len(annotations) == 4 + count + sum(part is not None for part in (locked_until_ms, source, partition_id))
    assert b"".join(encoded).endswith(PROPERTIES_SECTION + APPLICATION_SECTION + REST)


def test_what_a_forwarded_message_brings_along_is_shown_once() -> None:
    """A delivery has each annotation once: the message's own takes the place of the broker's."""
    data = pack(rest=REST, annotation_count=1, annotations=pairs({Symbol("x"): 1}))
    forwarded = with_hop(with_hop(data, 3 << 48 | 77, "first"), 5, "second")
    assert hops_of(forwarded) == 2
    assert StoredMessage(forwarded).pack() == forwarded
    assert hops_of(with_application_properties(forwarded, {"a": 1})) == 2
    for encoder in (DeliveryEncoder(2), DeliveryEncoder(2, "third")):
        for _ in range(2):
            parts = encoder.encode(forwarded, sequence=5, enqueued_ms=1, delivery_count=0, locked_until_ms=9)
            annotations = dict(sections(parts))[ANNOTATIONS]
            assert isinstance(annotations, dict)
            assert annotations[Symbol("x-opt-enqueue-sequence-number")] == 3 << 48 | 77
            assert annotations[Symbol("x-opt-deadletter-source")] == "first"
            assert annotations[Symbol("x")] == 1
            assert b"".join(parts).count(b"x-opt-deadletter-source") == 1
        plain = dict(sections(encoder.encode(data, sequence=5, enqueued_ms=1, delivery_count=0)))[ANNOTATIONS]
        assert isinstance(plain, dict)
        assert plain[Symbol("x-opt-enqueue-sequence-number")] == 0


def test_head_of_a_large_message_brings_a_view_of_the_rest() -> None:
    data = pack(rest=bytes(64 * 1024))
    *_, rest = DeliveryEncoder(None).encode(data, sequence=1, enqueued_ms=1, delivery_count=0)
    assert isinstance(rest, memoryview)
    assert rest.obj is data


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_reason_does_not_replace_an_sqs_attribute_of_its_name(is_readable: bool) -> None:
    types = '{"DeadLetterReason":"String","n":"Number"}' if is_readable else "["
    data = pack(
        annotation_count=2,
        annotations=pairs({Symbol("a"): 1, Symbol("x-opt-partibus-sqs-types"): types}),
        application_properties=section(APPLICATION, {"DeadLetterReason": "mine", "n": "5"}),
    )
    reasons = {"DeadLetterReason": "ours", "DeadLetterErrorDescription": "why"}
    after = StoredMessage(with_application_properties(data, reasons | {"n": "6"}))
    reason = "mine" if is_readable else "ours"
    properties = {"DeadLetterReason": reason, "n": "6", "DeadLetterErrorDescription": "why"}
    assert sections([after.application_properties]) == [(APPLICATION, properties)]
