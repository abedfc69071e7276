"""The type conversion of SET on an existing property (dialect section 11.4).

The value takes the type of the property if that loses at most fractions, and keeps its own type otherwise.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import UUID

from partibus.amqp.codec.types import (
    Byte,
    Char,
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
from partibus.filters.limits import INTEGER_MAX, INTEGER_MIN


def as_existing(value: object, existing: object) -> object:
    """Convert ``value`` to the AMQP type of ``existing`` if it fits."""
    convert = _CONVERSIONS.get(type(existing))
    if convert is None or value is None:
        return value
    with suppress(ValueError, OverflowError):
        converted = convert(value)
        return value if converted is None else converted
    return value


def as_text(value: object) -> str | None:
    """Format a value as .NET does; return None for a value without a text form."""
    match value:
        case str():
            return str(value)
        case Timestamp():
            return None
        case bool() | UUID():
            return str(value)
        case int() | float() if type(value) in (int, float):
            return str(value)
    return None


def _number(make: Callable[[int], int]) -> Callable[[object], object]:
    def convert(value: object) -> object:
        if isinstance(value, bool):
            return make(int(value))
        if type(value) is str:
            return make(int(value.strip(), 10)) if value.isascii() else None
        return make(round(value)) if isinstance(value, int | float) and type(value) in (int, float) else None

    return convert


def _long(value: int) -> int:
    """Return AMQP's long, which is Python's int in messages."""
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise ValueError
    return value


def _fraction(make: Callable[[float], float]) -> Callable[[object], object]:
    def convert(value: object) -> object:
        return make(float(value)) if type(value) in (int, float, bool) else None  # type: ignore[arg-type]

    return convert


def _text(make: Callable[[str], str]) -> Callable[[object], object]:
    def convert(value: object) -> object:
        text = as_text(value)
        return None if text is None else make(text)

    return convert


def _symbol(text: str) -> str:
    return Symbol(text) if text.isascii() else text


def _boolean(value: object) -> object:
    match value:
        case bool():
            return value
        case str():
            return {"true": True, "false": False}.get(value.strip().lower())
        case int() | float() if type(value) in (int, float):
            return value != 0
    return None


_CONVERSIONS: Final[dict[type, Callable[[object], object]]] = {
    **{kind: _number(kind) for kind in (Byte, Short, Int, UByte, UShort, UInt, ULong)},
    int: _number(_long),
    float: _fraction(float),
    Float: _fraction(Float),
    str: _text(str),
    Symbol: _text(_symbol),
    Char: _text(Char),
    bool: _boolean,
}
