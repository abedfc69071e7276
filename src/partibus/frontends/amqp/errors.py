"""Maps core errors to conditions on the wire and status codes of request/response nodes.

By the condition, clients choose their exception and whether they retry (Service Bus dialect, section 7.1).
"""

from typing import Final

from partibus import errors as core
from partibus.amqp import AmqpError
from partibus.errors import PartibusError

CONDITIONS: Final[dict[type[PartibusError], tuple[str, int]]] = {
    core.EntityNotFound: ("amqp:not-found", 404),
    core.EntityExists: ("com.microsoft:entity-already-exists", 409),
    core.EntityChanged: ("amqp:precondition-failed", 412),
    core.InvalidOperation: ("amqp:not-allowed", 400),
    core.ArgumentError: ("com.microsoft:argument-error", 400),
    core.MessageTooLarge: ("amqp:link:message-size-exceeded", 403),
    core.QuotaExceeded: ("amqp:resource-limit-exceeded", 403),
    core.MessageLockLost: ("com.microsoft:message-lock-lost", 410),
    core.MessageNotFound: ("com.microsoft:message-not-found", 404),
    core.SessionLockLost: ("com.microsoft:session-lock-lost", 410),
    core.SessionCannotBeLocked: ("com.microsoft:session-cannot-be-locked", 410),
    # The only condition that no client library treats as transient (section 7.1): each raises at once.
    core.ReadExclusively: ("amqp:not-allowed", 409),
    core.CursorHeld: ("partibus:cursor-held", 409),
    core.CursorLost: ("partibus:cursor-lost", 410),
    core.TransactionUnknown: ("amqp:transaction:unknown-id", 400),
    core.TransactionRolledBack: ("amqp:transaction:rollback", 400),
    core.TransactionTimedOut: ("amqp:transaction:timeout", 400),
    core.EntityDisabled: ("com.microsoft:entity-disabled", 400),
    core.Unauthorized: ("amqp:unauthorized-access", 401),
    core.ServerBusy: ("com.microsoft:server-busy", 503),
    core.StoreUnavailable: ("com.microsoft:server-busy", 503),
    core.OutcomeUnknown: ("com.microsoft:timeout", 408),
    core.Unsupported: ("amqp:not-implemented", 501),
    core.Timeout: ("com.microsoft:timeout", 408),
    core.InternalError: ("amqp:internal-error", 500),
}
"""Error class -> (condition, status code)."""


def status_of(error: PartibusError) -> int:
    """Return the status code of a node's reply."""
    return CONDITIONS[type(error)][1]


def amqp_error(error: PartibusError, host: str = "") -> AmqpError:
    """Return the error for close, end, detach and rejected.

    ``host``: the host name in the client's open. Live tests of one client library expect the entity's whole address in
    the refusal of a link.
    """
    if host and isinstance(error, core.EntityNotFound):
        error = core.EntityNotFound(f"sb://{host}/{error.name}")
    return AmqpError(CONDITIONS[type(error)][0], str(error))
