"""The `$management` node of an entity, or of the namespace: operations with a map in and a map out."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from partibus.amqp.codec.types import Array, Int, UInt
from partibus.client.errors import ClientError, error_from_status
from partibus.client.messages import IncomingMessage
from partibus.client.request import Requester
from partibus.client.values import binary, maps

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
        properties = {"operation": operation, "com.microsoft:server-timeout": UInt(int(timeout_s * 1000))}
        what = f"{operation} on '{self._requester.address}'"
        reply = self._requester.ask(properties, dict(body), timeout_s, what)
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

    def peek(self, from_sequence: int = 1, count: int = 1, *, session: str | None = None) -> list[IncomingMessage]:
        """Peek up to ``count`` messages from a sequence number on, of one session or of all.

        The result includes locked messages, and is [] where no message is left.
        """
        arguments: dict[str, object] = {"from-sequence-number": from_sequence, "message-count": Int(count)}
        if session is not None:
            arguments["session-id"] = session
        body = self.request("com.microsoft:peek-message", arguments)
        return [IncomingMessage(binary(entry, "message")) for entry in maps(body, "messages")]

    def receive_deferred(
        self, sequence_numbers: Sequence[int], *, delete: bool = False, session: str | None = None
    ) -> list[DeferredMessage]:
        """Lock or delete deferred messages by their numbers, all or none.

        Raises `NotFound` if any is missing. Messages of a session need its lock, held by a receiver of this client.
        """
        arguments: dict[str, object] = {
            "sequence-numbers": Array(_LONGS, list(sequence_numbers)),
            "receiver-settle-mode": UInt(0 if delete else 1),
        }
        if session is not None:
            arguments["session-id"] = session
        found = maps(self.request("com.microsoft:receive-by-sequence-number", arguments), "messages")
        return [
            DeferredMessage(IncomingMessage(binary(entry, "message")), token if isinstance(token, UUID) else None)
            for entry in found
            for token in [entry.get("lock-token")]
        ]

    def settle(
        self, lock_tokens: Sequence[UUID], status: str, *, reason: str | None = None, session: str | None = None
    ) -> None:
        """Settle messages with the ``status`` completed, abandoned, defered (so spelled) or suspended.

        The status suspended dead-letters a message. Raises `LockLost`.
        """
        arguments: dict[str, object] = {"disposition-status": status, "lock-tokens": Array(_UUIDS, list(lock_tokens))}
        if reason is not None:
            arguments["deadletter-reason"] = reason
        if session is not None:
            arguments["session-id"] = session
        self.request("com.microsoft:update-disposition", arguments)
