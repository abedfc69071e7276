"""Maps of messages that resemble each other are read as if each came alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Float, Int, Symbol, Timestamp, UInt
from partibus.amqp.errors import DecodeError
from partibus.spark.composites import read_map
from partibus.spark.properties import NamedValues, text_of
from partibus.spark.sink_values import encoded_value
from tests.spark.simulated import section

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
names = st.sampled_from(["a", "b", "delay", "x" * 300]) | st.text(max_size=3)
values = st.one_of(
    st.none(), st.booleans(), st.text(max_size=300), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float), st.integers(0, 2**32 - 1).map(UInt), st.uuids(),
    st.integers(-200, 200).map(Int), st.integers(0, 2**40).map(Timestamp), st.lists(st.integers(0, 9), max_size=2),
)  # fmt: skip
maps = st.dictionaries(names, values, max_size=6)


def types_and_values(found: list[object]) -> list[tuple[type, object]]:
    return [(type(value), value) for value in found]


@given(st.lists(maps, max_size=12), st.lists(maps, max_size=3))
def test_sections_are_read_as_maps_whatever_came_before(
    some: list[dict[str, object]], often: list[dict[str, object]]
) -> None:
    named = NamedValues()
    for pairs in some + often * 3:
        buf = b"before" + (encoded := section(0x74, pairs)) + b"behind"
        shape, found = named.section(buf, 6, 6 + len(encoded))
        expected = read_map(encoded)
        assert shape.names == tuple(expected)
        assert types_and_values(found) == types_and_values(list(expected.values()))


@given(st.lists(maps, max_size=12))
def test_pairs_are_read_without_a_header_too(some: list[dict[str, object]]) -> None:
    named = NamedValues()
    for pairs in some:
        encoded = b"".join(encode(Symbol(f"n{place}")) + encode(value) for place, value in enumerate(pairs.values()))
        shape, found = named.pairs(b"before" + encoded + b"behind", 6, 6 + len(encoded), len(pairs))
        assert shape.names == tuple(f"n{place}" for place in range(len(pairs)))
        assert types_and_values(found) == types_and_values(list(pairs.values()))


@given(maps, st.integers(0, 400), st.integers(0, 255), st.booleans())
def test_damaged_section_is_read_or_refused_as_the_general_decoder_does(
    pairs: dict[str, object], place: int, byte: int, cut: bool
) -> None:
    """Damage a section behind a sound one of the same names."""
    sound = section(0x74, pairs)
    damaged = bytearray(sound)
    damaged[3 + place % (len(damaged) - 3)] = byte
    if cut:
        del damaged[3 + place % (len(damaged) - 3) :]
    named = NamedValues()
    named.section(sound, 0, len(sound))
    buf = bytes(damaged) + b"behind"
    try:
        expected = read_map(bytes(damaged))
    except (DecodeError, TypeError, ValueError):
        with pytest.raises((DecodeError, TypeError, ValueError)):
            named.section(buf, 0, len(damaged))
        return
    shape, found = named.section(buf, 0, len(damaged))
    assert shape.names == tuple(map(str, expected))
    assert repr(found) == repr(list(expected.values()))


@pytest.mark.parametrize("year", [1, 999, 1000, 9999])
def test_timestamp_of_any_year_becomes_text_that_a_write_accepts(year: int) -> None:
    value = Timestamp((datetime(year, 1, 1, 0, 0, 0, 7000, UTC) - EPOCH) // timedelta(milliseconds=1))
    text = text_of(value)
    assert text == f"{year:04d}-01-01T00:00:00.007Z"
    assert encoded_value("at", text, "timestamp") == encode(value)
