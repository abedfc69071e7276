"""Reading values from a reply's body.

Each function raises `ClientError` naming the key when the value has another type.
"""

from collections.abc import Mapping

from partibus.amqp.codec.types import Array
from partibus.client.errors import ClientError


def items(body: Mapping[str, object], key: str) -> list[object]:
    """Return an AMQP list or array; [] when it is missing or null."""
    value = body.get(key)
    if value is None:
        return []
    if isinstance(value, Array):
        return value.items
    if isinstance(value, list):
        return value
    raise _unexpected(key, value, "a list")


def maps(body: Mapping[str, object], key: str) -> list[dict[str, object]]:
    """Return a list of maps with text keys."""
    found: list[dict[str, object]] = []
    for value in items(body, key):
        if not isinstance(value, dict):
            raise _unexpected(key, value, "a list of maps")
        found.append({str(name): entry for name, entry in value.items()})
    return found


def texts(body: Mapping[str, object], key: str) -> list[str]:
    """Return a list of texts."""
    values = items(body, key)
    for value in values:
        if not isinstance(value, str):
            raise _unexpected(key, value, "a list of texts")
    return [str(value) for value in values]


def integers(body: Mapping[str, object], key: str) -> list[int]:
    """Return a list of integers."""
    values = items(body, key)
    for value in values:
        if not isinstance(value, int):
            raise _unexpected(key, value, "a list of integers")
    return [int(value) for value in values if isinstance(value, int)]


def binary(body: Mapping[str, object], key: str) -> bytes:
    """Return a binary value."""
    value = body.get(key)
    if not isinstance(value, bytes):
        raise _unexpected(key, value, "binary")
    return value


def integer(body: Mapping[str, object], key: str) -> int:
    """Return an integer."""
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _unexpected(key, value, "an integer")
    return int(value)


def text(body: Mapping[str, object], key: str) -> str:
    """Return a text."""
    value = body.get(key)
    if not isinstance(value, str):
        raise _unexpected(key, value, "text")
    return str(value)


def _unexpected(key: str, value: object, wanted: str) -> ClientError:
    return ClientError(f"the broker's reply has {type(value).__name__} in '{key}', not {wanted}")
