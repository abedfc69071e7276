"""The client: one connection to a broker, and the links opened on it."""

import os
import socket
from itertools import count
from types import TracebackType
from typing import Self
from uuid import uuid4

from partibus.amqp import Anonymous, Connection, Limits
from partibus.client.claims import Claims
from partibus.client.driver import Driver
from partibus.client.endpoint import endpoint_of
from partibus.client.errors import ClientError, ConnectFailed
from partibus.client.management import Management
from partibus.client.receiver import NextSession, ReceiveMode, Receiver
from partibus.client.request import Requester
from partibus.client.sender import WINDOW, Sender
from partibus.client.socket_stream import connect_stream
from partibus.namespace.connection_string import ConnectionString, parse_connection_string

TIMEOUT_S = 30.0
"""The time limit of every wait without a time limit of its own."""

_GOODBYE_S = 2.0

# A broker is more trustworthy than an unknown peer: messages may have the service's 100 MB, and a consumer may hold
# many more messages than a server should keep for one client.
_LIMITS = Limits(
    max_message_size=128 << 20, partial_bytes_max=256 << 20, max_unsettled=200_000, pending_bytes_max=4 << 20
)


class Client:
    """One connection to a broker, made by `connect`.

    Calls block. One thread at a time uses a client and the links opened on it.

    The client does not reconnect. After `ConnectionLost` the caller makes a new client and decides what to repeat.
    """

    def __init__(self, connection: ConnectionString, container_id: str, timeout_s: float) -> None:
        self.endpoint = endpoint_of(connection)
        self.entity_path = connection.entity_path
        """The entity that the connection string names; "" for the namespace."""
        self.container_id = container_id
        self.timeout_s = timeout_s
        self._link_numbers = count(1)
        self._nodes: dict[str, Requester] = {}
        peer = str(self.endpoint)
        engine = Connection(server=False, login=Anonymous(), limits=_LIMITS)
        engine.open(container_id, hostname=self.endpoint.host)
        stream = connect_stream(self.endpoint, timeout_s)
        self._driver = Driver(engine, stream, peer)
        self._claims = Claims(self._driver, connection, self.endpoint.namespace)
        try:
            self._driver.wait(lambda: engine.peer is not None, timeout_s, f"opening a connection to {peer}")
        except ClientError as error:
            self.close()
            if isinstance(error, ConnectFailed):
                raise
            raise ConnectFailed(
                f"{peer} takes connections but does not answer AMQP: {error}. Check the port in the connection string."
            ) from error
        self._driver.upkeep = lambda: self._claims.renew(timeout_s)

    def sender(self, entity: str, *, window: int = WINDOW) -> Sender:
        """Open a link to send on, with at most ``window`` unanswered messages at a time.

        Raises `NotFound`, `AccessDenied` and other kinds of `ClientError`.
        """
        self._claims.ensure(entity, self.timeout_s)
        return Sender(self._driver, entity, self._link_name(entity), self.timeout_s, window)

    def receiver(
        self,
        entity: str,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch: int = 0,
        session: str | NextSession | None = None,
        session_wait_s: float = 0.0,
    ) -> Receiver:
        """Open a link to receive on.

        The broker sends up to ``prefetch`` messages ahead; with 0 it sends only what `receive` asks for. ``session``
        restricts the link to this session, or to the next one with messages. Waiting for a session takes 65 s at most
        and raises `TimedOut`.
        """
        self._claims.ensure(entity, self.timeout_s)
        return Receiver(
            self._driver,
            entity,
            self._link_name(entity),
            self.timeout_s,
            mode,
            prefetch,
            session=session,
            session_wait_s=session_wait_s,
        )

    def management(self, entity: str | None = None) -> Management:
        """Return the `$management` node of an entity, or of the namespace for None; its links are shared."""
        self._claims.ensure(entity or "", self.timeout_s)
        address = f"{entity}/$management" if entity else "$management"
        node = self._nodes.get(address)
        if node is None or node.error is not None:
            node = self._nodes[address] = Requester(self._driver, address, self.timeout_s)
        return Management(node, self.timeout_s)

    def poll(self) -> None:
        """Process pending work without waiting, for a caller with other work in between."""
        self._driver.poll()

    def close(self) -> None:
        """Close the connection. Idempotent; raises no error."""
        self._driver.close(_GOODBYE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _link_name(self, entity: str) -> str:
        return f"{self.container_id}:{entity}:{next(self._link_numbers)}"


def connect(connection_string: str, *, container_id: str | None = None, timeout_s: float = TIMEOUT_S) -> Client:
    """Connect and wait for the broker's open.

    Raises `ConnectFailed`, and `partibus.errors.ArgumentError` for a malformed connection string.
    """
    connection = parse_connection_string(connection_string)
    name = container_id or f"partibus-{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    return Client(connection, name, timeout_s)
