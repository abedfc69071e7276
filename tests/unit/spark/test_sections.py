"""Messages that are walked through together give what each gives alone, whatever they are."""

from __future__ import annotations

from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import (
    Array,
    Byte,
    Char,
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
from partibus.amqp.errors import DecodeError
from partibus.message import StoredMessage, pack
from partibus.spark import properties, sections
from partibus.spark.decoding import Origin, decode_columns
from partibus.spark.stored import rows_of
from tests.spark.simulated import Held, frame_of, section, stored
from tests.unit.spark.arrow_types import SCHEMA

FEW = settings(max_examples=30)
"""Each decodes whole tables."""
INT64 = st.integers(-(2**63), 2**63 - 1)
scalars = st.one_of(
    st.none(), st.booleans(), st.text(max_size=300), INT64, st.integers(-130, 130), st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, 1e16, 1e15 + 0.5, 1e-4, 9.9e-5, float("nan"), float("-inf")]),
    st.floats(width=32).map(Float), st.integers(0, 2**64 - 1).map(ULong), st.integers(0, 300).map(ULong),
    st.integers(0, 2**32 - 1).map(UInt), st.integers(0, 2).map(UInt), st.integers(-200, 200).map(Int),
    st.integers(-(2**31), 2**31 - 1).map(Int), st.integers(0, 255).map(UByte), st.integers(-128, 127).map(Byte),
    st.integers(0, 65535).map(UShort), st.integers(-32768, 32767).map(Short), INT64.map(Timestamp),
    st.integers(-62_135_596_800_000, 253_402_300_799_999).map(Timestamp),
    st.sampled_from([-30_610_224_000_001, -30_610_224_000_000, 253_402_300_799_999]).map(Timestamp),
    st.uuids(), st.binary(max_size=300), st.sampled_from(["é", "a"]).map(Char), st.just(Symbol("name")),
)  # fmt: skip
values = scalars | st.one_of(
    st.lists(st.integers(0, 9), max_size=70), st.just({"a": None}), st.just(Array(0x71, [Int(1)])),
    INT64.map(lambda ticks: Described(Symbol("com.microsoft:timespan"), ticks)),
    st.text(max_size=300).map(lambda text: Described(Symbol("com.microsoft:uri"), text)),
)  # fmt: skip
names = st.sampled_from(["a", "no", "delay", "carrier", "x" * 300, "DeadLetterReason"]) | st.text(max_size=9)
ids = st.one_of(st.text(max_size=9), st.integers(0, 2**64 - 1).map(ULong), st.uuids(), st.binary(max_size=9))
fields = st.lists(ids | st.none() | st.just("text" * 70), max_size=8)
given_annotations: st.SearchStrategy[dict[str, object]] = st.dictionaries(
    st.sampled_from(["x-opt-partition-key", "x-opt-via-partition-key", "x-opt-scheduled-enqueue-time", "other"]),
    scalars,
    max_size=4,
)
messages = st.builds(
    lambda properties, pairs, given, body: stored(
        body, properties=properties, application_properties=pairs, annotations=given
    ),
    fields,
    st.none() | st.dictionaries(names, values, max_size=6),
    given_annotations,
    st.binary(max_size=3) | st.just(b"x" * 300),
)


def decoded(forms: list[bytes], alike_min: int) -> pa.RecordBatch:
    frame = frame_of([(place, Held(form, place)) for place, form in enumerate(forms)], len(forms) + 1)
    with patch.object(sections, "ALIKE_MIN", alike_min):
        batch = decode_columns(rows_of(frame), Origin(0, "id", "here"), SCHEMA)
    batch.validate(full=True)
    return batch


def outcome(forms: list[bytes], alike_min: int) -> pa.RecordBatch | str:
    try:
        return decoded(forms, alike_min)
    except DecodeError as error:
        return str(error)


def one_of_each_shape(some: list[bytes], often: list[bytes]) -> list[bytes]:
    """Shapes that come again and again, so that several of them are walked through together."""
    return [*some, *often, *reversed(some), *often]


@FEW
@given(st.lists(messages, max_size=12), st.lists(messages, max_size=3))
def test_together_gives_what_one_by_one_gives(some: list[bytes], often: list[bytes]) -> None:
    forms = one_of_each_shape(some, often)
    assert decoded(forms, 1).to_pydict() == decoded(forms, len(forms) + 1).to_pydict()


@FEW
@given(st.lists(values, min_size=1, max_size=20))
def test_values_of_any_types_under_one_name(some: list[object]) -> None:
    forms = [stored(b"x", application_properties={"n": value, "last": place}) for place, value in enumerate(some)]
    assert decoded(forms, 1).to_pydict() == decoded(forms, len(forms) + 1).to_pydict()


@FEW
@given(st.dictionaries(names, values, min_size=1, max_size=4), st.integers(0, 400), st.integers(0, 255), st.booleans())
def test_damage_is_refused_or_read_as_ever(pairs: dict[str, object], place: int, byte: int, cut: bool) -> None:
    sound = section(0x74, pairs)
    damaged = bytearray(sound)
    damaged[3 + place % (len(damaged) - 3)] = byte
    if cut:
        del damaged[-1]
    forms = [
        pack(application_properties=encoded, rest=section(0x75, b"")) for encoded in (sound, bytes(damaged), sound)
    ]
    together, alone = outcome(forms, 1), outcome(forms, 4)
    assert together == alone


@FEW
@given(st.integers(0, 60), st.integers(0, 255))
def test_damaged_annotations_are_refused_or_read_as_ever(place: int, byte: int) -> None:
    """Their values that no column shows are not looked at."""
    sound = stored(b"", annotations={"x-opt-partition-key": "key", "x-opt-scheduled-enqueue-time": Timestamp(7)})
    parts = StoredMessage(sound)
    damaged = bytearray(parts.annotations)
    damaged[place % len(damaged)] = byte
    parts.annotations = bytes(damaged)
    forms = [sound, parts.pack(), sound]
    together, alone = outcome(forms, 1), outcome(forms, 4)
    assert together == alone


def test_many_shapes_are_more_than_are_looked_for() -> None:
    forms = [
        stored(b"x", application_properties={f"name-{shape}": shape, "n": copy})
        for copy in range(5)
        for shape in range(3 * sections.SHAPES_MAX)
    ]
    found = decoded(forms, 1).column("application_properties").to_pylist()
    assert found == [
        [(f"name-{shape}", str(shape)), ("n", str(copy))]
        for copy in range(5)
        for shape in range(3 * sections.SHAPES_MAX)
    ]


def test_few_messages_are_read_one_by_one_and_many_together() -> None:
    def walked(count: int) -> int:
        calls = 0

        def counted(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            return original(*arguments)  # type: ignore[arg-type]

        original = properties.texts_of
        with patch.object(sections, "texts_of", counted):
            forms = [stored(b"x", application_properties={"n": number}) for number in range(count)]
            batch = decode_columns(rows_of(frame_of([(1, Held(form)) for form in forms], 2)), Origin(0), SCHEMA)
        assert batch.column("application_properties").to_pylist() == [[("n", str(number))] for number in range(count)]
        return calls

    assert walked(sections.ALIKE_MIN - 1) == 0
    assert walked(sections.ALIKE_MIN) > 0


def test_encoded_lists_of_every_length_are_fields() -> None:
    forms = [
        pack(properties=b"\x00\x53\x73\x45", rest=section(0x75, b"")),
        pack(properties=section(0x73, ["id"] + [None] * 12), rest=section(0x75, b"")),
        pack(properties=section(0x73, ["id" * 200, None, "to"]), rest=section(0x75, b"")),
        pack(properties=b"\x00\x53\x73\xd0" + encode([None, None, "x"])[1:2].rjust(4, b"\0"), rest=section(0x75, b"")),
    ]
    assert decoded(forms[:3], 1).column("to").to_pylist() == [None, None, "to"]
    assert outcome(forms, 1) == outcome(forms, 9)


def test_first_year_of_dotnet_is_a_time_with_four_digits() -> None:
    forms = [stored(b"x", application_properties={"at": Timestamp(-62_135_596_800_000)})] * 3
    for alike_min in (1, 4):
        column = decoded(forms, alike_min).column("application_properties")
        assert column.to_pylist() == [[("at", "0001-01-01T00:00:00.000Z")]] * 3
