"""Maps whose keys were chosen to have one hash: Python's `dict` would compare each of them with all others."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from partibus.amqp import AmqpError, Closed, Connection
from partibus.amqp.codec.decoder import FRAME_VALUES_MAX, SLOW_KEYS_MAX, UNSEEDED_KEYS_MAX, decode_all, decode_at_most
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.fast import read_disposition, read_flow, read_transfer
from partibus.amqp.codec.performatives import Attach, Open, decode_performative
from partibus.amqp.codec.types import Described, Pairs, Symbol, Timestamp, ULong
from partibus.amqp.errors import DECODE_ERROR, DecodeError, TooManyValues
from partibus.amqp.frames import AMQP_HEADER, frame

MODULUS = 2**61 - 1
"""Numbers that differ by a multiple of it have one hash."""


def colliding_uuids(count: int) -> list[UUID]:
    return [UUID(int=MODULUS * number) for number in range(1, count + 1)]


def a_map(keys: list[object]) -> bytes:
    """The encoded map of these keys to null."""
    content = b"".join(encode(key) + b"\x40" for key in keys)
    return b"\xd1" + (len(content) + 4).to_bytes(4) + (2 * len(keys)).to_bytes(4) + content


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one with each comparison of two UUIDs or described values."""
    found: list[None] = []

    def counting(original: Callable[[Any, object], bool]) -> Callable[[object, object], bool]:
        def compare(one: Any, other: object) -> bool:
            found.append(None)
            return original(one, other)

        return compare

    for kind in (UUID, Described):
        monkeypatch.setattr(kind, "__eq__", counting(kind.__eq__))
    return found


@pytest.mark.parametrize("count", [100, 1_000, 3_000])
@pytest.mark.parametrize("wrap", [lambda key: key, lambda key: Described(ULong(1), key)], ids=["uuid", "described"])
def test_colliding_keys_are_not_compared(comparisons: list[None], count: int, wrap: Callable[[object], object]) -> None:
    keys = [wrap(key) for key in colliding_uuids(count)]
    value = decode_all(a_map(keys))
    assert len(comparisons) < count
    assert isinstance(value, Pairs)
    assert [key for key, _ in value.items()] == keys


@pytest.mark.parametrize(
    ("make", "most"),
    [(int, UNSEEDED_KEYS_MAX), (float, UNSEEDED_KEYS_MAX), (lambda n: UUID(int=n), SLOW_KEYS_MAX)],
    ids=["int", "float", "uuid"],
)
def test_a_few_keys_of_any_type_make_a_dict(make: Callable[[int], object], most: int) -> None:
    for count in (most, most + 1):
        value = decode_all(a_map([*map(make, range(count)), "text"]))
        assert isinstance(value, dict) is (count <= most)
        assert len(value) == count + 1  # type: ignore[arg-type]


def nulls(count: int) -> bytes:
    return b"\xd0" + (count + 4).to_bytes(4) + count.to_bytes(4) + b"\x40" * count


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (nulls(1_000), 1_000),
        (b"\xd0" + (4 + 10 * 109).to_bytes(4) + (10).to_bytes(4) + nulls(100) * 10, 1_010),
        (a_map(list(range(500))), 1_000),
        (b"\xf0" + (1_005).to_bytes(4) + (1_000).to_bytes(4) + b"\x50" + bytes(1_000), 1_000),
        (a_map(list(colliding_uuids(500))), 1_500),
        (b"\x00\x44" * 60 + b"\x40", 60),
        (b"\xc0\x81\x20" + b"\xe0\x02\x20\x40" * 32, 32 + 32 * 32),
    ],
    ids=["list", "lists", "map", "array", "UUIDs as keys", "described", "arrays of nulls"],
)
def test_a_value_of_more_values_than_are_asked_for_is_refused(value: bytes, count: int) -> None:
    assert decode_at_most(value, 0, count) == (decode_all(value), len(value), 0)
    with pytest.raises(TooManyValues, match="makes the value hold too many"):
        decode_at_most(value, 0, count - 1)
    assert decode_all(value) is not None


FRAME_BYTES = 60_000
COSTLY = {
    "nulls": b"\x40",
    "empty lists": b"\xc0\x01\x00",
    "arrays of nulls": b"\xe0\x02\x20\x40",
    "described values": b"\x00\x44\x40",
}


@pytest.mark.parametrize("item", COSTLY.values(), ids=COSTLY)
@pytest.mark.parametrize(("code", "before"), [(0x10, 9), (0x12, 13), (0x13, 10), (0x14, 7), (0x15, 4)])
def test_a_frame_of_costly_values_is_refused_before_most_are_made(code: int, before: int, item: bytes) -> None:
    count = FRAME_BYTES // len(item)
    value = b"\xd0" + (4 + count * len(item)).to_bytes(4) + count.to_bytes(4) + count * item
    fields = b"\x40" * before + value
    content = b"\xd0" + (4 + len(fields)).to_bytes(4) + (before + 1).to_bytes(4) + fields
    body = b"\x00\x53" + bytes((code,)) + content
    reads: list[Callable[[], object]] = [lambda: decode_performative(body, 0, len(body))]
    if code in FAST:
        reads.append(lambda: FAST[code](body, 3, len(body)))
    calls: Counter[str] = Counter()
    for read in reads:
        calls.clear()
        sys.setprofile(lambda frame, event, _: calls.update([event]))
        try:
            with pytest.raises(TooManyValues, match="makes the value hold too many"):
                read()
        finally:
            sys.setprofile(None)
        assert calls["call"] <= FRAME_VALUES_MAX


FAST: dict[int, Callable[[bytes, int, int], object]] = {0x13: read_flow, 0x14: read_transfer, 0x15: read_disposition}


def test_an_attach_that_resumes_thousands_of_deliveries_is_read() -> None:
    unsettled: dict[object, object] = {number.to_bytes(4): Described(ULong(0x24), []) for number in range(5_000)}
    encoded = encode(Attach(name="l", handle=0, role=True, unsettled=unsettled))
    assert len(encoded) > FRAME_BYTES - 10_000
    assert decode_performative(encoded, 0, len(encoded))[0].unsettled == unsettled


@pytest.mark.parametrize(
    "keys",
    [
        [f"key-{number}" for number in range(5_000)],
        [Symbol(f"key-{number}") for number in range(5_000)],
        [b"tag-%d" % number for number in range(5_000)],
    ],
    ids=["string", "symbol", "binary"],
)
def test_texts_and_bytes_make_a_dict_of_any_size(keys: list[object]) -> None:
    assert decode_all(a_map(keys)) == dict.fromkeys(keys)


@pytest.mark.parametrize("make", [int, float, Timestamp, lambda n: UUID(int=n)], ids=["int", "float", "time", "uuid"])
def test_pairs_are_written_as_they_were_read(make: Callable[[int], object]) -> None:
    value = decode_all(a_map([make(number) for number in range(UNSEEDED_KEYS_MAX + 1)]))
    assert isinstance(value, Pairs)
    assert decode_all(encode(value)) == value


def test_a_list_among_many_keys_is_refused() -> None:
    with pytest.raises(DecodeError, match="as a key"):
        decode_all(a_map([*range(UNSEEDED_KEYS_MAX), [1]]))


def test_an_open_with_such_properties_ends_the_connection_with_a_short_reason(comparisons: list[None]) -> None:
    properties = a_map(list(colliding_uuids(3_000)))
    whole = bytearray(frame(0, Open(container_id="stranger", properties={"x": None})))
    start = whole.index(encode({"x": None}))
    body = whole[8:start] + properties
    body = body.replace(b"\xc0" + body[4:6], b"\xd0" + (len(body) - 6 + 4).to_bytes(4) + body[5].to_bytes(4), 1)
    connection = Connection(server=True)
    ends = [
        event
        for event in connection.receive_data(AMQP_HEADER + (len(body) + 8).to_bytes(4) + whole[4:8] + bytes(body))
        if isinstance(event, Closed)
    ]
    assert len(comparisons) < 3_000
    assert isinstance(ends[0].error, AmqpError)
    assert ends[0].error.condition == DECODE_ERROR
    assert "open:list.properties: Pairs is no map" in (ends[0].error.description or "")
    assert len(connection.data_to_send()) < 512 + 64
