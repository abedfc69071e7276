"""Decoding of scalar values [1.6.1 .. 1.6.21]: the readers of `decoder` for their format codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
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
from partibus.amqp.errors import DecodeError

T = TypeVar("T", bound=int)
Reader = Callable[[bytes, int, int, int], tuple[object, int]]
"""A function of buffer, position after the format code, end and remaining depth. It returns the value and the position
after it.
"""

_U32 = Struct(">I")
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


def _fixed(layout: str, make: Callable[[int], object]) -> Reader:
    struct = Struct(layout)
    width = struct.size
    unpack = struct.unpack_from

    def read(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        after = need(pos, width, end)
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


def _variable(wide: bool, make: Callable[[bytes], object]) -> Reader:
    """Return a reader for binary, string or symbol: one or four bytes of size, then the bytes."""

    def read8(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        start = pos + 1
        after = start + buf[pos] if start <= end else start
        if after > end:
            need(pos, 1 if start > end else 1 + buf[pos], end)
        return make(buf[start:after]), after

    def read32(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        start = need(pos, 4, end)
        after = need(start, _U32.unpack_from(buf, pos)[0], end)
        return make(buf[start:after]), after

    return read32 if wide else read8


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
    0x50: _fixed(">B", _in_range(UByte)),
    0x51: _fixed(">b", _in_range(Byte)),
    0x52: _fixed(">B", _in_range(UInt)),
    0x53: _fixed(">B", _in_range(ULong)),
    0x54: _fixed(">b", _in_range(Int)),
    0x55: _fixed(">b", _long),
    0x56: _boolean,
    0x60: _fixed(">H", _in_range(UShort)),
    0x61: _fixed(">h", _in_range(Short)),
    0x70: _fixed(">I", _in_range(UInt)),
    0x71: _fixed(">i", _in_range(Int)),
    0x72: _fixed(">f", _float),
    0x73: _char,
    0x74: _raw(4, Decimal32),
    0x80: _fixed(">Q", _in_range(ULong)),
    0x81: _fixed(">q", _long),
    0x82: _double,
    0x83: _fixed(">q", _in_range(Timestamp)),
    0x84: _raw(8, Decimal64),
    0x94: _raw(16, Decimal128),
    0x98: _raw(16, _uuid),
    0xA0: _variable(False, _binary),
    0xA1: _variable(False, _string),
    0xA3: _variable(False, _symbol),
    0xB0: _variable(True, _binary),
    0xB1: _variable(True, _string),
    0xB3: _variable(True, _symbol),
}
