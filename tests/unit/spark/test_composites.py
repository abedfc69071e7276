"""Reading in line gives what the general decoder gives, and fails where it fails."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Byte, Described, Float, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from partibus.amqp.errors import DecodeError
from partibus.spark.composites import VALUE_START, read_composite, read_list, read_map

integers = st.integers
ascii_text = st.text(st.characters(max_codepoint=127), max_size=300)
values = st.one_of(
    st.none(), st.booleans(), st.text(max_size=300), ascii_text.map(Symbol), st.binary(max_size=300),
    integers(-(2**63), 2**63 - 1), integers(-(2**63), 2**63 - 1).map(Timestamp), integers(-(2**31), 2**31 - 1).map(Int),
    integers(-200, 200), integers(-200, 200).map(Int), integers(-(2**15), 2**15 - 1).map(Short),
    integers(-128, 127).map(Byte), integers(0, 255).map(UByte), integers(0, 2**16 - 1).map(UShort),
    integers(0, 2**32 - 1).map(UInt), integers(0, 2**64 - 1).map(ULong), st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float), st.uuids(), st.lists(integers(0, 9), max_size=3),
)  # fmt: skip


def section(code: int, value: object) -> bytes:
    return encode(Described(ULong(code), value))


def shape(value: object) -> object:
    """The value with the types of everything in it, which equality of AMQP types leaves out."""
    if isinstance(value, dict):
        return [(type(key), key, shape(element)) for key, element in value.items()]
    if isinstance(value, list):
        return [shape(element) for element in value]
    return type(value), value


@given(st.lists(values, max_size=20))
def test_lists_are_read_as_the_general_decoder_reads_them(fields: list[object]) -> None:
    encoded = section(0x73, fields)
    assert shape(read_list(encoded)) == shape(decode(encoded, VALUE_START)[0])


@given(st.dictionaries(st.one_of(ascii_text.map(Symbol), st.text(max_size=20)), values, max_size=20))
def test_maps_are_read_as_the_general_decoder_reads_them(pairs: dict[object, object]) -> None:
    encoded = section(0x72, pairs)
    assert shape(read_map(encoded)) == shape(decode(encoded, VALUE_START)[0])


@given(
    st.sampled_from([0x70, 0x72]),
    st.lists(values, max_size=8),
    st.integers(0, 400),
    st.integers(0, 255),
    st.booleans(),
)
def test_damaged_sections_are_read_or_refused_as_the_general_decoder_does(
    code: int, elements: list[object], place: int, byte: int, cut: bool
) -> None:
    """Damage that leaves the descriptor and the constructor alone, as `split_sections` checks these."""
    pairs = {f"key {number}": element for number, element in enumerate(elements)}
    encoded = bytearray(section(code, elements if code == 0x70 else pairs))
    place = VALUE_START + 1 + place % max(len(encoded) - VALUE_START - 1, 1)
    if place < len(encoded):
        encoded[place] = byte
    if cut:
        del encoded[place + 1 :]
    read = read_list if code == 0x70 else read_map
    try:
        expected, end = decode(bytes(encoded), VALUE_START)
    except DecodeError:
        with pytest.raises(DecodeError):
            read(bytes(encoded))
        return
    assert repr(shape(read(bytes(encoded)))) == repr(shape(expected))
    assert end <= len(encoded)


def test_missing_section_is_empty() -> None:
    assert read_list(b"") == []
    assert read_map(b"") == {}


@pytest.mark.parametrize(
    "value",
    [
        {"x-opt-enqueued-time": Timestamp(5), "x-opt-sequence-number": 7, "x-opt-partition-id": Short(3)},
        {Symbol(f"key-{number}"): "x" * 100 for number in range(5)},
        {"one": UUID(int=1)},
    ],
)
def test_usual_sections_are_read_in_line(value: dict[object, object]) -> None:
    assert read_composite(section(0x72, value)) == [part for pair in value.items() for part in pair]


@pytest.mark.parametrize("pairs", [[["list as key"], 1], ["twice", 1, "twice", 2], ["odd"]])
def test_what_is_no_map_is_refused(pairs: list[object]) -> None:
    as_list = encode(pairs)
    wide = {0xC0: 0xC1, 0xD0: 0xD1}[as_list[0]]
    with pytest.raises(DecodeError):
        read_map(b"\x00\x53\x74" + bytes([wide]) + as_list[1:])
