"""Encoding of the sections of a message [3.2], each with its one-byte descriptor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from partibus.amqp.codec.encoder import encode_pieces, write, write_compound
from partibus.amqp.codec.types import Symbol, Timestamp, UByte, UInt, ULong
from partibus.amqp.errors import EncodeError
from partibus.amqp.sections import APPLICATION_PROPERTIES, DATA, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, VALUE

_NULL: Final = b"\x40"

MessageId = str | int | UUID | bytes
"""The types of message-id and correlation-id [3.2.11..14]; int is written as ulong."""


def _descriptor(code: int) -> bytearray:
    return bytearray((0x00, 0x53, code))


def _list_section(code: int, fields: list[object]) -> bytes:
    """Encode a list section without trailing nulls."""
    while fields and fields[-1] is None:
        fields.pop()
    out = _descriptor(code)
    write(out, fields)
    return bytes(out)


def encode_header(
    *,
    durable: bool | None = None,
    priority: int | None = None,
    ttl: int | None = None,
    first_acquirer: bool | None = None,
    delivery_count: int | None = None,
) -> bytes:
    """Encode a header section; `ttl` is in milliseconds."""
    try:
        return _list_section(
            HEADER,
            [
                durable,
                None if priority is None else UByte(priority),
                None if ttl is None else UInt(ttl),
                first_acquirer,
                None if delivery_count is None else UInt(delivery_count),
            ],
        )
    except ValueError as error:
        raise EncodeError(str(error)) from None


def _message_id(value: MessageId | None) -> object:
    if isinstance(value, int):
        return ULong(value)
    return value


def encode_properties(
    *,
    message_id: MessageId | None = None,
    user_id: bytes | None = None,
    to: str | None = None,
    subject: str | None = None,
    reply_to: str | None = None,
    correlation_id: MessageId | None = None,
    content_type: str | None = None,
    content_encoding: str | None = None,
    absolute_expiry_time: int | None = None,
    creation_time: int | None = None,
    group_id: str | None = None,
    group_sequence: int | None = None,
    reply_to_group_id: str | None = None,
) -> bytes:
    """Encode a properties section; times are in milliseconds since 1970-01-01 UTC."""
    try:
        return _list_section(
            PROPERTIES,
            [
                _message_id(message_id),
                user_id,
                to,
                subject,
                reply_to,
                _message_id(correlation_id),
                None if content_type is None else Symbol(content_type),
                None if content_encoding is None else Symbol(content_encoding),
                None if absolute_expiry_time is None else Timestamp(absolute_expiry_time),
                None if creation_time is None else Timestamp(creation_time),
                group_id,
                None if group_sequence is None else UInt(group_sequence),
                reply_to_group_id,
            ],
        )
    except ValueError as error:
        raise EncodeError(str(error)) from None


def encode_raw_properties(fields: Sequence[bytes | None]) -> bytes:
    """Encode properties from encoded fields in order, None for null.

    This changes one field and keeps the others.
    """
    out = _descriptor(PROPERTIES)
    write_compound(out, 0xC0, len(fields), b"".join([field or _NULL for field in fields]))
    return bytes(out)


def encode_annotations(annotations: Mapping[str, object], code: int = MESSAGE_ANNOTATIONS) -> bytes:
    """Encode a map with symbol keys; `code` selects the section (annotations or footer)."""
    out = _descriptor(code)
    write(out, {Symbol(key): value for key, value in annotations.items()})
    return bytes(out)


def encode_raw_map(code: int, pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode a map section from keys and encoded values, as `iter_map` yields them.

    Keys are strings in application properties and symbols in all other sections.
    """
    content = bytearray()
    count = 0
    for key, value in pairs:
        write(content, key if code == APPLICATION_PROPERTIES else Symbol(key))
        content += value
        count += 2
    out = _descriptor(code)
    write_compound(out, 0xC1, count, content)
    return bytes(out)


def encode_application_properties(properties: Mapping[str, object]) -> bytes:
    """Encode an application-properties section."""
    out = _descriptor(APPLICATION_PROPERTIES)
    write(out, dict(properties))
    return bytes(out)


def encode_data(content: bytes) -> bytes:
    """Encode a data section."""
    out = _descriptor(DATA)
    write(out, content)
    return bytes(out)


def encode_value(value: object) -> bytes:
    """Encode a value section."""
    return b"".join(value_pieces(value))


def value_pieces(value: object) -> list[bytes | bytearray]:
    """Encode a value section in pieces to be joined."""
    return [_descriptor(VALUE), *encode_pieces(value)]


def encode_batch(messages: Iterable[bytes], envelope: bytes = b"") -> bytes:
    """Encode a payload of format `BATCH_FORMAT`; `envelope` has sections that serve only routing."""
    return envelope + b"".join(map(encode_data, messages))
