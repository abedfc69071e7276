"""The `$management` node of an entity, or of the namespace: operations with a map in and a map out."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from partibus.amqp.codec.types import Array, Int, UInt
from partibus.client.errors import ClientError, error_from_status
from partibus.client.messages import IncomingMessage
from partibus.client.request import Reply, Requester
from partibus.client.values import binary, maps

PEEK = "com.microsoft:peek-message"
RECEIVE_DEFERRED = "com.microsoft:receive-by-sequence-number"
SETTLE = "com.microsoft:update-disposition"
_NO_CONTENT = 204
_LONGS = 0x81
_UUIDS = 0x98


class DeferredMessage(NamedTuple):
    """A deferred message received by its number, and its lock token (None if it was deleted)."""

    message: IncomingMessage
    lock_token: UUID | None


class Management:
    """A `$management` node, made by `Client.management`."""

    def __init__(self, requester: Requester, timeout_s: float) -> None:
        self._requester = requester
        self._timeout_s = timeout_s

    @property
    def request_bytes_max(self) -> int | None:
        """The size of the largest request that the node takes; None if it stated no limit."""
        return self._requester.message_bytes_max

    def request(self, operation: str, body: Mapping[str, object], timeout_s: float | None = None) -> dict[str, object]:
        """Perform one operation and return the reply's body, {} where it has none.

        Raises the error of the broker's reply.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        what = f"{operation} on '{self._requester.address}'"
        reply = self._requester.ask(request_properties(operation, timeout_s), dict(body), timeout_s, what)
        return body_of(reply, what)

    def peek(self, from_sequence: int = 1, count: int = 1, *, session: str | None = None) -> list[IncomingMessage]:
        """Peek up to ``count`` messages from a sequence number on, of one session or of all.

        The result includes locked messages, and is [] where no message is left.
        """
        return peeked_messages(self.request(PEEK, peek_arguments(from_sequence, count, session)))

    def receive_deferred(
        self, sequence_numbers: Sequence[int], *, delete: bool = False, session: str | None = None
    ) -> list[DeferredMessage]:
        """Lock or delete deferred messages by their numbers, all or none.

        Raises `NotFound` if any is missing. Messages of a session need its lock, held by a receiver of this client.
        """
        reply = self.request(RECEIVE_DEFERRED, deferred_arguments(sequence_numbers, delete, session))
        return deferred_messages(reply)

    def settle(
        self, lock_tokens: Sequence[UUID], status: str, *, reason: str | None = None, session: str | None = None
    ) -> None:
        """Settle messages with the ``status`` completed, abandoned, defered (so spelled) or suspended.

        The status suspended dead-letters a message. Raises `LockLost`.
        """
        self.request(SETTLE, settle_arguments(lock_tokens, status, reason=reason, session=session))


def request_properties(operation: str, timeout_s: float) -> dict[str, object]:
    """Return the application properties of a request."""
    return {"operation": operation, "com.microsoft:server-timeout": UInt(int(timeout_s * 1000))}


def body_of(reply: Reply, what: str) -> dict[str, object]:
    """Return the body of a reply, {} where it has none. Raises the error that the reply states."""
    status = reply.properties.get("statusCode")
    if not isinstance(status, int):
        raise ClientError(f"{what}: the reply has no statusCode; is this a Service Bus endpoint?")
    if not 200 <= status < 300:
        description = str(reply.properties.get("statusDescription") or "")
        condition = reply.properties.get("errorCondition")
        raise error_from_status(what, status, description, None if condition is None else str(condition))
    if status == _NO_CONTENT or not isinstance(reply.body, dict):
        return {}
    return {str(key): value for key, value in reply.body.items()}


def peek_arguments(from_sequence: int, count: int, session: str | None) -> dict[str, object]:
    """Return the body of a request to peek."""
    return _of_session({"from-sequence-number": from_sequence, "message-count": Int(count)}, session)


def peeked_messages(reply: Mapping[str, object]) -> list[IncomingMessage]:
    """Return the messages in the answer to a peek."""
    return [IncomingMessage(binary(entry, "message")) for entry in maps(reply, "messages")]


def deferred_arguments(sequence_numbers: Sequence[int], delete: bool, session: str | None) -> dict[str, object]:
    """Return the body of a request for deferred messages."""
    wanted = {
        "sequence-numbers": number_array(sequence_numbers),
        "receiver-settle-mode": UInt(0 if delete else 1),
    }
    return _of_session(wanted, session)


def deferred_messages(reply: Mapping[str, object]) -> list[DeferredMessage]:
    """Return the messages in the answer to a request for deferred ones."""
    found = [(entry, entry.get("lock-token")) for entry in maps(reply, "messages")]
    return [
        DeferredMessage(IncomingMessage(binary(entry, "message"), token=known), known)
        for entry, token in found
        for known in [token if isinstance(token, UUID) else None]
    ]


def settle_arguments(
    lock_tokens: Sequence[UUID],
    status: str,
    *,
    reason: str | None = None,
    description: str | None = None,
    session: str | None = None,
) -> dict[str, object]:
    """Return the body of a request to settle messages by their tokens."""
    arguments: dict[str, object] = {"disposition-status": status, "lock-tokens": token_array(lock_tokens)}
    if reason is not None:
        arguments["deadletter-reason"] = reason
    if description is not None:
        arguments["deadletter-description"] = description
    return _of_session(arguments, session)


def token_array(lock_tokens: Sequence[UUID]) -> Array:
    """Return lock tokens as a request holds them."""
    return Array(_UUIDS, list(lock_tokens))


def number_array(numbers: Sequence[int]) -> Array:
    """Return sequence numbers as a request holds them."""
    return Array(_LONGS, list(numbers))


def _of_session(arguments: dict[str, object], session: str | None) -> dict[str, object]:
    return arguments if session is None else arguments | {"session-id": session}
