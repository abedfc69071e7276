"""azure-servicebus for Python: what its blocking and its asyncio client have in common."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from azure.servicebus import ServiceBusMessage, exceptions

from tests.conformance.clients.interface import ClientTrouble, Outgoing, Received, Trouble

OPTIONS: dict[str, Any] = {"retry_total": 0}
"""No second try: a test wants to see the first answer."""

_KINDS: dict[type[Exception], Trouble] = {
    exceptions.MessagingEntityNotFoundError: Trouble.NOT_FOUND,
    exceptions.ServiceBusAuthenticationError: Trouble.UNAUTHORIZED,
    exceptions.ServiceBusAuthorizationError: Trouble.UNAUTHORIZED,
    exceptions.MessageSizeExceededError: Trouble.TOO_LARGE,
    exceptions.MessagingEntityDisabledError: Trouble.DISABLED,
    exceptions.MessageLockLostError: Trouble.LOCK_LOST,
    exceptions.SessionLockLostError: Trouble.SESSION_LOST,
    exceptions.SessionCannotBeLockedError: Trouble.SESSION_HELD,
    exceptions.MessageNotFoundError: Trouble.MESSAGE_NOT_FOUND,
    exceptions.ServiceBusQuotaExceededError: Trouble.FULL,
    exceptions.ServiceBusServerBusyError: Trouble.BUSY,
    exceptions.OperationTimeoutError: Trouble.TIMEOUT,
}
_CONDITIONS = {
    "amqp:not-allowed": Trouble.NOT_ALLOWED,
    "amqp:not-implemented": Trouble.NOT_IMPLEMENTED,
    "com.microsoft:argument-error": Trouble.ARGUMENT,
}
"""Conditions for which this library has only its general exception."""


def trouble(error: Exception) -> ClientTrouble:
    """The kind is the exception's type; where that is general, the condition it carries."""
    text = f"{type(error).__name__}: {error}"
    if type(error) in _KINDS:
        return ClientTrouble(_KINDS[type(error)], text)
    return ClientTrouble(next((kind for name, kind in _CONDITIONS.items() if name in text), Trouble.OTHER), text)


def to_azure(message: Outgoing) -> ServiceBusMessage:
    """As an application would write it."""
    return ServiceBusMessage(
        message.body,
        message_id=message.message_id,
        partition_key=message.partition_key,
        session_id=message.session_id,
        subject=message.subject,
        time_to_live=None if message.ttl_ms is None else timedelta(milliseconds=message.ttl_ms),
        scheduled_enqueue_time_utc=None if message.scheduled_ms is None else to_time(message.scheduled_ms),
        application_properties=cast(Any, dict(message.properties) or None),
    )


def from_azure(message: Any) -> Received:
    """A received or peeked message."""
    return Received(
        body=b"".join(message.body),
        message_id=message.message_id,
        sequence_number=message.sequence_number,
        delivery_count=message.delivery_count,
        partition_key=message.partition_key,
        session_id=message.session_id,
        subject=message.subject,
        properties={_text(key): _text(value) for key, value in (message.application_properties or {}).items()},
        dead_letter_reason=message.dead_letter_reason,
        dead_letter_description=message.dead_letter_error_description,
        dead_letter_source=message.dead_letter_source,
        state=message.state.name.lower(),
        enqueued_ms=to_ms(message.enqueued_time_utc),
        locked_until_ms=to_ms(message.locked_until_utc),
        scheduled_ms=to_ms(message.scheduled_enqueue_time_utc),
        token=message,
    )


def to_time(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def to_ms(time: datetime | None) -> Any:
    """None of None."""
    return None if time is None else (time - _EPOCH) // timedelta(milliseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
