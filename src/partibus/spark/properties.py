"""AMQP values as text, for columns that hold values of any type, and maps of such values.

Spark can cast the text back: numbers in decimal, booleans `true` and `false`, timestamps in ISO 8601, uuids with
dashes. Bytes (and decimals, which are carried as bytes) are base64. Compound values are base64 of their AMQP encoding.
The name of the type is in a column of its own.

The names in maps (application properties, annotations) are mostly the same from message to message. A sender of a
million messages gives them properties of the same names in the same order. So the reader first compares the bytes in
front of each value with those of the message before, and then decodes only the values. With five properties that takes
a third of the time.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

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

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _boolean(value: object) -> str:
    return "true" if value else "false"


def _base64(value: object) -> str:
    return b64encode(value).decode("ascii")  # type: ignore[arg-type]


def _encoded(value: object) -> str:
    return b64encode(encode(value)).decode("ascii")


def _timestamp(value: object) -> str:
    """Return milliseconds in decimal for a year that does not have four digits."""
    milliseconds = int(value)  # type: ignore[call-overload]
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


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
