"""Decoding of single values from the sections of a message [3.2].

Every function takes a section as `split_sections` returns it (b"" for a missing one). It raises `DecodeError` if the
part that it decodes is malformed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from msgspec import Struct

from partibus.amqp.codec.decoder import decode, decode_at_most, read_compound_header, skip_value
from partibus.amqp.codec.types import Symbol
from partibus.amqp.errors import DecodeError, TooManyValues

_DESCRIPTOR_BYTES: Final = 3
_TEXTS: Final = frozenset({str, Symbol})


class Header(Struct, frozen=True):
    """The header section, with null where the sender wrote no value."""

    durable: bool | None = None
    priority: int | None = None
    ttl: int | None = None
    """The time to live in milliseconds."""
    first_acquirer: bool | None = None
    delivery_count: int | None = None


class Property(IntEnum):
    """Positions in the properties section."""

    MESSAGE_ID = 0
    USER_ID = 1
    TO = 2
    SUBJECT = 3
    REPLY_TO = 4
    CORRELATION_ID = 5
    CONTENT_TYPE = 6
    CONTENT_ENCODING = 7
    ABSOLUTE_EXPIRY_TIME = 8
    CREATION_TIME = 9
    GROUP_ID = 10
    GROUP_SEQUENCE = 11
    REPLY_TO_GROUP_ID = 12


def open_section(section: bytes) -> tuple[int, int, int]:
    """Return the count of elements, the first one's position, and the end of a list or map section."""
    if not section or section[_DESCRIPTOR_BYTES] == 0x45:
        return 0, 0, 0
    wide = section[_DESCRIPTOR_BYTES] & 0x10 != 0
    return read_compound_header(section, _DESCRIPTOR_BYTES + 1, len(section), wide)


def _elements(section: bytes, count_max: int) -> list[object]:
    count, pos, end = open_section(section)
    if count > count_max:
        raise DecodeError(f"section {section[2]:#04x} has {count} fields, at most {count_max} are defined")
    values: list[object] = []
    for _ in range(count):
        value, pos = decode(section, pos, end)
        values.append(value)
    if pos != end:
        raise DecodeError(f"section {section[2]:#04x} has {end - pos} bytes after its {count} fields")
    return values


def header(section: bytes) -> Header:
    """Decode all fields of a header section, each checked for its type."""
    durable, priority, ttl, first_acquirer, delivery_count = _padded(section, len(Header.__struct_fields__))
    return Header(
        _boolean("durable", durable),
        _number("priority", priority),
        _number("ttl", ttl),
        _boolean("first-acquirer", first_acquirer),
        _number("delivery-count", delivery_count),
    )


def _boolean(name: str, value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise DecodeError(f"header.{name} is {value!r}, no boolean")


def _number(name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return int(value)
    raise DecodeError(f"header.{name} is {value!r}, no unsigned number")


def _padded(section: bytes, count: int) -> list[object]:
    values = _elements(section, count)
    return values + [None] * (count - len(values))


def properties(section: bytes) -> list[object]:
    """Decode all fields of a properties section, padded with None to thirteen."""
    return _padded(section, len(Property))


def raw_property(section: bytes, which: Property) -> bytes | None:
    """Return the encoded bytes of one field; None if it is null or missing."""
    count, pos, end = open_section(section)
    if which >= count:
        return None
    for _ in range(which):
        pos = skip_value(section, pos, end)
    if pos >= end:
        raise DecodeError(f"the properties end before their field {which.name}")
    if section[pos] == 0x40:
        return None
    return section[pos : skip_value(section, pos, end)]


def later_properties(section: bytes) -> tuple[int, bytes]:
    """Return the number of fields after the first one and their encoded bytes.

    The caller can write another message-id before them.
    """
    count, pos, end = open_section(section)
    if count < 2:
        return 0, b""
    return count - 1, section[skip_value(section, pos, end) : end]


def property_value(section: bytes, which: Property) -> object:
    """Decode one field without decoding the others."""
    raw = raw_property(section, which)
    return None if raw is None else decode(raw)[0]


def text_property(section: bytes, which: Property) -> str | None:
    """Decode a field that must be a string or symbol (group-id, subject, to, content-type)."""
    value = property_value(section, which)
    if value is not None and not isinstance(value, str):
        raise DecodeError(f"properties.{which.name.lower().replace('_', '-')} is {value!r}, no string")
    return value if value is None else str(value)


def iter_map(section: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the key text and encoded value of annotations, application properties or footer."""
    count, pos, end = open_section(section)
    if count % 2:
        raise DecodeError(f"section {section[2]:#04x} has an odd number of elements: {count}")
    for _ in range(count // 2):
        key, pos = decode(section, pos, end)
        if not isinstance(key, str):
            raise DecodeError(f"section {section[2]:#04x} has the key {key!r}, no symbol or string")
        start = pos
        pos = skip_value(section, pos, end)
        yield str(key), section[start:pos]
    if pos != end:
        raise DecodeError(f"section {section[2]:#04x} has {end - pos} bytes after its {count} elements")


def decode_map(section: bytes) -> dict[str, object]:
    """Decode all of annotations, application properties or footer, as one value."""
    if not section:
        return {}
    found = decode(section, _DESCRIPTOR_BYTES)[0]
    if not isinstance(found, dict) or not _TEXTS.issuperset(map(type, found)):
        raise DecodeError(f"section {section[2]:#04x} has a key that is no symbol or string")
    return found


def map_value(section: bytes, key: str) -> object:
    """Decode the value of one key; None if it is missing or null."""
    for name, raw in iter_map(section):
        if name == key:
            return decode(raw)[0]
    return None


def decode_body(body: bytes, values_max: int = sys.maxsize) -> list[object]:
    """Decode the body sections: bytes of data, lists of sequences, or one value.

    Raises `DecodeError`, also when there are more than ``values_max`` sections, or more values in one of them.
    """
    values: list[object] = []
    pos = 0
    while pos < len(body):
        value, pos, _ = decode_at_most(body, pos + _DESCRIPTOR_BYTES, values_max)
        values.append(value)
        if len(values) > values_max:
            raise TooManyValues(f"the body has more than {values_max} sections")
    return values
