"""Inline decoding of the lists and maps of a message's sections.

A queue is read by the million, and most of that is decoding three small composites per message. Clients use a handful
of constructors there; these are read here without a call per value. Any other constructor, and anything malformed, goes
to the general decoder, with its result or its error. The tests compare both, values and types.

Each function reads between two places of a longer buffer, so a frame is never cut into pieces to be read.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import repeat
from struct import Struct
from struct import error as StructError  # noqa: N812 (the struct module spells its exception `error`)
from typing import Any

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.types import Int, Short, Symbol, Timestamp, UByte, UInt
from partibus.amqp.errors import DecodeError

VALUE_START = 3
"""Start of a section's value, behind the descriptor that `split_sections` writes in three bytes."""
_SYMBOLS_KEPT = 1024
"""Distinct symbols remembered; a sender may make up any number."""

_U32 = Struct(">I").unpack_from
_I32 = Struct(">i").unpack_from
_I64 = Struct(">q").unpack_from
_F64 = Struct(">d").unpack_from
_new: Any = int.__new__
"""Makes a bounded integer without the check that the width of its encoding has already made."""


@lru_cache(_SYMBOLS_KEPT)
def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


def read_composite(buf: bytes, start: int = 0, end: int | None = None) -> list[Any] | None:
    """Read the elements of a list or map section, keys and values in turn; None where the general decoder must."""
    end = len(buf) if end is None else end
    pos = start + VALUE_START
    try:
        constructor = buf[pos]
        if constructor in (0xC0, 0xC1):
            count, first, stop = buf[pos + 2], pos + 3, pos + 2 + buf[pos + 1]
        elif constructor in (0xD0, 0xD1):
            count, first, stop = _U32(buf, pos + 5)[0], pos + 9, pos + 5 + _U32(buf, pos + 1)[0]
        else:
            return None
    except (IndexError, StructError):
        return None
    return read_elements(buf, first, end, count) if stop == end else None


def read_elements(buf: bytes, pos: int, end: int, count: int) -> list[Any] | None:
    """Read ``count`` values that fill the bytes from ``pos`` to ``end``; None where the general decoder must."""
    return None if count > end - pos else read_between(buf, pos, end, repeat(_NOTHING, count))


_NOTHING = b"", 0


def read_between(buf: bytes, pos: int, end: int, before: Iterable[tuple[bytes, int]]) -> list[Any] | None:
    """Read the values up to ``end``, each behind known bytes (with their number).

    None where other bytes stand, or where the general decoder must read.
    """
    values: list[Any] = []
    append = values.append
    starts_with = buf.startswith
    try:
        for expected, width in before:
            if width:
                if not starts_with(expected, pos):
                    return None
                pos += width
            code = buf[pos]
            if code == 0xA1:
                start = pos + 2
                pos = start + buf[pos + 1]
                append(buf[start:pos].decode())
            elif code == 0xA3:
                start = pos + 2
                pos = start + buf[pos + 1]
                append(_symbol(buf[start:pos]))
            elif code == 0x40:
                append(None)
                pos += 1
            elif code == 0x83:
                append(_new(Timestamp, _I64(buf, pos + 1)[0]))
                pos += 9
            elif code == 0x81:
                append(_I64(buf, pos + 1)[0])
                pos += 9
            elif code == 0x71:
                append(_new(Int, _I32(buf, pos + 1)[0]))
                pos += 5
            elif code == 0x54:
                byte = buf[pos + 1]
                append(_new(Int, byte - 256 if byte > 127 else byte))
                pos += 2
            elif code == 0x55:
                byte = buf[pos + 1]
                append(byte - 256 if byte > 127 else byte)
                pos += 2
            elif code == 0x70:
                append(_new(UInt, _U32(buf, pos + 1)[0]))
                pos += 5
            elif code == 0x82:
                append(_F64(buf, pos + 1)[0])
                pos += 9
            elif code == 0x41:
                append(True)
                pos += 1
            elif code == 0x42:
                append(False)
                pos += 1
            elif code == 0x50:
                append(_new(UByte, buf[pos + 1]))
                pos += 2
            elif code == 0x61:
                append(_new(Short, int.from_bytes(buf[pos + 1 : pos + 3], "big", signed=True)))
                pos += 3
            else:
                value, pos = decode(buf, pos, end)
                append(value)
    except (IndexError, StructError, UnicodeDecodeError):
        return None
    return values if pos == end else None


def read_list(buf: bytes, start: int = 0, end: int | None = None) -> list[Any]:
    """Read the fields of a list section; a missing section has none. Raises `DecodeError`."""
    end = len(buf) if end is None else end
    if start == end:
        return []
    values = read_composite(buf, start, end)
    if values is None:
        found: Any = decode(buf, start + VALUE_START, end)[0]
        if not isinstance(found, list):
            raise DecodeError(f"a section holds {type(found).__name__} where a list belongs")
        return found
    return values


def read_map(buf: bytes, start: int = 0, end: int | None = None) -> dict[Any, Any]:
    """Read the pairs of a map section; a missing section has none. Raises `DecodeError`."""
    end = len(buf) if end is None else end
    if start == end:
        return {}
    values = read_composite(buf, start, end)
    try:
        pairs = {} if values is None else dict(zip(values[::2], values[1::2], strict=True))
        if values is not None and 2 * len(pairs) == len(values):
            return pairs
    except (TypeError, ValueError):
        pass  # a key that is no key, or no value to a key: the general decoder says so
    found: Any = decode(buf, start + VALUE_START, end)[0]
    if not isinstance(found, dict):
        raise DecodeError(f"a section holds {type(found).__name__} where a map belongs")
    return found
