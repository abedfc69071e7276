"""Reading the maps that requests carry. Integers of any width are taken (section 6.2)."""

from collections.abc import Mapping

from partibus.errors import ArgumentError

_REQUIRED = object()


def body_of(body: object) -> Mapping[object, object]:
    """The request's map. Raises `ArgumentError`."""
    if not isinstance(body, dict):
        raise ArgumentError("body", type(body).__name__, "a map")
    return body


def integer(body: Mapping[object, object], name: str, least: int, most: int, default: object = _REQUIRED) -> int:
    """A whole number from ``least`` to ``most``. Raises `ArgumentError`."""
    value = body.get(name)
    if value is None and isinstance(default, int):
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ArgumentError(name, value, f"a whole number from {least} to {most}")
    return int(value)


def text(body: Mapping[object, object], name: str) -> str:
    """A string. Raises `ArgumentError`."""
    value = body.get(name)
    if not isinstance(value, str):
        raise ArgumentError(name, value, "a string")
    return str(value)
