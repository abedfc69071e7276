"""Values of filters: their kinds, comparison and arithmetic (dialect section 11.4).

A message has AMQP's types, an expression has few kinds of value:

```text
number     int (64 bits) and float: all of AMQP's integers and both floats
text       str: string, symbol, char, and the URIs that .NET writes
boolean    bool
time       Timestamp: timestamp, and .NET's DateTimeOffset
duration   Ticks: .NET's TimeSpan, in 100 ns
guid       UUID
binary     bytes
unknown    None: null, and a property that the message lacks
```

A comparison of two kinds is unknown, and so is any of other types, such as decimals. Numbers follow C#: integers stay
integers, both become doubles if either has a fraction, and integer division rounds towards zero.
"""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from partibus.amqp.codec.types import (
    Byte,
    Char,
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
from partibus.errors import shown
from partibus.filters.model import INTEGER_MAX, INTEGER_MIN, PROPERTY_CHARS_MAX, EvaluationError

Truth = bool | None
"""A truth value; None means unknown."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)
TICKS_PER_MS: Final = 10_000
_TICKS_AT_EPOCH: Final = 621_355_968_000_000_000
"""The number of 100 ns from .NET's first date, 0001-01-01, to 1970."""

TIMESPAN: Final = Symbol("com.microsoft:timespan")
URI: Final = Symbol("com.microsoft:uri")
DATE_TIME_OFFSET: Final = Symbol("com.microsoft:datetime-offset")


class Ticks(int):
    """A duration in units of 100 ns."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Ticks({int(self)})"


def _described(value: Described) -> object:
    """Convert the three described values that .NET writes into properties; any other has no kind."""
    held = value.value
    if value.descriptor == URI and isinstance(held, str):
        return str(held)
    if isinstance(held, int) and not isinstance(held, bool):
        if value.descriptor == TIMESPAN:
            return Ticks(held)
        if value.descriptor == DATE_TIME_OFFSET:
            return Timestamp((int(held) - _TICKS_AT_EPOCH) // TICKS_PER_MS)
    return value


def _from_datetime(value: datetime) -> Timestamp:
    return Timestamp(((value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH) // _MS)


def _from_timedelta(value: timedelta) -> Ticks:
    return Ticks(value // _MICROSECOND * 10)


_PLAIN: Final[dict[type, Callable[[object], object]]] = {
    **dict.fromkeys((Byte, Short, Int, UByte, UShort, UInt, ULong), int),  # type: ignore[arg-type]
    Float: float,  # type: ignore[dict-item]
    Symbol: str,
    Char: str,
    Described: _described,  # type: ignore[dict-item]
    datetime: _from_datetime,  # type: ignore[dict-item]
    timedelta: _from_timedelta,  # type: ignore[dict-item]
}


def plain(value: object) -> object:
    """Convert a decoded AMQP value, a parameter, or a correlation filter's property to one of the kinds above."""
    make = _PLAIN.get(type(value))
    return value if make is None else make(value)


def text_of(value: object) -> str | None:
    """Format an id as SDKs show message-id and correlation-id, which may be of four types."""
    if value is None or isinstance(value, str):
        return value if value is None else str(value)
    if isinstance(value, int):
        return str(int(value))
    return value.hex() if isinstance(value, bytes) else str(value)


# Comparison ----------------------------------------------------------------------------------------------------------


def equal(left: object, right: object) -> Truth:
    """Evaluate ``left = right``."""
    kind, other = type(left), type(right)
    if kind is other:
        return None if left is None else left == right
    if (kind is int and other is float) or (kind is float and other is int):
        return float(left) == float(right)  # type: ignore[arg-type]
    return None


def _differ(left: object, right: object) -> Truth:
    same = equal(left, right)
    return None if same is None else not same


_ORDERED: Final = frozenset({int, float, str, Timestamp, Ticks})


def _ordering(compare: Callable[[object, object], bool]) -> Callable[[object, object], Truth]:
    def run(left: object, right: object) -> Truth:
        kind, other = type(left), type(right)
        if kind is other:
            return compare(left, right) if kind in _ORDERED else None
        if (kind is int and other is float) or (kind is float and other is int):
            return compare(float(left), float(right))  # type: ignore[arg-type]
        return None

    return run


COMPARISONS: Final[dict[str, Callable[[object, object], Truth]]] = {
    "=": equal,
    "<>": _differ,
    "!=": _differ,
    "<": _ordering(lambda left, right: left < right),  # type: ignore[operator]
    "<=": _ordering(lambda left, right: left <= right),  # type: ignore[operator]
    ">": _ordering(lambda left, right: left > right),  # type: ignore[operator]
    ">=": _ordering(lambda left, right: left >= right),  # type: ignore[operator]
}

# Arithmetic ----------------------------------------------------------------------------------------------------------


def _whole(value: int, operation: str) -> int:
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise EvaluationError(f"The result of {operation} does not fit into 64 bits. Calculate with fractions instead.")
    return value


def _divide(left: int | float, right: int | float) -> int | float:
    if isinstance(left, int) and isinstance(right, int):
        if not right:
            raise EvaluationError(f"{left} / 0: a whole number can't be divided by zero. Check for it first.")
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    try:
        return left / right
    except ZeroDivisionError:
        left = float(left)
        negative = math.copysign(1, left) * math.copysign(1, right) < 0
        return math.nan if not left or math.isnan(left) else -math.inf if negative else math.inf


def _remainder(left: int | float, right: int | float) -> int | float:
    if isinstance(left, int) and isinstance(right, int):
        if not right:
            raise EvaluationError(f"{left} % 0: a whole number can't be divided by zero. Check for it first.")
        return int(math.copysign(1, left)) * (abs(left) % abs(right))
    try:
        return math.fmod(left, right)
    except ValueError:
        return math.nan


_NUMERIC: Final[dict[str, Callable[[int | float, int | float], int | float]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide,
    "%": _remainder,
}


def calculate(operator: str, left: object, right: object) -> object:
    """Evaluate ``left operator right``; the result is unknown when either operand is.

    Raises `EvaluationError` for incompatible kinds.
    """
    if left is None or right is None:
        return None
    kind, other = type(left), type(right)
    if kind in (int, float) and other in (int, float):
        if kind is not other:
            left, right = float(left), float(right)  # type: ignore[arg-type]
        result = _NUMERIC[operator](left, right)  # type: ignore[arg-type]
        return _whole(result, f"{left} {operator} {right}") if isinstance(result, int) else result
    if operator == "+" and kind is str and other is str:
        return _joined(left, right)  # type: ignore[arg-type]
    result_of_times = _times(operator, left, right)
    if result_of_times is not None:
        return result_of_times
    raise EvaluationError(
        f"{shown(left)} {operator} {shown(right)}: {kind_name(left)} and {kind_name(right)} do not go together there."
    )


def _joined(left: str, right: str) -> str:
    if len(left) + len(right) > PROPERTY_CHARS_MAX:
        raise EvaluationError(
            f"Joining texts of {len(left)} and {len(right)} characters passes the {PROPERTY_CHARS_MAX} of a property."
        )
    return left + right


def _times(operator: str, left: object, right: object) -> object:
    """Evaluate arithmetic on times and durations; return None for other operands.

    Two times give a duration; a time and a duration give a time; two durations give a duration.
    """
    sign = {"+": 1, "-": -1}.get(operator)
    if sign is None:
        return None
    match left, right:
        case Timestamp(), Timestamp() if sign < 0:
            return Ticks(_whole((int(left) - int(right)) * TICKS_PER_MS, "a time less another"))
        case Timestamp(), Ticks():
            return Timestamp(_whole(int(left) + sign * int(right) // TICKS_PER_MS, "a time and a duration"))
        case Ticks(), Timestamp() if sign > 0:
            return Timestamp(_whole(int(right) + int(left) // TICKS_PER_MS, "a time and a duration"))
        case Ticks(), Ticks():
            return Ticks(_whole(int(left) + sign * int(right), "two durations"))
    return None


def negative(value: object) -> object:
    """Evaluate ``- value``."""
    if value is None:
        return None
    if type(value) is int:
        return _whole(-value, f"- {value}")
    if type(value) is float:
        return -value
    if type(value) is Ticks:
        return Ticks(_whole(-int(value), "the negative of a duration"))
    raise EvaluationError(f"- {shown(value)}: {kind_name(value)} has no sign.")


def positive(value: object) -> object:
    """Evaluate ``+ value``."""
    if value is None or type(value) in (int, float, Ticks):
        return value
    raise EvaluationError(f"+ {shown(value)}: {kind_name(value)} has no sign.")


_KIND_NAMES: Final = {
    int: "a number",
    float: "a number",
    str: "a text",
    bool: "a boolean",
    Timestamp: "a time",
    Ticks: "a duration",
    UUID: "a guid",
    bytes: "binary data",
    type(None): "null",
}


def kind_name(value: object) -> str:
    """Return the kind of a value as error texts name it."""
    return _KIND_NAMES.get(type(value), f"a value of type {type(value).__name__}")
