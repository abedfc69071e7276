"""Text and the name of its AMQP type -> the encoded value: the way back from `partibus.spark.properties`."""

from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from uuid import UUID

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
from partibus.amqp.errors import EncodeError
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
_ENCODED = frozenset(("list", "map", "array"))
"""Their text is base64 of the encoded value."""


def encoded_value(name: str, text: str | None, type_: str | None) -> bytes:
    """``type_``: None for a string. Raises `WriteError`, naming the property, for what is no value of the type."""
    if text is None or type_ == "null":
        return NULL
    try:
        if type_ is None:
            return encode(text)
        if type_ in _ENCODED:
            return _bytes(text)
        reader = _READERS.get(type_)
        if reader is not None:
            return encode(reader(text))
        descriptor, colon, rest = type_.rpartition(":")
        if colon and rest in _READERS:
            return encode(Described(Symbol(descriptor), _READERS[rest](text)))
    except (ValueError, EncodeError) as error:
        raise WriteError(f"application property {name!r} is {text!r}, no {type_}: {error}") from None
    raise WriteError(f"application property {name!r} has type {type_!r}; there are {', '.join(_READERS)}")
