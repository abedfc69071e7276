"""Errors of the protocol: what went wrong, whose fault it is, and how far it reaches.

`AmqpError` is the value that travels in close, end, detach and rejected [2.8.14]. Two exceptions keep
the two faults apart: `PeerError` (the peer broke the rules; the engine turns it into a close, end or
detach by its scope, it never leaves `Connection.receive_data`) and `UsageError` (our caller did).
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Scope(Enum):
    """What an error ends: everything on the connection, one session, or one link."""

    CONNECTION = "connection"
    SESSION = "session"
    LINK = "link"


class AmqpError:
    """An error as it is sent or was received: `condition` (symbol text), `description`, `info` map."""

    __slots__ = ("condition", "description", "info")

    def __init__(
        self, condition: str, description: str | None = None, info: dict[object, object] | None = None
    ) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AmqpError):
            return NotImplemented
        return (self.condition, self.description, self.info) == (
            other.condition,
            other.description,
            other.info,
        )

    def __hash__(self) -> int:
        return hash((self.condition, self.description))

    def __repr__(self) -> str:
        return f"AmqpError({self.condition!r}, {self.description!r}, {self.info!r})"

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}" if self.description else self.condition


_TEXT_MAX = 300
"""Characters of the text of a `DecodeError`; in UTF-8 they fit the smallest frame, which has 512 bytes."""


class DecodeError(ValueError):
    """Bytes that are no AMQP, or no value of the type that belongs there."""

    def __init__(self, text: str) -> None:
        """Keep the first `_TEXT_MAX` characters: the text may quote a value of the peer, and goes into one frame."""
        super().__init__(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…")


class TooManyValues(DecodeError):
    """Bytes that hold more values than were to be decoded; they may be good AMQP."""


class EncodeError(ValueError):
    """A Python value that no AMQP type can hold."""


class UsageError(RuntimeError):
    """A verb was called at a time or with values that are wrong whatever the peer does."""


class PeerError(Exception):
    """The peer broke the rules; `error` is what it will be told and `scope` is what ends."""

    def __init__(self, scope: Scope, condition: str, description: str) -> None:
        super().__init__(f"{scope.value}: {condition}: {description}")
        self.scope = scope
        self.error = AmqpError(condition, description)


# Conditions of the standard [2.8.15 .. 2.8.18].
DECODE_ERROR: Final = "amqp:decode-error"
FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"
ILLEGAL_STATE: Final = "amqp:illegal-state"
INTERNAL_ERROR: Final = "amqp:internal-error"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_FOUND: Final = "amqp:not-found"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
WINDOW_VIOLATION: Final = "amqp:session:window-violation"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
DETACH_FORCED: Final = "amqp:link:detach-forced"
MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
