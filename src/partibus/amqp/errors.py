"""Errors of the protocol, with their source and scope.

`AmqpError` is the value that travels in close, end, detach and rejected [2.8.14]. Two exceptions separate the two
sources. `PeerError` is a violation by the peer. The engine turns it into a close, end or detach by its scope, and it
never leaves `Connection.receive_data`. `UsageError` is a violation by our caller.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Scope(Enum):
    """The endpoint that an error ends: the connection, one session, or one link."""

    CONNECTION = "connection"
    SESSION = "session"
    LINK = "link"


class AmqpError:
    """An error as sent or received: `condition` (symbol text), `description`, `info` map."""

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
"""The maximum length of a `DecodeError` text. In UTF-8 it fits the smallest frame, which has 512 bytes."""


class DecodeError(ValueError):
    """Error for bytes that are not AMQP, or a value of the wrong type."""

    def __init__(self, text: str) -> None:
        """Keep the first `_TEXT_MAX` characters: the text may quote a value of the peer, and goes into one frame."""
        super().__init__(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…")


class TooManyValues(DecodeError):
    """Error for more values than the caller's limit; the bytes may be valid AMQP."""


class EncodeError(ValueError):
    """Error for a Python value that no AMQP type can hold."""


class UsageError(RuntimeError):
    """Error for a call at a wrong time or with wrong values, regardless of the peer."""


class PeerError(Exception):
    """Error for a protocol violation by the peer; `error` is our answer and `scope` is what ends."""

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
