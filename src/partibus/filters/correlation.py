"""Correlation filters, answered from an index: thousands of them cost about as much as one (D17, row C38).

Filters that compare the same set of properties are one group, a dictionary from the values that they ask for. A
message is looked up once in each group; topics have few groups, since whoever writes filters compares the same
properties in all of them.

Names of application properties compare without case, texts with it. Types have to be the same as far as `values`
tells kinds apart: 5 is 5.0 for it (JavaScript's library knows doubles only) but is no text and no boolean.
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
"""Members of a `CorrelationFilter`, and the system properties that they compare with."""

_Names = tuple[tuple[str, ...], tuple[str, ...]]
"""System properties and application properties, in lower case and sorted."""

_THEMSELVES: Final = frozenset({str, bytes, bool, type(None)})
_APART: Final = frozenset({Timestamp, Ticks})


def _key(value: object) -> object:
    """Return what finds a value in a dictionary.

    Python seeds the hashes of texts and bytes, and a tenant can choose a thousand numbers or UUIDs with one hash: those
    are looked up by their digits. A value of no kind (AMQP allows lists) is equal to nothing."""
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
    """What belongs to each filter, found by message. ``T`` is the caller's: one object for each different filter."""

    def __init__(self) -> None:
        self._groups: dict[_Names, dict[tuple[object, ...], T]] = {}

    def __len__(self) -> int:
        """Look-ups that one message costs."""
        return len(self._groups)

    def setdefault(self, described: CorrelationFilter, default: T) -> T:
        """What belongs to a filter that compares something, or ``default``, which then does."""
        system = {
            name: value for member, name in SYSTEM_FIELDS.items() if (value := getattr(described, member)) is not None
        }
        user = {name.lower(): value for name, value in described.properties.items()}
        names = tuple(sorted(system)), tuple(sorted(user))
        values = *(system[name] for name in names[0]), *(_key(plain(user[name])) for name in names[1])
        return self._groups.setdefault(names, {}).setdefault(values, default)

    def found(self, view: MessageView) -> Iterator[T]:
        """What belongs to the filters that select the message."""
        for (system, user), known in self._groups.items():
            values: list[object] = [SYSTEM_PROPERTIES[name](view) for name in system]
            if user:
                properties = view.user
                values += [_key(properties.get(name)) for name in user]
            hit = known.get(tuple(values))
            if hit is not None:
                yield hit


def compares_nothing(described: CorrelationFilter) -> bool:
    """True for a filter that asks for no value and so selects every message."""
    return not described.properties and all(getattr(described, member) is None for member in SYSTEM_FIELDS)
