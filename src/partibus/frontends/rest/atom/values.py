"""Values in the text of elements: JSON values of properties, dates, and the typed values of filters."""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from partibus.errors import ArgumentError
from partibus.filters.model import Constant
from partibus.frontends.rest.atom.xml import Element
from partibus.namespace.durations import format_duration, parse_duration
from partibus.namespace.values import BooleanValue, ChoiceValue, IntegerValue, Json, TextValue, Value

NEVER = "0001-01-01T00:00:00Z"
"""The service's form of an unknown time."""

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_MS = timedelta(milliseconds=1)


def json_of(text: str, value: Value[Any]) -> object:
    """Return the JSON form of a property's text; an invalid text stays, for the property's own check to refuse."""
    bare = text.strip()
    if isinstance(value, BooleanValue):
        return _BOOLEANS.get(bare.lower(), text)
    if isinstance(value, IntegerValue | ChoiceValue) and _INTEGER.fullmatch(bare):
        return int(bare)
    return text if isinstance(value, TextValue) else bare


def text_of(value: Json) -> str:
    """Return a property's JSON form as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def date_text(ms: int) -> str:
    """ISO 8601 with ``Z`` of ms since 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_constant(element: Element) -> Constant:
    """Return the value of a parameter, by its type (dialect section 9.3). Raises `ArgumentError`."""
    kind, text = element.type, element.text
    try:
        match kind:
            case "string":
                return text
            case "int" | "long" | "short" | "byte":
                return int(text)
            case "double" | "float" | "decimal":
                return float(text)
            case "boolean":
                return _BOOLEANS[text.strip().lower()]
            case "dateTime":
                return datetime.fromisoformat(text.strip())
            case "duration":
                return parse_duration(text.strip()) * _MS
    except (ValueError, KeyError, OverflowError):
        raise ArgumentError("Value", text, f"a value of the type {kind}", f"See {element.place}.") from None
    known = "string, int, long, double, boolean, dateTime or duration, in the attribute type"
    raise ArgumentError("The type of a Value", kind, known, f"See {element.place}.")


def write_constant(value: Constant) -> tuple[str, str]:
    """Return type and text. JavaScript can't read ``long`` (trap 30); other clients take any digits for an ``int``."""
    if isinstance(value, bool):
        return "boolean", text_of(value)
    if isinstance(value, int):
        return "int", str(value)
    if isinstance(value, float):
        return "double", _double_text(value)
    if isinstance(value, datetime):
        # A time without a zone comes back without one; the filter takes it for UTC.
        return "dateTime", (value.astimezone(UTC) if value.tzinfo else value).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return "duration", format_duration(max(value // _MS, 0))
    return "string", value


def _double_text(value: float) -> str:
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    return "NaN" if math.isnan(value) else repr(value)
