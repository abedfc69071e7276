"""azure-servicebus for Python: what its blocking and its asyncio client have in common."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from azure.servicebus import ServiceBusMessage, exceptions

from tests.conformance.clients.interface import ClientTrouble, Outgoing, Received, Trouble

OPTIONS: dict[str, Any] = {"retry_total": 0}
"""The options of a client without a second try: a test wants to see the first answer."""

_POLLING = (
    "_servicebus_receiver",
    "_servicebus_sender",
    "_session_browser",
    "_pyamqp.client",
    "aio._servicebus_receiver_async",
    "aio._servicebus_sender_async",
    "aio._session_browser_async",
    "_pyamqp.aio._client_async",
)
"""Modules of the library that look at a connection again after a fixed pause."""
_SHORTER = {0.05: 0.002, 1: 0.05}
"""Their pauses, in seconds, and those of the tests. Other pauses, such as those between tries, stay."""


class _Hasty:
    """A module `time` or `asyncio` whose `sleep` makes the pauses of polling loops shorter."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def sleep(self, seconds: float) -> Any:
        return self._module.sleep(_SHORTER.get(seconds, seconds))


def poll_often() -> None:
    """Make the library look at its connections every 2 ms instead of every 50 ms.

    To open a sender or receiver takes nine looks, and to close it up to one second of the loop that keeps its
    connection alive: a second of waiting for each. The library's frames stay the same.
    """
    for name in _POLLING:
        module = sys.modules.get(f"azure.servicebus.{name}")
        for used in (time, asyncio):
            if module is not None and getattr(module, used.__name__, None) is used:
                setattr(module, used.__name__, _Hasty(used))


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
    """Make the message as an application would write it."""
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
