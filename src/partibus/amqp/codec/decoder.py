"""Decoding of every constructor of [1.6]. Invalid bytes raise `DecodeError` and no other exception.

One reader per format code stands in a table of 256. A reader gets the buffer, the position after the code, the end of
its range, and the remaining nesting depth. It returns the value and the position after it. Sizes are checked against
the available bytes, and every element costs a byte or is counted, so allocation is proportional to the input.

`skip_value` steps over a value without decoding it.
"""

from __future__ import annotations

from contextvars import ContextVar
from math import inf
from struct import Struct
from typing import Final
from uuid import UUID

from partibus.amqp.codec.scalars import SCALAR_READERS, Reader, need
from partibus.amqp.codec.types import Array, Char, Decimal32, Decimal64, Decimal128, Described, Pairs, Symbol
from partibus.amqp.errors import DecodeError, TooManyValues

# A client library that we serve refuses deeper values; real messages have at most a handful of levels.
MAX_NESTING: Final = 64
# Array elements of no width (null, true, uint 0, empty list) cost no bytes, so bytes do not bound their number. No
# client sends such arrays. Nested ones multiply, and 32 limits a hostile frame of 64 KiB to 10 MB of objects.
MAX_ZERO_WIDTH_ELEMENTS: Final = 32
_EMPTY_LIST: Final = 0x45
_SEEDED: Final = frozenset({str, Symbol, Char, bytes, Decimal32, Decimal64, Decimal128})
"""Types of keys whose hashes Python seeds for each process, so that a peer can't choose colliding keys."""
UNSEEDED_KEYS_MAX: Final = 16
"""The number of keys of other types in one `dict`; a map with more becomes `Pairs`. With 16 keys that all collide,
building the `dict` takes 120 comparisons, which cost less than decoding the keys.
"""
SLOW_KEYS_MAX: Final = 4
"""The same bound where some are UUIDs or described values, because those are compared in Python."""
_SLOW: Final = frozenset({UUID, Described})

_U32 = Struct(">I")
_U32X2 = Struct(">II")


def decode(buf: bytes, pos: int = 0, end: int | None = None, depth: int = MAX_NESTING) -> tuple[object, int]:
    """Return the value that starts at `pos`, and the position after it."""
    limit = len(buf) if end is None else end
    if pos >= limit:
        raise DecodeError(f"a value is missing at byte {pos}: the bytes end there")
    return _READERS[buf[pos]](buf, pos + 1, limit, depth)


_left: Final[ContextVar[list[int] | None]] = ContextVar("left", default=None)
"""The number of compound elements that the current decoding in this thread may still create; None means any number."""


def decode_at_most(buf: bytes, pos: int, values_max: int) -> tuple[object, int, int]:
    """Decode as `decode` does, and also return the rest of ``values_max``. Raises `TooManyValues`.

    A megabyte has room for a million values, which take a third of a second. Each compound states its number of values.
    """
    left = [values_max]
    before = _left.set(left)
    try:
        value, after = decode(buf, pos)
        return value, after, left[0]
    finally:
        _left.reset(before)


SMALL_FRAME_BYTES: Final = 4 << 10
FRAME_VALUES_MAX: Final = 16 << 10
"""The most values in a frame body of more bytes. A frame of 64 KiB has room for 16,000 arrays of nulls, which take some
50 ms, half a million elements. An attach that resumes 5,000 deliveries has 15,000 values.
"""


ODD_FRAME_BYTES: Final = 64
"""The bytes that a transfer or disposition counts beside its own if no short cut reads it."""


class Decoding:
    """The decoding of one connection's frames: how deep values may be nested, and how many bytes are left this time."""

    __slots__ = ("left", "nesting_max")

    def __init__(self, nesting_max: int = MAX_NESTING) -> None:
        self.nesting_max = nesting_max
        self.left: float = inf
        """Bytes that the general decoder may still read before other connections have their turn; it may pass 0."""


def decode_frame_body(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    """Decode the body of a frame that ends at ``end``, or its list. Raises `TooManyValues`."""
    if end - pos <= SMALL_FRAME_BYTES:
        return decode(buf, pos, end, depth)
    before = _left.set([FRAME_VALUES_MAX])
    try:
        return decode(buf, pos, end, depth)
    finally:
        _left.reset(before)


def _spend(count: int, pos: int) -> None:
    left = _left.get()
    if left is None:
        return
    left[0] -= count
    if left[0] < 0:
        raise TooManyValues(f"a compound of {count} elements at byte {pos} makes the value hold too many. Send fewer.")


def decode_all(buf: bytes, depth: int = MAX_NESTING) -> object:
    """Return the one value in `buf`; remaining bytes are an error."""
    value, pos = decode(buf, 0, None, depth)
    if pos != len(buf):
        raise DecodeError(f"{len(buf) - pos} bytes follow the value that ends at byte {pos}")
    return value


def _unknown(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    raise DecodeError(f"format code {buf[pos - 1]:#04x} at byte {pos - 1} is not defined")


def read_compound_header(buf: bytes, pos: int, end: int, wide: bool) -> tuple[int, int, int]:
    """Read the size and count of a list, map or array whose format code stands before `pos`.

    Returns the count, the position of the first element (of an array: its constructor), and the position after the
    compound.
    """
    if wide:
        start = need(pos, 8, end)
        size, count = _U32X2.unpack_from(buf, pos)
        after = need(pos + 4, size, end)
    else:
        start = need(pos, 2, end)
        size, count = buf[pos], buf[pos + 1]
        after = need(pos + 1, size, end)
    if after < start:
        raise DecodeError(f"a compound of {size} bytes at byte {pos} has no room for its count")
    return count, start, after


def _elements(buf: bytes, pos: int, end: int, depth: int, wide: bool) -> tuple[list[object], int]:
    if depth <= 0:
        raise DecodeError(f"values are nested too deep (at byte {pos})")
    count, pos, after = read_compound_header(buf, pos, end, wide)
    _spend(count, pos)
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
        keys = elements[0::2]
        try:
            if len(keys) > SLOW_KEYS_MAX and _may_collide(keys):
                _spend(sum(type(key) in _SLOW for key in keys), pos)  # such a key costs as much as two other values
                for key in keys:
                    if type(key) is not UUID:  # which has a hash, in Python
                        hash(key)
                return Pairs(zip(keys, elements[1::2], strict=True)), after
            pairs = dict(zip(keys, elements[1::2], strict=True))
        except TypeError:
            raise DecodeError("a map has a list, map or array as a key: not supported") from None
        if len(pairs) * 2 != len(elements):
            raise DecodeError("a map has two equal keys")
        return pairs, after

    return read


def _may_collide(keys: list[object]) -> bool:
    """Tell whether enough of the keys have hashes that a peer can choose."""
    kinds = set(map(type, keys))
    if kinds <= _SEEDED:
        return False
    most = UNSEEDED_KEYS_MAX if kinds.isdisjoint(_SLOW) else SLOW_KEYS_MAX
    return len(keys) > most and sum(type(key) not in _SEEDED for key in keys) > most


def _described(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    if depth <= 0:
        raise DecodeError(f"values are nested too deep (at byte {pos})")
    _spend(1, pos)
    descriptor, pos = decode(buf, pos, end, depth - 1)
    value, pos = decode(buf, pos, end, depth - 1)
    return Described(descriptor, value), pos


# The widest constructor of each type, which an Array keeps as its element type.
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
        _spend(count, pos)
        items: list[object] = []
        if code & 0xF0 == 0x40 and code != _EMPTY_LIST:  # no reader is needed, because all elements are equal
            items = [reader(buf, pos, after, depth - 1)[0]] * count if count else items
        else:
            for _ in range(count):
                value, pos = reader(buf, pos, after, depth - 1)
                items.append(value)
        if pos != after:
            raise DecodeError(f"an array has {after - pos} bytes left after its {count} elements")
        return Array(_WIDEST.get(code, code), items, tuple(descriptors)), after

    return read


_READERS: Final[list[Reader]] = [_unknown] * 256
_COMPOUND_READERS: Final[dict[int, Reader]] = {
    0x00: _described,
    0x45: _empty_list,
    0xC0: _list8,
    0xC1: _map(False),
    0xD0: _list32,
    0xD1: _map(True),
    0xE0: _array(False),
    0xF0: _array(True),
}
for _code, _reader in (SCALAR_READERS | _COMPOUND_READERS).items():
    _READERS[_code] = _reader


def is_defined(code: int) -> bool:
    """Tell whether the standard defines a format code."""
    return _READERS[code] is not _unknown


_u32 = Struct(">I").unpack_from

# The number of bytes after a format code, which depends on the code's upper half [1.2]; None for a code that the
# standard does not define. A negative number is the width of a size field.
_WIDTHS: Final = tuple(
    (0, 0, 0, 0, 0, 1, 2, 4, 8, 16, -1, -4, -1, -4, -1, -4)[code >> 4] if is_defined(code) else None
    for code in range(256)
)


def skip_value(buf: bytes, pos: int, end: int) -> int:
    """Return the position after the value at `pos`, without checking the content of compounds."""
    to_skip = 1
    while to_skip:
        if pos >= end:
            raise DecodeError(f"a value is missing at byte {pos}: the bytes end there")
        code = buf[pos]
        pos += 1
        if code == 0x00:
            to_skip += 1
            continue
        width = _WIDTHS[code]
        if width is None:
            raise DecodeError(f"format code {code:#04x} at byte {pos - 1} is not defined")
        if width < 0:
            if pos - width > end:
                raise DecodeError(f"a size is cut short at byte {pos}")
            size = buf[pos] if width == -1 else _u32(buf, pos)[0]
            pos += size - width
        else:
            pos += width
        if pos > end:
            raise DecodeError(f"a value passes the end of its container at byte {end}")
        to_skip -= 1
    return pos
