"""The errors of a client, chosen by the AMQP condition in the broker's reply (Service Bus dialect, section 7.1).

`ClientError` is the base. ``condition`` is the broker's condition, None where the client found the error. ``retriable``
tells whether the same call may succeed later. The client itself never repeats a call and never reconnects.
"""

from uuid import UUID

from partibus.amqp import AmqpError
from partibus.errors import PartibusError


class ClientError(PartibusError):
    """Base of the errors for requests that the broker refused or the client could not make."""

    def __init__(self, message: str, condition: str | None = None) -> None:
        super().__init__(message)
        self.args = (message, condition)
        self.condition = condition


class ConnectFailed(ClientError, ConnectionError):
    """Error for an address where no broker answers, or not in AMQP."""

    retriable = True


class ConnectionLost(ClientError, ConnectionError):
    """Error for a connection that ended while in use.

    Requests without an answer may or may not have been executed.
    """

    retriable = True


class TimedOut(ClientError):
    """Error for a request without an answer in the caller's time limit; it may or may not have been executed."""

    retriable = True


class LinkLost(ClientError):
    """Error for a link that the broker detached or whose session it ended.

    The caller may open a new sender or receiver.
    """

    retriable = True


class Closed(LinkLost, ConnectionLost):
    """Error for a call on a client, sender or receiver that this program has closed, and for calls that its end met."""

    retriable = False


class NotFound(ClientError):
    """Error for an entity or message that does not exist."""


class AlreadyExists(ClientError):
    """Error for a name that another entity has."""


class AccessDenied(ClientError):
    """Error for a wrong key, an expired token, or a rule that lacks the right."""


class InvalidRequest(ClientError):
    """Error for a malformed or out-of-range value, or an operation that is not allowed here."""


class MessageTooLarge(ClientError):
    """Error for a message that is larger than the entity's limit."""


class QuotaExceeded(ClientError):
    """Error for an entity that is full."""


class EntityDisabled(ClientError):
    """Error for a direction that the entity's status does not allow."""


class LockLost(ClientError):
    """Error for a lost lock of a message or its session; the broker will redeliver or has redelivered it.

    If an earlier attempt to settle the message may have been carried out, the text ends with "(unknown)".
    """

    tokens: tuple[UUID, ...] = ()
    """The lost lock tokens of a request that settled its other messages; () if the broker named none."""


class SessionHeld(ClientError):
    """Error for a session that another receiver holds."""

    retriable = True


class CursorHeld(ClientError):
    """Error for an entity that another cursor reads exclusively."""


class CursorLost(ClientError):
    """Error for a cursor that does not exist, or whose exclusive lease has ended."""


class Busy(ClientError):
    """Error for a throttled request, or a store that is unavailable."""

    retriable = True


class Throttled(Busy):
    """Error for a namespace whose credits or units are used up.

    The broker is healthy and serves other clients meanwhile. With many clients that may take longer than any failure
    should.
    """


THROTTLED_TIMES = 10
"""The factor by which retries continue longer for a throttled request than for a broker that is away. Tasks that share
credits get them in no particular order, and each waits for about as long as all together work.
"""
_THROTTLED_CODE = "50009"
"""The service's code in the text, because the condition is the same as for any busy broker."""


_BY_CONDITION: dict[str, type[ClientError]] = {
    "amqp:not-found": NotFound,
    "com.microsoft:message-not-found": NotFound,
    "com.microsoft:entity-already-exists": AlreadyExists,
    "amqp:unauthorized-access": AccessDenied,
    "com.microsoft:argument-error": InvalidRequest,
    "com.microsoft:argument-out-of-range": InvalidRequest,
    "amqp:not-allowed": InvalidRequest,
    "amqp:not-implemented": InvalidRequest,
    "amqp:invalid-field": InvalidRequest,
    "amqp:decode-error": InvalidRequest,
    "amqp:link:message-size-exceeded": MessageTooLarge,
    "amqp:resource-limit-exceeded": QuotaExceeded,
    "com.microsoft:entity-disabled": EntityDisabled,
    "com.microsoft:message-lock-lost": LockLost,
    "com.microsoft:session-lock-lost": LockLost,
    "com.microsoft:session-cannot-be-locked": SessionHeld,
    "partibus:cursor-held": CursorHeld,
    "partibus:cursor-lost": CursorLost,
    "com.microsoft:server-busy": Busy,
    "com.microsoft:timeout": TimedOut,
    "amqp:connection:forced": ConnectionLost,
}

_BY_STATUS: dict[int, type[ClientError]] = {
    400: InvalidRequest,
    401: AccessDenied,
    403: QuotaExceeded,
    404: NotFound,
    408: TimedOut,
    409: AlreadyExists,
    410: LockLost,
    501: InvalidRequest,
    503: Busy,
}


def extended(error: ClientError, fact: str) -> ClientError:
    """Return an error of the same kind whose text has one more fact."""
    found = type(error)(f"{str(error).removesuffix('.')}; {fact}", error.condition)
    if isinstance(found, LockLost) and isinstance(error, LockLost):
        found.tokens = error.tokens
    return found


def error_from(what: str, error: AmqpError | None, otherwise: type[ClientError] = ClientError) -> ClientError:
    """Return the exception for an error that the broker sent; ``what`` names the operation.

    ``otherwise`` is the class if the broker gave no reason, or one that the table does not contain.
    """
    if error is None:
        return otherwise(f"{what}: the broker gave no reason")
    kind = _told(_BY_CONDITION.get(error.condition, otherwise), error.description)
    return kind(f"{what}: {error.description or error.condition}", error.condition)


def error_from_status(what: str, status: int, description: str, condition: str | None) -> ClientError:
    """Return the exception for a failed reply of a request/response node.

    The text is the broker's description, or names the request ``what`` if there is none.
    """
    kind = _told(_BY_CONDITION.get(condition or "", _BY_STATUS.get(status, ClientError)), description)
    return kind(description or f"{what}: {condition or 'no reason given'} (status {int(status)})", condition)


def _told(kind: type[ClientError], description: str | None) -> type[ClientError]:
    """Return the class, refined by the description where that is more specific than the condition."""
    return Throttled if kind is Busy and _THROTTLED_CODE in (description or "") else kind


class SendFailed(ClientError):
    """Error for messages of one call that were not accepted.

    ``failures`` holds (index in the call, error) for each of them. The other messages are stored.
    """

    def __init__(self, failures: list[tuple[int, ClientError]], sent: int) -> None:
        index, first = failures[0]
        text = f"{len(failures)} of {sent} messages were not accepted; the first (index {index}): {first}"
        super().__init__(str(first) if sent == 1 else text, first.condition)
        self.args = (failures, sent)
        self.failures = failures
