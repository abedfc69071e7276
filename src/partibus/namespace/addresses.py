"""Addresses that clients attach to.

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

from msgspec import Struct

from partibus.errors import ArgumentError
from partibus.namespace.names import SUBSCRIPTIONS, check_entity_name, check_short_name

CBS = "$cbs"
MANAGEMENT = "$management"
DEAD_LETTER_QUEUE = "$DeadLetterQueue"
TRANSFER = "$Transfer"

_TEXT_MAX = 1024
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


def parse_address(text: str) -> Address:
    """Return the `Address` of any accepted form. Raises `ArgumentError` for every other text."""
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
