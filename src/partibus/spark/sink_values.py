"""The conversion of text with an AMQP type to the encoded value, the inverse of `partibus.spark.properties`."""

from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from uuid import UUID

from partibus.amqp.codec.decoder import decode_all
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import (
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
from partibus.spark.errors import WriteError

NULL = b"\x40"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("neither 'true' nor 'false'")
    return text.lower() == "true"


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def _timestamp(text: str) -> Timestamp:
    if text.lstrip("-").isdecimal():
        return Timestamp(int(text))
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return Timestamp(round((moment - _EPOCH).total_seconds() * 1000))


_READERS: Mapping[str, Callable[[str], object]] = {
    "string": str,
    "symbol": Symbol,
    "boolean": _boolean,
    "long": int,
    "double": float,
    "binary": _bytes,
    "uuid": UUID,
    "ubyte": lambda text: UByte(int(text)),
    "ushort": lambda text: UShort(int(text)),
    "uint": lambda text: UInt(int(text)),
    "ulong": lambda text: ULong(int(text)),
    "byte": lambda text: Byte(int(text)),
    "short": lambda text: Short(int(text)),
    "int": lambda text: Int(int(text)),
    "float": lambda text: Float(float(text)),
    "char": Char,
    "timestamp": _timestamp,
    "decimal32": lambda text: Decimal32(_bytes(text)),
    "decimal64": lambda text: Decimal64(_bytes(text)),
    "decimal128": lambda text: Decimal128(_bytes(text)),
}
_ENCODED = {"list": (b"\x45", b"\xc0", b"\xd0"), "map": (b"\xc1", b"\xd1"), "array": (b"\xe0", b"\xf0")}
"""Compound types are base64 of the encoded value, which begins with one of these bytes."""
_SHOWN_MAX = 100
"""Characters of a value in an error."""


def encoded_value(name: str, text: str | None, type_: str | None) -> bytes:
    """Encode a property; ``type_`` None means a string.

    Raises `WriteError`, naming a property that does not fit its type.
    """
    if text is None or type_ == "null":
        return NULL
    try:
        if type_ is None:
            return encode(text)
        if type_ in _ENCODED:
            return _compound(text, type_)
        reader = _READERS.get(type_)
        if reader is not None:
            return encode(reader(text))
        descriptor, colon, rest = type_.rpartition(":")
        if colon and rest in _READERS:
            return encode(Described(Symbol(descriptor), _READERS[rest](text)))
        if colon and rest in _ENCODED:
            return b"\x00" + encode(Symbol(descriptor)) + _compound(text, rest)
    except (ValueError, EncodeError, DecodeError) as error:
        shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
        raise WriteError(f"application property {name!r} is {shown!r}, no {type_}: {error}") from None
    known = ", ".join((*_READERS, *_ENCODED))
    raise WriteError(f"application property {name!r} has type {type_!r}; there are {known}")


def _compound(text: str, type_: str) -> bytes:
    """Return bytes that were encoded before, checked since a reader of the message decodes them.

    Raises `ValueError`, `DecodeError`.
    """
    data = _bytes(text)
    if data[:1] not in _ENCODED[type_]:
        raise ValueError(f"its base64 is not that of an encoded {type_}")
    decode_all(data)
    return data
