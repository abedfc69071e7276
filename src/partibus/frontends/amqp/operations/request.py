"""The input of an operation on an entity's `$management` node (sections 6.2 and 6.3).

An operation is a function of one `EntityRequest`. It reads the arguments, raises a `PartibusError` for invalid ones,
and calls ``respond`` once, now or later. It ignores the client's ``associated-link-name``: that link may have ended,
and the operations need locks and rights, not links.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from partibus.errors import PartibusError, SessionLockLost
from partibus.frontends.amqp.claims import Claims
from partibus.frontends.amqp.ingress import Ingress
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.status import failure
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.partition.protocol.host import Timer
from partibus.routing.partitions import PartitionHandle
from partibus.routing.transactions import Transactions
from partibus.throttling.throttle import Throttle
from partibus.throttling.uses import Operation, client_name

SESSION_ID: Final = "session-id"
"""The argument by which operations name a session."""


CallLater = Callable[[float, Callable[[], None]], Timer]
"""A function that schedules a call after a number of milliseconds of real time.

A client's waiting time does not depend on the broker's clock (D26).
"""


class HeldSession(NamedTuple):
    """A session under lock."""

    partition: PartitionHandle
    lock_id: int


class HeldSessions(Protocol):
    """The sessions that the receiver links of one connection hold."""

    def find(self, entity: Entity, session: str) -> HeldSession | None:
        """Return the session's lock; None if no link of this connection holds it."""
        ...


class ConnectionState(Struct):
    """The state of the connection that operations may use."""

    broker: Broker
    claims: Claims
    ingress: Ingress
    sessions: HeldSessions
    transactions: Transactions
    """The transactions that its coordinator links have declared."""
    call_later: CallLater
    """A timer; 0 ms: after others have had their turn."""
    client: str = ""
    """The container id of the client's open."""


class EntityRequest(Struct):
    """One request to the node of a sub-queue."""

    entity: Entity
    kind: int
    """The kind of the sub-queue (`partition.protocol.keys.SubqueueKind`)."""
    arguments: Mapping[object, object]
    """The body of the request."""
    transaction: bytes | None
    """The transaction that the request names (section 8)."""
    connection: ConnectionState
    respond: Respond

    def lock_of(self, session: str) -> HeldSession:
        """Return the lock of a session. Raises `SessionLockLost` if no link of the same connection holds it."""
        held = self.connection.sessions.find(self.entity, session)
        if held is None:
            raise SessionLockLost(self.entity.queue.name, session)
        return held

    @property
    def throttle(self) -> Throttle:
        """The throttle of the namespace's credits."""
        return self.connection.broker.throttle

    def when_paid(self, operation: Operation, count: int, go_on: Callable[[], None]) -> None:
        """Go on if the namespace has credits for ``count`` units; otherwise respond with the refusal.

        A `PartibusError` of ``go_on`` is sent as the response, too.
        """
        if self.throttle.uses is not None:
            self.throttle.uses.add(self.entity.queue.name, client_name(self.connection.client), operation, 1, count)
        if_paid(self.throttle, operation, count, self.respond, go_on)

    def when_sends_paid(self, count: int, go_on: Callable[[], None]) -> None:
        """Do as `when_paid`, for ``count`` messages that are sent to the entity."""
        self.note_sends(count)
        if not self.throttle.active:
            go_on()
            return
        known = _paid(self.throttle, self.respond, go_on)
        at_once = self.throttle.admit_send(count, self.entity.queue.rule_count, known)
        if at_once is not None:
            known(at_once)

    def note_sends(self, count: int) -> None:
        """Charge the namespace for ``count`` messages to be sent to the entity."""
        uses, queue = self.throttle.uses, self.entity.queue
        if uses is not None:
            client = client_name(self.connection.client)
            uses.add(queue.name, client, Operation.SEND, 1, count)
            if queue.rule_count:
                uses.add(queue.name, client, Operation.FILTER, 1, count * queue.rule_count)

    def check_not_exhausted(self, operation: Operation) -> None:
        """Raise `ServerBusy` if this period has no credits left, before any work for the request."""
        if self.throttle.enforces and self.throttle.refuses(operation):
            self.throttle.refused(operation)
            raise self.throttle.refusal()


def if_paid(throttle: Throttle, operation: Operation, count: int, respond: Respond, go_on: Callable[[], None]) -> None:
    """Go on if the namespace has credits (`EntityRequest.when_paid`)."""
    if not throttle.active:
        go_on()
        return
    known = _paid(throttle, respond, go_on)
    at_once = throttle.admit(operation, count, known)
    if at_once is not None:
        known(at_once)


def _paid(throttle: Throttle, respond: Respond, go_on: Callable[[], None]) -> Callable[[bool], None]:
    def known(admitted: bool) -> None:
        if not admitted:
            respond(failure(throttle.refusal()))
            return
        try:
            go_on()
        except PartibusError as error:
            respond(failure(error))

    return known


EntityOperation = Callable[[EntityRequest], None]
