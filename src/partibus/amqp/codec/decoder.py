"""Bytes to values, for every constructor of [1.6]. Bad bytes raise `DecodeError` and nothing else.

One reader per format code, in a table of 256. A reader gets the buffer, the position after the code, the
end that it must not pass, and how many levels it may still descend; it returns the value and the position
after it. Sizes and counts are checked against the bytes that are there before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final
from uuid import UUID

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
from partibus.amqp.errors import DecodeError

Reader = Callable[[bytes, int, int, int], tuple[object, int]]

# A client library that we serve refuses deeper values; nobody sends more than a handful of levels.
MAX_NESTING: Final = 64
# Array elements of no width (null, true, uint 0, empty list) cost no bytes, so bytes do not bound their number.
# Nobody sends such arrays; nested ones multiply, and 256 keeps a hostile frame of 64 KiB below 20 MB of objects.
MAX_ZERO_WIDTH_ELEMENTS: Final = 256

_U32 = Struct(">I")
_U32X2 = Struct(">II")


def decode(buf: bytes, pos: int = 0, end: int | None = None, depth: int = MAX_NESTING) -> tuple[object, int]:
    """The value that starts at `pos`, and the position after it."""
    limit = len(buf) if end is None else end
    if pos >= limit:
        raise DecodeError(f"a value is missing at byte {pos}: the bytes end there")
    return _READERS[buf[pos]](buf, pos + 1, limit, depth)


def decode_all(buf: bytes, depth: int = MAX_NESTING) -> object:
    """The one value that `buf` holds; bytes left over are an error."""
    value, pos = decode(buf, 0, None, depth)
    if pos != len(buf):
        raise DecodeError(f"{len(buf) - pos} bytes follow the value that ends at byte {pos}")
    return value


def _need(pos: int, count: int, end: int) -> int:
    """The position after `count` bytes, which must be there."""
    after = pos + count
    if after > end:
        raise DecodeError(f"{count} bytes are needed at byte {pos}, {end - pos} are left")
    return after


def _unknown(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    raise DecodeError(f"format code {buf[pos - 1]:#04x} at byte {pos - 1} is not defined")


def _constant(value: object) -> Reader:
    def read(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        return value, pos

    return read


def _fixed(layout: str, make: Callable[[int], object]) -> Reader:
    struct = Struct(layout)
    width = struct.size
    unpack = struct.unpack_from

    def read(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        after = _need(pos, width, end)
        return make(unpack(buf, pos)[0]), after

    return read


def _raw(width: int, make: Callable[[bytes], object]) -> Reader:
    def read(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        after = _need(pos, width, end)
        return make(buf[pos:after]), after

    return read


def _boolean(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    after = _need(pos, 1, end)
    if buf[pos] > 1:
        raise DecodeError(f"a boolean is 0 or 1, not {buf[pos]} (byte {pos})")
    return buf[pos] == 1, after


def _double(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    after = _need(pos, 8, end)
    return _F64.unpack_from(buf, pos)[0], after


_F64 = Struct(">d")


def _char(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    after = _need(pos, 4, end)
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
    """Binary, string, symbol: one or four bytes of size, then the bytes."""

    def read8(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        start = _need(pos, 1, end)
        after = _need(start, buf[pos], end)
        return make(buf[start:after]), after

    def read32(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        start = _need(pos, 4, end)
        after = _need(start, _U32.unpack_from(buf, pos)[0], end)
        return make(buf[start:after]), after

    return read32 if wide else read8


def read_compound_header(buf: bytes, pos: int, end: int, wide: bool) -> tuple[int, int, int]:
    """Size and count of a list, map or array whose format code stands before `pos`.

    Returns the count, the position of the first element (of an array: its constructor), and the position
    after the compound.
    """
    if wide:
        start = _need(pos, 8, end)
        size, count = _U32X2.unpack_from(buf, pos)
        after = _need(pos + 4, size, end)
    else:
        start = _need(pos, 2, end)
        size, count = buf[pos], buf[pos + 1]
        after = _need(pos + 1, size, end)
    if after < start:
        raise DecodeError(f"a compound of {size} bytes at byte {pos} has no room for its count")
    return count, start, after


def _elements(buf: bytes, pos: int, end: int, depth: int, wide: bool) -> tuple[list[object], int]:
    if depth <= 0:
        raise DecodeError(f"values are nested too deep (at byte {pos})")
    count, pos, after = read_compound_header(buf, pos, end, wide)
    if count > after - pos:
        raise DecodeError(f"{count} elements can not stand in the {after - pos} bytes at byte {pos}")
    readers = _READERS
    elements: list[object] = []
    for _ in range(count):
        if pos >= after:
            raise DecodeError(f"a compound ends at byte {after} with {count - len(elements)} elements missing")
        value, pos = readers[buf[pos]](buf, pos + 1, after, depth - 1)
        elements.append(value)
    if pos != after:
        raise DecodeError(f"a compound has {after - pos} bytes left after its {count} elements")
    return elements, after


def _list8(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    return _elements(buf, pos, end, depth, wide=False)


def _list32(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    return _elements(buf, pos, end, depth, wide=True)


def _empty_list(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    return [], pos


def _map(wide: bool) -> Reader:
    def read(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        elements, after = _elements(buf, pos, end, depth, wide)
        if len(elements) % 2:
            raise DecodeError(f"a map has an odd number of elements: {len(elements)}")
        try:
            pairs = dict(zip(elements[0::2], elements[1::2], strict=True))
        except TypeError:
            raise DecodeError("a map has a list, map or array as a key: not supported") from None
        if len(pairs) * 2 != len(elements):
            raise DecodeError("a map has two equal keys")
        return pairs, after

    return read


def _described(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    if depth <= 0:
        raise DecodeError(f"values are nested too deep (at byte {pos})")
    descriptor, pos = decode(buf, pos, end, depth - 1)
    value, pos = decode(buf, pos, end, depth - 1)
    return Described(descriptor, value), pos


# The widest constructor of each type: what an Array keeps as its element type.
_WIDEST: Final[dict[int, int]] = {
    0x41: 0x56, 0x42: 0x56, 0x43: 0x70, 0x52: 0x70, 0x44: 0x80, 0x53: 0x80, 0x54: 0x71, 0x55: 0x81,
    0x45: 0xD0, 0xC0: 0xD0, 0xC1: 0xD1, 0xE0: 0xF0, 0xA0: 0xB0, 0xA1: 0xB1, 0xA3: 0xB3,
}  # fmt: skip


def _array(wide: bool) -> Reader:
    def read(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        if depth <= 0:
            raise DecodeError(f"values are nested too deep (at byte {pos})")
        count, pos, after = read_compound_header(buf, pos, end, wide)
        descriptors: list[object] = []
        while pos < after and buf[pos] == 0x00:
            if len(descriptors) >= depth:
                raise DecodeError(f"values are nested too deep (at byte {pos})")
            descriptor, pos = decode(buf, pos + 1, after, depth - 1)
            descriptors.append(descriptor)
        if pos >= after:
            raise DecodeError(f"an array ends at byte {after} without a constructor")
        code = buf[pos]
        pos += 1
        bound = MAX_ZERO_WIDTH_ELEMENTS if code & 0xF0 == 0x40 else after - pos
        if count > bound:
            raise DecodeError(f"{count} array elements can not stand at byte {pos}: at most {bound}")
        reader = _READERS[code]
        if reader is _unknown:
            raise DecodeError(f"format code {code:#04x} at byte {pos - 1} is not defined")
        items: list[object] = []
        for _ in range(count):
            value, pos = reader(buf, pos, after, depth - 1)
            items.append(value)
        if pos != after:
            raise DecodeError(f"an array has {after - pos} bytes left after its {count} elements")
        return Array(_WIDEST.get(code, code), items, tuple(descriptors)), after

    return read


def _uuid(raw: bytes) -> object:
    return UUID(bytes=raw)


def _long(value: int) -> object:
    return value


def _float(value: float) -> object:
    return Float(value)


_READERS: Final[list[Reader]] = [_unknown] * 256
for _code, _reader in {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: _empty_list,
    0x50: _fixed(">B", UByte),
    0x51: _fixed(">b", Byte),
    0x52: _fixed(">B", UInt),
    0x53: _fixed(">B", ULong),
    0x54: _fixed(">b", Int),
    0x55: _fixed(">b", _long),
    0x56: _boolean,
    0x60: _fixed(">H", UShort),
    0x61: _fixed(">h", Short),
    0x70: _fixed(">I", UInt),
    0x71: _fixed(">i", Int),
    0x72: _fixed(">f", _float),
    0x73: _char,
    0x74: _raw(4, Decimal32),
    0x80: _fixed(">Q", ULong),
    0x81: _fixed(">q", _long),
    0x82: _double,
    0x83: _fixed(">q", Timestamp),
    0x84: _raw(8, Decimal64),
    0x94: _raw(16, Decimal128),
    0x98: _raw(16, _uuid),
    0xA0: _variable(False, _binary),
    0xA1: _variable(False, _string),
    0xA3: _variable(False, _symbol),
    0xB0: _variable(True, _binary),
    0xB1: _variable(True, _string),
    0xB3: _variable(True, _symbol),
    0xC0: _list8,
    0xC1: _map(False),
    0xD0: _list32,
    0xD1: _map(True),
    0xE0: _array(False),
    0xF0: _array(True),
}.items():
    _READERS[_code] = _reader


def is_defined(code: int) -> bool:
    """True for the format codes of the standard."""
    return _READERS[code] is not _unknown
