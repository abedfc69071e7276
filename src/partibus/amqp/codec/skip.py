"""Skipping an encoded value without decoding it."""

from __future__ import annotations

from struct import Struct
from typing import Final

from partibus.amqp.codec.decoder import is_defined
from partibus.amqp.errors import DecodeError

_U32 = Struct(">I").unpack_from

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
            size = buf[pos] if width == -1 else _U32(buf, pos)[0]
            pos += size - width
        else:
            pos += width
        if pos > end:
            raise DecodeError(f"a value passes the end of its container at byte {end}")
        to_skip -= 1
    return pos
