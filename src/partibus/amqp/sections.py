"""Splitting an encoded message into its sections [3.2], without decoding their content.

`split_sections` checks that each section is one value of the right shape that ends inside the message, and that only
body sections repeat. The content of a section is checked when it is decoded (`section_fields`). Sections may come in
any order (one client writes delivery-annotations last) and with any encoding of their descriptor. They are returned
with the one-byte descriptor that every client can read.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812 (the struct module spells its exception `error`)
from typing import Final

from partibus.amqp.codec.decoder import decode, skip_value
from partibus.amqp.codec.types import Symbol, ULong
from partibus.amqp.errors import DecodeError

BATCH_FORMAT: Final = 0x80013700
"""The message-format of a transfer whose data sections each hold an encoded message."""

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

_CODE_OF_NAME: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
_LIST: Final = frozenset({0x45, 0xC0, 0xD0})
_MAP: Final = frozenset({0xC1, 0xD1})
_BINARY: Final = frozenset({0xA0, 0xB0})
_ANY: Final = frozenset(range(256))
_SHAPES: Final = {
    HEADER: _LIST,
    DELIVERY_ANNOTATIONS: _MAP,
    MESSAGE_ANNOTATIONS: _MAP,
    PROPERTIES: _LIST,
    APPLICATION_PROPERTIES: _MAP,
    DATA: _BINARY,
    SEQUENCE: _LIST,
    VALUE: _ANY,
    FOOTER: _MAP,
}
_ONE_BYTE_SIZE: Final = frozenset({0xA0, 0xC0, 0xC1})
_FOUR_BYTE_SIZE: Final = frozenset({0xB0, 0xD0, 0xD1})
_U32 = Struct(">I").unpack_from


class Sections:
    """The sections of one message, each as its encoded bytes with descriptor; b"" if missing.

    `body` is all body sections in order, `body_code` their kind (0 without a body).
    """

    __slots__ = (
        "application_properties",
        "body",
        "body_code",
        "delivery_annotations",
        "footer",
        "header",
        "message_annotations",
        "properties",
    )

    def __init__(
        self,
        header: bytes = b"",
        delivery_annotations: bytes = b"",
        message_annotations: bytes = b"",
        properties: bytes = b"",
        application_properties: bytes = b"",
        body: bytes = b"",
        body_code: int = 0,
        footer: bytes = b"",
    ) -> None:
        self.header = header
        self.delivery_annotations = delivery_annotations
        self.message_annotations = message_annotations
        self.properties = properties
        self.application_properties = application_properties
        self.body = body
        self.body_code = body_code
        self.footer = footer

    def parts(self) -> tuple[bytes, ...]:
        """Return the sections in the order of the standard."""
        return (
            self.header,
            self.delivery_annotations,
            self.message_annotations,
            self.properties,
            self.application_properties,
            self.body,
            self.footer,
        )

    def join(self) -> bytes:
        """Return the encoded message."""
        return b"".join(self.parts())


def split_sections(payload: bytes) -> Sections:
    """Split a message; raises `DecodeError` for an invalid one. Hot path."""
    found: dict[int, bytes] = {}
    body: list[bytes] = []
    pos = 0
    available = len(payload)
    body_code = 0
    try:
        while pos < available:
            if payload[pos] == 0 and payload[pos + 1] == 0x53:
                code = payload[pos + 2]
                value = pos + 3
            else:
                code, value = _spelled_otherwise(payload, pos)
            constructor = payload[value]
            if constructor in _ONE_BYTE_SIZE:
                end = value + 2 + payload[value + 1]
            elif constructor in _FOUR_BYTE_SIZE:
                end = value + 5 + _U32(payload, value + 1)[0]
            else:
                end = skip_value(payload, value, available)
            if end > available or constructor not in _SHAPES.get(code, ()):
                raise _no_section(code, constructor, pos)
            section = payload[pos:end] if value == pos + 3 else _normalised(code, payload[value:end])
            if DATA <= code <= VALUE:
                if body and (body_code != code or code == VALUE):
                    raise DecodeError(f"a body section {code:#04x} follows one of {body_code:#04x} (byte {pos})")
                body_code = code
                body.append(section)
            elif code in found:
                raise DecodeError(f"section {code:#04x} comes twice, the second time at byte {pos}")
            else:
                found[code] = section
            pos = end
    except (IndexError, StructError):
        raise DecodeError(f"the section at byte {pos} is cut short") from None
    get = found.get
    return Sections(
        get(HEADER, b""),
        get(DELIVERY_ANNOTATIONS, b""),
        get(MESSAGE_ANNOTATIONS, b""),
        get(PROPERTIES, b""),
        get(APPLICATION_PROPERTIES, b""),
        body[0] if len(body) == 1 else b"".join(body),
        body_code,
        get(FOOTER, b""),
    )


def _spelled_otherwise(payload: bytes, pos: int) -> tuple[int, int]:
    """Return the code and value start of a section whose descriptor is not in the one-byte form."""
    if payload[pos] != 0:
        raise DecodeError(f"no section starts at byte {pos}: {payload[pos]:#04x}")
    descriptor, value = decode(payload, pos + 1)
    if isinstance(descriptor, Symbol):
        code = _CODE_OF_NAME.get(descriptor, 0)
    elif isinstance(descriptor, ULong):
        code = int(descriptor)
    else:
        code = 0
    if code not in _SHAPES:
        raise DecodeError(f"section {descriptor!r} at byte {pos} is not defined")
    return code, value


def _normalised(code: int, value: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + value


def _no_section(code: int, constructor: int, pos: int) -> DecodeError:
    if code not in _SHAPES:
        return DecodeError(f"section {code:#04x} at byte {pos} is not defined")
    if constructor not in _SHAPES[code]:
        return DecodeError(f"section {code:#04x} at byte {pos} can not hold format code {constructor:#04x}")
    return DecodeError(f"section {code:#04x} at byte {pos} passes the end of the message")


def iter_data(body: bytes) -> Iterator[bytes]:
    """Yield the content of each data section of `body` (as `Sections.body` with `body_code` DATA)."""
    pos = 0
    while pos < len(body):
        wide = body[pos + 3] == 0xB0
        start = pos + (8 if wide else 5)
        pos = start + (_U32(body, pos + 4)[0] if wide else body[pos + 4])
        yield body[start:pos]


def iter_batch(payload: bytes) -> Iterator[bytes]:
    """Yield the encoded messages in a payload of format `BATCH_FORMAT`.

    The envelope's own sections are ignored. Raises `DecodeError` for an envelope that is not a message or whose body is
    not data. The messages inside are not checked.
    """
    envelope = split_sections(payload)
    if envelope.body_code != DATA:
        raise DecodeError(f"a batch holds data sections, not {envelope.body_code:#04x}")
    return iter_data(envelope.body)
