"""Every format code of the type system: known bytes to values, values to bytes, and bad bytes."""

from __future__ import annotations

import pickle
from copy import copy
from uuid import UUID, SafeUUID

import pytest

from partibus.amqp.codec.decoder import MAX_NESTING, MAX_ZERO_WIDTH_ELEMENTS, decode_all
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from partibus.amqp.errors import DecodeError, EncodeError

SIXTEEN = bytes(range(16))

# (what may be read, what it means, what we write)
SPELLINGS: list[tuple[str, object, str]] = [
    ("40", None, "40"),
    ("41", True, "41"),
    ("42", False, "42"),
    ("5601", True, "41"),
    ("5600", False, "42"),
    ("50ff", UByte(255), "50ff"),
    ("60ffff", UShort(65535), "60ffff"),
    ("43", UInt(0), "43"),
    ("52ff", UInt(255), "52ff"),
    ("70000000ff", UInt(255), "52ff"),
    ("7000000100", UInt(256), "7000000100"),
    ("44", ULong(0), "44"),
    ("53ff", ULong(255), "53ff"),
    ("8000000000000000ff", ULong(255), "53ff"),
    ("800000000000000100", ULong(256), "800000000000000100"),
    ("5180", Byte(-128), "5180"),
    ("618000", Short(-32768), "618000"),
    ("54ff", Int(-1), "71ffffffff"),
    ("7180000000", Int(-(2**31)), "7180000000"),
    ("55ff", -1, "81ffffffffffffffff"),
    ("818000000000000000", -(2**63), "818000000000000000"),
    ("723f800000", Float(1.0), "723f800000"),
    ("823ff0000000000000", 1.0, "823ff0000000000000"),
    ("7400010203", Decimal32(SIXTEEN[:4]), "7400010203"),
    ("840001020304050607", Decimal64(SIXTEEN[:8]), "840001020304050607"),
    ("94" + SIXTEEN.hex(), Decimal128(SIXTEEN), "94" + SIXTEEN.hex()),
    ("730001f600", Char("\U0001f600"), "730001f600"),
    ("83ffffc77cedd32800", Timestamp(-62135596800000), "83ffffc77cedd32800"),
    ("98" + SIXTEEN.hex(), UUID(bytes=SIXTEEN), "98" + SIXTEEN.hex()),
    ("a003010203", b"\1\2\3", "a003010203"),
    ("b000000003010203", b"\1\2\3", "a003010203"),
    ("a103c3a962", "éb", "a103c3a962"),
    ("b100000003c3a962", "éb", "a103c3a962"),
    ("a3026162", Symbol("ab"), "a3026162"),
    ("b3000000026162", Symbol("ab"), "a3026162"),
    ("45", [], "45"),
    ("c00100", [], "45"),
    ("d00000000400000000", [], "45"),
    ("c0040241a000", [True, b""], "c0040241a000"),
    ("c10100", {}, "c10100"),
    ("d10000000400000000", {}, "c10100"),
    ("c10602a301615201", {"a": UInt(1)}, "c10602a301615201"),
    ("00532445", Described(ULong(0x24), []), "00532445"),
    ("00800000013700000000a10161", Described(ULong(0x0000013700000000), "a"), "00800000013700000000a10161"),
]


@pytest.mark.parametrize(("read", "value", "written"), SPELLINGS, ids=[spelling[0] for spelling in SPELLINGS])
def test_spelling_is_read_and_written_with_its_type(read: str, value: object, written: str) -> None:
    decoded = decode_all(bytes.fromhex(read))
    assert decoded == value
    assert type(decoded) is type(value)
    assert encode(decoded).hex() == written


def test_long_strings_and_compounds_take_the_four_byte_form() -> None:
    assert encode("x" * 256)[:5].hex() == "b100000100"
    assert encode([UInt(0)] * 256)[:9].hex() == "d00000010400000100"
    assert encode([b"x" * 300])[:9].hex() == "d000000135" + "00000001"
    names = [str(number) for number in range(300)]
    assert decode_all(encode(dict.fromkeys(names, "v"))) == dict.fromkeys(names, "v")


@pytest.mark.parametrize(
    "array",
    [
        Array(0xB3, []),
        Array.of_symbols(["PLAIN", "ANONYMOUS"]),
        Array(0xB3, [Symbol("x" * 300), Symbol("y")]),
        Array(0xB1, ["a", "é" * 200]),
        Array(0xB0, [b"", b"1"]),
        Array(0x70, [UInt(0), UInt(2**32 - 1)]),
        Array(0x80, [ULong(0), ULong(2**64 - 1)]),
        Array(0x81, [0, -1, 2**63 - 1]),
        Array(0x71, [Int(-1)]),
        Array(0x50, [UByte(1)]),
        Array(0x51, [Byte(-1)]),
        Array(0x60, [UShort(1)]),
        Array(0x61, [Short(-1)]),
        Array(0x56, [True, False]),
        Array(0x72, [Float(0.5)]),
        Array(0x82, [0.1]),
        Array(0x83, [Timestamp(-1)]),
        Array(0x73, [Char("a")]),
        Array(0x74, [Decimal32(b"1234")]),
        Array(0x84, [Decimal64(b"12345678")]),
        Array(0x94, [Decimal128(SIXTEEN)]),
        Array(0x98, [UUID(bytes=SIXTEEN)]),
        Array(0x40, [None, None]),
        Array(0xD0, [[], [True], ["x" * 300]]),
        Array(0xD1, [{}, {"a": 1}]),
        Array(0xF0, [Array(0x70, [UInt(1)]), Array(0xB3, [])]),
        Array(0xD0, [[UInt(1)]], descriptors=(Symbol("outer"), ULong(0x1234))),
        Array(0x70, [], descriptors=(ULong(1),)),
    ],
    ids=repr,
)
def test_array_of_any_constructor_survives(array: Array) -> None:
    decoded = decode_all(encode(array))
    assert isinstance(decoded, Array)
    assert decoded == array
    assert [type(item) for item in decoded.items] == [type(item) for item in array.items]
    assert encode(decoded) == encode(array)


def test_array_in_short_forms_is_read() -> None:
    assert decode_all(bytes.fromhex("e0040252" + "0102")) == Array(0x70, [UInt(1), UInt(2)])
    assert decode_all(bytes.fromhex("e0020343")) == Array(0x70, [UInt(0)] * 3)
    assert decode_all(bytes.fromhex("e0020141")) == Array(0x56, [True])
    assert decode_all(bytes.fromhex("e0020245")) == Array(0xD0, [[], []])


@pytest.mark.parametrize(
    "spelling",
    [
        "",
        "01",
        "3f",
        "50",
        "5602",
        "70000000",
        "7300110000",
        "730000d800",
        "a0",
        "a00201",
        "a101ff",
        "a301c3",
        "b0ffffffff00",
        "c0",
        "c000",
        "c00102",
        "c0020241",
        "c0030141" + "41",
        "c1020141",
        "c1050241" + "41" + "41" + "42",
        "c1054041404140",
        "d0000000030000",
        "d0ffffffff0000000141",
        "d00000000500ffffff41",
        "e0010141",
        "e00100",
        "e0020101",
        "e0030270" + "00",
        "e0020242" + "00",
        "f00000000500ffffff40",
        "00",
        "0053",
        "005324",
        "4040",
        "e0030101" + "00",
        "e003023f" + "00",
    ],
)
def test_bad_bytes_are_a_decode_error(spelling: str) -> None:
    with pytest.raises(DecodeError):
        decode_all(bytes.fromhex(spelling))


def test_map_with_a_compound_key_or_equal_keys_is_refused() -> None:
    with pytest.raises(DecodeError, match="as a key"):
        decode_all(bytes.fromhex("c103024541"))
    with pytest.raises(DecodeError, match="two equal keys"):
        decode_all(bytes.fromhex("c10904a1016141a3016141"))


@pytest.mark.parametrize("opening", ["c0{size}01", "00"])
def test_nesting_has_a_bound(opening: str) -> None:
    def nested(levels: int) -> bytes:
        value = b"\x40"
        for _ in range(levels):
            if opening == "00":
                value = b"\x00\x44" + value
            else:
                value = b"\xd0" + (len(value) + 4).to_bytes(4) + (1).to_bytes(4) + value
        return value

    decode_all(nested(MAX_NESTING))
    with pytest.raises(DecodeError, match="nested too deep"):
        decode_all(nested(MAX_NESTING + 1))


def test_values_nested_too_deep_are_not_written() -> None:
    value: object = None
    for _ in range(MAX_NESTING + 1):
        value = [value]
    with pytest.raises(EncodeError, match="nested deeper"):
        encode(value)


def test_elements_without_width_are_bounded() -> None:
    count = MAX_ZERO_WIDTH_ELEMENTS + 1
    with pytest.raises(DecodeError, match="can not stand"):
        decode_all(b"\xf0" + (5).to_bytes(4) + count.to_bytes(4) + b"\x41")


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, object(), "\ud800", Symbol("é"), [{1, 2}], Array(0x70, ["x"]), Array(0xD0, [5])]
)
def test_values_without_an_amqp_form_are_an_encode_error(value: object) -> None:
    with pytest.raises(EncodeError):
        encode(value)


def test_class_of_our_own_is_written_as_what_it_extends() -> None:
    class Name(Symbol):
        pass

    assert encode(Name("a")) == encode(Symbol("a"))


@pytest.mark.parametrize(("wrapper", "value"), [(UByte, 256), (UInt, -1), (Int, 2**31), (Timestamp, 2**63)])
def test_wrappers_know_their_range(wrapper: type[int], value: int) -> None:
    with pytest.raises(ValueError, match=f"{wrapper.__name__} holds"):
        wrapper(value)


def test_wrappers_say_what_they_are() -> None:
    assert repr(UInt(5)) == "UInt(5)"
    assert repr(Symbol("a")) == "Symbol('a')"
    assert repr(Described(ULong(1), None)) == "Described(ULong(1), None)"
    with pytest.raises(ValueError, match="one code point"):
        Char("ab")
    with pytest.raises(ValueError, match="4 bytes"):
        Decimal32(b"123")


def test_a_uuid_that_was_read_is_one_in_every_respect() -> None:
    made = UUID(bytes=SIXTEEN)
    read = decode_all(b"\x98" + SIXTEEN)
    assert isinstance(read, UUID)
    assert (read, hash(read), str(read), read.bytes_le) == (made, hash(made), str(made), made.bytes_le)
    assert read.is_safe is made.is_safe is SafeUUID.unknown
    assert copy(read) == pickle.loads(pickle.dumps(read)) == made
