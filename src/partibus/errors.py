"""The one list of errors that the core answers with.

Each front end owns a table from these kinds to its own codes, checked against `REQUEST_ERRORS` for completeness, so no
protocol's names appear here. Whether the same request may succeed when repeated is a property of the kind:
``retriable``. A text names the thing, its value, the bound and the next step.

Errors travel between brokers (D3), so each keeps its constructor's arguments in ``args`` and can be pickled.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar

SHOWN_MAX = 120
"""Characters of a foreign value that an error text repeats."""
NUMBERS_SHOWN_MAX = 5
"""Sequence numbers that an error text lists."""


def moment(at_ms: float) -> str:
    """A time of the broker's clock for people."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")


def shown(value: object) -> str:
    """A value from outside as an error text shows it: its ``repr``, cut at `SHOWN_MAX` characters."""
    text = repr(value[: SHOWN_MAX + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


class PartibusError(Exception):
    """Base of all errors that partibus raises on purpose."""

    retriable: ClassVar[bool] = False
    """True when the same request may succeed later without anything else being changed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class EntityNotFound(PartibusError):
    """The request names an entity that does not exist (any more)."""

    def __init__(self, name: str) -> None:
        # Two client libraries look for exactly this phrase to tell a missing entity from a broken connection.
        super().__init__(
            f"The messaging entity '{shown(name)[1:-1]}' could not be found. Check its name or create it first."
        )
        self.args = (name,)
        self.name = name


class EntityExists(PartibusError):
    """An entity of that name is already there; names differ by more than case."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The messaging entity '{name}' already exists. Use another name, or update it.")
        self.args = (name,)
        self.name = name


class EntityChanged(PartibusError):
    """The entity is no more what the caller has seen and wants to change."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The messaging entity '{name}' was changed in between. "
            "Get it again and apply the change to what it is now."
        )
        self.args = (name,)
        self.name = name


class InvalidOperation(PartibusError):
    """The operation is not allowed on this entity or with this combination of properties."""


class ArgumentError(PartibusError):
    """A value that the caller gave is malformed or out of bounds.

    ``field`` is the caller's name of the value, ``bound`` says what is allowed, ``next_step`` what to do about it where
    the bound alone does not say so.
    """

    def __init__(self, field: str, value: object, bound: str, next_step: str = "") -> None:
        super().__init__(f"{field} is {shown(value)}, but must be {bound}." + (f" {next_step}" if next_step else ""))
        self.args = (field, value, bound, next_step)
        self.field = field
        self.value = value
        self.bound = bound
        self.next_step = next_step


class MessageTooLarge(PartibusError):
    """A message, or an atomic batch of them, is larger than the entity takes."""

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
    """Something is full and stays full until someone makes room."""

    def __init__(self, thing: str, quota: int, unit: str, next_step: str) -> None:
        super().__init__(f"{thing} is at its quota of {quota} {unit}. {next_step}")
        self.args = (thing, quota, unit, next_step)
        self.thing = thing
        self.quota = quota


class MessageLockLost(PartibusError):
    """The lock under which a message was to be settled or renewed is not held any more (expired, settled, unknown)."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(
            "The lock of the message is not held any more: it expired, or the message was already settled"
            + (f" ({detail})" if detail else "")
            + ". Receive the message again; settle within LockDuration or renew the lock."
        )
        self.args = (detail,)


class MessageNotFound(PartibusError):
    """Sequence numbers that name no message which the request could be about."""

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
    """The session under whose lock something was to be done is not held (any more) by who asks."""

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
    """Somebody else holds the session."""

    def __init__(self, name: str, session: str) -> None:
        super().__init__(
            f"The session {shown(session)} of '{name}' is held by another receiver. "
            "Accept another session, or this one once its lock has ended."
        )
        self.args = (name, session)
        self.name = name
        self.session = session


class ReadExclusively(PartibusError):
    """Nobody receives from the sub-queue now: a cursor reads it alone (row D3)."""

    def __init__(self, name: str, cursor: str, until_ms: float) -> None:
        super().__init__(
            f"'{name}' is read by the cursor {shown(cursor)} alone, until {moment(until_ms)} unless that is renewed: "
            "nobody receives from it meanwhile. Receive when the cursor's reader has ended, or end it with partibus "
            "cursor drop."
        )
        self.args = (name, cursor, until_ms)
        self.name = name
        self.cursor = cursor
        self.until_ms = until_ms


class CursorHeld(PartibusError):
    """Another cursor reads the sub-queue alone, so this one can't."""

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
    """There is no such cursor (any more), or its exclusive lease has ended."""

    def __init__(self, name: str, cursor: str, reason: str) -> None:
        super().__init__(f"Nothing was done for the cursor {shown(cursor)} of '{name}': {reason}.")
        self.args = (name, cursor, reason)
        self.name = name
        self.cursor = cursor


class TransactionUnknown(PartibusError):
    """No transaction of that id is open on the connection."""

    def __init__(self, transaction_id: bytes) -> None:
        super().__init__(
            f"No transaction {shown(transaction_id.hex())[1:-1]} is open on this connection: it was never declared "
            "here, or it was discharged, or the link that declared it is gone. Declare another one."
        )
        self.args = (transaction_id,)


class TransactionRolledBack(PartibusError):
    """Nothing of the transaction was done, and nothing will be."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The transaction is rolled back: {why}")
        self.args = (why,)
        self.why = why


class TransactionTimedOut(PartibusError):
    """The transaction was open for too long, so nothing of it was done, and nothing will be."""

    def __init__(self, duration_ms: int) -> None:
        super().__init__(
            f"The transaction is rolled back: it was open for more than the {duration_ms / 1000:g} s that it may take "
            "from its first operation. Commit earlier."
        )
        self.args = (duration_ms,)
        self.duration_ms = duration_ms


class EntityDisabled(PartibusError):
    """The entity's Status does not allow this direction."""

    def __init__(self, name: str, status: str) -> None:
        super().__init__(f"The messaging entity '{name}' has Status {status}. Set Status to Active to use it again.")
        self.args = (name, status)
        self.name = name
        self.status = status


class Unauthorized(PartibusError):
    """No valid claim, or one without the right or the resource that the operation needs. The text never holds a key."""


class ServerBusy(PartibusError):
    """Throttled or over a bound of load; nothing was executed."""

    retriable = True


class StoreUnavailable(PartibusError):
    """A messaging store or the catalog can't be used right now; nothing was executed."""

    retriable = True


class OutcomeUnknown(PartibusError):
    """The request may or may not have been executed. A sender repeats it under the same message id; repeating a
    settlement is harmless."""

    retriable = True


class Unsupported(PartibusError):
    """Something that the service has and this version does not, refused by its name."""

    def __init__(self, thing: str, next_step: str) -> None:
        super().__init__(f"{thing} is not supported by this version. {next_step}")
        self.args = (thing, next_step)
        self.thing = thing
        self.next_step = next_step


class Timeout(PartibusError):
    """The caller's own time limit passed before there was an answer."""

    retriable = True


class InternalError(PartibusError):
    """A bug or an unforeseen failure on our side, kept to the request that met it."""

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
"""Every kind that a request can be answered with: what a front end's table must cover."""


class StartError(PartibusError):
    """Serving can't begin: what is on disk or in the settings is refused. No front end ever sees one."""


class UnusableFile(StartError):
    """A file in the data directory is corrupt, newer than this version, or readable by others; it was not changed."""

    def __init__(self, path: str, reason: str, next_step: str) -> None:
        super().__init__(f"{path}: {reason}. {next_step}")
        self.args = (path, reason, next_step)
        self.path = path
        self.reason = reason
        self.next_step = next_step
