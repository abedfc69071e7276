"""AMQP values as text, for columns that hold values of any type, and maps of such values.

Spark can cast the text back: numbers in decimal, booleans `true` and `false`, timestamps in ISO 8601, uuids with
dashes. Bytes (and decimals, which are carried as bytes) are base64. Compound values are base64 of their AMQP encoding.
The name of the type is in a column of its own.

The names in maps (application properties, annotations) are mostly the same from message to message. A sender of a
million messages gives them properties of the same names in the same order. So the reader first compares the bytes in
front of each value with those of the message before, and then decodes only the values. With five properties that takes
a third of the time.

The encoded values of many messages become text together: text is cut out, and Arrow formats numbers. Other values are
decoded, each distinct one once.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partibus.amqp.codec.decoder import decode
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
from partibus.amqp.errors import DecodeError
from partibus.spark.composites import VALUE_START, read_between, read_elements, read_map
from partibus.spark.encoded import Encoded, Numbers

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _boolean(value: object) -> str:
    return "true" if value else "false"


def _base64(value: object) -> str:
    return b64encode(value).decode("ascii")  # type: ignore[arg-type]


def _encoded(value: object) -> str:
    return b64encode(encode(value)).decode("ascii")


def _timestamp(value: object) -> str:
    """Return ISO 8601, or milliseconds in decimal outside of the years 1 to 9999."""
    milliseconds = int(value)  # type: ignore[call-overload]
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    # Not strftime, which does not pad years before 1000 on Linux: .NET's DateTime.MinValue is in the year 1.
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


_FORMS: Mapping[type, tuple[str, Callable[[object], str]]] = {
    bool: ("boolean", _boolean),
    int: ("long", int.__repr__),
    float: ("double", float.__repr__),
    str: ("string", str),
    bytes: ("binary", _base64),
    UUID: ("uuid", str),
    list: ("list", _encoded),
    dict: ("map", _encoded),
    Array: ("array", _encoded),
    UByte: ("ubyte", int.__repr__),
    UShort: ("ushort", int.__repr__),
    UInt: ("uint", int.__repr__),
    ULong: ("ulong", int.__repr__),
    Byte: ("byte", int.__repr__),
    Short: ("short", int.__repr__),
    Int: ("int", int.__repr__),
    Float: ("float", float.__repr__),
    Symbol: ("symbol", str),
    Char: ("char", str),
    Timestamp: ("timestamp", _timestamp),
    Decimal32: ("decimal32", _base64),
    Decimal64: ("decimal64", _base64),
    Decimal128: ("decimal128", _base64),
}


_TEXT = {kind: form for kind, (_, form) in _FORMS.items()} | {type(None): lambda value: None}
_NAME = {kind: name for kind, (name, _) in _FORMS.items()} | {type(None): "null"}


def text_of(value: object) -> str | None:
    """Return the text; None for null."""
    form = _TEXT.get(value.__class__)
    if form is not None:
        return form(value)
    assert isinstance(value, Described), f"{value.__class__} is no AMQP type"
    return text_of(value.value)


def type_of(value: object) -> str:
    """Return the AMQP type's name; of a described value `DESCRIPTOR:type`, as in `com.microsoft:timespan:long`."""
    name = _NAME.get(value.__class__)
    if name is not None:
        return name
    assert isinstance(value, Described), f"{value.__class__} is no AMQP type"
    return f"{text_of(value.descriptor)}:{type_of(value.value)}"


_SHAPES_KEPT = 1024
"""Distinct lists of names remembered; senders may make up any number."""


class Shape(NamedTuple):
    """The names of a message's values, in order."""

    names: tuple[str, ...]
    encoded: tuple[tuple[bytes, int], ...] = ()
    """Each encoded name with its length."""


Named = tuple[Shape, list[Any]]
"""The values of one message with their names."""

NOTHING: Named = (Shape(()), [])


class NamedValues:
    """Reads the maps of consecutive messages."""

    def __init__(self) -> None:
        self._last = NOTHING[0]
        self._known: dict[tuple[Any, ...], Shape] = {}

    def section(self, buf: bytes, start: int, end: int) -> Named:
        """Read a map with descriptor and header, or nothing. Raises `DecodeError`."""
        if start == end:
            return NOTHING
        pos = start + VALUE_START
        constructor = buf[pos] if pos < end else 0
        if constructor == 0xC1 and end - pos > 3:
            count, first, stop = buf[pos + 2], pos + 3, pos + 2 + buf[pos + 1]
        elif constructor == 0xD1 and end - pos > 9:
            count = int.from_bytes(buf[pos + 5 : pos + 9], "big")
            first, stop = pos + 9, pos + 5 + int.from_bytes(buf[pos + 1 : pos + 5], "big")
        else:
            count, first, stop = -1, pos, -1
        found = self._usual(buf, first, end, count) if stop == end and count % 2 == 0 else None
        return found or self._checked(read_map(buf, start, end))

    def pairs(self, buf: bytes, start: int, end: int, count: int) -> Named:
        """Read ``count`` names and values without a header. Raises `DecodeError`."""
        if start == end:
            return NOTHING
        found = self._usual(buf, start, end, 2 * count)
        if found is not None:
            return found
        pairs, pos = {}, start
        for _ in range(count):
            name, pos = decode(buf, pos, end)
            value, pos = decode(buf, pos, end)
            if not isinstance(name, str):
                raise DecodeError(f"the name {name!r} at byte {pos} is no text")
            pairs[name] = value
        return self._checked(pairs)

    def _usual(self, buf: bytes, pos: int, end: int, count: int) -> Named | None:
        """Read a map with the names of the one before; None where the general decoder must."""
        shape = self._last
        if count == 2 * len(shape.encoded):
            values = read_between(buf, pos, end, shape.encoded)
            if values is not None:
                return shape, values
        values = read_elements(buf, pos, end, count)
        if values is None:
            return None
        names = tuple(values[::2])
        try:
            known = self._known.get(names)
        except TypeError:
            return None  # A name that can't be one: the general decoder says so.
        if known is None:
            known = self._learned(buf, pos, end, names)
            if known is None:
                return None
        self._last = known
        return known, values[1::2]

    def _learned(self, buf: bytes, pos: int, end: int, names: tuple[Any, ...]) -> Shape | None:
        """Remember a list of names; None for names that are not text, or that repeat."""
        if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            return None
        encoded: list[tuple[bytes, int]] = []
        for _ in names:
            _, behind = decode(buf, pos, end)
            encoded.append((buf[pos:behind], behind - pos))
            _, pos = decode(buf, behind, end)
        shape = Shape(tuple(map(str, names)), tuple(encoded))
        if len(self._known) >= _SHAPES_KEPT:
            self._known.clear()
        self._known[names] = shape
        return shape

    def _checked(self, pairs: dict[Any, Any]) -> Named:
        return Shape(tuple(map(str, pairs))), list(pairs.values())


NULL = 0x40
_STRINGS = {0xA1: 2, 0xB1: 5}
"""The start of the text, counted from the constructor."""
_CONSTANTS: Mapping[int, tuple[str | None, str]] = {
    NULL: (None, "null"),
    0x41: ("true", "boolean"),
    0x42: ("false", "boolean"),
    0x43: ("0", "uint"),
    0x44: ("0", "ulong"),
}
_INTEGERS = {
    0x50: ("u1", "ubyte"),
    0x51: ("i1", "byte"),
    0x52: ("u1", "uint"),
    0x53: ("u1", "ulong"),
    0x54: ("i1", "int"),
    0x55: ("i1", "long"),
    0x60: (">u2", "ushort"),
    0x61: (">i2", "short"),
    0x70: (">u4", "uint"),
    0x71: (">i4", "int"),
    0x80: (">u8", "ulong"),
    0x81: (">i8", "long"),
}
_FLOATS = {0x72: (">f4", "float"), 0x82: (">f8", "double")}
_TIMESTAMP = 0x83
_LONGS = {code: layout for code, (layout, _) in _INTEGERS.items()} | {_TIMESTAMP: ">i8"}
_ZEROS = (0x43, 0x44)
_LONG_MAX = (1 << 63) - 1
_PLAIN_MIN, _PLAIN_MAX = 1e-4, 1e9
"""Python writes numbers below the first one with an exponent, Arrow those of ten times the second one."""
_YEAR_1000_MS, _YEAR_10000_MS = -30_610_224_000_000, 253_402_300_800_000


class Values(NamedTuple):
    """One value of each message: its constructor (`NULL` where it is absent), its start and its end."""

    codes: Numbers
    starts: Numbers
    ends: Numbers

    def at(self, which: Numbers) -> "Values":
        """Return the values at these places of the arrays."""
        return Values(self.codes[which], self.starts[which], self.ends[which])


class Texts(NamedTuple):
    """Values as text, with the AMQP name of the type of each."""

    texts: pa.Array
    types: pa.Array


def texts_of(encoded: Encoded, values: Values) -> Texts:
    """Return the texts of values. Raises `DecodeError` or `pyarrow.ArrowInvalid` if one of them is malformed."""
    codes = values.codes
    if not len(codes) or (codes == codes[0]).all():
        return _alike(encoded, int(codes[0]) if len(codes) else NULL, values)
    places = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    parts = [_alike(encoded, int(codes[which[0]]), values.at(which)) for which in places]
    return Texts(*(in_places(places, column) for column in zip(*parts, strict=True)))


def _alike(encoded: Encoded, code: int, values: Values) -> Texts:
    """Return the texts of values with the same constructor."""
    count = len(values.codes)
    if code in _STRINGS:
        texts = encoded.cut(values.starts + _STRINGS[code], values.ends).cast(pa.string())
        return Texts(texts, repeated("string", count))
    if code in _CONSTANTS:
        text, type_ = _CONSTANTS[code]
        return Texts(repeated(text, count), repeated(type_, count))
    if code in _INTEGERS:
        layout, type_ = _INTEGERS[code]
        return Texts(pa.array(encoded.numbers(values.starts + 1, layout)).cast(pa.string()), repeated(type_, count))
    if code in _FLOATS:
        layout, type_ = _FLOATS[code]
        return Texts(_float_texts(encoded.numbers(values.starts + 1, layout)), repeated(type_, count))
    if code == _TIMESTAMP:
        return Texts(_time_texts(encoded.numbers(values.starts + 1, ">i8")), repeated("timestamp", count))
    found = encoded.cut(values.starts, values.ends).dictionary_encode()
    decoded = [decode(value)[0] for value in found.dictionary.to_pylist()]
    return Texts(
        pa.array(list(map(text_of, decoded)), pa.string()).take(found.indices),
        pa.array(list(map(type_of, decoded)), pa.string()).take(found.indices),
    )


def _float_texts(numbers: Numbers) -> pa.Array:
    """Return the texts of floating-point numbers as Python writes them.

    Arrow finds the same shortest digits, but writes them differently without a fraction or with an exponent.
    """
    with np.errstate(invalid="ignore"):
        numbers = numbers.astype(np.float64)
        size = np.abs(numbers)
        is_plain = (size >= _PLAIN_MIN) & (size < _PLAIN_MAX) & (numbers != np.floor(numbers))
    plain, others = np.flatnonzero(is_plain), np.flatnonzero(~is_plain)
    # Compared by their bits: minus zero is a value of its own.
    bits = pa.array(numbers[others].view(np.int64)).dictionary_encode()
    texts = pa.array(list(map(float.__repr__, bits.dictionary.to_numpy().view(np.float64).tolist())), pa.string())
    return in_places((plain, others), (pa.array(numbers[plain]).cast(pa.string()), texts.take(bits.indices)))


def _time_texts(milliseconds: Numbers) -> pa.Array:
    """Return the texts of times in years with four digits: Arrow's, with a T in the middle."""
    is_usual = (milliseconds >= _YEAR_1000_MS) & (milliseconds < _YEAR_10000_MS)
    usual, others = np.flatnonzero(is_usual), np.flatnonzero(~is_usual)
    texts = pa.array(milliseconds[usual]).cast(pa.timestamp("ms", "UTC")).cast(pa.string())
    rare = pa.array([text_of(Timestamp(value)) for value in milliseconds[others].tolist()], pa.string())
    return in_places((usual, others), (pc.utf8_replace_slice(texts, 10, 11, "T"), rare))


def in_places(places: Sequence[Numbers], parts: Sequence[pa.Array]) -> pa.Array:
    """Put each part's values in their places. All places together are a permutation of 0, 1, 2, ..."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2 and all(np.all(np.diff(where) == 1) for where in places):
        return filled[0] if filled else parts[0]
    order = np.concatenate(places)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(back))


def integers_of(encoded: Encoded, values: Values) -> tuple[Numbers, Numbers]:
    """Return integers of any width, and where there is none: values of another type, or of more than 63 bits."""
    found: Numbers = np.zeros(len(values.codes), np.int64)
    is_none: Numbers = np.ones(len(values.codes), np.bool_)
    for code in np.unique(values.codes):
        which = np.flatnonzero(values.codes == code)
        if code in _ZEROS:
            is_none[which] = False
        elif (layout := _LONGS.get(int(code))) is not None:
            numbers = encoded.numbers(values.starts[which] + 1, layout)
            is_none[which] = numbers > _LONG_MAX
            found[which] = np.where(numbers > _LONG_MAX, 0, numbers)
    return found, is_none


def repeated(text: str | None, count: int) -> pa.Array:
    """Repeat a text ``count`` times."""
    return pa.nulls(count, pa.string()) if text is None else pa.repeat(pa.scalar(text, pa.string()), count)
