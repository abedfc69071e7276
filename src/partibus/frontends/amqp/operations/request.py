"""The input of an operation on a `$management` node, its arguments, and its reply (sections 6.2 to 6.4).

An operation is a function of one `EntityRequest`. It reads the arguments, raises a `PartibusError` for invalid ones,
and calls ``respond`` once, now or later. It ignores the client's ``associated-link-name``: that link may have ended,
and the operations need locks and rights, not links.

Arguments may be integers of any width, and lists for arrays (section 6.2). Replies spell the status properties in camel
case (trap 23, section 6.4).
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from msgspec import Struct

from partibus.amqp.codec.types import Array, Int, Symbol
from partibus.errors import ArgumentError, PartibusError, SessionLockLost
from partibus.frontends.amqp.claims import Claims
from partibus.frontends.amqp.errors import CONDITIONS
from partibus.frontends.amqp.ingress import Ingress
from partibus.frontends.amqp.node import Reply, Respond
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.partition.protocol.host import Timer
from partibus.routing.partitions import PartitionHandle
from partibus.routing.transactions import Transactions
from partibus.throttling.throttle import Throttle
from partibus.throttling.uses import Operation, client_name

ANSWER_BYTES_MAX = 8 << 20
"""The bytes of messages in one answer; a client requests the rest with its next request."""


def success(body: dict[object, object] | None = None) -> Reply:
    """Return 200 with a body."""
    return Reply({"statusCode": Int(200), "statusDescription": "OK"}, body if body is not None else {})


def no_content(condition: str | None = None) -> Reply:
    """Return 204, an empty result that is no error; some operations add a condition."""
    properties: dict[str, object] = {"statusCode": Int(204), "statusDescription": "No Content"}
    if condition is not None:
        properties["errorCondition"] = Symbol(condition)
    return Reply(properties)


def failure(error: PartibusError, body: dict[object, object] | None = None) -> Reply:
    """Return the status code and condition of an error; clients prefer the condition.

    The clients of the Azure SDKs ignore the body of a failure.
    """
    condition, code = CONDITIONS[type(error)]
    properties: dict[str, object] = {
        "statusCode": Int(code),
        "statusDescription": str(error),
        "errorCondition": Symbol(condition),
    }
    return Reply(properties, body)


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
