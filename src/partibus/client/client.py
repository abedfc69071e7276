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
"""For every wait that is not given another time."""

_GOODBYE_S = 2.0

# A broker is trusted more than a stranger: messages may have the 100 MB that the service knows, and a consumer may
# hold many more messages than a server should keep for one.
_LIMITS = Limits(
    max_message_size=128 << 20, partial_bytes_max=256 << 20, max_unsettled=200_000, pending_bytes_max=4 << 20
)


class Client:
    """Made by `connect`. Calls block; one thread at a time uses a client and what it opened.

    Nothing reconnects: after `ConnectionLost` a caller makes a new client, and knows best what to repeat.
    """

    def __init__(self, connection: ConnectionString, container_id: str, timeout_s: float) -> None:
        self.endpoint = endpoint_of(connection)
        self.entity_path = connection.entity_path
        """The entity that the connection string is for; "" for the namespace."""
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
        """A link to send on; at most ``window`` messages are unanswered at a time. Raises `NotFound`,
        `AccessDenied` and other kinds of `ClientError`."""
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
        """A link to receive on; ``prefetch`` messages are sent ahead (0: only what `receive` asks for). ``session``: of
        this session, or of the next one that has messages; waits for that, 65 s at most, and raises `TimedOut`."""
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
        """The `$management` node of an entity, or of the namespace for None; its links are kept and shared."""
        self._claims.ensure(entity or "", self.timeout_s)
        address = f"{entity}/$management" if entity else "$management"
        node = self._nodes.get(address)
        if node is None or node.error is not None:
            node = self._nodes[address] = Requester(self._driver, address, self.timeout_s)
        return Management(node, self.timeout_s)

    def poll(self) -> None:
        """Do what is due without waiting: for a caller that has something else to do in between."""
        self._driver.poll()

    def close(self) -> None:
        """End the connection. Idempotent; raises nothing."""
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
    """Connect and wait for the broker's open. Raises `partibus.errors.ArgumentError` for a malformed connection
    string and `ConnectFailed`."""
    connection = parse_connection_string(connection_string)
    name = container_id or f"partibus-{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    return Client(connection, name, timeout_s)
