"""What an operation of an entity's `$management` node is given (sections 6.2 and 6.3).

An operation is a function of one `EntityRequest`: it reads the arguments, raises a `PartibusError` for what is wrong
with them, and calls ``respond`` once, now or later. On whose behalf a client asks (its ``associated-link-name``) is
not looked at: that link may be gone, and what is asked for needs locks and rights, not links.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from partibus.errors import SessionLockLost
from partibus.frontends.amqp.claims import Claims
from partibus.frontends.amqp.ingress import Ingress
from partibus.frontends.amqp.node import Respond
from partibus.namespace.broker import Broker, Entity
from partibus.routing.partitions import PartitionHandle
from partibus.routing.transactions import Transactions

SESSION_ID: Final = "session-id"
"""The argument by which operations name a session."""


class HeldSession(NamedTuple):
    """A session under lock."""

    partition: PartitionHandle
    lock_id: int


class HeldSessions(Protocol):
    """The sessions that the receiver links of one connection hold."""

    def find(self, entity: Entity, session: str) -> HeldSession | None:
        """The session's lock; None when no link of this connection holds it (any more)."""
        ...


@dataclass(slots=True)
class ConnectionState:
    """What operations may use of the connection that their request came on."""

    broker: Broker
    claims: Claims
    ingress: Ingress
    sessions: HeldSessions
    transactions: Transactions
    """Those that its coordinator links have declared."""


@dataclass(slots=True)
class EntityRequest:
    """One request to the node of a sub-queue."""

    entity: Entity
    kind: int
    """Of the sub-queue (`partibus.partition.keys.SubqueueKind`)."""
    arguments: Mapping[object, object]
    """The body of the request."""
    transaction: bytes | None
    """The transaction that it is to be part of (section 8)."""
    connection: ConnectionState
    respond: Respond

    def lock_of(self, session: str) -> HeldSession:
        """The lock of a session. Raises `SessionLockLost` when no link of the same connection holds it."""
        held = self.connection.sessions.find(self.entity, session)
        if held is None:
            raise SessionLockLost(self.entity.queue.name, session)
        return held


EntityOperation = Callable[[EntityRequest], None]
