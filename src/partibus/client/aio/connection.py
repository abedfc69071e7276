"""One connection of a client: the AMQP engine on an asyncio transport, opened when needed and again after a loss.

A connection knows links by their owners and calls these for each event. It writes once in a turn of the event loop,
however many links have output.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import uuid4

from partibus.amqp import (
    AmqpError,
    Anonymous,
    Attached,
    CreditChanged,
    Deliveries,
    DeliveryState,
    Detached,
    Disposed,
    Drained,
    Event,
    Limits,
    Link,
    Opened,
    Session,
    SessionClosed,
    SessionPort,
    UsageError,
    WindowOpened,
)
from partibus.amqp import Closed as ConnectionClosed
from partibus.amqp import Connection as Engine
from partibus.amqp.codec.types import Symbol
from partibus.client.aio.node import Node
from partibus.client.aio.owner import Owner
from partibus.client.aio.settings import Settings
from partibus.client.aio.statistics import Statistics
from partibus.client.aio.tasks import outcome_of, seen
from partibus.client.aio.tcp import connect_tcp
from partibus.client.errors import (
    Busy,
    ClientError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    InvalidRequest,
    LinkLost,
    error_from,
)
from partibus.client.management import body_of, request_properties

# A broker is more trustworthy than an unknown peer: messages may have the service's 100 MB, and a consumer may hold
# many more messages than a server should keep for one client.
LIMITS: Final = Limits(
    max_message_size=128 << 20, partial_bytes_max=256 << 20, max_unsettled=200_000, pending_bytes_max=64 << 20
)
_GOODBYE_S: Final = 2.0

T = TypeVar("T")


class Authority(Protocol):
    """The source of the tokens of one connection."""

    async def authorize(self, connection: "Connection", path: str) -> None:
        """Put a valid token for an entity by path. Raises `AccessDenied`."""

    def renew_due(self, connection: "Connection") -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that renews tokens which are about to expire; None if there are none."""

    def expire(self, path: str) -> None:
        """Have the token of an entity renewed: links of other entities keep theirs."""

    def forget(self) -> None:
        """Forget all tokens, because the connection is new."""


class _Attempt(asyncio.Protocol):
    """The protocol of one transport: it forwards events to its connection while that uses the attempt's engine.

    A transport may outlive its connection: over TLS it ends some time after its close, and the next one is open then.
    """

    def __init__(self, connection: "Connection", engine: Engine) -> None:
        self._connection = connection
        self.engine = engine
        self.transport: asyncio.Transport | None = None
        self.gone: asyncio.Future[None] = connection.loop().create_future()
        """Done when the transport has closed its socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # Not every loop derives its transports from asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self._connection.on_made(self)

    def data_received(self, data: bytes) -> None:
        """Process bytes from the broker."""
        if self._connection.engine is self.engine:
            self._connection.on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owners of all links."""
        if not self.gone.done():
            self.gone.set_result(None)
        if self._connection.engine is self.engine:
            self._connection.on_lost(exc)

    def close(self) -> None:
        """Close the transport. Idempotent."""
        if self.transport is not None:
            self.transport.close()


class Connection:
    """One connection. Every call must come from the event loop's thread."""

    def __init__(self, settings: Settings, authority: Authority, statistics: Statistics, number: int) -> None:
        self.settings = settings
        self.statistics = statistics
        self.peer = str(settings.endpoint)
        name = settings.container_id or f"partibus-{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.container_id = name if number == 0 else f"{name}-{number}"
        self.links = 0
        """The number of senders and receivers dealt to this connection."""
        self.engine: Engine | None = None
        self._authority = authority
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] | None = None
        self._sockets: set[asyncio.Future[None]] = set()
        """Futures of transports, which are done when these have closed their sockets."""
        self._owners: dict[SessionPort, list[Owner]] = {}
        self._nodes: dict[str, Node] = {}
        self._numbers = count(1)
        self._flushing: asyncio.Handle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._ended = asyncio.Event()
        self._was_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.trouble: str | None = None
        """Why there is no connection or no token, after a failed attempt."""
        self.connect: Callable[[asyncio.Protocol], Awaitable[object]] = partial(connect_tcp, settings)
        """The function that connects a transport to a protocol; tests replace it."""
        self.wall: Callable[[], float] = time.time
        """The clock of tokens and locks, in Unix seconds; tests replace it."""

    # -- opening -------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the broker has answered our open, and neither side has closed."""
        return self.engine is not None and self.engine.peer is not None

    @property
    def is_closed(self) -> bool:
        """Whether this side has closed the connection for good."""
        return self._closed

    async def ready(self) -> None:
        """Connect if there is no connection, in one attempt.

        Raises `ConnectFailed`, and `Closed` after `close`.
        """
        if self.is_open:
            return
        if self._closed:
            raise self.closed_error()
        # The connection may be lost in the turn of the loop in which its attempt ends, before that is noted here.
        if self._opening is None or self._opening.done():
            self._opening = self.start(self._open())
            self._opening.add_done_callback(self._opening_done)
        # Several links wait for one attempt: a cancelled one does not stop it for the others.
        await outcome_of(self._opening, self.closed_error)

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop, which is the same for all calls. Raises `InvalidRequest` in another one."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidRequest(
                f"the client of {self.peer} was called outside of its event loop; call it in a coroutine, or use "
                "partibus.client.sync, also from threads"
            ) from None
        if self._loop is None:
            self._loop = running
        if running is not self._loop:
            raise InvalidRequest(
                f"the client of {self.peer} belongs to another event loop; make a client in each loop "
                "(asyncio.run makes a new one), or use partibus.client.sync"
            )
        return running

    def closed_error(self) -> Closed:
        """Return the error for a call after `close`."""
        return Closed(f"the client of {self.peer} is closed; make a new one")

    async def pause(self, delay_s: float) -> None:
        """Wait between two attempts, no longer than until `close`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._ended.wait()

    def _opening_done(self, task: asyncio.Task[None]) -> None:
        if self._opening is task:
            self._opening = None
        if not task.cancelled():
            task.exception()  # Seen, also if all who waited have left.

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self.settings
        engine = self.engine = Engine(server=False, login=Anonymous(settings.namespace), limits=LIMITS)
        engine.open(self.container_id, hostname=settings.namespace, properties={Symbol("product"): "partibus"})
        self._opened, self._over = loop.create_future(), loop.create_future()
        self._opened.add_done_callback(seen)
        attempt = _Attempt(self, engine)
        try:
            async with asyncio.timeout(min(settings.timeout, 30.0)):
                await self.connect(attempt)
                self._flush()
                await self._opened
        except TimeoutError:
            attempt.close()
            self._lose(ConnectFailed(f"{self.peer} does not answer AMQP in time. Check the port and the network."))
            raise ConnectFailed(
                f"{self.peer} does not answer AMQP in time. Check the port in the connection string, and the network."
            ) from None
        except ClientError as error:
            attempt.close()
            self._lose(error)
            raise
        except BaseException:
            attempt.close()
            self._lose(ConnectFailed(f"connecting to {self.peer} was given up"))
            raise
        if self.engine is not engine:
            raise ConnectionLost(f"the connection to {self.peer} was lost as soon as it was open")
        if self._was_open:
            self.statistics.reconnects += 1
        self._was_open = True
        self.trouble = None
        self._ticking = loop.call_later(engine.tick_interval, self._tick)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine beside the caller, and keep its task alive until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- links ---------------------------------------------------------------------------------------------------------

    async def authorize(self, path: str) -> None:
        """Put a token for an entity, unless a valid one was put. Raises `AccessDenied`."""
        await self._authority.authorize(self, path)

    def expire_claim(self, path: str) -> None:
        """Have the next `authorize` for an entity put a new token."""
        self._authority.expire(path)

    def begin(self, *owners: Owner) -> Session:
        """Begin an AMQP session for the links of ``owners``.

        Raises `ConnectionLost`, and `Busy` while the connection has as many sessions as either side allows.
        """
        if self.engine is None or not self.is_open:
            raise ConnectionLost(f"the connection to {self.peer} was lost")
        try:
            session = self.engine.begin()
        except UsageError as error:
            if self._closed:
                raise self.closed_error() from None
            raise Busy(f"{self.peer}: {error}, or make a client with more connections") from error
        self._owners[session] = list(owners)
        return session

    def end(self, session: SessionPort) -> None:
        """End a session with its links, without waiting for the answer. Its owners get no further calls."""
        if self._owners.pop(session, None) is not None:
            session.end()
            self.flush_soon()

    def link_name(self, entity: str) -> str:
        """Return a name that no other link of this client has."""
        return f"{self.container_id}:{entity}:{next(self._numbers)}"

    async def request(
        self,
        entity: str,
        operation: str,
        body: Mapping[str, object],
        *,
        link_name: str | None = None,
        state: DeliveryState | None = None,
        server_timeout: float | None = None,
    ) -> dict[str, object]:
        """Perform one operation of a `$management` node, in one attempt. Raises the error of the reply."""
        what = f"{operation} on '{entity or 'the namespace'}'"
        await self.ready()
        await self.authorize(entity)
        address = f"{entity}/$management" if entity else "$management"
        properties = request_properties(operation, server_timeout or self.settings.timeout)
        if link_name is not None:
            properties["associated-link-name"] = link_name
        return body_of(await self.node(address).ask(properties, body, what, state), what)

    async def max_request_bytes(self, entity: str) -> int | None:
        """Return the size of the largest request that a `$management` node takes; None if it stated none."""
        await self.ready()
        await self.authorize(entity)
        node = self.node(f"{entity}/$management" if entity else "$management")
        await node.attached()
        return node.max_request_bytes

    def node(self, address: str) -> Node:
        """Return the request and reply links of a node, which all callers share."""
        node = self._nodes.get(address)
        if node is None or node.error is not None:
            node = self._nodes[address] = Node(self, address)
        return node

    # -- transport -----------------------------------------------------------------------------------------------------

    def on_made(self, attempt: _Attempt) -> None:
        """Keep the transport of the present attempt; close that of an attempt that was given up."""
        self._sockets.add(attempt.gone)
        attempt.gone.add_done_callback(self._sockets.discard)
        if attempt.engine is self.engine:
            self._transport = attempt.transport
        else:
            attempt.close()

    def on_data(self, data: bytes) -> None:
        """Process bytes from the broker."""
        engine = self.engine
        if engine is None:
            return
        self.statistics.bytes_received += len(data)
        self._dispatch(engine.receive_data(data))
        self._flush()

    def on_lost(self, exc: Exception | None) -> None:
        """Tell the owners of all links."""
        self._lose(ConnectionLost(f"the connection to {self.peer} broke: {exc or 'the broker closed it'}"))

    def flush_soon(self) -> None:
        """Write pending output at the end of this turn of the event loop."""
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def flush(self) -> None:
        """Write pending output now."""
        self._flush()

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        engine, transport = self.engine, self._transport
        if engine is None or transport is None or not engine.bytes_buffered:
            return
        data = engine.data_to_send()
        if data and not transport.is_closing():
            statistics = self.statistics
            statistics.bytes_sent += len(data)
            statistics.writes += 1
            transport.write(data)
        if engine.is_closed:
            transport.close()

    def _tick(self) -> None:
        engine = self.engine
        if engine is None:
            return
        loop = asyncio.get_running_loop()
        self._dispatch(engine.tick(loop.time()))
        self._flush()
        if self.engine is engine:
            self._ticking = loop.call_later(engine.tick_interval, self._tick)
            renewal = self._authority.renew_due(self)
            if renewal is not None:
                self.start(renewal)

    # -- events --------------------------------------------------------------------------------------------------------

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Deliveries | Disposed):  # the hot ones
                owner = event.link.user
                if isinstance(owner, Owner):
                    if isinstance(event, Disposed):
                        owner.on_disposed(event)
                    else:
                        owner.on_deliveries(event.deliveries)
            elif isinstance(event, Detached | CreditChanged | Drained):
                owner = event.link.user
                if isinstance(owner, Owner):
                    self._tell(owner, event)
            elif isinstance(event, Attached):
                self._on_attached(event.link)
            elif isinstance(event, SessionClosed):
                for owner in self._owners.pop(event.session, ()):
                    owner.on_over(error_from(f"the session of {owner.name} ended", event.error, LinkLost))
            elif isinstance(event, WindowOpened):
                for owner in self._owners.get(event.session, ()):
                    owner.on_credit()
            elif isinstance(event, Opened):
                if self._opened is not None and not self._opened.done():
                    self._opened.set_result(None)
            elif isinstance(event, ConnectionClosed):
                self._on_closed(event)

    def _tell(self, owner: Owner, event: Detached | CreditChanged | Drained) -> None:
        """Tell a link's owner what has happened to the link."""
        if isinstance(event, CreditChanged):
            owner.on_credit()
        elif isinstance(event, Drained):
            owner.on_drained()
        elif event.by_peer:
            self._owners.get(event.link.session, []).clear()
            self.end(event.link.session)
            owner.on_over(error_from(owner.name, event.error, LinkLost))

    def _on_attached(self, link: Link) -> None:
        if link.awaits_answer:
            link.refuse(AmqpError("amqp:not-allowed", "this client offers no nodes"))
        elif isinstance(link.user, Owner):
            link.user.on_attached()

    def _on_closed(self, event: ConnectionClosed) -> None:
        kind: type[ClientError] = ConnectionLost if self.is_open else ConnectFailed
        who = f"{self.peer} closed" if event.by_peer else "this client closed"
        self._flush()
        self._lose(error_from(f"{who} the connection", event.error, kind))

    def _lose(self, error: ClientError) -> None:
        """End the connection for all owners. Idempotent."""
        if self.engine is None:
            return
        self.engine = None
        self.trouble = str(error)
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        if self._ticking is not None:
            self._ticking.cancel()
        self._authority.forget()
        self._nodes.clear()
        lost, self._owners = self._owners, {}
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(
                ConnectFailed(f"{self.peer} takes connections but does not answer AMQP: {error}. Check the port.")
            )
        for owners in lost.values():
            for owner in owners:
                owner.on_over(error)
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def close(self) -> None:
        """Close the connection and wait briefly for the broker's answer. Idempotent; raises no error."""
        self._closed = True
        self._ended.set()
        if self._opening is not None:
            self._opening.cancel()
        engine, over = self.engine, self._over
        if engine is not None and over is not None and self._transport is not None:
            engine.close()
            self._flush()
            await asyncio.wait([over], timeout=_GOODBYE_S)
        self._lose(self.closed_error())
        for task in list(self._tasks):
            task.cancel()
        # The loop may end after this: TLS tells the peer before it closes the socket.
        ending = [*self._tasks, *self._sockets]
        if ending:
            await asyncio.wait(ending, timeout=_GOODBYE_S)
