"""The rules for names.

The name of a queue or topic is a path of segments joined by ``/``; a segment has ASCII letters, digits and ``. - _ ~``.
Segments with a meaning in addresses and URLs can't be part of a name. Names compare without case; they are shown as
their creator typed them.
"""

import re

from partibus.errors import ArgumentError
from partibus.filters.model import DEFAULT_RULE

ENTITY_NAME_MAX = 260
"""Characters of a queue's or topic's name, slashes included."""
SHORT_NAME_MAX = 50
"""Characters of the name of a subscription, rule or namespace."""

SUBSCRIPTIONS = "Subscriptions"
RULES = "Rules"
_RESERVED = frozenset({SUBSCRIPTIONS.lower(), RULES.lower()})

_NAMESPACE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{4,48}[A-Za-z0-9]")
_THIS_MACHINE = "localhost"
_SEGMENT = re.compile(r"[A-Za-z0-9._~-]+")
_ONLY_DOTS = re.compile(r"\.+")

_CHARACTERS = "letters, digits and . - _ ~"


def fold_name(name: str) -> str:
    """Fold a name for comparison: equal names fold to equal text."""
    return name.lower()


def check_entity_name(name: str, field: str = "Name") -> str:
    """Return ``name`` if a queue or topic may have it. Raises ArgumentError about ``field``."""
    _check_length(name, ENTITY_NAME_MAX, field)
    for segment in name.split("/"):
        fault = _segment_fault(segment)
        if fault:
            raise ArgumentError(field, name, f"segments of {_CHARACTERS}, joined by single slashes", fault)
    return name


def check_short_name(name: str, field: str = "Name") -> str:
    """Return ``name`` if a subscription, rule or namespace may have it. Raises ArgumentError about ``field``."""
    _check_length(name, SHORT_NAME_MAX, field)
    fault = _segment_fault(name)
    if fault:
        raise ArgumentError(field, name, _CHARACTERS, fault)
    return name


def check_namespace_name(name: str, field: str = "Name") -> str:
    """Return ``name`` if a namespace may have it, as the first label of host names. Raises ArgumentError."""
    if not _NAMESPACE_NAME.fullmatch(name):
        raise ArgumentError(
            field,
            name,
            "6 to 50 letters, digits and hyphens, the first a letter, the last no hyphen",
            "Host names begin with it.",
        )
    if name.lower() == _THIS_MACHINE:
        raise ArgumentError(field, name, f"another name than {_THIS_MACHINE}", "By that the server itself is called.")
    return name


def check_rule_name(name: str, field: str = "Name") -> str:
    """Return ``name`` if a rule may have it: as `check_short_name`, and the name of a subscription's first rule."""
    return name if fold_name(name) == fold_name(DEFAULT_RULE) else check_short_name(name, field)


def subscription_path(topic: str, subscription: str) -> str:
    """Return the name of a subscription among all entities."""
    return f"{topic}/{SUBSCRIPTIONS}/{subscription}"


def split_path(path: str) -> tuple[str, str]:
    """Return topic and subscription of a `subscription_path`, or an entity's name and an empty text."""
    topic, slash, subscription = path.rpartition("/")
    topic, middle, keyword = topic.rpartition("/")
    if slash and middle and keyword.lower() == SUBSCRIPTIONS.lower():
        return topic, subscription
    return path, ""


def _check_length(name: str, length_max: int, field: str) -> None:
    if not 1 <= len(name) <= length_max:
        raise ArgumentError(field, name, f"1 to {length_max} characters long", f"It has {len(name)}.")


def _segment_fault(segment: str) -> str:
    """Return why a name can't have this segment, or an empty text."""
    if not segment:
        return "It begins or ends with a slash, or has two in a row."
    if segment.lower() in _RESERVED or segment[0] == "$":
        return f"The segment '{segment[:SHORT_NAME_MAX]}' is reserved."
    if _ONLY_DOTS.fullmatch(segment):
        return f"The segment '{segment}' has a meaning of its own in a URL."
    if not _SEGMENT.fullmatch(segment):
        strange = next(character for character in segment if not _SEGMENT.fullmatch(character))
        return f"Leave out the character {strange!r}."
    return ""
