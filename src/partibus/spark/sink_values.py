"""The conversion of text with an AMQP type to the encoded value, the inverse of `partibus.spark.properties`.

A `SinkColumn` of a write has a message field and the types that it allows.
"""

import difflib
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple
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
from partibus.spark.errors import OptionError, WriteError
from partibus.spark.schema import TYPE_OF
from partibus.spark.sink_options import KeyOrder, Naming, SinkOptions

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


_WHOLE = ("bigint", "int", "smallint", "tinyint")
_MAP = ("map<string,string>",)


class SinkColumn(NamedTuple):
    """One column."""

    name: str
    types: tuple[str, ...]
    doc: str


SINK_COLUMNS = (
    SinkColumn("body", ("binary", "string"), "The data section; text as UTF-8. Required; null is an empty body."),
    SinkColumn("body_type", ("string",), "As a read gives it; null: `data`."),
    SinkColumn("message_id", ("string",), "Null: made of the row's name where it has one."),
    SinkColumn("session_id", ("string",), "The message session, which decides the partition."),
    SinkColumn("partition_key", ("string",), "Decides the partition of messages without a session."),
    SinkColumn("time_to_live_ms", _WHOLE, "Null: as the entity says."),
    SinkColumn("scheduled_enqueue_time", ("timestamp",), "When the message is to appear; null: at once."),
    SinkColumn("subject", ("string",), "Also called label."),
    SinkColumn("correlation_id", ("string",), "The id of a related message, such as the request that it answers."),
    SinkColumn("to", ("string",), "The address of the intended receiver."),
    SinkColumn("reply_to", ("string",), "Where an answer goes."),
    SinkColumn("reply_to_session_id", ("string",), "In which session an answer goes there."),
    SinkColumn("content_type", ("string",), "The type of the body, such as `application/json`."),
    SinkColumn("content_encoding", ("string",), "How the body is packed, such as `gzip`."),
    SinkColumn("application_properties", _MAP, "Strings, or what the next column says."),
    SinkColumn("application_property_types", _MAP, "The AMQP type of each property, as a read gives it."),
    SinkColumn("entity_id", ("string",), "With the next two the name of a row that was read: not written."),
    SinkColumn("partition_id", _WHOLE, "As above."),
    SinkColumn("position", _WHOLE, "As above."),
)
SINK_TYPES = {column.name: column.types for column in SINK_COLUMNS}
ADDRESS = ("entity_id", "partition_id", "position")
_ID_TYPES = ("string", "binary", *_WHOLE)
PROPERTY_TYPES = ("string", "binary", "boolean", *_WHOLE, "float", "double", "timestamp", "date")


def check_columns(asked: Mapping[str, str], options: SinkOptions) -> None:
    """Reject a table that can't be written. ``asked`` maps names to Spark types in `simpleString` form.

    Raises `OptionError`.
    """
    if "body" not in asked:
        raise OptionError(
            f"the table has no column 'body', which is what is sent; there are: {', '.join(asked)}. "
            "Make one, for example with to_json(struct('*')).alias('body')"
        )
    for name, type_ in asked.items():
        if name in options.property_columns:
            _check_type(name, type_, PROPERTY_TYPES)
        elif name == options.id_column and name not in SINK_TYPES:
            pass
        elif name in SINK_TYPES:
            _check_type(name, type_, SINK_TYPES[name])
        elif name not in TYPE_OF:  # what a read gives beside is the broker's, and left out
            close = difflib.get_close_matches(name.lower(), SINK_TYPES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "drop it."
            raise OptionError(
                f"column {name!r} is nothing that a message has; {hint} To send it as an application property name it "
                f'in option "propertyColumns"'
            )
    for name in options.property_columns:
        if name not in asked:
            raise OptionError(f"option 'propertyColumns' names {name!r}; the table has: {', '.join(asked)}")
    if options.id_column is not None:
        if options.id_column not in asked:
            raise OptionError(f"option 'idColumn' is {options.id_column!r}; the table has: {', '.join(asked)}")
        _check_type(options.id_column, asked[options.id_column], _ID_TYPES)
    _check_address(asked, options)


def naming_of(asked: Mapping[str, str], options: SinkOptions) -> Naming:
    """Return the naming that `AUTO` selects."""
    if options.naming is not Naming.AUTO:
        return options.naming
    return Naming.IDS if options.id_column is not None or has_address(asked) else Naming.NONE


def has_address(asked: Mapping[str, str]) -> bool:
    """Tell whether the rows have the address of their source message."""
    return all(name in asked for name in ADDRESS)


def _check_address(asked: Mapping[str, str], options: SinkOptions) -> None:
    if has_address(asked):
        return
    missing = ", ".join(repr(name) for name in ADDRESS if name not in asked)
    keep = f"the table has no column {missing}; keep the source's columns {', '.join(map(repr, ADDRESS))}"
    if options.naming is Naming.POSITIONS:
        raise OptionError(f"option 'naming' is 'positions', but {keep}")
    if options.naming is Naming.IDS and options.id_column is None:
        raise OptionError(f"option 'naming' is 'ids', but {keep}, or name one with .option(\"idColumn\", \"NAME\")")
    if options.key_order is KeyOrder.STRICT:
        raise OptionError(f"option 'keyOrder' is 'strict', but {keep}: without them the order of rows is unknown")


def _check_type(name: str, type_: str, types: tuple[str, ...]) -> None:
    if type_ not in types:
        raise OptionError(
            f"column {name!r} is {type_}; it must be {' or '.join(types)}: cast it, col({name!r}).cast({types[0]!r})"
        )
