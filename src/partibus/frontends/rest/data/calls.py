"""One request about messages, and the resource of its path.

```text
 POST             /{entity}/messages                      send
 POST, DELETE     /{entity}/messages/head                 receive under lock, receive and delete
 DELETE PUT POST  /{entity}/messages/{number}/{token}     complete, unlock, renew
```

``entity`` is the name of a queue or topic, ``topic/Subscriptions/name``, or one of these with a sub-queue behind it.
"""

from typing import NamedTuple
from uuid import UUID

from msgspec import Struct
from starlette.requests import Request

from partibus.errors import ArgumentError, EntityNotFound
from partibus.frontends.rest.data.message_in import MessageReader
from partibus.frontends.rest.requests import Handover
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.namespace.names import Address, parse_address
from partibus.namespace.sas import Path

MESSAGES = "messages"
HEAD = "head"


class Place(NamedTuple):
    """The resource of a path below an entity."""

    entity: str
    """The name as the client wrote it."""
    below: tuple[str, ...]
    """The segments behind ``messages``."""
    claim_path: Path
    """All segments in lower case."""

    @property
    def address(self) -> Address:
        """EntityNotFound when nothing can have such a name."""
        try:
            address = parse_address(self.entity)
        except ArgumentError:
            raise EntityNotFound(self.entity) from None
        if address.management or address.is_cbs:
            raise EntityNotFound(self.entity)
        return address


def read_lock(place: Place) -> UUID | None:
    """Return the lock token of an address; None when it has none."""
    try:
        return UUID(place.below[1])
    except ValueError:
        return None


def parse_place(path: str) -> Place | None:
    """Return the resource of a decoded path; None when it is not about messages."""
    segments = path.strip("/").split("/")
    folded = tuple(segment.lower() for segment in segments)
    for count in (1, 2, 3):
        entity, below = segments[:-count], segments[1 - count :] if count > 1 else []
        if not entity or folded[-count] != MESSAGES or (count == 2 and folded[-1] != HEAD):
            continue
        return Place("/".join(entity), tuple(below), folded)
    return None


class DataCall(Struct):
    """A request whose claim is good for its entity."""

    broker: Broker
    reader: MessageReader
    request: Request
    place: Place
    address: Address
    entity: Entity
    stopping: Handover[None]
    """Given when the broker stops: no request waits for messages any longer."""

    @property
    def kind(self) -> int:
        """The kind of the sub-queue."""
        return int(self.address.subqueue)
