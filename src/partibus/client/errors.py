"""What a client raises, chosen by the AMQP condition that the broker named (Service Bus dialect, section 7.1).

`ClientError` is the base; ``condition`` is the broker's word, None where the fault was found on our side. Whether the
same call may succeed later is ``retriable``. The client itself never repeats a call and never reconnects.
"""

from typing import ClassVar

from partibus.amqp import AmqpError
from partibus.errors import PartibusError


class ClientError(PartibusError):
    """The broker refused, or the request could not be made."""

    def __init__(self, message: str, condition: str | None = None) -> None:
        super().__init__(message)
        self.args = (message, condition)
        self.condition = condition


class ConnectFailed(ClientError, ConnectionError):
    """There is no broker at the address, or it does not speak AMQP (there)."""

    retriable = True


class ConnectionLost(ClientError, ConnectionError):
    """The connection ended while it was in use. What was sent and not answered may or may not have happened."""

    retriable = True


class TimedOut(ClientError):
    """No answer within the time that the caller gave; the request may or may not have happened."""

    retriable = True


class LinkLost(ClientError):
    """The broker detached the link or ended its session; a new sender or receiver may be opened."""

    retriable = True


class NotFound(ClientError):
    """The entity (or message) does not exist."""


class AlreadyExists(ClientError):
    """An entity of that name is there."""


class AccessDenied(ClientError):
    """The key is wrong, the token has expired, or the rule lacks the right for this."""


class InvalidRequest(ClientError):
    """A value in the request is malformed or out of bounds, or the operation is not allowed here."""


class MessageTooLarge(ClientError):
    """The message is larger than the entity takes."""


class QuotaExceeded(ClientError):
    """The entity is full."""


class EntityDisabled(ClientError):
    """The entity's status does not allow this direction."""


class LockLost(ClientError):
    """The lock of the message (or of its session) is not held any more; it will be (or was) delivered again."""


class SessionHeld(ClientError):
    """Somebody else holds the session."""

    retriable = True


class CursorHeld(ClientError):
    """Another cursor reads the entity exclusively."""


class CursorLost(ClientError):
    """There is no such cursor, or its exclusive lease has ended."""


class Busy(ClientError):
    """Throttled, or a store can't be used right now."""

    retriable = True


class Throttled(Busy):
    """The namespace's credits or units are used up. Nothing is wrong with the broker: others have their turn, and for
    many at once that may take longer than any failure should."""


THROTTLED_TIMES = 10
"""So many times as long as for a broker that is away, who tries again by himself goes on for one that throttles. Many
tasks that share credits get them in no order, and each of them waits for about as long as all together work."""
_THROTTLED_CODE = "50009"
"""Of the service, in the text: the condition is that of any busy broker."""


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


def error_from(what: str, error: AmqpError | None, otherwise: type[ClientError] = ClientError) -> ClientError:
    """The exception for an error that the broker sent; ``what`` says what was going on.

    ``otherwise`` is the class where the broker gave no reason, or one that the table does not know.
    """
    if error is None:
        return otherwise(f"{what}: the broker gave no reason")
    kind = _told(_BY_CONDITION.get(error.condition, otherwise), error.description)
    return kind(f"{what}: {error.description or error.condition}", error.condition)


def error_from_status(what: str, status: int, description: str, condition: str | None) -> ClientError:
    """The exception for a reply of a request/response node that says anything but success.

    A description stands for itself; ``what`` was asked is said where there is none.
    """
    kind = _told(_BY_CONDITION.get(condition or "", _BY_STATUS.get(status, ClientError)), description)
    return kind(description or f"{what}: {condition or 'no reason given'} (status {int(status)})", condition)


def _told(kind: type[ClientError], description: str | None) -> type[ClientError]:
    """The class, where the description says more than the condition."""
    return Throttled if kind is Busy and _THROTTLED_CODE in (description or "") else kind


class SendFailed(ClientError):
    """Some messages of one call were not accepted; ``failures`` holds (index in the call, why) for each of them.

    The messages that are not in it are stored.
    """

    shown_max: ClassVar[int] = 1

    def __init__(self, failures: list[tuple[int, ClientError]], sent: int) -> None:
        index, first = failures[0]
        text = f"{len(failures)} of {sent} messages were not accepted; the first (index {index}): {first}"
        super().__init__(str(first) if sent == 1 else text, first.condition)
        self.args = (failures, sent)
        self.failures = failures
