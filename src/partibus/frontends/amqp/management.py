"""The `$management` nodes: of each entity and sub-queue, and of the namespace (section 6).

The table lists the operations, the right that each needs, and whether it may be part of a transaction. All is checked
per request, not at attach.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from partibus.errors import InvalidOperation, PartibusError, Unsupported
from partibus.frontends.amqp.claims import Claims
from partibus.frontends.amqp.node import REQUEST_ROOM_BYTES, Reply, Request, Respond
from partibus.frontends.amqp.operations import (
    batch_delete,
    cursors,
    entities,
    locks,
    namespaces,
    operator,
    partitions,
    peek,
    policies,
    ranges,
    receive_deferred,
    rules,
    scheduling,
    sessions,
    sink,
)
from partibus.frontends.amqp.operations.request import (
    ConnectionState,
    EntityOperation,
    EntityRequest,
    body_of,
    failure,
    if_paid,
)
from partibus.namespace.access import Right
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.namespace.names import MANAGEMENT
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.requests import RequestCounters, RequestKind
from partibus.namespace.sas import Path
from partibus.throttling.uses import Operation, client_name

OnNamespace = Callable[[Broker, object, Respond], None]


OnServer = Callable[[Namespaces, object, Respond], None]


def _of_default(operation: OnNamespace) -> OnServer:
    return lambda namespaces, body, respond: operation(namespaces.default, body, respond)


class _Entry(NamedTuple):
    right: Right
    run: EntityOperation
    transactional: bool = False
    """Whether a request may be part of a transaction.

    One client's library marks every request while a transaction is open. So the broker executes reading, receiving
    under lock and renewing at once, whatever the outcome of the transaction.
    """
    administers: bool = False
    """Whether it costs as much as creating, reading, updating and deleting (row R4)."""


ENTITY_OPERATIONS: dict[str, _Entry] = {
    peek.NAME: _Entry(Right.LISTEN, peek.peek, transactional=True),
    scheduling.SCHEDULE: _Entry(Right.SEND, scheduling.schedule_message, transactional=True),
    scheduling.CANCEL: _Entry(Right.SEND, scheduling.cancel_scheduled),
    receive_deferred.NAME: _Entry(Right.LISTEN, receive_deferred.receive_deferred, transactional=True),
    locks.UPDATE_DISPOSITION: _Entry(Right.LISTEN, locks.update_disposition, transactional=True),
    locks.RENEW: _Entry(Right.LISTEN, locks.renew_lock, transactional=True),
    batch_delete.NAME: _Entry(Right.LISTEN, batch_delete.batch_delete),
    sessions.RENEW: _Entry(Right.LISTEN, sessions.renew, transactional=True),
    sessions.GET_STATE: _Entry(Right.LISTEN, sessions.get_state, transactional=True),
    sessions.SET_STATE: _Entry(Right.LISTEN, sessions.set_state),
    sessions.LIST: _Entry(Right.LISTEN, sessions.list_sessions, transactional=True),
    ranges.PARTITIONS: _Entry(Right.LISTEN, ranges.partitions),
    ranges.WAIT: _Entry(Right.LISTEN, ranges.wait),
    ranges.READ_RANGE: _Entry(Right.LISTEN, ranges.read_range),
    ranges.READ_DISPOSITIONS: _Entry(Right.LISTEN, ranges.read_dispositions),
    cursors.OPEN: _Entry(Right.LISTEN, cursors.open_cursor),
    cursors.ADVANCE: _Entry(Right.LISTEN, cursors.advance_cursor),
    cursors.CLOSE: _Entry(Right.LISTEN, cursors.close_cursor),
    cursors.LIST: _Entry(Right.LISTEN, cursors.cursors),
    sink.PUT: _Entry(Right.SEND, sink.put),
    sink.COMMIT: _Entry(Right.SEND, sink.commit),
    rules.ADD: _Entry(Right.MANAGE, rules.add, administers=True),
    rules.REMOVE: _Entry(Right.MANAGE, rules.remove, administers=True),
    rules.ENUMERATE: _Entry(Right.MANAGE, rules.enumerate_rules, administers=True),
}

NAMESPACE_OPERATIONS: dict[str, OnNamespace] = {
    entities.CREATE: entities.create,
    entities.GET: entities.get,
    entities.LIST: entities.list_all,
    entities.UPDATE: entities.update,
    entities.DELETE: entities.delete,
    entities.EXPORT: entities.export,
    policies.LIST: policies.list_all,
    policies.SET: policies.set_one,
    policies.REGENERATE: policies.regenerate,
    policies.DELETE: policies.delete,
    operator.FAIL: operator.fail,
    operator.SLOW: operator.slow,
    operator.HEAL: operator.heal,
    operator.LIST: operator.list_all,
    partitions.LIST: partitions.list_all,
    partitions.REBALANCE: partitions.rebalance_entity,
    operator.TRAFFIC: operator.traffic,
}
"""The operations on a namespace; each needs Manage."""

FAULT_INJECTIONS = frozenset((operator.FAIL, operator.SLOW, operator.HEAL, operator.LIST))
"""The fault injection operations. They cost nothing: an operator must always be able to end a fault."""

OPERATORS = FAULT_INJECTIONS | {policies.LIST, policies.SET, policies.REGENERATE, policies.DELETE}
"""Operations that show or make keys, or concern all stores: not for grants that do not operate (`Grant.operates`)."""

SERVER_OPERATIONS: dict[str, OnServer] = {
    operator.STATUS: _of_default(operator.status),
    operator.BACK_UP: _of_default(operator.back_up),
    namespaces.CREATE: namespaces.create,
    namespaces.LIST: namespaces.list_all,
    namespaces.GET: namespaces.get,
    namespaces.UPDATE: namespaces.update,
    namespaces.MIGRATE: namespaces.migrate,
    namespaces.DELETE: namespaces.delete,
    namespaces.RESET_KEYS: namespaces.reset_keys,
}
"""Operations that concern all namespaces: for the server's operator, who may manage the default one."""


class EntityManagement:
    """The node of an entity. It belongs to the path, and follows it to an entity that was created again."""

    def __init__(self, entity: Entity, kind: int, path: Path, connection: ConnectionState) -> None:
        self._entity = entity
        self._kind = kind
        self._path = path
        self._connection = connection

    @property
    def request_bytes_max(self) -> int:
        """The largest message or session state that a request carries, with room for the rest."""
        return max(self._entity.queue.message_size_max_bytes, sink.REQUEST_BYTES_MAX) + REQUEST_ROOM_BYTES

    def handle(self, request: Request, respond: Respond) -> None:
        """Run the operation that the request names."""
        respond = _counted(self._entity.requests, respond)
        operation = ENTITY_OPERATIONS.get(request.operation)
        if operation is None:
            respond(failure(_unknown(request.operation, ENTITY_OPERATIONS)))
            return

        def run() -> None:
            self._connection.claims.require(operation.right, self._path)
            if self._entity.queue.deleted:
                # The link belongs to the address: a new entity at the same path answers.
                self._entity = self._connection.broker.entity(self._entity.queue.name)
            if request.transaction is not None and not operation.transactional:
                raise InvalidOperation(
                    f"{request.operation} can't be part of a transaction. Ask for it outside of the transaction."
                )
            of_entity = EntityRequest(
                self._entity,
                self._kind,
                body_of(request.body),
                request.transaction,
                self._connection,
                respond,
            )
            if operation.administers:
                of_entity.when_paid(Operation.MANAGEMENT, 1, lambda: operation.run(of_entity))
            else:
                operation.run(of_entity)

        _guarded(run, respond)


class NamespaceManagement:
    """The `$management` node of the namespace."""

    def __init__(self, namespaces: Namespaces, broker: Broker, claims: Claims, client: str = "") -> None:
        """Serve the namespace of ``broker``, one of ``namespaces``. ``client``: the container id of its open."""
        self._client = client
        self._namespaces = namespaces
        self._broker = broker
        self._claims = claims

    @property
    def request_bytes_max(self) -> int:
        """The largest request to the node."""
        return REQUEST_ROOM_BYTES

    def handle(self, request: Request, respond: Respond) -> None:
        """Run the operation that the request names."""
        respond = _counted(self._broker.requests, respond)
        operation = NAMESPACE_OPERATIONS.get(request.operation)
        of_server = SERVER_OPERATIONS.get(request.operation)
        if operation is None and of_server is None:
            respond(failure(_unknown(request.operation, (*NAMESPACE_OPERATIONS, *SERVER_OPERATIONS))))
            return

        def run() -> None:
            self._claims.require(Right.MANAGE, (MANAGEMENT,))
            if operation is None or request.operation in OPERATORS:
                self._claims.require_operator()
            if operation is not None:
                self._run(request, operation, respond)
            elif of_server is not None:
                self._check_default(request.operation)
                of_server(self._namespaces, request.body, respond)

        _guarded(run, respond)

    def _run(self, request: Request, operation: OnNamespace, respond: Respond) -> None:
        def go_on() -> None:
            operation(self._broker, request.body, respond)

        uses = self._broker.throttle.uses
        if uses is not None and request.operation not in FAULT_INJECTIONS:
            uses.add("", client_name(self._client), Operation.MANAGEMENT, 1, 1)

        if request.operation in FAULT_INJECTIONS:
            go_on()
        else:
            if_paid(self._broker.throttle, Operation.MANAGEMENT, 1, respond, go_on)

    def _check_default(self, operation: str) -> None:
        if self._broker is not self._namespaces.default:
            raise InvalidOperation(
                f"{operation} concerns the whole server, and '{self._broker.namespace.name}' is one of its namespaces. "
                "Ask the default namespace."
            )


def _counted(requests: RequestCounters, respond: Respond) -> Respond:
    """Count the request when it is answered (row R13)."""

    def count(reply: Reply) -> None:
        requests.answered_status(RequestKind.MANAGEMENT, int(reply.properties.get("statusCode", 200)))  # type: ignore[call-overload]
        respond(reply)

    return count


def _guarded(run: Callable[[], None], respond: Respond) -> None:
    """Run an operation; if it fails, respond with its error and harm nothing else."""
    try:
        run()
    except PartibusError as error:
        respond(failure(error))


def _unknown(operation: str, known: Iterable[str]) -> PartibusError:
    return Unsupported(f"The operation {operation!r}", f"This node knows {', '.join(known)}.")
