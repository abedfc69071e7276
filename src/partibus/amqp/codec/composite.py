"""Composite types: classes whose fields are encoded as a list behind a descriptor [1.4].

A composite is a class whose fields are made by `amqp(...)`, which sets the AMQP type. Its decorator sets the descriptor
and makes a struct of it. On input trailing fields may be missing and null means the default; integer fields accept any
integer type whose value fits. On output every field is written, null where it is None: one client reads fields by index
without checking their number. Only an inner value without any field (accepted, an empty source) becomes the empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest
from struct import Struct
from struct import error as StructError  # noqa: N812 (the struct module spells its exception `error`)
from typing import Any, Final, NamedTuple, TypeVar, cast, dataclass_transform

from msgspec import NODEFAULT, defstruct

from partibus.amqp.codec import encoder
from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.scalar_readers import Reader
from partibus.amqp.codec.scalar_writers import SCALAR_WRITERS, Writer
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


class Kind:
    """The type of a field: `read` checks and converts a decoded value, `write` encodes one.

    `read_at` does what decoding and `read` do, from the position of the value's constructor. It assumes that the peer
    means well: it may read past the end of the list, and may raise any error of `_MALFORMED`.
    """

    __slots__ = ("name", "read", "read_at", "write")

    def __init__(
        self,
        name: str,
        read: Callable[[object], object],
        write: Writer = encoder.write,
        read_at: Reader | None = None,
    ) -> None:
        self.name = name
        self.read = read
        self.write = write
        self.read_at = read_at or self._read_any

    def _read_any(self, buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        value, pos = decode(buf, pos, end, depth)
        return self.read(value), pos


_MALFORMED: Final = (DecodeError, IndexError, StructError, UnicodeDecodeError)
_U32: Final = Struct(">I").unpack_from


def _said(value: object) -> str:
    """Return the name of a value for error texts: a compound by its type, which is short and cheap to write."""
    return type(value).__name__ if isinstance(value, list | dict | Pairs | Array | Described) else repr(value)


def _of_class(name: str, kinds: type | tuple[type, ...]) -> Kind:
    def read(value: object) -> object:
        if not isinstance(value, kinds):
            raise DecodeError(f"{_said(value)} is no {name}")
        return value

    return Kind(name, read)


def _integer(name: str, wrapper: type[UByte | UShort | UInt | ULong]) -> Kind:
    most = wrapper.most
    writer = SCALAR_WRITERS[wrapper]

    def read(value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise DecodeError(f"{_said(value)} is no {name}")
        return int(value)

    def write(out: bytearray, value: Any, depth: int) -> None:
        if not 0 <= value <= most:
            raise EncodeError(f"a {name} is 0..{most}, not {value}")
        writer(out, value, depth)

    def read_at(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
        code = buf[pos]
        if code == 0x43:
            return 0, pos + 1
        if code == 0x52 or code == 0x50:
            return buf[pos + 1], pos + 2
        if code == 0x70 and most >= UInt.most:
            return _U32(buf, pos + 1)[0], pos + 5
        value, pos = decode(buf, pos, end, depth)
        return read(value), pos

    return Kind(name, read, write, read_at)


def _read_text(value: object) -> object:
    if not isinstance(value, str):
        raise DecodeError(f"{_said(value)} is no string")
    return str(value)


def _read_text_at(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    if buf[pos] == 0xA1:
        start = pos + 2
        after = start + buf[pos + 1]
        return buf[start:after].decode(), after
    value, pos = decode(buf, pos, end, depth)
    return _read_text(value), pos


def _read_boolean_at(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    code = buf[pos]
    if code == 0x42 or code == 0x41:
        return code == 0x41, pos + 1
    value, pos = decode(buf, pos, end, depth)
    return BOOLEAN.read(value), pos


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


STRING: Final = Kind("string", _read_text, read_at=_read_text_at)
SYMBOL: Final = Kind("symbol", _read_text, SCALAR_WRITERS[Symbol])
SYMBOLS: Final = Kind("symbols", _of_class("symbol or array of symbols", (str, Array)).read, _write_multiple)
BOOLEAN: Final = Kind("boolean", _of_class("boolean", bool).read, read_at=_read_boolean_at)
BINARY: Final = _of_class("binary", bytes)
MAP: Final = _of_class("map", dict)
ANY: Final = Kind("any value", lambda value: value, read_at=decode)
UBYTE: Final = _integer("ubyte", UByte)
USHORT: Final = _integer("ushort", UShort)
UINT: Final = _integer("uint", UInt)
ULONG: Final = _integer("ulong", ULong)


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


_FIELDS: Final[dict[type, tuple[tuple[str, Kind, bool], ...]]] = {}
_FRAME_BODIES: Final[set[type]] = set()
_BY_CODE: Final[dict[int, type]] = {}
_BY_NAME: Final[dict[str, type]] = {}

T = TypeVar("T")


@dataclass_transform()
def composite(code: int, name: str, *, frame_body: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
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
        )
        _FIELDS[cls] = tuple((field, kind, required) for field, (kind, required, _) in fields.items())
        _BY_CODE[code] = cls
        _BY_NAME[name] = cls
        if frame_body:
            _FRAME_BODIES.add(cls)
        encoder.register(cls, _write)
        return cast("type[T]", cls)

    return register


def _write(out: bytearray, value: object, depth: int) -> None:
    content = bytearray()
    table = _FIELDS[type(value)]
    for name, kind, _required in table:
        item = getattr(value, name)
        if item is None:  # most fields of most performatives
            content.append(0x40)
        else:
            kind.write(content, item, depth - 1)
    encoder.write_descriptor(out, type(value).CODE)  # type: ignore[attr-defined]
    if content == b"\x40" * len(table) and type(value) not in _FRAME_BODIES:
        out.append(0x45)
    else:
        encoder.write_compound(out, 0xC0, len(table), content)


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
    value, pos = decode(buf, pos, end, depth)
    return build(value), pos


def _read_usual(buf: bytes, pos: int, end: int, depth: int) -> tuple[object, int] | None:
    """Read a composite with the usual descriptor and size; None for another value. Raises any of `_MALFORMED`."""
    if depth < 3 or not buf.startswith(b"\x00\x53", pos) or pos + 6 > end or buf[pos + 3] != 0xC0:
        return None
    cls = _BY_CODE.get(buf[pos + 2])
    after = pos + 5 + buf[pos + 4]
    count = buf[pos + 5]
    if cls is None or after > end or count > len(table := _FIELDS[cls]):
        return None
    pos += 6
    values: dict[str, object] = {}
    for name, kind, required in table[:count]:
        if buf[pos] == 0x40:
            if required:
                return None
            pos += 1
        else:
            values[name], pos = kind.read_at(buf, pos, after, depth - 2)
    if pos != after:
        return None
    for _name, _kind, required in table[count:]:
        if required:
            return None
    return cls(**values), after


def build(value: object) -> object:
    """Return the composite of a decoded `Described`; other described values are returned unchanged."""
    if not isinstance(value, Described):
        raise DecodeError(f"{_said(value)} has no descriptor")
    descriptor = value.descriptor
    if isinstance(descriptor, Symbol):
        cls = _BY_NAME.get(descriptor)
    elif isinstance(descriptor, ULong):
        cls = _BY_CODE.get(descriptor)
    else:
        cls = None
    if cls is None:
        return value
    return from_list(cls, value.value)


def from_list(cls: type, items: object) -> Any:
    """Build a composite from its decoded list of fields."""
    table = _FIELDS[cls]
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


def kind_of(name: str, *classes: type) -> Kind:
    """Return the kind of a field that holds one of these composites, or an unknown described value."""

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

    return Kind(name, read, read_at=read_at)


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
