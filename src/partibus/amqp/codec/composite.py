"""Composite types: classes whose fields are encoded as a list behind a descriptor [1.4].

A composite is a class whose fields are made by `amqp(...)`, which sets the AMQP type. Its decorator sets the descriptor
and makes a struct of it. On input trailing fields may be missing and null means the default; integer fields accept any
integer type whose value fits. On output every field is written, null where it is None: one client reads fields by index
without checking their number. Only an inner value without any field (accepted, an empty source) becomes the empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeVar, cast, dataclass_transform

from msgspec import NODEFAULT, defstruct

from partibus.amqp.codec import encoder
from partibus.amqp.codec.types import (
    Array,
    Described,
    Pairs,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from partibus.amqp.errors import AmqpError, DecodeError, EncodeError


class Kind:
    """The type of a field: `read` checks and converts a decoded value, `convert` prepares one for encoding."""

    __slots__ = ("convert", "name", "read")

    def __init__(
        self, name: str, read: Callable[[object], object], convert: Callable[[Any], object] | None = None
    ) -> None:
        self.name = name
        self.read = read
        self.convert = convert


def _said(value: object) -> str:
    """Return the name of a value for error texts: a compound by its type, which is short and cheap to write."""
    return type(value).__name__ if isinstance(value, list | dict | Pairs | Array | Described) else repr(value)


def _of_class(name: str, kinds: type | tuple[type, ...]) -> Kind:
    def read(value: object) -> object:
        if not isinstance(value, kinds):
            raise DecodeError(f"{_said(value)} is no {name}")
        return value

    return Kind(name, read)


def _integer(name: str, wrapper: Callable[[int], int], most: int) -> Kind:
    def read(value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise DecodeError(f"{_said(value)} is no {name}")
        return int(value)

    def convert(value: int) -> object:
        try:
            return wrapper(value)
        except ValueError as error:
            raise EncodeError(str(error)) from None

    return Kind(name, read, convert)


def _read_text(value: object) -> object:
    if not isinstance(value, str):
        raise DecodeError(f"{_said(value)} is no string")
    return str(value)


def _convert_multiple(value: object) -> object:
    """Convert one symbol, an array of symbols, or any iterable of texts."""
    if isinstance(value, Array):
        return value
    if isinstance(value, str):
        return Symbol(value)
    if isinstance(value, Iterable):
        return Array.of_symbols(value)
    raise EncodeError(f"{value!r} is no symbol and no array of symbols")


STRING: Final = Kind("string", _read_text)
SYMBOL: Final = Kind("symbol", _read_text, Symbol)
SYMBOLS: Final = Kind("symbols", _of_class("symbol or array of symbols", (str, Array)).read, _convert_multiple)
BOOLEAN: Final = _of_class("boolean", bool)
BINARY: Final = _of_class("binary", bytes)
MAP: Final = _of_class("map", dict)
ANY: Final = Kind("any value", lambda value: value)
UBYTE: Final = _integer("ubyte", UByte, UByte.most)
USHORT: Final = _integer("ushort", UShort, UShort.most)
UINT: Final = _integer("uint", UInt, UInt.most)
ULONG: Final = _integer("ulong", ULong, ULong.most)
TIMESTAMP: Final = Kind("timestamp", _of_class("timestamp", int).read, Timestamp)


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
            continue
        if kind.convert is not None:
            item = kind.convert(item)
        encoder.write(content, item, depth - 1)
    encoder.write_descriptor(out, type(value).CODE)  # type: ignore[attr-defined]
    if content == b"\x40" * len(table) and type(value) not in _FRAME_BODIES:
        out.append(0x45)
    else:
        encoder.write_compound(out, 0xC0, len(table), content)


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
        built = build(value)
        if not isinstance(built, (*classes, Described)):
            raise DecodeError(f"{type(built).__name__} is no {name}")
        return built

    return Kind(name, read)


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
