"""The list of all errors that the core can raise.

Each front end owns a table from these kinds to its own codes, so no protocol's names appear here. The table is checked
against `REQUEST_ERRORS` for completeness. Each kind has the property ``retriable``: whether the same request may
succeed when repeated. An error text names the thing, its value, the bound and the next step.

Errors travel between brokers (D3), so each keeps its constructor's arguments in ``args`` and can be pickled.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import ClassVar

SHOWN_MAX = 120
"""The longest part of a foreign value that an error text repeats, in characters."""
NUMBERS_SHOWN_MAX = 5
"""The largest number of sequence numbers that an error text lists."""


def moment(at_ms: float) -> str:
    """Format a time of the broker's clock for people."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")


def shown(value: object) -> str:
    """Format a foreign value for an error text: its ``repr``, cut at `SHOWN_MAX` characters."""
    text = repr(value[: SHOWN_MAX + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


class PartibusError(Exception):
    """Base of all errors that partibus raises on purpose."""

    retriable: ClassVar[bool] = False
    """Whether the same request may succeed later without any other change."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class EntityNotFound(PartibusError):
    """Error for a request that names an entity that does not exist."""

    def __init__(self, name: str) -> None:
        # Two client libraries look for exactly this phrase to tell a missing entity from a broken connection.
        super().__init__(
            f"The messaging entity '{shown(name)[1:-1]}' could not be found. Check its name or create it first."
        )
        self.args = (name,)
        self.name = name


class EntityExists(PartibusError):
    """Error for the creation of an entity whose name is taken. Names that differ only by case are the same name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The messaging entity '{name}' already exists. Use another name, or update it.")
        self.args = (name,)
        self.name = name


class EntityChanged(PartibusError):
    """Error for a change to an entity that has changed since the caller read it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The messaging entity '{name}' was changed in between. "
            "Get it again and apply the change to its current state."
        )
        self.args = (name,)
        self.name = name


class InvalidOperation(PartibusError):
    """Error for an operation that this entity or this combination of properties does not allow."""


class ArgumentError(PartibusError):
    """Error for a value from the caller that is malformed or out of bounds.

    ``field`` is the caller's name of the value. ``bound`` says what is allowed. ``next_step`` says how to correct the
    value where the bound alone does not say so.
    """

    def __init__(self, field: str, value: object, bound: str, next_step: str = "") -> None:
        super().__init__(f"{field} is {shown(value)}, but must be {bound}." + (f" {next_step}" if next_step else ""))
        self.args = (field, value, bound, next_step)
        self.field = field
        self.value = value
        self.bound = bound
        self.next_step = next_step


class MessageTooLarge(PartibusError):
    """Error for a message, or an atomic batch of messages, that is larger than the entity's limit."""

    def __init__(self, name: str, size_bytes: int, size_max_bytes: int, what: str = "message") -> None:
        super().__init__(
            f"A {what} of {size_bytes} bytes is over the {size_max_bytes} bytes that '{name}' takes. "
            f"Send less in one {what}, or raise MaxMessageSizeInKilobytes of the entity, as far as its namespace "
            "allows."
        )
        self.args = (name, size_bytes, size_max_bytes, what)
        self.name = name
        self.size_bytes = size_bytes
        self.size_max_bytes = size_max_bytes


class QuotaExceeded(PartibusError):
    """Error for a full resource, which stays full until a client or operator makes room."""

    def __init__(self, thing: str, quota: int, unit: str, next_step: str) -> None:
        super().__init__(f"{thing} is at its quota of {quota} {unit}. {next_step}")
        self.args = (thing, quota, unit, next_step)
        self.thing = thing
        self.quota = quota


class MessageLockLost(PartibusError):
    """Error for settling or renewing under a message lock that has expired, is settled or is unknown."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(
            "The lock of the message is no longer held: it expired, or the message was already settled"
            + (f" ({detail})" if detail else "")
            + ". Receive the message again; settle within LockDuration or renew the lock."
        )
        self.args = (detail,)


class MessageNotFound(PartibusError):
    """Error for sequence numbers that match no message the request could apply to."""

    def __init__(self, name: str, what: str, numbers: Sequence[int]) -> None:
        listed = ", ".join(str(number) for number in numbers[:NUMBERS_SHOWN_MAX])
        more = f" and {len(numbers) - NUMBERS_SHOWN_MAX} more" if len(numbers) > NUMBERS_SHOWN_MAX else ""
        super().__init__(
            f"'{name}' has no {what} message with the sequence number {listed}{more}. Peek to see which there are."
        )
        self.args = (name, what, numbers)
        self.name = name
        self.numbers = numbers


class SessionLockLost(PartibusError):
    """Error for an operation under a session lock that the caller does not hold."""

    def __init__(self, name: str, session: str | None = None) -> None:
        which = "the session" if session is None else f"the session {shown(session)}"
        super().__init__(
            f"The lock of {which} of '{name}' is not held by this receiver: it expired, or was never taken. "
            "Accept the session again; renew its lock within LockDuration."
        )
        self.args = (name, session)
        self.name = name
        self.session = session


class SessionCannotBeLocked(PartibusError):
    """Error for a session that another receiver holds."""

    def __init__(self, name: str, session: str) -> None:
        super().__init__(
            f"The session {shown(session)} of '{name}' is held by another receiver. "
            "Accept another session, or this one once its lock has ended."
        )
        self.args = (name, session)
        self.name = name
        self.session = session


class ReadExclusively(PartibusError):
    """Error for receiving from a sub-queue that a cursor reads exclusively (row D3)."""

    def __init__(self, name: str, cursor: str, until_ms: float) -> None:
        super().__init__(
            f"'{name}' is read by the cursor {shown(cursor)} alone, until {moment(until_ms)} unless that is renewed. "
            "It has no other receivers meanwhile. Receive when the cursor's reader has ended, or end it with partibus "
            "cursor drop."
        )
        self.args = (name, cursor, until_ms)
        self.name = name
        self.cursor = cursor
        self.until_ms = until_ms


class CursorHeld(PartibusError):
    """Error for a cursor on a sub-queue that another cursor reads exclusively."""

    def __init__(self, name: str, cursor: str, until_ms: float) -> None:
        super().__init__(
            f"'{name}' is read by the cursor {shown(cursor)} alone, until {moment(until_ms)} unless that is renewed. "
            "Ask again when its lease has ended, or drop it with partibus cursor drop."
        )
        self.args = (name, cursor, until_ms)
        self.name = name
        self.cursor = cursor
        self.until_ms = until_ms


class CursorLost(PartibusError):
    """Error for a cursor that does not exist or whose exclusive lease has ended."""

    def __init__(self, name: str, cursor: str, reason: str) -> None:
        super().__init__(f"Nothing was done for the cursor {shown(cursor)} of '{name}': {reason}.")
        self.args = (name, cursor, reason)
        self.name = name
        self.cursor = cursor


class TransactionUnknown(PartibusError):
    """Error for a transaction id that is not open on the connection."""

    def __init__(self, transaction_id: bytes) -> None:
        super().__init__(
            f"No transaction {shown(transaction_id.hex())[1:-1]} is open on this connection: it was never declared "
            "here, or it was discharged, or the link that declared it has ended. Declare another one."
        )
        self.args = (transaction_id,)


class TransactionRolledBack(PartibusError):
    """Error for a transaction that was rolled back: no operation of it took effect or will."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The transaction is rolled back: {why}")
        self.args = (why,)
        self.why = why


class TransactionTimedOut(PartibusError):
    """Error for a transaction that was open for too long: no operation of it took effect or will."""

    def __init__(self, duration_ms: int) -> None:
        super().__init__(
            f"The transaction is rolled back: it was open for more than the {duration_ms / 1000:g} s that it may take "
            "from its first operation. Commit earlier."
        )
        self.args = (duration_ms,)
        self.duration_ms = duration_ms


class EntityDisabled(PartibusError):
    """Error for an operation in a direction that the entity's Status does not allow."""

    def __init__(self, name: str, status: str) -> None:
        super().__init__(f"The messaging entity '{name}' has Status {status}. Set Status to Active to use it again.")
        self.args = (name, status)
        self.name = name
        self.status = status


class Unauthorized(PartibusError):
    """Error for a missing or invalid claim, or one that lacks the right or the resource.

    The text never holds a key.
    """


class ServerBusy(PartibusError):
    """Error for a request that was throttled or exceeded a load bound. The broker executed no part of it."""

    retriable = True


class StoreUnavailable(PartibusError):
    """Error for a messaging store or catalog that is unavailable. The broker executed no part of the request."""

    retriable = True


class OutcomeUnknown(PartibusError):
    """Error for a request that may or may not have been executed.

    A sender repeats it under the same message id. Repeating a settlement is harmless.
    """

    retriable = True


class Unsupported(PartibusError):
    """Error for a feature that the service has and this version lacks. The text names the feature."""

    def __init__(self, thing: str, next_step: str) -> None:
        super().__init__(f"{thing} is not supported by this version. {next_step}")
        self.args = (thing, next_step)
        self.thing = thing
        self.next_step = next_step


class Timeout(PartibusError):
    """Error for a request that got no answer within the caller's own time limit."""

    retriable = True


class InternalError(PartibusError):
    """Error for a bug or an unforeseen failure in the broker, limited to the request that met it."""

    retriable = True


REQUEST_ERRORS: tuple[type[PartibusError], ...] = (
    EntityNotFound,
    EntityExists,
    EntityChanged,
    InvalidOperation,
    ArgumentError,
    MessageTooLarge,
    QuotaExceeded,
    MessageLockLost,
    MessageNotFound,
    SessionLockLost,
    SessionCannotBeLocked,
    ReadExclusively,
    CursorHeld,
    CursorLost,
    TransactionUnknown,
    TransactionRolledBack,
    TransactionTimedOut,
    EntityDisabled,
    Unauthorized,
    ServerBusy,
    StoreUnavailable,
    OutcomeUnknown,
    Unsupported,
    Timeout,
    InternalError,
)
"""Every kind that can answer a request. A front end's table must cover all of them."""


class StartError(PartibusError):
    """Error for files or settings that keep the process from starting. It never reaches a front end."""


class UnusableFile(StartError):
    """Error for a file in the data directory that is corrupt, too new, or readable by other users.

    The broker does not change such a file.
    """

    def __init__(self, path: str, reason: str, next_step: str) -> None:
        super().__init__(f"{path}: {reason}. {next_step}")
        self.args = (path, reason, next_step)
        self.path = path
        self.reason = reason
        self.next_step = next_step


_NAME_MAX = 100


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the known name closest to ``name``, or an empty text when none is close."""
    from difflib import get_close_matches  # Here, because every client would pay for it, and few misspell a name.

    by_folded = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name[:_NAME_MAX].lower(), by_folded, n=1)
    return f"Did you mean {by_folded[matches[0]]}?" if matches else ""
