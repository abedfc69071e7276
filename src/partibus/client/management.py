"""The `$management` node of an entity, or of the namespace: operations with a map in and a map out."""

from collections.abc import Mapping

from partibus.amqp.codec.types import Int, UInt
from partibus.client.errors import ClientError, error_from_status
from partibus.client.messages import IncomingMessage
from partibus.client.request import Requester
from partibus.client.values import binary, maps

_NO_CONTENT = 204


class Management:
    """Made by `Client.management`."""

    def __init__(self, requester: Requester, timeout_s: float) -> None:
        self._requester = requester
        self._timeout_s = timeout_s

    def request(self, operation: str, body: Mapping[str, object], timeout_s: float | None = None) -> dict[str, object]:
        """One operation; the reply's body, {} where it has none. Raises the error that the broker answered with."""
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
        """Up to ``count`` messages from a sequence number on, locked ones included, of one session or of all; [] where
        nothing is left."""
        arguments: dict[str, object] = {"from-sequence-number": from_sequence, "message-count": Int(count)}
        if session is not None:
            arguments["session-id"] = session
        body = self.request("com.microsoft:peek-message", arguments)
        return [IncomingMessage(binary(entry, "message")) for entry in maps(body, "messages")]
