"""Composite types: classes whose fields are encoded as a list behind a descriptor [1.4].

A composite is a class whose fields are made by `amqp(...)`, which sets the AMQP type. Its decorator sets the descriptor
and makes a struct of it. On input trailing fields may be missing and null means the default; integer fields accept any
integer type whose value fits. On output every field is written, null where it is None: one client reads fields by index
without checking their number. Only an inner value without any field (accepted, an empty source) becomes the empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from struct import Struct
from struct import error as StructError  # noqa: N812 (the struct module spells its exception `error`)
from typing import Any, Final, NamedTuple, TypeVar, cast, dataclass_transform

from msgspec import NODEFAULT, defstruct
from msgspec.structs import astuple, replace

from partibus.amqp.codec import encoder
from partibus.amqp.codec.decoder import decode, decode_frame_body
from partibus.amqp.codec.scalars import SCALAR_WRITERS, Reader, Writer
from partibus.amqp.codec.types import (
    Array,
    Described,
    Pairs,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
)
from partibus.amqp.errors import AmqpError, DecodeError, EncodeError

_BYTE_CODES: Final = frozenset({0x50, 0x52, 0x53})
"""The format codes of an unsigned integer in one byte."""
_STRING8: Final = 0xA1
_UBYTE: Final = 0x50
_NULL: Final = b"\x40"


_U32: Final = Struct(">I")


class Kind:
    """The type of a field: `read` checks and converts a decoded value, `write` encodes one.

    `read_at` does what decoding and `read` do, from the position of the value's constructor. It assumes that the peer
    means well: it may read past the end of the list, and may raise any error of `_MALFORMED`.

    Nearly every field of a performative is null, a small number, a flag or a short text. `_read_usual` and `_write`
    take these from the tables of the kind, because a call for each would be half of a frame's cost.
    """

    __slots__ = (
        "byte_codes",
        "constants",
        "name",
        "read",
        "read_at",
        "spelled",
        "text_code",
        "wide_code",
        "wide_most",
        "wide_value",
        "write",
    )

    def __init__(
        self,
        name: str,
        read: Callable[[object], object],
        write: Writer = encoder.write,
        read_at: Reader | None = None,
        *,
        spelled: Mapping[object, bytes] | None = None,
        constants: Mapping[int, object] | None = None,
        byte_codes: frozenset[int] = frozenset(),
        text_code: int | None = None,
        wide: tuple[int, Struct] | None = None,
    ) -> None:
        self.name = name
        self.read = read
        self.write = write
        self.read_at = read_at or self._read_any
        self.spelled = spelled
        """The encodings of some values; None if the values have no hash."""
        self.constants = constants or {}
        """The values of format codes without content."""
        self.byte_codes = byte_codes
        """Format codes whose content is one byte, the value."""
        self.text_code = text_code
        """The format code of a short text in UTF-8."""
        self.wide_code, self.wide_value = wide or (-1, _U32)
        """The format code of an integer of the type's full width, -1 for other types, and its layout."""
        self.wide_most = (1 << 8 * self.wide_value.size) - 1 if wide else 0

    def _read_any(self, buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        value, pos = decode(buf, pos, end, depth)
        return self.read(value), pos


_MALFORMED: Final = (DecodeError, IndexError, StructError, UnicodeDecodeError)


def _said(value: object) -> str:
    """Return the name of a value for error texts: a compound by its type, which is short and cheap to write."""
    return type(value).__name__ if isinstance(value, list | dict | Pairs | Array | Described) else repr(value)


def _of_class(name: str, kinds: type | tuple[type, ...]) -> Kind:
    def read(value: object) -> object:
        if not isinstance(value, kinds):
            raise DecodeError(f"{_said(value)} is no {name}")
        return value

    return Kind(name, read)


def _integer(name: str, wrapper: type[UByte | UShort | UInt | ULong], code: int, layout: str) -> Kind:
    most = wrapper.most
    writer = SCALAR_WRITERS[wrapper]
    pack = Struct(layout).pack

    def read(value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise DecodeError(f"{_said(value)} is no {name}")
        return int(value)

    def write(out: bytearray, value: Any, depth: int) -> None:
        if not 0 <= value <= most:
            raise EncodeError(f"a {name} is 0..{most}, not {value}")
        if value < 256:
            writer(out, value, depth)
        else:
            out += pack(code, value)

    return Kind(
        name,
        read,
        write,
        wide=(code, Struct(">" + layout[2])) if code != _UBYTE else None,
        spelled={value: _spell(write, value) for value in range(256)},
        constants={0x43: 0, 0x44: 0},
        byte_codes=_BYTE_CODES,
    )


def _spell(write: Writer, value: object) -> bytes:
    out = bytearray()
    write(out, value, 0)
    return bytes(out)


def _read_text(value: object) -> object:
    if not isinstance(value, str):
        raise DecodeError(f"{_said(value)} is no string")
    return str(value)


def _read_symbol(value: object) -> object:
    """Return a symbol, or a string that can be one: it is written back as a symbol."""
    if not isinstance(value, str) or not value.isascii():
        raise DecodeError(f"{_said(value)} is no symbol, which has only ASCII characters")
    return str(value)


def _read_multiple(value: object) -> object:
    if isinstance(value, str):
        _read_symbol(value)
    elif not isinstance(value, Array):
        raise DecodeError(f"{_said(value)} is no symbol or array of symbols")
    return value


def _write_multiple(out: bytearray, value: object, depth: int) -> None:
    """Write one symbol, an array of symbols, or any iterable of texts."""
    if isinstance(value, Array):
        encoder.write(out, value, depth)
    elif isinstance(value, str):
        SCALAR_WRITERS[Symbol](out, value, depth)
    elif isinstance(value, Iterable):
        encoder.write(out, Array.of_symbols(value), depth)
    else:
        raise EncodeError(f"{value!r} is no symbol and no array of symbols")


STRING: Final = Kind("string", _read_text, text_code=_STRING8)
SYMBOL: Final = Kind("symbol", _read_symbol, SCALAR_WRITERS[Symbol])
SYMBOLS: Final = Kind("symbols", _read_multiple, _write_multiple)
BOOLEAN: Final = Kind(
    "boolean",
    _of_class("boolean", bool).read,
    spelled={True: b"\x41", False: b"\x42"},
    constants={0x41: True, 0x42: False},
)
BINARY: Final = _of_class("binary", bytes)
MAP: Final = _of_class("map", dict)
ANY: Final = Kind("any value", lambda value: value, read_at=decode, text_code=_STRING8)
UBYTE: Final = _integer("ubyte", UByte, 0x50, ">BB")
USHORT: Final = _integer("ushort", UShort, 0x60, ">BH")
UINT: Final = _integer("uint", UInt, 0x70, ">BI")
ULONG: Final = _integer("ulong", ULong, 0x80, ">BQ")


def symbols(value: object) -> list[str]:
    """Return the texts of a field of kind SYMBOLS: null, one symbol or an array of them."""
    if value is None:
        return []
    if isinstance(value, Array):
        return [str(item) for item in value.items]
    return [str(value)]


class _Field(NamedTuple):
    kind: Kind
    required: bool
    default: object


def amqp(kind: Kind, *, default: object = None, required: bool = False) -> Any:
    """Declare a field with its AMQP type; a null in a `required` one is an error."""
    return _Field(kind, required, NODEFAULT if required else default)


class _Layout(NamedTuple):
    cls: Any
    fields: tuple[tuple[str, Kind, bool], ...]
    kinds: tuple[Kind, ...]
    required: int
    """The number of fields up to the last one that must not be null."""
    head: bytes
    """The descriptor."""
    empty: bytes | None
    """The content of a value without any field, if that is written as the empty list."""


_LAYOUTS: Final[dict[type, _Layout]] = {}
_BY_CODE: Final[dict[int, _Layout]] = {}
_BY_NAME: Final[dict[str, _Layout]] = {}

T = TypeVar("T")


@dataclass_transform()
def composite(
    code: int, name: str, *, frame_body: bool = False, kw_only: bool = False, frozen: bool = False
) -> Callable[[type[T]], type[T]]:
    """Turn a class into a composite with a numeric and a symbolic descriptor, known to encoder and decoder.

    ``kw_only`` makes the fields keyword-only, as they must be if a required one follows others. The class has only
    fields and a docstring, because the decorator builds a new class without its methods.
    """

    def register(described: type[T]) -> type[T]:
        fields: dict[str, _Field] = {field: vars(described)[field] for field in described.__annotations__}
        cls: Any = defstruct(
            described.__name__,
            [(field, described.__annotations__[field], fields[field].default) for field in fields],
            module=described.__module__,
            namespace={"__doc__": described.__doc__, "CODE": code, "NAME": name},
            kw_only=kw_only,
            frozen=frozen,
        )
        head = bytearray()
        encoder.write_descriptor(head, code)
        _LAYOUTS[cls] = _BY_CODE[code] = _BY_NAME[name] = _Layout(
            cls,
            tuple((field, kind, required) for field, (kind, required, _) in fields.items()),
            tuple(kind for kind, _, _ in fields.values()),
            max((number for number, field in enumerate(fields.values(), 1) if field.required), default=0),
            bytes(head),
            None if frame_body else _NULL * len(fields),
        )
        encoder.register(cls, _write)
        return cast("type[T]", cls)

    return register


def changed(value: T, **fields: object) -> T:
    """Return a composite with other values of some fields."""
    return cast("T", replace(cast("Any", value), **fields))


def _write(out: bytearray, value: Any, depth: int) -> None:
    layout = _LAYOUTS[type(value)]
    content = bytearray()
    for kind, item in zip(layout.kinds, astuple(value), strict=True):
        if item is None:  # most fields of most performatives
            content.append(0x40)
        elif kind.spelled is not None and (spelled := kind.spelled.get(item)) is not None:
            content += spelled
        elif type(item) is str and kind.text_code is not None and len(item) < 256 and item.isascii():
            content += bytes((_STRING8, len(item)))
            content += item.encode()
        elif kind.wide_most and 256 <= item <= kind.wide_most:
            content.append(kind.wide_code)
            content += kind.wide_value.pack(item)
        else:
            kind.write(content, item, depth - 1)
    out += layout.head
    if layout.empty is not None and content == layout.empty:
        out.append(0x45)
    else:
        encoder.write_compound(out, 0xC0, len(layout.kinds), content)


def read_composite(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    """Return what `build` makes of the value at `pos`, and the position after it.

    A composite as every client writes it is read field by field, without a list of values that are then checked and
    thrown away. All else, and all that is wrong, is decoded in two steps, whose errors tell where it is wrong.
    """
    try:
        read = _read_usual(buf, pos, end, depth)
    except _MALFORMED:
        read = None
    if read is not None:
        return read
    value, pos = decode_frame_body(buf, pos, end, depth)
    return build(value), pos


def _read_usual(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int] | None:
    """Read a composite with the usual descriptor and size; None for another value. Raises any of `_MALFORMED`."""
    if depth < 3 or not buf.startswith(b"\x00\x53", pos) or pos + 6 > end or buf[pos + 3] != 0xC0:
        return None
    layout = _BY_CODE.get(buf[pos + 2])
    after = pos + 5 + buf[pos + 4]
    count = buf[pos + 5]
    if layout is None or after > end or count > len(layout.fields):
        return None
    pos += 6
    # No look at each of the nulls at the end, which most clients write. They may begin within the last value that is
    # none, because the format code of null is "@". Then `pos` passes their start.
    nulls = pos + len(buf[pos:after].rstrip(_NULL))
    left = count
    values: dict[str, object] = {}
    for name, kind, required in layout.fields:
        if pos >= nulls:
            break
        left -= 1
        code = buf[pos]
        if code == 0x40:
            if required:
                return None
            pos += 1
        elif code in kind.byte_codes:
            values[name] = buf[pos + 1]
            pos += 2
        elif code in kind.constants:
            values[name] = kind.constants[code]
            pos += 1
        elif code == kind.text_code:
            start = pos + 2
            pos = start + buf[pos + 1]
            values[name] = buf[start:pos].decode()
        elif code == kind.wide_code:
            values[name] = kind.wide_value.unpack_from(buf, pos + 1)[0]
            pos += 1 + kind.wide_value.size
        else:
            values[name], pos = kind.read_at(buf, pos, after, depth - 2)
    if left < 0 or left != after - pos or count - left < layout.required:
        return None
    return layout.cls(**values), after


def build(value: object) -> object:
    """Return the composite of a decoded `Described`; other described values are returned unchanged."""
    if not isinstance(value, Described):
        raise DecodeError(f"{_said(value)} has no descriptor")
    descriptor = value.descriptor
    if isinstance(descriptor, Symbol):
        layout = _BY_NAME.get(descriptor)
    elif isinstance(descriptor, ULong):
        layout = _BY_CODE.get(descriptor)
    else:
        layout = None
    if layout is None:
        return value
    return from_list(layout.cls, value.value)


def from_list(cls: type, items: object) -> Any:
    """Build a composite from its decoded list of fields."""
    table = _LAYOUTS[cls].fields
    name: str = cls.NAME  # type: ignore[attr-defined]
    if not isinstance(items, list):
        raise DecodeError(f"{name} is no list")
    if len(items) > len(table):
        raise DecodeError(f"{name} has {len(table)} fields, not {len(items)}")
    values: dict[str, object] = {}
    for (field_name, kind, required), item in zip_longest(table, items):
        if item is not None:
            try:
                values[field_name] = kind.read(item)
            except DecodeError as error:
                raise DecodeError(f"{name}.{field_name}: {error}") from None
        elif required:
            raise DecodeError(f"{name}.{field_name} is missing")
    return cls(**values)


SHARED_MAX: Final = 256
SHARED_BYTES_MAX: Final = 128
"""The number of shared composites of one kind, and the bytes of each: a few megabytes of objects at worst."""


def _with_all_fields(received: bytes, value: object) -> bytes:
    """Return a received short list of a composite with the nulls that its sender left out; empty for another value."""
    layout = _LAYOUTS.get(type(value))
    if layout is None or not received[6:].strip(_NULL):
        return b""
    missing = len(layout.fields) - received[5]
    if missing == 0:
        return received
    return b"%b%c%c%b%b" % (received[:4], received[4] + missing, len(layout.fields), received[6:], _NULL * missing)


class _Shared:
    """Composites that many peers send, such as the terminus `$cbs`, by the bytes that they come in.

    Equal bytes are decoded once, to one object, and that object is encoded once for all echoes. So its class is frozen.
    A peer that sends many different ones only empties the table.
    """

    __slots__ = ("_encoded", "found")

    def __init__(self) -> None:
        self.found: dict[bytes, object] = {}
        """Each object by the bytes that it was decoded from."""
        self._encoded: dict[int, bytes] = {}
        """The encoding of an object of the other table, by the object's identity; empty if none is known."""

    def add(self, received: bytes, value: object) -> None:
        """Add an object that was decoded from these bytes."""
        if len(received) <= SHARED_BYTES_MAX:
            if len(self.found) >= SHARED_MAX:
                self.found.clear()
                self._encoded.clear()
            self.found[received] = value
            self._encoded[id(value)] = _with_all_fields(received, value)

    def write(self, out: bytearray, value: object, depth: int) -> None:
        """Write any value; a shared one without encoding it again."""
        encoded = self._encoded.get(id(value))
        if encoded:
            out += encoded
            return
        start = len(out)
        encoder.write(out, value, depth)
        if encoded is not None:
            self._encoded[id(value)] = bytes(out[start:])


def kind_of(name: str, *classes: type, shared: bool = False) -> Kind:
    """Return the kind of a field that holds one of these composites, or an unknown described value.

    ``shared``: many peers send equal values, and the classes are frozen.
    """

    def read(value: object) -> object:
        return check(build(value))

    def check(built: object) -> object:
        if not isinstance(built, (*classes, Described)):
            raise DecodeError(f"{type(built).__name__} is no {name}")
        return built

    def read_at(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        found = _read_usual(buf, pos, end, depth)
        if found is None:
            value, pos = decode(buf, pos, end, depth)
            return read(value), pos
        return check(found[0]), found[1]

    if not shared:
        return Kind(name, read, read_at=read_at)
    table = _Shared()

    def read_shared_at(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        after = pos + 5 + buf[pos + 4] if buf.startswith(b"\x00\x53", pos) and buf[pos + 3] == 0xC0 else end + 1
        if after > end or depth < 3:
            return read_at(buf, pos, end, depth)
        received = buf[pos:after]
        value = table.found.get(received)
        if value is None:
            value, after = read_at(buf, pos, end, depth)
            table.add(received, value)
        return value, after

    return Kind(name, read, table.write, read_shared_at)


ERROR_CODE: Final = 0x1D


def _read_error(value: object) -> object:
    if not isinstance(value, Described) or value.descriptor not in (ERROR_CODE, "amqp:error:list"):
        raise DecodeError(f"{_said(value)} is no error")
    items = value.value
    if not isinstance(items, list) or not items or not isinstance(items[0], str):
        raise DecodeError("an error has no condition")
    condition, description, info = [*items, None, None][:3]
    return AmqpError(
        str(condition),
        description if isinstance(description, str) else None,
        info if isinstance(info, dict) else None,
    )


def _write_error(out: bytearray, value: object, depth: int) -> None:
    """Write an error, always with three fields: one client hangs on fewer."""
    error: AmqpError = value  # type: ignore[assignment]
    encoder.write(out, Described(ULong(ERROR_CODE), [Symbol(error.condition), error.description, error.info]), depth)


encoder.register(AmqpError, _write_error)
ERROR: Final = Kind("error", _read_error)
