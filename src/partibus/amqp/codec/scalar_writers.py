"""Encoding of scalar values [1.6.1 .. 1.6.21]: the writers of `encoder` for their classes."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 (the struct module spells its exception `error`)
from typing import Final
from uuid import UUID

from partibus.amqp.codec.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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

Writer = Callable[[bytearray, object, int], None]
"""A function that appends a value to the output; the number is the remaining nesting depth."""

_U32 = Struct(">I")


def _fixed(code: int, layout: str) -> Writer:
    pack = Struct(layout).pack

    def write_fixed(out: bytearray, value: object, depth: int) -> None:
        try:
            packed = pack(value)
        except (StructError, OverflowError):
            raise EncodeError(f"{value!r} does not fit AMQP format code {code:#04x}") from None
        out.append(code)
        out += packed

    return write_fixed


def _write_null(out: bytearray, value: object, depth: int) -> None:
    out.append(0x40)


def _write_bool(out: bytearray, value: object, depth: int) -> None:
    out.append(0x41 if value else 0x42)


def uint(number: int) -> bytes:
    """Encode a `uint` in its shortest form."""
    if number == 0:
        return b"\x43"
    if number < 256:
        return bytes((0x52, number))
    return b"\x70" + _U32.pack(number)


def _write_uint(out: bytearray, value: object, depth: int) -> None:
    out += uint(value)  # type: ignore[arg-type]


write_wide_ulong = _fixed(0x80, ">Q")


def _write_ulong(out: bytearray, value: object, depth: int) -> None:
    number = int(value)  # type: ignore[call-overload]
    if number == 0:
        out.append(0x44)
    elif number < 256:
        out += bytes((0x53, number))
    else:
        write_wide_ulong(out, number, depth)


def _write_char(out: bytearray, value: object, depth: int) -> None:
    out.append(0x73)
    out += _U32.pack(ord(str(value)))


def _raw_fixed(code: int) -> Writer:
    def write_raw(out: bytearray, value: object, depth: int) -> None:
        out.append(code)
        out += value  # type: ignore[arg-type]

    return write_raw


def _write_uuid(out: bytearray, value: object, depth: int) -> None:
    out.append(0x98)
    out += value.bytes  # type: ignore[attr-defined]


def utf8(value: object) -> bytes:
    """Encode a text as UTF-8. Raises `EncodeError` for a lone surrogate."""
    try:
        return str(value).encode()
    except UnicodeEncodeError:
        raise EncodeError(f"{value!r} holds a lone surrogate: no UTF-8 for it") from None


def ascii_only(value: object) -> bytes:
    """Encode a text as ASCII. Raises `EncodeError` for other characters."""
    try:
        return str(value).encode("ascii")
    except UnicodeEncodeError:
        raise EncodeError(f"a symbol is ASCII, not {value!r}") from None


def octets(value: object) -> bytes:
    """Return the bytes of a binary value."""
    return bytes(value)  # type: ignore[call-overload, no-any-return]


def _variable(code8: int, to_bytes: Callable[[object], bytes]) -> Writer:
    code32 = code8 + 0x10

    def write_variable(out: bytearray, value: object, depth: int) -> None:
        raw = to_bytes(value)
        if len(raw) < 256:
            out += bytes((code8, len(raw)))
        else:
            out.append(code32)
            out += _U32.pack(len(raw))
        out += raw

    return write_variable


SCALAR_WRITERS: Final[dict[type, Writer]] = {
    type(None): _write_null,
    bool: _write_bool,
    int: _fixed(0x81, ">q"),
    float: _fixed(0x82, ">d"),
    str: _variable(0xA1, utf8),
    bytes: _variable(0xA0, octets),
    bytearray: _variable(0xA0, octets),
    memoryview: _variable(0xA0, octets),
    UUID: _write_uuid,
    UByte: _fixed(0x50, ">B"),
    UShort: _fixed(0x60, ">H"),
    UInt: _write_uint,
    ULong: _write_ulong,
    Byte: _fixed(0x51, ">b"),
    Short: _fixed(0x61, ">h"),
    Int: _fixed(0x71, ">i"),
    Timestamp: _fixed(0x83, ">q"),
    Float: _fixed(0x72, ">f"),
    Symbol: _variable(0xA3, ascii_only),
    Char: _write_char,
    Decimal32: _raw_fixed(0x74),
    Decimal64: _raw_fixed(0x84),
    Decimal128: _raw_fixed(0x94),
}
