"""AMQP values as text, for columns that hold values of any type.

Spark can cast the text back: numbers in decimal, booleans `true` and `false`, timestamps in ISO 8601, uuids with
dashes. Bytes (and decimals, which are carried as bytes) are base64. Compound values are base64 of their AMQP encoding.
The name of the type is in a column of its own.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

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
