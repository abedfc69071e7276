"""Encoding of every type of [1.6].

Descriptors and small numbers take their shortest form (one client finds the performative at a fixed byte). `long` and
`timestamp` always take eight bytes, because some clients cast the short form of a sequence number to the wrong type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812 (the struct module spells its exception `error`)
from typing import Final

from partibus.amqp.codec.decoder import MAX_NESTING
from partibus.amqp.codec.scalars import SCALAR_WRITERS, Writer, ascii_only, octets, utf8, write_wide_ulong
from partibus.amqp.codec.types import Array, Described, Pairs
from partibus.amqp.errors import EncodeError

_U32 = Struct(">I")


def encode(value: object, depth: int = MAX_NESTING) -> bytes:
    """Encode `value`; raises `EncodeError` for a value that no AMQP type holds."""
    out = bytearray()
    write(out, value, depth)
    return bytes(out)


LONG_BYTES: Final = 64 << 10
"""The size from which avoiding a copy of a binary is worth it."""


def encode_pieces(value: object) -> list[bytes | bytearray]:
    """Encode in pieces to be joined; long binaries of a map are separate pieces, not copied here."""
    if type(value) is not dict or not any(type(item) is bytes and len(item) >= LONG_BYTES for item in value.values()):
        return [encode(value)]
    pieces: list[bytes | bytearray] = [out := bytearray()]
    for key, item in value.items():
        write(out, key)
        if type(item) is bytes and len(item) >= LONG_BYTES:
            out.append(0xB0)
            out += _U32.pack(len(item))
            pieces += (item, out := bytearray())
        else:
            write(out, item, MAX_NESTING - 1)
    head = _U32.pack(4 + sum(map(len, pieces))) + _U32.pack(2 * len(value))
    return [b"\xd1" + head, *pieces]


def write(out: bytearray, value: object, depth: int = MAX_NESTING) -> None:
    """Append the bytes of `value` to `out`."""
    writer = _WRITERS.get(type(value))
    if writer is None:
        writer = _writer_of_base(value)
    writer(out, value, depth)


def _writer_of_base(value: object) -> Writer:
    for base in type(value).__mro__[1:]:
        if base in _WRITERS:
            return _WRITERS[base]
    raise EncodeError(f"{type(value).__name__} has no AMQP type; use one of partibus.amqp.codec.types")


def write_descriptor(out: bytearray, code: int) -> None:
    """Write the start of a described type: 0x53 for the codes of the standard, 0x80 above 255."""
    out.append(0x00)
    if code < 256:
        out += bytes((0x53, code))
    else:
        write_wide_ulong(out, code, 0)


def write_compound(out: bytearray, code8: int, count: int, content: bytes | bytearray) -> None:
    """Write a list (0xc0), map (0xc1) or array (0xe0) of `count` elements, in one-byte or four-byte form."""
    if len(content) < 255 and count < 256:
        out += bytes((code8, len(content) + 1, count))
    else:
        out.append(code8 + 0x10)
        out += _U32.pack(len(content) + 4) + _U32.pack(count)
    out += content


def _deeper(depth: int) -> int:
    if depth <= 0:
        raise EncodeError(f"values are nested deeper than {MAX_NESTING} levels")
    return depth - 1


def _write_list(out: bytearray, value: object, depth: int) -> None:
    items: Sequence[object] = value  # type: ignore[assignment]
    if not items:
        out.append(0x45)
        return
    inner = _deeper(depth)
    content = bytearray()
    for item in items:
        write(content, item, inner)
    write_compound(out, 0xC0, len(items), content)


def _write_map(out: bytearray, value: object, depth: int) -> None:
    pairs: dict[object, object] | Pairs = value  # type: ignore[assignment]
    inner = _deeper(depth)
    content = bytearray()
    for key, item in pairs.items():
        write(content, key, inner)
        write(content, item, inner)
    write_compound(out, 0xC1, len(pairs) * 2, content)


def _write_described(out: bytearray, value: object, depth: int) -> None:
    described: Described = value  # type: ignore[assignment]
    inner = _deeper(depth)
    out.append(0x00)
    write(out, described.descriptor, inner)
    write(out, described.value, inner)


# In an array every element has the same constructor. Encoding an element alone gives its format code and its content; a
# short form is converted to the wide one that the array announces.
_ARRAY_LAYOUT: Final[dict[int, Struct]] = {
    0x50: Struct(">B"), 0x51: Struct(">b"), 0x56: Struct(">?"), 0x60: Struct(">H"), 0x61: Struct(">h"),
    0x70: Struct(">I"), 0x71: Struct(">i"), 0x72: Struct(">f"), 0x80: Struct(">Q"), 0x81: Struct(">q"),
    0x82: Struct(">d"), 0x83: Struct(">q"),
}  # fmt: skip
_ARRAY_BYTES: Final[dict[int, Callable[[object], bytes]]] = {0xB0: octets, 0xB1: utf8, 0xB3: ascii_only}
_ARRAY_COMPOUND: Final = {0xD0: 0xC0, 0xD1: 0xC1, 0xF0: 0xE0}


def _array_element(code: int, item: object, depth: int) -> bytes:
    """Encode one element without its constructor, in the wide form `code`."""
    layout = _ARRAY_LAYOUT.get(code)
    if layout is not None:
        try:
            return layout.pack(item)
        except (StructError, OverflowError):
            raise EncodeError(f"{item!r} does not fit array constructor {code:#04x}") from None
    to_bytes = _ARRAY_BYTES.get(code)
    if to_bytes is not None:
        raw = to_bytes(item)
        return _U32.pack(len(raw)) + raw
    alone = encode(item, depth)
    if code in _ARRAY_COMPOUND:
        return _wide_compound(code, alone)
    if alone[0] != code:
        raise EncodeError(f"{item!r} has format code {alone[0]:#04x}; the array holds {code:#04x}")
    return alone[1:]


def _wide_compound(code: int, alone: bytes) -> bytes:
    """Convert an encoded list, map or array to the four-byte form, without its code."""
    if alone[0] == code:
        return alone[1:]
    if alone[0] == 0x45 and code == 0xD0:
        return _U32.pack(4) + _U32.pack(0)
    if alone[0] != _ARRAY_COMPOUND[code]:
        raise EncodeError(f"format code {alone[0]:#04x} in an array that holds {code:#04x}")
    return _U32.pack(alone[1] + 3) + _U32.pack(alone[2]) + alone[3:]


def _write_array(out: bytearray, value: object, depth: int) -> None:
    array: Array = value  # type: ignore[assignment]
    inner = _deeper(depth)
    content = bytearray()
    for descriptor in array.descriptors:
        content.append(0x00)
        write(content, descriptor, inner)
    code = array.constructor
    to_bytes = _ARRAY_BYTES.get(code)
    if to_bytes is not None:
        raws = [to_bytes(item) for item in array.items]
        if all(len(raw) < 256 for raw in raws):
            content.append(code - 0x10)
            content += b"".join(bytes((len(raw),)) + raw for raw in raws)
            write_compound(out, 0xE0, len(raws), content)
            return
    content.append(code)
    for item in array.items:
        content += _array_element(code, item, inner)
    write_compound(out, 0xE0, len(array.items), content)


_WRITERS: Final[dict[type, Writer]] = SCALAR_WRITERS | {
    list: _write_list,
    tuple: _write_list,
    dict: _write_map,
    Pairs: _write_map,
    Array: _write_array,
    Described: _write_described,
}


def register(kind: type, writer: Writer) -> None:
    """Register a writer for another class (the composite types of the upper layers)."""
    _WRITERS[kind] = writer
