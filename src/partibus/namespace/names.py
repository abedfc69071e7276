"""Names of entities, and the addresses that clients attach to.

The name of a queue or topic is a path of segments joined by ``/``; a segment has ASCII letters, digits and ``. - _ ~``.
Segments with a meaning in addresses and URLs can't be part of a name. Names compare without case; they are shown as
their creator typed them.

An address names an entity, one of its sub-queues, or a node:

```text
 [amqp:// amqps:// sb:// host[:port]] [/] name                                queue or topic
                                          topic/Subscriptions/sub             subscription
                                          either/$DeadLetterQueue             its sub-queues
                                          either/$Transfer/$DeadLetterQueue
                                          any of these/$management            its management node
                                          $cbs                                the token node
```

Keywords compare without case. The host is not compared: a server with one namespace serves any host.
"""

import re
from enum import IntEnum
from functools import lru_cache

from msgspec import Struct

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


CBS = "$cbs"
MANAGEMENT = "$management"
DEAD_LETTER_QUEUE = "$DeadLetterQueue"
TRANSFER = "$Transfer"

_TEXT_MAX = 1024
PARSED_MAX = 256
"""Parsed addresses that are remembered: some 100 KB."""
_ORIGIN = re.compile(r"(?:amqps?|sb)://(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/", re.IGNORECASE)
_FORM = "an entity's name, topic/Subscriptions/name, their $DeadLetterQueue or $management, or $cbs"


class Subqueue(IntEnum):
    """The sub-queues of a queue or subscription, numbered as partitions number them."""

    ACTIVE = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2


_SUFFIX = {
    Subqueue.ACTIVE: "",
    Subqueue.DEAD_LETTER: f"/{DEAD_LETTER_QUEUE}",
    Subqueue.TRANSFER_DEAD_LETTER: f"/{TRANSFER}/{DEAD_LETTER_QUEUE}",
}


def subqueue_path(entity_path: str, kind: int) -> str:
    """Return the canonical address of a sub-queue."""
    return entity_path + _SUFFIX[Subqueue(kind)]


class Address(Struct, frozen=True):
    """A parsed address.

    ``entity`` is the name of a queue or topic as it was typed, or `CBS`; ``subscription`` is empty, or the name of one
    of the topic's subscriptions.
    """

    entity: str
    subscription: str = ""
    subqueue: Subqueue = Subqueue.ACTIVE
    management: bool = False

    @property
    def is_cbs(self) -> bool:
        """Whether this is the token node of the connection and no entity at all."""
        return self.entity == CBS

    @property
    def entity_path(self) -> str:
        """Canonical path of the queue, topic or subscription, without sub-queue and management node."""
        return f"{self.entity}/{SUBSCRIPTIONS}/{self.subscription}" if self.subscription else self.entity

    @property
    def path(self) -> str:
        """The canonical address; parses to an equal `Address`."""
        return self.entity_path + _SUFFIX[self.subqueue] + (f"/{MANAGEMENT}" if self.management else "")

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments of `path` in lower case: what grants compare."""
        return tuple(self.path.lower().split("/"))


@lru_cache(PARSED_MAX)
def parse_address(text: str) -> Address:
    """Return the `Address` of any accepted form. Raises `ArgumentError` for every other text.

    A client with many links attaches them to few addresses, and an attach needs its address twice.
    """
    if len(text) > _TEXT_MAX:
        raise ArgumentError("address", text, f"at most {_TEXT_MAX} characters long", f"It has {len(text)}.")
    segments = _without_origin(text).split("/")
    if len(segments) == 1 and _is(segments[0], CBS):
        return Address(CBS)
    management = _is(segments[-1], MANAGEMENT)
    if management:
        segments.pop()
    subqueue = _pop_subqueue(segments)
    subscription = ""
    if len(segments) >= 3 and _is(segments[-2], SUBSCRIPTIONS):
        subscription = check_short_name(segments.pop(), "subscription in the address")
        segments.pop()
    if not segments:
        raise ArgumentError("address", text, _FORM)
    entity = check_entity_name("/".join(segments), "entity in the address")
    return Address(entity, subscription, subqueue, management)


def _without_origin(text: str) -> str:
    """Return the path without scheme, host and port, and without the one leading slash that some clients send."""
    if "://" not in text:
        return text.removeprefix("/")
    origin = _ORIGIN.match(text)
    if origin is None:
        raise ArgumentError("address", text, "amqp://, amqps:// or sb://, a host, an optional port, and a path")
    if origin[1] is not None and int(origin[1]) > 65_535:
        raise ArgumentError("port in the address", origin[1], "0 to 65535")
    return text[origin.end() :]


def _pop_subqueue(segments: list[str]) -> Subqueue:
    """Remove the segments of a sub-queue from the end, and return the sub-queue."""
    if not segments or not _is(segments[-1], DEAD_LETTER_QUEUE):
        return Subqueue.ACTIVE
    segments.pop()
    if not segments or not _is(segments[-1], TRANSFER):
        return Subqueue.DEAD_LETTER
    segments.pop()
    return Subqueue.TRANSFER_DEAD_LETTER


def _is(segment: str, keyword: str) -> bool:
    return segment.lower() == keyword.lower()
