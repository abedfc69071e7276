"""Any value survives the codec with its type. Any bytes raise nothing but `DecodeError`."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from partibus.amqp import ACCEPTED, AmqpError, Coordinator, DecodeError, Rejected, Source, Target
from partibus.amqp.codec.composite import build, read_composite
from partibus.amqp.codec.decoder import MAX_NESTING, decode, decode_all, skip_value
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.fast import read_disposition, read_flow, read_transfer
from partibus.amqp.codec.performatives import Attach, Open, decode_performative
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
    Pairs,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

ascii_text = st.text(st.characters(max_codepoint=127), max_size=300)
utf8_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


def bounded(kind: Any) -> st.SearchStrategy[Any]:
    return st.integers(kind.least, kind.most).map(kind)


# By the format code that an array of them announces.
BY_CONSTRUCTOR: dict[int, st.SearchStrategy[Any]] = {
    0x40: st.none(),
    0x56: st.booleans(),
    0x50: bounded(UByte),
    0x60: bounded(UShort),
    0x70: bounded(UInt),
    0x80: bounded(ULong),
    0x51: bounded(Byte),
    0x61: bounded(Short),
    0x71: bounded(Int),
    0x81: st.integers(-(2**63), 2**63 - 1),
    0x72: st.floats(width=32).map(Float),
    0x82: st.floats(),
    0x83: bounded(Timestamp),
    0x73: st.characters(exclude_categories=["Cs"]).map(Char),
    0x74: st.binary(min_size=4, max_size=4).map(Decimal32),
    0x84: st.binary(min_size=8, max_size=8).map(Decimal64),
    0x94: st.binary(min_size=16, max_size=16).map(Decimal128),
    0x98: st.uuids(),
    0xB0: st.binary(max_size=300),
    0xB1: utf8_text,
    0xB3: ascii_text.map(Symbol),
}
primitives = st.one_of(*BY_CONSTRUCTOR.values())
descriptors = st.one_of(bounded(ULong), ascii_text.map(Symbol))


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    code = draw(st.sampled_from(sorted(BY_CONSTRUCTOR)))
    items = draw(st.lists(BY_CONSTRUCTOR[code], max_size=20))
    return Array(code, items, tuple(draw(st.lists(descriptors, max_size=2))))


@st.composite
def nested_arrays(draw: st.DrawFn) -> Array:
    kind, code = draw(st.sampled_from([(st.lists(primitives, max_size=3), 0xD0), (arrays(), 0xF0)]))
    return Array(code, draw(st.lists(kind, max_size=5)))


keys = st.one_of(ascii_text.map(Symbol), bounded(ULong), st.uuids())
values = st.recursive(
    st.one_of(primitives, arrays(), nested_arrays()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=10),
        st.dictionaries(keys, inner, max_size=10),
        st.builds(Described, descriptors, inner),
    ),
    max_leaves=20,
)


def same(left: object, right: object) -> bool:
    """Equal in type and value, all the way down; NaN equals NaN."""
    if isinstance(left, Pairs) and isinstance(right, dict):  # with many keys whose hashes a peer can choose
        return same([[*pair] for pair in left.items()], [[*pair] for pair in right.items()])
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, Described) and isinstance(right, Described):
        return same(left.descriptor, right.descriptor) and same(left.value, right.value)
    if isinstance(left, Array) and isinstance(right, Array):
        return left.constructor == right.constructor and same(
            [left.items, list(left.descriptors)], [right.items, list(right.descriptors)]
        )
    return left == right


@given(values)
def test_value_survives_with_its_type(value: object) -> None:
    encoded = encode(value)
    decoded = decode_all(encoded)
    assert same(decoded, value)
    assert encode(decoded) == encoded


@given(values, st.binary(max_size=20))
def test_skipping_stops_where_decoding_stops(value: object, rest: bytes) -> None:
    encoded = encode(value)
    assert skip_value(encoded + rest, 0, len(encoded) + len(rest)) == len(encoded)
    assert decode(encoded + rest)[1] == len(encoded)


@given(values, st.data())
def test_value_cut_short_is_a_decode_error(value: object, data: st.DataObject) -> None:
    encoded = encode(value)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    try:
        decode_all(cut)
    except DecodeError:
        return
    raise AssertionError(f"{cut!r} was read as a value")


def damaged() -> st.SearchStrategy[bytes]:
    """Valid encodings with a few bytes replaced: closer to the edges than noise is."""

    def damage(encoded: bytes, changes: list[tuple[int, int]]) -> bytes:
        raw = bytearray(encoded)
        for place, byte in changes:
            raw[place % len(raw)] = byte
        return bytes(raw)

    change = st.tuples(st.integers(0, 10_000), st.integers(0, 255))
    return st.builds(damage, values.map(encode), st.lists(change, min_size=1, max_size=4))


garbage = st.one_of(st.binary(max_size=200), damaged())


@given(garbage)
def test_garbage_is_a_value_or_a_decode_error(data: bytes) -> None:
    with suppress(DecodeError):
        decode_all(data)
    with suppress(DecodeError):
        decode_performative(data, 0, len(data))
    with suppress(DecodeError):
        skip_value(data, 0, len(data))


@given(garbage, st.integers(0, 60))
def test_garbage_in_the_fast_readers_is_read_or_a_decode_error(data: bytes, beyond: int) -> None:
    """Also when the buffer goes on behind the frame."""
    for prefix in (
        b"",
        b"\xc0\x0f\x05\x52\x01\x52\x02\xa0\x01",
        b"\xc0\x0b\x0b\x43\x40\x40\x40",
        b"\xc0\x09\x06\x41\x52",
        b"\xc0\x0c\x08\x40\x43\x52\x01\x43\x43\x43\x43\x43",
    ):
        buf = prefix + data + bytes(beyond)
        end = len(buf) - beyond
        with suppress(DecodeError):
            assert read_transfer(buf, 0, end)[8] <= end
        with suppress(DecodeError):
            read_disposition(buf, 0, end)
        with suppress(DecodeError):
            read_flow(buf, 0, end)


@given(st.uuids())
def test_uuid_is_a_uuid(value: UUID) -> None:
    assert encode(value) == b"\x98" + value.bytes


@st.composite
def composites(draw: st.DrawFn) -> bytes:
    """A performative or state of any fields, mostly of the right types, with some bytes replaced."""
    code = draw(st.sampled_from([*range(0x10, 0x19), *range(0x23, 0x2A), 0x30, 0x34, 0x40, 0x41, 0x44]))
    fitting = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(0, 300).map(UInt),
        bounded(UByte),
        bounded(UShort),
        bounded(UInt),
        bounded(ULong),
        st.text(max_size=5),
        st.text(max_size=5).map(str.encode),
        st.sampled_from([Source("q"), Target("q"), Coordinator(), ACCEPTED, Rejected(AmqpError("a:b"))]),
    )
    raw = bytearray(encode(Described(ULong(code), draw(st.lists(st.one_of(fitting, fitting, values), max_size=15)))))
    for place, byte in draw(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)):
        raw[place % len(raw)] = byte
    return bytes(raw)


def _outcome(read: Callable[[], tuple[object, int]]) -> tuple[str, int]:
    try:
        value, after = read()
    except DecodeError as error:
        return f"DecodeError {error}", -1
    return f"{type(value).__name__} {value!r}", after


def _in_two_steps(data: bytes, end: int, depth: int) -> tuple[object, int]:
    value, after = decode(data, 0, end, depth)
    return build(value), after


@given(composites(), st.binary(max_size=30), st.integers(0, 6) | st.just(MAX_NESTING))
@example(encode(Open(container_id="c", properties={Symbol("product"): "p"})), b"", MAX_NESTING)
@example(encode(Attach(name="l", handle=1, role=True, source=Source("q"), target=Target("t"))), b"", MAX_NESTING)
@example(encode(Attach(name="l", handle=1, role=True, source=Source("q"), target=Target("t"))), b"", 4)
def test_composite_is_read_at_once_as_in_two_steps(data: bytes, rest: bytes, depth: int) -> None:
    """Compare errors too, whatever follows in the buffer."""
    end = len(data)
    whole = data + rest
    assert _outcome(lambda: read_composite(whole, 0, end, depth)) == _outcome(lambda: _in_two_steps(whole, end, depth))
