"""Scalar values [1.6.1 .. 1.6.21]: the writers of `encoder` for their classes, the readers of `decoder` for codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from struct import error as StructError  # noqa: N812 (the struct module spells its exception `error`)
from typing import Final, TypeVar
from uuid import UUID, SafeUUID

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
from partibus.amqp.errors import DecodeError, EncodeError

Writer = Callable[[bytearray, object, int], None]
"""A function that appends a value to the output; the number is the remaining nesting depth."""

_U32 = Struct(">I")


def _fixed_writer(code: int, layout: str) -> Writer:
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


# A writer gets any object, and its type only after the encoder has looked it up: hence the ignored types below.


def _write_uint(out: bytearray, value: object, depth: int) -> None:
    out += uint(value)  # type: ignore[arg-type]


write_wide_ulong = _fixed_writer(0x80, ">Q")


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


def _variable_writer(code8: int, to_bytes: Callable[[object], bytes]) -> Writer:
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
    int: _fixed_writer(0x81, ">q"),
    float: _fixed_writer(0x82, ">d"),
    str: _variable_writer(0xA1, utf8),
    bytes: _variable_writer(0xA0, octets),
    bytearray: _variable_writer(0xA0, octets),
    memoryview: _variable_writer(0xA0, octets),
    UUID: _write_uuid,
    UByte: _fixed_writer(0x50, ">B"),
    UShort: _fixed_writer(0x60, ">H"),
    UInt: _write_uint,
    ULong: _write_ulong,
    Byte: _fixed_writer(0x51, ">b"),
    Short: _fixed_writer(0x61, ">h"),
    Int: _fixed_writer(0x71, ">i"),
    Timestamp: _fixed_writer(0x83, ">q"),
    Float: _fixed_writer(0x72, ">f"),
    Symbol: _variable_writer(0xA3, ascii_only),
    Char: _write_char,
    Decimal32: _raw_fixed(0x74),
    Decimal64: _raw_fixed(0x84),
    Decimal128: _raw_fixed(0x94),
}


T = TypeVar("T", bound=int)
Reader = Callable[[bytes, int, int, int], tuple[object, int]]
"""A function of buffer, position after the format code, end and remaining depth. It returns the value and the position
after it.
"""

_F64 = Struct(">d")


def need(pos: int, count: int, end: int) -> int:
    """Return the position after `count` bytes; raise an error if they are not there."""
    after = pos + count
    if after > end:
        raise DecodeError(f"{count} bytes are needed at byte {pos}, {end - pos} are left")
    return after


def _constant(value: object) -> Reader:
    def read(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        return value, pos

    return read


def _fixed_reader(layout: str, make: Callable[[int], object]) -> Reader:
    struct = Struct(layout)
    width = struct.size
    unpack = struct.unpack_from

    def read(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        after = pos + width
        if after > end:
            need(pos, width, end)
        return make(unpack(buf, pos)[0]), after

    return read


def _in_range(wrapper: type[T]) -> Callable[[int], T]:
    """Return a maker of wrapped integers that need no check of their range: as many bytes hold no other."""
    return partial(int.__new__, wrapper)


def _raw(width: int, make: Callable[[bytes], object]) -> Reader:
    def read(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        after = need(pos, width, end)
        return make(buf[pos:after]), after

    return read


def _boolean(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    after = need(pos, 1, end)
    if buf[pos] > 1:
        raise DecodeError(f"a boolean is 0 or 1, not {buf[pos]} (byte {pos})")
    return buf[pos] == 1, after


def _double(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    after = need(pos, 8, end)
    return _F64.unpack_from(buf, pos)[0], after


def _char(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    after = need(pos, 4, end)
    point = _U32.unpack_from(buf, pos)[0]
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise DecodeError(f"{point:#x} at byte {pos} is no Unicode scalar value")
    return Char(chr(point)), after


def _binary(raw: bytes) -> object:
    return raw


def _string(raw: bytes) -> object:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"a string is not UTF-8: {error.reason} at its byte {error.start}") from None


def _symbol(raw: bytes) -> object:
    try:
        return Symbol(raw.decode("ascii"))
    except UnicodeDecodeError as error:
        raise DecodeError(f"a symbol is not ASCII: byte {raw[error.start]:#04x}") from None


def _variable_reader(wide: bool, make: Callable[[bytes], object]) -> Reader:
    """Return a reader for binary, string or symbol: one or four bytes of size, then the bytes."""

    def read8(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        start = pos + 1
        after = start + buf[pos] if start <= end else start
        if after > end:
            need(pos, 1 if start > end else 1 + buf[pos], end)
        return make(buf[start:after]), after

    def read_text8(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        """Do the same for a string, in one call: nearly all names and values of messages are short strings."""
        start = pos + 1
        after = start + buf[pos] if start <= end else start
        if after > end:
            need(pos, 1 if start > end else 1 + buf[pos], end)
        try:
            return buf[start:after].decode(), after
        except UnicodeDecodeError:
            return make(buf[start:after]), after

    def read32(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        start = need(pos, 4, end)
        after = need(start, _U32.unpack_from(buf, pos)[0], end)
        return make(buf[start:after]), after

    if wide:
        return read32
    return read_text8 if make is _string else read8


_new: Final = UUID.__new__
_set: Final = object.__setattr__
_UNKNOWN: Final = SafeUUID.unknown


def _uuid(raw: bytes) -> object:
    """Make a UUID without its constructor, which looks at six other ways to make one and takes twice as long.

    Its two fields are what its own `__setstate__` sets. A request may have 30,000 UUIDs.
    """
    value = _new(UUID)
    _set(value, "int", int.from_bytes(raw))
    _set(value, "is_safe", _UNKNOWN)
    return value


def _long(value: int) -> object:
    return value


def _float(value: float) -> object:
    return Float(value)


SCALAR_READERS: Final[dict[int, Reader]] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x50: _fixed_reader(">B", _in_range(UByte)),
    0x51: _fixed_reader(">b", _in_range(Byte)),
    0x52: _fixed_reader(">B", _in_range(UInt)),
    0x53: _fixed_reader(">B", _in_range(ULong)),
    0x54: _fixed_reader(">b", _in_range(Int)),
    0x55: _fixed_reader(">b", _long),
    0x56: _boolean,
    0x60: _fixed_reader(">H", _in_range(UShort)),
    0x61: _fixed_reader(">h", _in_range(Short)),
    0x70: _fixed_reader(">I", _in_range(UInt)),
    0x71: _fixed_reader(">i", _in_range(Int)),
    0x72: _fixed_reader(">f", _float),
    0x73: _char,
    0x74: _raw(4, Decimal32),
    0x80: _fixed_reader(">Q", _in_range(ULong)),
    0x81: _fixed_reader(">q", _long),
    0x82: _double,
    0x83: _fixed_reader(">q", _in_range(Timestamp)),
    0x84: _raw(8, Decimal64),
    0x94: _raw(16, Decimal128),
    0x98: _raw(16, _uuid),
    0xA0: _variable_reader(False, _binary),
    0xA1: _variable_reader(False, _string),
    0xA3: _variable_reader(False, _symbol),
    0xB0: _variable_reader(True, _binary),
    0xB1: _variable_reader(True, _string),
    0xB3: _variable_reader(True, _symbol),
}
