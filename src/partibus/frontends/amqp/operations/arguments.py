"""Reads the maps of requests. Accepts integers of any width, and lists for arrays (section 6.2)."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from partibus.amqp.codec.types import Array
from partibus.errors import ArgumentError

ITEMS_MAX: Final = 5_000
"""The most lock tokens or sequence numbers in one request: as many as a link may hold unsettled."""

_REQUIRED = object()
_LONG_BYTES: Final = 9
"""The bytes of the widest number in AMQP, 2^64 - 1, with its sign."""


def body_of(body: object) -> Mapping[object, object]:
    """Return the request's map. Raises `ArgumentError`."""
    if not isinstance(body, dict):
        raise ArgumentError("body", type(body).__name__, "a map")
    return body


def integer(body: Mapping[object, object], name: str, least: int, most: int, default: object = _REQUIRED) -> int:
    """Return an integer from ``least`` to ``most``. Raises `ArgumentError`."""
    value = body.get(name)
    if value is None and isinstance(default, int):
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ArgumentError(name, value, f"a whole number from {least} to {most}")
    return int(value)


def text(body: Mapping[object, object], name: str) -> str:
    """Return a string. Raises `ArgumentError`."""
    value = optional_text(body, name)
    if value is None:
        raise ArgumentError(name, value, "a string")
    return value


def optional_text(body: Mapping[object, object], name: str) -> str | None:
    """Return a string, or None if it is missing. Raises `ArgumentError`."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentError(name, value, "a string")
    return str(value)


def boolean(body: Mapping[object, object], name: str) -> bool:
    """Return a boolean; False if it is missing. Raises `ArgumentError`."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(name, value, "a boolean")
    return bool(value)


def by_partition(body: Mapping[object, object], name: str, partitions: int, least: int, most: int) -> dict[int, int]:
    """Return a map of partition ids to integers from ``least`` to ``most``. Raises `ArgumentError`.

    The map is empty if it is missing.
    """
    found: dict[int, int] = {}
    for key, value in mapping(body, name).items():
        if not isinstance(key, int) or isinstance(key, bool) or not 0 <= key < partitions:
            raise ArgumentError(name, key, f"a map by partition ids from 0 to {partitions - 1}")
        found[int(key)] = integer({name: value}, name, least, most)
    return found


def mapping(body: Mapping[object, object], name: str) -> Mapping[object, object]:
    """Return a map, empty if it is missing. Raises `ArgumentError`."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentError(name, value, "a map")
    return value


def items(body: Mapping[object, object], name: str, what: str, most: int = ITEMS_MAX) -> list[object]:
    """Return the elements of an array or list with 1 to ``most`` elements. Raises `ArgumentError`."""
    value = body.get(name)
    found = value.items if isinstance(value, Array) else value
    if not isinstance(found, list):
        raise ArgumentError(name, found, f"an array of {what}")
    if not 1 <= len(found) <= most:
        raise ArgumentError(name, f"{len(found)} {what}", f"from 1 to {most} of them")
    return found


def sequence_numbers(body: Mapping[object, object]) -> list[int]:
    """Return the ``sequence-numbers`` of a request without repetitions. Raises `ArgumentError`."""
    name = "sequence-numbers"
    found: dict[bytes, int] = {}  # by bytes: a client can choose numbers with one hash
    for value in items(body, name, "sequence numbers"):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentError(name, value, "an array of longs")
        found[int(value).to_bytes(_LONG_BYTES, signed=True)] = int(value)
    return list(found.values())


def lock_tokens(body: Mapping[object, object]) -> list[UUID]:
    """Return the ``lock-tokens`` of a request, in order. Raises `ArgumentError`."""
    name = "lock-tokens"
    found: list[UUID] = []
    for value in items(body, name, "lock tokens"):
        if not isinstance(value, UUID):
            raise ArgumentError(name, value, "an array of uuids")
        found.append(value)
    return found
