"""The client: one or several connections to a namespace, and what is opened on them."""

import asyncio
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from partibus.client.aio.claims import Claims
from partibus.client.aio.connection import Connection
from partibus.client.aio.link import Attachment, repeat
from partibus.client.aio.receiver import Receiver
from partibus.client.aio.sender import Sender
from partibus.client.aio.settings import (
    PREFETCH_MAX,
    TIMEOUT_MAX_S,
    RetryPolicy,
    TokenProvider,
    flush_interval,
    make_settings,
    retriable,
    whole,
    within,
)
from partibus.client.aio.statistics import Statistics
from partibus.client.errors import ClientError
from partibus.client.messages import check_key
from partibus.client.outcomes import NEXT_SESSION, NextSession, ReceiveMode
from partibus.errors import ArgumentError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from partibus.advice.profiles import Settings as AdvisedSettings
    from partibus.advice.rules import Advice
    from partibus.client.aio.processor import Handler, OnError, Processor
    from partibus.client.aio.rules import Rules
    from partibus.client.aio.session_receiver import SessionReceiver
    from partibus.client.aio.transaction import Transaction

_RENEW_MAX_S = 86_400.0
A = TypeVar("A", bound=Attachment)


class Client:
    """A namespace's client, a "messaging factory": its senders and receivers share its connection.

    Make one, keep it for the life of the program, and close it once. All times are in seconds.

    - ``connection_string``, or ``namespace`` ("host" or "host:port") and ``credential``, a function from an audience to
      a `Token`.
    - ``profile``: a scenario of the service's guidance by its name, such as "low-latency", or its `Settings` for given
      rates and clients (`partibus.client.profiles`). It sets ``connections``, ``batch_flush_interval`` and
      ``prefetch`` where they are not given.
    - ``connections`` (1 to 64, default 1): TCP connections. Senders and receivers are dealt to them evenly. More of
      them raise the throughput where the round trip is long.
    - ``batch_flush_interval`` (0 to 1, default 0.020): how long a send or a completion may wait for others to share its
      transfer; 0 disables batching. It holds for all senders and receivers. Receives and peeks are never batched.
    - ``prefetch`` (0 to 100,000, default 0): the default of receivers. A good value is 20 times the messages per second
      that all receivers of the client process, and less than they process in the time of a lock.
    - ``timeout`` (default 60): the time limit of every operation, with its retries.
    - ``buffer_bytes`` (default 4 MiB): encoded bytes of a sender's messages that wait for their results.
    - ``endpoint``: another address to connect to ("host:port" or a URL); the namespace stays that of the connection
      string.
    - ``transport``: "tcp", or "websocket" where only HTTPS passes.
    - ``ssl_context`` or ``ca_file``: the trusted authorities, by default those of the system.
    - ``tracer_provider``: OpenTelemetry's provider of spans for sends, receives and settlements; none by default.

    Wrong values raise `ArgumentError`. The client connects on first use, or in `open`, and again after a loss.
    """

    def __init__(
        self,
        connection_string: str | None = None,
        *,
        namespace: str | None = None,
        credential: TokenProvider | None = None,
        profile: "str | AdvisedSettings | None" = None,
        connections: int | None = None,
        batch_flush_interval: float | None = None,
        prefetch: int | None = None,
        timeout: float = 60.0,
        retry: RetryPolicy | None = None,
        buffer_bytes: int = 4 << 20,
        endpoint: str | None = None,
        transport: Literal["tcp", "websocket"] = "tcp",
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        container_id: str | None = None,
        tracer_provider: "TracerProvider | None" = None,
    ) -> None:
        advised = _advised(profile)
        self.settings = make_settings(
            connection_string,
            namespace=namespace,
            credential=credential,
            connections=advised["connections"] if connections is None else connections,
            batch_flush_interval=(
                advised["batch_flush_interval"] if batch_flush_interval is None else batch_flush_interval
            ),
            prefetch=advised["prefetch"] if prefetch is None else prefetch,
            timeout=timeout,
            retry=retry or RetryPolicy(),
            buffer_bytes=buffer_bytes,
            endpoint=endpoint,
            transport=transport,
            ssl_context=ssl_context,
            ca_file=ca_file,
            container_id=container_id,
            tracer_provider=tracer_provider,
        )
        self.statistics = Statistics()
        self._connections = [
            Connection(self.settings, Claims(self.settings), self.statistics, number)
            for number in range(self.settings.connections)
        ]
        self._attachments: list[Attachment] = []
        self._closing: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """The number of connections that the client uses."""
        return len(self._connections)

    @property
    def retry(self) -> RetryPolicy:
        """The delays between attempts."""
        return self.settings.retry

    # -- links ---------------------------------------------------------------------------------------------------------

    def sender(self, entity: str | None = None, *, batch_flush_interval: float | None = None) -> Sender:
        """Return a new sender to a queue or topic; it is attached on first use, or in `Sender.open`.

        ``entity`` defaults to the one in the connection string.
        """
        interval = self.settings.flush_interval
        if batch_flush_interval is not None:
            interval = flush_interval(batch_flush_interval)
        return self._keep(Sender(self._deal(), self._entity(entity), interval))

    def receiver(
        self,
        entity: str | None = None,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int | None = None,
        auto_renew: float = 0.0,
    ) -> Receiver:
        """Return a new receiver of a queue, a subscription (``topic/Subscriptions/name``) or a sub-queue.

        ``auto_renew`` is how long the locks of received messages are renewed, 0 for not at all.
        """
        return self._keep(
            Receiver(
                self._deal(),
                self._entity(entity),
                mode=_mode(mode),
                prefetch=self._prefetch(prefetch, mode),
                auto_renew=within("auto_renew", auto_renew, 0.0, _RENEW_MAX_S, "s"),
                flush_interval=self.settings.flush_interval,
            )
        )

    def session_receiver(
        self,
        entity: str | None = None,
        session_id: str | NextSession = NEXT_SESSION,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int | None = None,
        auto_renew: float = 0.0,
        max_wait: float = 60.0,
    ) -> "SessionReceiver":
        """Return a receiver that holds one session, or the next one with messages, once it is open.

        `SessionReceiver.open` waits up to ``max_wait`` seconds and raises `TimedOut` (no session) or `SessionHeld`
        (another receiver holds it). ``auto_renew`` is how long the session's lock is renewed.
        """
        from partibus.client.aio.session_receiver import SessionReceiver

        if not isinstance(session_id, NextSession):
            check_key("session_id", session_id)
        return self._keep(
            SessionReceiver(
                self._deal(),
                self._entity(entity),
                session_id,
                mode=_mode(mode),
                prefetch=self._prefetch(prefetch, mode),
                auto_renew=within("auto_renew", auto_renew, 0.0, _RENEW_MAX_S, "s"),
                flush_interval=self.settings.flush_interval,
                max_wait=within("max_wait", max_wait, 0.0, _RENEW_MAX_S, "s"),
            )
        )

    def processor(
        self,
        entity: str | None,
        handler: "Handler",
        *,
        concurrency: int = 1,
        sessions: bool = False,
        prefetch: int | None = None,
        auto_renew: float = 300.0,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        on_error: "OnError | None" = None,
    ) -> "Processor":
        """Return a processor that calls ``handler(message, receiver)`` for each message.

        It completes the message when the handler returns and abandons it when it raises, unless the handler has
        settled it. ``concurrency`` handlers run at a time; with ``sessions`` that many sessions are held, each with one
        handler. ``on_error`` is called with each error and its message, or None; by default errors are logged.
        """
        from partibus.client.aio.processor import WAIT_S, Processor

        if not callable(handler):
            raise ArgumentError("handler", handler, "a coroutine function of a message and its receiver")
        name, renew = self._entity(entity), within("auto_renew", auto_renew, 0.0, _RENEW_MAX_S, "s")
        mode, prefetch = _mode(mode), self._prefetch(prefetch, mode)

        def make_receiver() -> Receiver:
            return self.receiver(name, mode=mode, prefetch=prefetch, auto_renew=renew)

        def make_session() -> "SessionReceiver":
            return self.session_receiver(name, mode=mode, prefetch=prefetch, auto_renew=renew, max_wait=WAIT_S)

        return Processor(
            name,
            handler,
            concurrency=concurrency,
            make_receiver=make_receiver,
            make_session=make_session if sessions else None,
            retry=self.retry,
            on_error=on_error,
        )

    def transaction(self, beside: Sender | Receiver | None = None) -> "Transaction":
        """Return a transaction for ``async with``, on the connection of ``beside``; by default on the first one.

        A key that holds for one entity only needs ``beside``, unless the connection string names the entity.
        """
        from partibus.client.aio.transaction import Transaction

        if beside is not None and not isinstance(beside, Sender | Receiver):
            raise ArgumentError("beside", beside, "a sender or receiver of this client, or None")
        if beside is None:
            return self._keep(Transaction(self._connections[0], self.settings.entity_path))
        return self._keep(Transaction(beside.connection, beside.entity))

    # -- management ----------------------------------------------------------------------------------------------------

    async def request(
        self,
        entity: str | None,
        operation: str,
        body: Mapping[str, object],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (it bounds the retries together, and the broker is told)
    ) -> dict[str, object]:
        """Perform an operation of an entity's `$management` node, or of the namespace's for "".

        ``timeout`` defaults to the client's. Raises the error of the reply. The operation is repeated after a loss: it
        must bear that.
        """
        connection = self._connections[0]
        connection.loop()
        name = self._entity(entity) if entity != "" else ""
        if not isinstance(operation, str) or not operation:
            raise ArgumentError("operation", operation, "the name of an operation, such as com.microsoft:peek-message")
        if not isinstance(body, Mapping):
            raise ArgumentError("body", body, "a mapping of names to values")
        limit_s = self.settings.timeout if timeout is None else within("timeout", timeout, 0.0, TIMEOUT_MAX_S, "s")
        return await repeat(
            connection,
            f"{operation} on '{name or 'the namespace'}'",
            lambda: connection.request(name, operation, body, server_timeout=limit_s),
            limit_s,
            retriable,
        )

    async def authorize(self, entity: str) -> None:
        """Show the broker a token for an entity now. Links do so on their own when they are attached.

        Raises `AccessDenied`.
        """
        connection, name = self._connections[0], self._entity(entity)

        async def attempt() -> None:
            await connection.ready()
            await connection.authorize(name)

        await repeat(connection, f"authorisation for '{name}'", attempt, self.settings.timeout, retriable)

    async def max_request_bytes(self, entity: str | None) -> int | None:
        """Return the size of the largest request that an entity's `$management` node takes; None if it stated none."""
        connection, name = self._connections[0], self._entity(entity) if entity != "" else ""
        what = f"opening the management node of '{name or 'the namespace'}'"
        return await repeat(
            connection, what, lambda: connection.max_request_bytes(name), self.settings.timeout, retriable
        )

    def rules(self, subscription: str) -> "Rules":
        """Return the rules of a subscription by its path, ``topic/Subscriptions/name``."""
        # Imported here, as other things that few programs use: an import costs every program time.
        from partibus.client.aio.rules import Rules

        return Rules(self.request, self._entity(subscription))

    async def advise(self, entity: str | None = None, *, seconds: float = 10.0) -> "list[Advice]":
        """Watch the traffic of an entity for so long, and return the settings that depart from the guidance.

        Each `Advice` names the setting, what was measured, the sentence, the gain and the change; too little traffic
        gives none. Only partibus answers: another service raises `InvalidRequest`. Needs the Manage right.
        """
        name = self._entity(entity)
        within("seconds", seconds, 0.1, 3_600.0, "s")
        # Imported here, as in `_advised`: few programs ask, and the rules double the time to import a client.
        from partibus.client.extensions.traffic import watch

        return await watch(self.request, name, seconds)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect all connections now. Raises `ConnectFailed`."""
        for connection in self._connections:
            connection.loop()
        opening = [
            repeat(connection, f"connecting to {connection.peer}", connection.ready, self.settings.timeout)
            for connection in self._connections
        ]
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return self

    async def close(self) -> None:
        """Send what is open, wait for the answers, detach all links and close all connections. Idempotent.

        Calls from now on raise `Closed`. The wait has the client's time limit; results without an answer then fail.
        """
        if self._closing is None:
            self._connections[0].loop()
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        attachments, self._attachments = self._attachments, []
        closing = [one.close() for one in attachments if isinstance(one, Sender | Receiver)]
        done = await asyncio.gather(*closing, return_exceptions=True)
        await asyncio.gather(*[connection.close() for connection in self._connections])
        for result in done:
            if isinstance(result, BaseException) and not isinstance(result, ClientError):
                raise result

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()  # Some connections may be open.
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _deal(self) -> Connection:
        """Return the connection with the fewest links, so that they are dealt evenly."""
        return min(self._connections, key=_links)

    def _keep(self, attachment: A) -> A:
        """Remember a link until it is closed, for `close`. Raises `Closed`."""
        if self._closing is not None:
            raise self._connections[0].closed_error()
        self._attachments = [one for one in self._attachments if not one.is_closed]
        self._attachments.append(attachment)
        return attachment

    def _entity(self, entity: str | None) -> str:
        found = entity or self.settings.entity_path
        if not isinstance(found, str) or not found.strip("/"):
            raise ArgumentError("entity", entity, "the name of a queue or topic, or topic/Subscriptions/name")
        return found.strip("/")

    def _prefetch(self, prefetch: int | None, mode: ReceiveMode) -> int:
        if prefetch is not None:
            return whole("prefetch", prefetch, 0, PREFETCH_MAX)
        if self.settings.prefetch and mode is ReceiveMode.RECEIVE_AND_DELETE:
            raise ArgumentError(
                "prefetch of the client",
                self.settings.prefetch,
                "0 for a receive-and-delete receiver",
                "Its cached messages are lost with the process: pass prefetch to the receiver if that is bearable.",
            )
        return self.settings.prefetch


def _advised(profile: "str | AdvisedSettings | None") -> dict[str, Any]:
    """Return the arguments that a profile sets, or the defaults."""
    if profile is None:
        return {"connections": 1, "batch_flush_interval": 0.020, "prefetch": 0}
    from partibus.client import profiles

    if isinstance(profile, profiles.Settings):
        return profile.client_arguments
    known = profiles.PROFILES.get(profile) if isinstance(profile, str) else None
    if known is None:
        raise ArgumentError("profile", profile, f"one of {', '.join(profiles.PROFILES)}, or the Settings of one")
    return known.client_arguments(rate_per_s=known.typical_per_s)


def _links(connection: Connection) -> int:
    return connection.links


def _mode(mode: ReceiveMode) -> ReceiveMode:
    if not isinstance(mode, ReceiveMode):
        raise ArgumentError("mode", mode, "ReceiveMode.PEEK_LOCK or ReceiveMode.RECEIVE_AND_DELETE")
    return mode
