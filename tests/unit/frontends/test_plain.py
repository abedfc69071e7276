"""Sections that are told to be readable without decoding are, and say the same when they are decoded."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.amqp import DecodeError
from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Int, Symbol, Timestamp, UInt
from partibus.amqp.section_encoding import encode_application_properties, encode_raw_properties
from partibus.amqp.sections import split_sections
from partibus.frontends.amqp.plain import is_plain_map, plain_identity

KEYS = st.text(max_size=4)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=20),
    st.uuids(),
    st.integers(0, 1 << 40).map(Timestamp),
    st.integers(-100, 100).map(Int),
    st.text("ab", max_size=3).map(Symbol),
    st.lists(st.integers(0, 3), max_size=2),
)
FIELDS = st.lists(
    st.one_of(st.none(), st.text(max_size=140), st.text("ab", max_size=3).map(Symbol), st.integers(0, 9).map(UInt)),
    max_size=13,
)


def damaged(section: bytes, place: int, byte: int) -> bytes:
    """One byte of its content is another, as far as the section stays one."""
    place = 4 + place % (len(section) - 4)
    changed = section[:place] + bytes([byte]) + section[place + 1 :]
    try:
        sections = split_sections(changed)
    except DecodeError:
        return section
    return sections.application_properties or sections.properties


@given(properties=st.dictionaries(KEYS, VALUES, max_size=5), place=st.integers(0, 500), byte=st.integers(0, 255))
def test_map_that_is_plain_can_be_decoded(properties: dict[str, object], place: int, byte: int) -> None:
    whole = encode_application_properties(properties)
    for section in (whole, damaged(whole, place, byte)) if whole else ():
        if is_plain_map(section):
            decoded, end = decode(section, 3)
            assert isinstance(decoded, dict)
            assert end == len(section)
            assert all(isinstance(key, str) for key in decoded)


def test_maps_that_senders_write_are_plain() -> None:
    properties = {
        "carrier": "UA",
        "delay": 11.5,
        "n": 7,
        "late": True,
        "gone": None,
        "where": "Zürich",
        "id": UUID(int=1),
    }
    assert is_plain_map(encode_application_properties(properties))


@pytest.mark.parametrize(
    ("elements", "content"),
    [
        (4, encode("a") + encode("1") + encode("a") + encode("2")),  # a key twice
        (4, encode("a") + encode("1") + encode(Symbol("a")) + encode("2")),
        (1, encode("a")),  # no value
        (4, encode("a") + encode("1")),  # fewer than it says
        (2, encode("a") + b"\xa1\x02\xff\xff"),  # not UTF-8
        (2, encode("a") + b"\x56\x02"),  # no boolean
        (2, encode("a") + b"\x3f"),  # no constructor
        (2, encode("a") + b"\xa1\x09x"),  # longer than the section
        (2, encode(1) + encode("1")),
    ],
)
def test_what_can_not_be_read_is_not_plain(elements: int, content: bytes) -> None:
    assert not is_plain_map(b"\x00\x53\x74\xc1" + bytes([len(content) + 1, elements]) + content)


@given(fields=FIELDS, place=st.integers(0, 500), byte=st.integers(0, 255))
def test_identity_that_is_told_is_the_decoded_one(fields: list[object], place: int, byte: int) -> None:
    whole = encode_raw_properties([None if field is None else encode(field) for field in fields])
    for section in (whole, damaged(whole, place, byte)) if len(whole) > 5 else ():
        told = plain_identity(section, 128)
        if told is not None:
            values, end = decode(section, 3)
            assert isinstance(values, list)
            assert end == len(section)
            assert len(values) <= 13
            assert [told.message_id, told.session_id] == [
                values[index] if index < len(values) else None for index in (0, 10)
            ]


def test_identity_of_ordinary_properties_is_told() -> None:
    section = encode_raw_properties(
        [encode("m-1"), None, encode("to"), None, None, encode("c"), encode(Symbol("text"))]
    )
    assert plain_identity(section, 128) == ("m-1", None)
