"""One connection of a client: the AMQP engine on an asyncio transport, opened when needed and again after a loss.

A connection knows links by their owners and calls these for each event. It writes once in a turn of the event loop,
however many links have output.
"""

import asyncio
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import uuid4

from partibus.amqp import (
    AmqpError,
    Anonymous,
    Attached,
    CreditChanged,
    Deliveries,
    Delivery,
    DeliveryState,
    Detached,
    Disposed,
    Drained,
    Event,
    Limits,
    Link,
    Opened,
    Rejected,
    Session,
    SessionClosed,
    Source,
    Target,
    WindowOpened,
)
from partibus.amqp import Closed as ConnectionClosed
from partibus.amqp import Connection as Engine
from partibus.amqp.codec.types import Symbol
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.client.aio.settings import Settings
from partibus.client.errors import (
    ClientError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    InvalidRequest,
    LinkLost,
    error_from,
)
from partibus.client.management import Reply, body_of, request_properties
from partibus.client.messages import IncomingMessage

# A broker is more trustworthy than an unknown peer: messages may have the service's 100 MB, and a consumer may hold
# many more messages than a server should keep for one client.
LIMITS: Final = Limits(
    max_message_size=128 << 20, partial_bytes_max=256 << 20, max_unsettled=200_000, pending_bytes_max=64 << 20
)
_GOODBYE_S: Final = 2.0
_REPLY_CREDIT: Final = 1_000

T = TypeVar("T")


class Statistics:
    """Counters of a client since it was made; `Client.statistics` is live."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "dispositions_sent",
        "fills",
        "flows_sent",
        "messages_received",
        "messages_sent",
        "reconnects",
        "retries",
        "settled",
        "transfers_sent",
        "writes",
    )

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self.writes = 0
        """Writes to the transports."""
        self.transfers_sent = 0
        """Batches and single messages."""
        self.messages_sent = 0
        self.flows_sent = 0
        """Grants of credit to receivers' links."""
        self.messages_received = 0
        self.fills = 0
        """Requests to fill an empty prefetch cache."""
        self.dispositions_sent = 0
        """Groups of settlements that left together."""
        self.settled = 0
        """Messages whose settlement the broker has confirmed."""
        self.reconnects = 0
        """Connections opened again after a loss."""
        self.retries = 0
        """Attempts after a failed one."""

    def __repr__(self) -> str:
        return ", ".join(f"{name} {getattr(self, name)}" for name in self.__slots__)


class Owner:
    """The receiver of a link's events, stored in `Link.user`."""

    name: str
    """The name for error texts: ``sender to 'orders'``."""

    def on_attached(self) -> None:
        """Use the link, which the broker has attached."""

    def on_credit(self) -> None:
        """Send what the broker has room for now."""

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Process messages that arrived on the link."""

    def on_disposed(self, event: Disposed) -> None:
        """Process the peer's dispositions of deliveries on the link."""

    def on_drained(self) -> None:
        """Process the end of a drain."""

    def on_over(self, error: ClientError) -> None:
        """Process the error that ended the link."""


class Authority(Protocol):
    """The source of the tokens of one connection."""

    async def authorize(self, connection: "Connection", path: str) -> None:
        """Put a valid token for an entity by path. Raises `AccessDenied`."""

    def renew_due(self, connection: "Connection") -> Awaitable[None] | None:
        """Return a coroutine that renews tokens which are about to expire; None if there are none."""

    def forget(self) -> None:
        """Forget all tokens, because the connection is new."""


class Connection(asyncio.Protocol):
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
        self._gone: asyncio.Future[None] | None = None
        """Done when the transport has closed its socket."""
        self._owners: dict[Session, list[Owner]] = {}
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
        """Why there is no connection, after a failed attempt."""
        self.connect: Callable[[Connection], Awaitable[object]] = connect_tcp
        """The function that connects a transport to this protocol; tests replace it."""
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
        if self._opening is None:
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
        self._opening = None
        if not task.cancelled():
            task.exception()  # Seen, also if all who waited have left.

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self.settings
        engine = self.engine = Engine(server=False, login=Anonymous(settings.namespace), limits=LIMITS)
        engine.open(self.container_id, hostname=settings.namespace, properties={Symbol("product"): "partibus"})
        self._opened, self._over = loop.create_future(), loop.create_future()
        self._opened.add_done_callback(_seen)
        try:
            async with asyncio.timeout(min(settings.timeout, 30.0)):
                await self.connect(self)
                self._flush()
                await self._opened
        except TimeoutError:
            self._lose(ConnectFailed(f"{self.peer} does not answer AMQP in time. Check the port and the network."))
            raise ConnectFailed(
                f"{self.peer} does not answer AMQP in time. Check the port in the connection string, and the network."
            ) from None
        except ClientError as error:
            self._lose(error)
            raise
        except BaseException:
            self._lose(ConnectFailed(f"connecting to {self.peer} was given up"))
            raise
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

    def forget_claims(self) -> None:
        """Have the next `authorize` put a new token."""
        self._authority.forget()

    def begin(self, *owners: Owner) -> Session:
        """Begin an AMQP session for the links of ``owners``. Raises `ConnectionLost`."""
        if self.engine is None or not self.is_open:
            raise ConnectionLost(f"the connection to {self.peer} was lost")
        session = self.engine.begin()
        self._owners[session] = list(owners)
        return session

    def end(self, session: Session) -> None:
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

    def node(self, address: str) -> "Node":
        """Return the request and reply links of a node, which all callers share."""
        node = self._nodes.get(address)
        if node is None or node.error is not None:
            node = self._nodes[address] = Node(self, address)
        return node

    # -- transport -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # Not every loop derives its transports from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._gone = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the broker."""
        engine = self.engine
        if engine is None:
            return
        self.statistics.bytes_received += len(data)
        self._dispatch(engine.receive_data(data))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owners of all links."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
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
                self.start(self._renew(renewal))

    async def _renew(self, renewal: Awaitable[None]) -> None:
        # If it fails, the broker detaches the links; their owners put a new token and attach again.
        with suppress(ClientError):
            await renewal

    # -- events --------------------------------------------------------------------------------------------------------

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Deliveries | Disposed | Detached | CreditChanged | Drained):
                owner = event.link.user
                if not isinstance(owner, Owner):
                    continue
                if isinstance(event, Deliveries):
                    owner.on_deliveries(event.deliveries)
                elif isinstance(event, Disposed):
                    owner.on_disposed(event)
                elif isinstance(event, CreditChanged):
                    owner.on_credit()
                elif isinstance(event, Drained):
                    owner.on_drained()
                elif event.by_peer:
                    self._owners.get(event.link.session, []).clear()
                    self.end(event.link.session)
                    owner.on_over(error_from(owner.name, event.error, LinkLost))
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
        # The loop may end after this: TLS takes leave of the peer before it closes the socket.
        ending = [*self._tasks] if self._gone is None else [*self._tasks, self._gone]
        if ending:
            await asyncio.wait(ending, timeout=_GOODBYE_S)


async def outcome_of(task: "asyncio.Task[T]", closed: Callable[[], ClientError]) -> T:
    """Wait for a task that others wait for, too: a cancelled wait does not stop it.

    If `close` cancelled the task, this raises the error of ``closed``: a CancelledError would tell the caller that its
    own task was cancelled.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        own = asyncio.current_task()
        if not task.cancelled() or (own is not None and own.cancelling()):
            raise
        raise closed() from None


def _seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


async def connect_tcp(connection: Connection) -> None:
    """Connect over TCP, with TLS where the endpoint has it. Raises `ConnectFailed` with the next step."""
    loop = asyncio.get_running_loop()
    settings, endpoint = connection.settings, connection.settings.endpoint
    context = tls_context(settings) if endpoint.tls else None
    host = endpoint.address
    protocol: asyncio.Protocol = connection
    opened: asyncio.Future[None] | None = None
    if settings.websocket:
        # Imported here: only some clients need it, and each import costs every client time.
        from partibus.client.aio.websocket import Websocket

        protocol = websocket = Websocket(connection, endpoint)
        opened = websocket.opened
    try:
        try:
            transport, _ = await _connect(loop, protocol, host, endpoint.port, context, endpoint.address)
        except socket.gaierror:
            # Names below localhost are this machine (RFC 6761), even if the system's resolver does not know that.
            if not host.lower().endswith(".localhost"):
                raise
            transport, _ = await _connect(loop, protocol, "localhost", endpoint.port, context, endpoint.address)
    except ssl.SSLError as error:
        raise ConnectFailed(
            f"no TLS with {endpoint}: {error.reason or error}. Pass ca_file or ssl_context for a private "
            "authority; for a broker without TLS add UseDevelopmentEmulator=true to the connection string."
        ) from error
    except OSError as error:
        raise ConnectFailed(
            f"no connection to {endpoint}: {error.strerror or error}. Start a broker there (partibus serve), or "
            "correct Endpoint in the connection string."
        ) from error
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if opened is not None:
        await opened


async def _connect(
    loop: asyncio.AbstractEventLoop,
    protocol: asyncio.Protocol,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    name: str,
) -> tuple[asyncio.Transport, asyncio.Protocol]:
    return await loop.create_connection(
        lambda: protocol, host, port, ssl=context, server_hostname=name if context is not None else None
    )


def tls_context(settings: Settings) -> ssl.SSLContext:
    """Return the caller's context, or one that trusts ``ca_file`` or the system."""
    if settings.ssl_context is not None:
        return settings.ssl_context
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        raise ConnectFailed(f"ca_file {settings.ca_file!r} can not be read: {error}. Name a file of PEM.") from error


class Node(Owner):
    """Request and response over a pair of links to one node, `$cbs` or `$management`."""

    def __init__(self, connection: Connection, address: str) -> None:
        """Attach both links. Raises `ConnectionLost`."""
        self.name = f"node '{address}'"
        self.error: ClientError | None = None
        self._connection = connection
        self._address = address
        self._numbers = count(1)
        self._queue: deque[tuple[str, bytes, DeliveryState | None]] = deque()
        self._answers: dict[str, asyncio.Future[Reply]] = {}
        """Requests without an answer, by message id."""
        self._waiting: list[asyncio.Future[None]] = []
        """Calls that wait until both links are attached."""
        reply_to = self._reply_to = f"{address}-{uuid4()}"
        session = connection.begin(self)
        self._sender = session.attach_sender(f"{reply_to}-requests", source=Source(reply_to), target=Target(address))
        self._receiver = session.attach_receiver(reply_to, source=Source(address), target=Target(reply_to))
        self._sender.user = self._receiver.user = self
        connection.flush_soon()

    async def ask(
        self, properties: Mapping[str, object], body: object, what: str, state: DeliveryState | None = None
    ) -> Reply:
        """Send one request and wait for the reply.

        The caller sets the time limit. Raises the error that refused the request, or that ended a link.
        """
        if self.error is not None:
            raise self.error
        message_id = str(next(self._numbers))
        payload = (
            encode_properties(message_id=message_id, to=self._address, reply_to=self._reply_to)
            + encode_application_properties(properties)
            + encode_value(body)
        )
        most = self._sender.remote_max_message_size
        if most and len(payload) > most:
            raise error_from(
                what,
                AmqpError(
                    "amqp:link:message-size-exceeded", f"the request has {len(payload)} bytes, the broker takes {most}"
                ),
            )
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers[message_id] = answer
        self._queue.append((message_id, payload, state))
        self.on_credit()
        try:
            return await answer
        finally:
            del self._answers[message_id]

    @property
    def max_request_bytes(self) -> int | None:
        """The size of the largest request that the node takes, once it is attached; None if it stated none."""
        return self._sender.remote_max_message_size or None

    async def attached(self) -> None:
        """Wait until the broker has attached both links. Raises the error that refused one."""
        if self.error is not None:
            raise self.error
        if not (self._receiver.is_open and self._sender.is_open):
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def on_attached(self) -> None:
        """Let the broker reply, and send waiting requests."""
        if self._receiver.is_open:
            self._receiver.grant(_REPLY_CREDIT)
            if self._sender.is_open:
                waiting, self._waiting = self._waiting, []
                for one in waiting:
                    if not one.done():
                        one.set_result(None)
        self.on_credit()

    def on_credit(self) -> None:
        """Send waiting requests, once replies can come."""
        while self._queue and self._receiver.is_open and self._sender.credit:
            message_id, payload, state = self._queue.popleft()
            if message_id in self._answers:
                self._sender.send(message_id.encode(), payload, message_id, state=state)
        self._connection.flush_soon()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Match replies with their requests."""
        for delivery in deliveries:
            message = IncomingMessage(delivery.payload, delivery)
            try:
                answer = self._answers.get(str(message.correlation_id))
                reply = Reply(message.application_properties, message.body)
            except DecodeError as error:
                self.on_over(ClientError(f"{self.name} sent a reply that is no message: {error}"))
                return
            if answer is not None and not answer.done():
                answer.set_result(reply)
        self._receiver.settle_many(deliveries)
        if self._receiver.credit < _REPLY_CREDIT // 2:
            self._receiver.grant(_REPLY_CREDIT)

    def on_disposed(self, event: Disposed) -> None:
        """Fail a rejected request, which gets no reply."""
        if isinstance(event.state, Rejected):
            refusal = event.state.error or AmqpError("amqp:not-allowed", "the request was rejected")
            for message_id in event.contexts:
                answer = self._answers.get(str(message_id))
                if answer is not None and not answer.done():
                    answer.set_exception(error_from(self.name, refusal))
        if not event.settled:
            self._sender.settle_many(event.delivery_ids, event.state)

    def on_over(self, error: ClientError) -> None:
        """Fail all requests."""
        self.error = error
        futures: list[asyncio.Future[Any]] = [*self._answers.values(), *self._waiting]
        for future in futures:
            if not future.done():
                future.set_exception(error)
