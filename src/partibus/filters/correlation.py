"""Correlation filters in an index: thousands of them cost about as much as one (D17, row C38).

Filters that compare the same set of properties form one group, a dictionary keyed by the values that they compare. A
message needs one look-up in each group. Topics have few groups, since authors of filters compare the same properties in
all of them.

Names of application properties compare without case, texts with case. Types must match as far as `values` distinguishes
kinds: 5 equals 5.0 (JavaScript's library knows only doubles) but neither a text nor a boolean.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar, cast
from uuid import UUID

from partibus.amqp.codec.types import Timestamp
from partibus.filters.model import CorrelationFilter
from partibus.filters.values import Ticks, plain
from partibus.filters.view import SYSTEM_PROPERTIES, MessageView

T = TypeVar("T")

SYSTEM_FIELDS: Final = {
    "correlation_id": "correlationid",
    "message_id": "messageid",
    "to": "to",
    "reply_to": "replyto",
    "label": "label",
    "session_id": "sessionid",
    "reply_to_session_id": "replytosessionid",
    "content_type": "contenttype",
}
"""The members of a `CorrelationFilter`, and the system properties to which they apply."""

_Names = tuple[tuple[str, ...], tuple[str, ...]]
"""System properties and application properties, in lower case and sorted."""

_THEMSELVES: Final = frozenset({str, bytes, bool, type(None)})
_APART: Final = frozenset({Timestamp, Ticks})


def _key(value: object) -> object:
    """Return the dictionary key of a value.

    Python seeds the hashes of texts and bytes, but a tenant can choose a thousand numbers or UUIDs with one hash. The
    key of those is their digits. A value without a kind (AMQP allows lists) equals no value.
    """
    kind = type(value)
    if kind in _THEMSELVES:
        return value
    if kind is int:
        return int, str(value)
    if kind is float:
        number = cast("float", value)
        return (int, str(int(number))) if number.is_integer() else (float, number.hex())
    if kind is UUID:
        return cast("UUID", value).bytes, UUID
    return (kind, str(int(cast("int", value)))) if kind in _APART else object()


class CorrelationIndex(Generic[T]):
    """An index from filters to values of the caller's type ``T``, with one value for each different filter."""

    def __init__(self) -> None:
        self._groups: dict[_Names, dict[tuple[object, ...], T]] = {}

    def __len__(self) -> int:
        """Return the number of look-ups that one message costs."""
        return len(self._groups)

    def setdefault(self, described: CorrelationFilter, default: T) -> T:
        """Return the value of a filter that compares a property, or set it to ``default``."""
        system = {
            name: value for member, name in SYSTEM_FIELDS.items() if (value := getattr(described, member)) is not None
        }
        user = {name.lower(): value for name, value in described.properties.items()}
        names = tuple(sorted(system)), tuple(sorted(user))
        values = *(system[name] for name in names[0]), *(_key(plain(user[name])) for name in names[1])
        return self._groups.setdefault(names, {}).setdefault(values, default)

    def found(self, view: MessageView) -> Iterator[T]:
        """Yield the values of the filters that select the message."""
        for (system, user), known in self._groups.items():
            values: list[object] = [SYSTEM_PROPERTIES[name](view) for name in system]
            if user:
                properties = view.user
                values += [_key(properties.get(name)) for name in user]
            hit = known.get(tuple(values))
            if hit is not None:
                yield hit


def compares_nothing(described: CorrelationFilter) -> bool:
    """Tell whether a filter compares no property and so selects every message."""
    return not described.properties and all(getattr(described, member) is None for member in SYSTEM_FIELDS)
