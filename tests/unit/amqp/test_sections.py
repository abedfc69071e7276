"""Messages taken apart and put together."""

from __future__ import annotations

from uuid import UUID

import pytest

from partibus.amqp import DecodeError, EncodeError
from partibus.amqp import section_encoding as se
from partibus.amqp import section_fields as sf
from partibus.amqp.codec.decoder import decode_all
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Described, Symbol, Timestamp, UByte, UInt, ULong
from partibus.amqp.section_fields import Header, Property
from partibus.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    SEQUENCE,
    VALUE,
    Sections,
    iter_batch,
    iter_data,
    split_sections,
)

HEADER = se.encode_header(durable=True, priority=4, ttl=3_600_000, delivery_count=0)
DELIVERY = se.encode_annotations({"x-opt-lock-token": UUID(int=5)}, DELIVERY_ANNOTATIONS)
MESSAGE = se.encode_annotations({"x-opt-partition-key": "key", "x-opt-scheduled-enqueue-time": Timestamp(7)})
PROPERTIES = se.encode_properties(message_id="id", subject="label", content_type="text/plain", group_id="group")
APPLICATION = se.encode_application_properties({"a": 1, "b": None, "c": "text"})
FOOT = se.encode_annotations({"x-sum": b"1"}, FOOTER)
BODIES = {
    DATA: se.encode_data(b"body"),
    SEQUENCE: bytes((0, 0x53, SEQUENCE)) + encode([1, "two"]),
    VALUE: se.encode_value({"key": [1, 2]}),
}


NAMES = {
    0x70: b"amqp:header:list",
    0x73: b"amqp:properties:list",
    0x74: b"amqp:application-properties:map",
    0x75: b"amqp:data:binary",
}


@pytest.mark.parametrize("code", BODIES)
def test_message_is_taken_apart_and_joined(code: int) -> None:
    payload = b"".join((HEADER, DELIVERY, MESSAGE, PROPERTIES, APPLICATION, BODIES[code], FOOT))
    sections = split_sections(payload)
    assert sections.parts() == (HEADER, DELIVERY, MESSAGE, PROPERTIES, APPLICATION, BODIES[code], FOOT)
    assert sections.body_code == code
    assert sections.join() == payload


def test_sections_may_come_in_any_order() -> None:
    sections = split_sections(FOOT + BODIES[DATA] + PROPERTIES + HEADER + APPLICATION + MESSAGE + DELIVERY)
    assert sections.parts() == (HEADER, DELIVERY, MESSAGE, PROPERTIES, APPLICATION, BODIES[DATA], FOOT)


def test_missing_sections_are_empty() -> None:
    assert split_sections(b"").join() == b""
    sections = split_sections(BODIES[VALUE])
    assert (sections.header, sections.properties, sections.body_code) == (b"", b"", VALUE)
    assert split_sections(HEADER).body_code == 0


@pytest.mark.parametrize(
    "descriptor",
    [
        lambda code: b"\x80" + code.to_bytes(8),
        lambda code: b"\xa3" + bytes((len(NAMES[code]),)) + NAMES[code],
        lambda code: b"\xb3" + len(NAMES[code]).to_bytes(4) + NAMES[code],
    ],
    ids=["eight bytes", "short symbol", "long symbol"],
)
def test_descriptors_are_normalised(descriptor: object) -> None:
    """Trap 11: what some clients send others can not read."""
    assert callable(descriptor)
    payload = b"".join(
        b"\0" + descriptor(part[2]) + part[3:] for part in (HEADER, PROPERTIES, APPLICATION, BODIES[DATA])
    )
    assert split_sections(payload).join() == HEADER + PROPERTIES + APPLICATION + BODIES[DATA]


def test_several_data_and_sequence_sections_stay_in_order() -> None:
    data = [b"one", b"", b"x" * 300, b"three"]
    sections = split_sections(HEADER + b"".join(map(se.encode_data, data)) + FOOT)
    assert list(iter_data(sections.body)) == data
    assert sf.decode_body(sections.body) == data
    two = BODIES[SEQUENCE] * 2
    assert sf.decode_body(split_sections(two).body) == [[1, "two"]] * 2


@pytest.mark.parametrize(
    "value",
    [None, True, UInt(0), 5, "text", b"x" * 300, UUID(int=1), [], {"a": 1}, Described(ULong(1), "x"), Symbol("s")],
)
def test_value_of_any_type_is_a_body(value: object) -> None:
    sections = split_sections(HEADER + se.encode_value(value) + FOOT)
    assert sections.footer == FOOT
    assert sf.decode_body(sections.body) == [value]


@pytest.mark.parametrize(
    "payload",
    [
        b"hello",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x70",
        b"\x00\x53\x79\x45",
        b"\x00\x53\x00\x45",
        b"\x00\x53\x70\xc0",
        b"\x00\x53\x70\xc0\x05\x01",
        b"\x00\x53\x73\xd0\x00\x00",
        b"\x00\x53\x73\xd0\xff\xff\xff\xff",
        b"\x00\x53\x70\xc1\x01\x00",
        b"\x00\x53\x74\xc0\x01\x00",
        b"\x00\x53\x75\xa1\x01x",
        b"\x00\x53\x76\xa0\x01x",
        b"\x00\x53\x77",
        b"\x00\x53\x77\x00\x53",
        b"\x00\x53\x77\x01",
        b"\x00\x53\x77\xb0\xff",
        b"\x00\xa3\x03foo\x45",
        b"\x00\x40\x45",
        b"\x00\x80\x00\x00\x00\x01\x00\x00\x00\x70\x45",
        HEADER + HEADER,
        PROPERTIES + BODIES[DATA] + PROPERTIES,
        BODIES[VALUE] * 2,
        BODIES[DATA] + BODIES[VALUE],
        BODIES[DATA] + BODIES[SEQUENCE],
        HEADER[:-1],
        HEADER + b"\x40",
    ],
)
def test_garbage_and_duplicates_are_a_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        split_sections(payload)


def test_batch_is_the_messages_in_its_data_sections() -> None:
    messages = [PROPERTIES + BODIES[DATA], BODIES[VALUE], b"x" * 1000]
    envelope = MESSAGE + PROPERTIES
    assert list(iter_batch(se.encode_batch(messages, envelope))) == messages
    assert list(iter_batch(se.encode_batch(messages[:1]))) == messages[:1]


@pytest.mark.parametrize("payload", [b"", HEADER, BODIES[VALUE], b"junk", se.encode_batch([b"x"])[:-1]])
def test_batch_of_anything_else_is_a_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        list(iter_batch(payload))


def test_batch_of_many_messages_is_split() -> None:
    messages = [n.to_bytes(4) + bytes(60) for n in range(4500)]
    assert list(iter_batch(se.encode_batch(messages))) == messages


# -- fields ------------------------------------------------------------------------------------------------


def test_header_fields_are_read() -> None:
    assert sf.header(HEADER) == Header(True, 4, 3_600_000, None, 0)
    assert sf.header(b"") == Header()
    assert sf.header(bytes.fromhex("00537045")) == Header()
    assert sf.header(se.encode_header(durable=False)) == Header(durable=False)
    spelled = bytes((0, 0x53, 0x70)) + bytes.fromhex("c008055601404040" + "5203")
    assert sf.header(spelled) == Header(True, None, None, None, 3)


@pytest.mark.parametrize(
    "fields", [[5], [None, True], [None, None, "1"], [None, None, -1], [None] * 6, [None, None, None, UInt(1)]]
)
def test_header_field_of_the_wrong_type_is_a_decode_error(fields: list[object]) -> None:
    with pytest.raises(DecodeError):
        sf.header(bytes((0, 0x53, 0x70)) + encode(fields))


ALL_PROPERTIES = {
    "message_id": UUID(int=9), "user_id": b"user", "to": "to", "subject": "subject", "reply_to": "reply",
    "correlation_id": b"correlation", "content_type": "a/b", "content_encoding": "gzip", "absolute_expiry_time": 10,
    "creation_time": -62135596800000, "group_id": "group", "group_sequence": 3, "reply_to_group_id": "reply group",
}  # fmt: skip


def test_properties_are_read_one_by_one_and_all_at_once() -> None:
    section = se.encode_properties(**ALL_PROPERTIES)  # type: ignore[arg-type]
    assert sf.properties(section) == list(ALL_PROPERTIES.values())
    for which, value in zip(Property, ALL_PROPERTIES.values(), strict=True):
        assert sf.property_value(section, which) == value
    assert type(sf.property_value(section, Property.CONTENT_TYPE)) is Symbol
    assert type(sf.property_value(section, Property.CREATION_TIME)) is Timestamp
    assert sf.text_property(section, Property.GROUP_ID) == "group"


def test_missing_properties_are_none() -> None:
    assert sf.property_value(PROPERTIES, Property.TO) is None
    assert sf.property_value(PROPERTIES, Property.REPLY_TO_GROUP_ID) is None
    assert sf.property_value(b"", Property.MESSAGE_ID) is None
    assert sf.raw_property(PROPERTIES, Property.MESSAGE_ID) == encode("id")
    assert sf.properties(b"") == [None] * 13
    assert sf.text_property(b"", Property.SUBJECT) is None


@pytest.mark.parametrize("message_id", ["text", UUID(int=1), b"raw", 2**40])
def test_correlation_id_keeps_the_type_of_the_message_id(message_id: str | UUID | bytes | int) -> None:
    """Trap 5: a request with a uuid wants a uuid back."""
    request = se.encode_properties(message_id=message_id)
    raw = sf.raw_property(request, Property.MESSAGE_ID)
    reply = se.encode_raw_properties([None] * 5 + [raw])
    assert sf.raw_property(reply, Property.CORRELATION_ID) == raw
    assert sf.property_value(reply, Property.CORRELATION_ID) == message_id
    assert sf.property_value(reply, Property.MESSAGE_ID) is None


@pytest.mark.parametrize(
    "section",
    [
        bytes.fromhex("005373c00301a105"),
        bytes.fromhex("005373c0020541"),
        bytes.fromhex("005373c004014141" + "41"),
        bytes.fromhex("005373c000"),
    ],
)
def test_malformed_properties_are_a_decode_error(section: bytes) -> None:
    with pytest.raises(DecodeError):
        sf.properties(section)
    with pytest.raises(DecodeError):
        sf.properties(bytes((0, 0x53, 0x73)) + encode([None] * 14))


def test_properties_that_end_early_are_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="end before their field SUBJECT"):
        sf.raw_property(bytes.fromhex("005373c0040d404040"), Property.SUBJECT)


def test_text_property_of_another_type_is_a_decode_error() -> None:
    section = bytes((0, 0x53, 0x73)) + encode([None] * 10 + [5])
    with pytest.raises(DecodeError, match=r"properties\.group-id is 5"):
        sf.text_property(section, Property.GROUP_ID)


def test_pairs_of_a_map_are_raw_and_can_be_written_again() -> None:
    pairs = list(sf.iter_map(APPLICATION))
    assert pairs == [("a", encode(1)), ("b", encode(None)), ("c", encode("text"))]
    assert se.encode_raw_map(APPLICATION_PROPERTIES, pairs) == APPLICATION
    assert se.encode_raw_map(0x72, sf.iter_map(MESSAGE)) == MESSAGE
    assert sf.map_value(MESSAGE, "x-opt-partition-key") == "key"
    assert sf.map_value(MESSAGE, "missing") is None
    assert list(sf.iter_map(b"")) == []


@pytest.mark.parametrize(
    "content", ["c10301a10161", "c1040241a101", "c10302a101", "c1040241a1" + "0161", "c1060243a10161" + "40"]
)
def test_malformed_map_is_a_decode_error(content: str) -> None:
    with pytest.raises(DecodeError):
        list(sf.iter_map(b"\x00\x53\x74" + bytes.fromhex(content)))


# -- encoding ----------------------------------------------------------------------------------------------


def test_sections_are_written_with_short_descriptors_and_their_types() -> None:
    """Trap 11."""
    for section in (HEADER, DELIVERY, MESSAGE, PROPERTIES, APPLICATION, FOOT, *BODIES.values()):
        assert section[:2] == b"\x00\x53"
    header = decode_all(HEADER)
    assert header == Described(ULong(0x70), [True, UByte(4), UInt(3_600_000), None, UInt(0)])
    annotations = decode_all(MESSAGE)
    assert isinstance(annotations, Described)
    assert isinstance(annotations.value, dict)
    assert {type(key) for key in annotations.value} == {Symbol}
    application = decode_all(APPLICATION)
    assert isinstance(application, Described)
    assert isinstance(application.value, dict)
    assert {type(key) for key in application.value} == {str}


def test_trailing_nulls_are_left_out() -> None:
    assert se.encode_header().hex() == "00537045"
    assert se.encode_properties().hex() == "00537345"
    assert se.encode_header(durable=True).hex() == "005370c0020141"


def test_values_out_of_range_are_an_encode_error() -> None:
    with pytest.raises(EncodeError, match="UByte holds"):
        se.encode_header(priority=256)
    with pytest.raises(EncodeError, match="Timestamp holds"):
        se.encode_properties(creation_time=2**63)


def test_sections_can_be_built_from_scratch() -> None:
    assert Sections(header=HEADER, body=BODIES[DATA], body_code=DATA).join() == HEADER + BODIES[DATA]
