"""The blocking client, which makes senders, receivers and processors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from partibus.client import aio
from partibus.client.aio import NEXT_SESSION, NextSession, ReceiveMode, RetryPolicy, RuleInfo, Statistics, Transaction
from partibus.client.endpoint import Endpoint
from partibus.client.sync.loop import Caller
from partibus.client.sync.processor import Handler, Processor
from partibus.client.sync.receiver import Receiver, SessionReceiver
from partibus.client.sync.sender import Sender
from partibus.errors import ArgumentError

if TYPE_CHECKING:
    from partibus.advice.rules import Advice


class Client(Caller):
    """The blocking form of `partibus.client.aio.Client`, with the same arguments, units and errors."""

    def __init__(self, connection_string: str | None = None, **settings: Any) -> None:
        """Make a client; `partibus.client.aio.Client` explains the settings. Raises `ArgumentError`."""
        super().__init__(aio.Client(connection_string, **settings))

    @property
    def connections(self) -> int:
        """The number of connections that the client uses."""
        return self.inner.connections

    @property
    def endpoint(self) -> Endpoint:
        """The address that the client connects to."""
        return self.inner.settings.endpoint

    @property
    def statistics(self) -> Statistics:
        """The counters of the client."""
        return self.inner.statistics

    def sender(self, entity: str | None = None, *, batch_flush_interval: float | None = None) -> Sender:
        """Return a new sender to a queue or topic, as `aio.Client.sender`."""
        return Sender(self, self.call(lambda: self.inner.sender(entity, batch_flush_interval=batch_flush_interval)))

    def receiver(
        self,
        entity: str | None = None,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int | None = None,
        auto_renew: float = 0.0,
    ) -> Receiver:
        """Return a new receiver, as `aio.Client.receiver`."""
        inner = self.call(lambda: self.inner.receiver(entity, mode=mode, prefetch=prefetch, auto_renew=auto_renew))
        return Receiver(self, inner)

    def session_receiver(
        self,
        entity: str | None = None,
        session_id: str | NextSession = NEXT_SESSION,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int | None = None,
        auto_renew: float = 0.0,
        max_wait: float = 60.0,
    ) -> SessionReceiver:
        """Return a receiver that holds one session once it is open, as `aio.Client.session_receiver`."""

        def make() -> aio.SessionReceiver:
            return self.inner.session_receiver(
                entity, session_id, mode=mode, prefetch=prefetch, auto_renew=auto_renew, max_wait=max_wait
            )

        return SessionReceiver(self, self.call(make))

    def processor(
        self,
        entity: str | None,
        handler: Handler,
        *,
        concurrency: int = 1,
        sessions: bool = False,
        prefetch: int | None = None,
        auto_renew: float = 300.0,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        on_error: aio.OnError | None = None,
    ) -> Processor:
        """Return a processor that calls ``handler(message, receiver)`` in a thread, as `aio.Client.processor`.

        ``concurrency`` is the number of threads. ``on_error`` is called in the client's own thread and must not block.
        """
        if not callable(handler):
            raise ArgumentError("handler", handler, "a function of a message and its receiver")

        def make(handle: aio.Handler) -> aio.Processor:
            return self.inner.processor(
                entity,
                handle,
                concurrency=concurrency,
                sessions=sessions,
                prefetch=prefetch,
                auto_renew=auto_renew,
                mode=mode,
                on_error=on_error,
            )

        return Processor(self, make, handler, concurrency)

    @contextmanager
    def transaction(self, beside: Sender | Receiver | None = None) -> Iterator[Transaction]:
        """Carry out the operations of a block that name the transaction: all or none (`aio.Client.transaction`)."""
        transaction = self.call(lambda: self.inner.transaction(None if beside is None else beside.inner))
        self.run(transaction.__aenter__())
        try:
            yield transaction
        except BaseException as error:
            self.run(transaction.__aexit__(type(error), error, None))
            raise
        self.run(transaction.__aexit__(None, None, None))

    def request(
        self, entity: str | None, operation: str, body: Mapping[str, object], *, timeout: float | None = None
    ) -> dict[str, object]:
        """Perform an operation of a `$management` node, as `aio.Client.request`."""
        return self.run(self.inner.request(entity, operation, body, timeout=timeout))

    def authorize(self, entity: str) -> None:
        """Show the broker a token for an entity now, as `aio.Client.authorize`."""
        self.run(self.inner.authorize(entity))

    def max_request_bytes(self, entity: str | None) -> int | None:
        """Return the size of the largest request that a node takes, as `aio.Client.max_request_bytes`."""
        return self.run(self.inner.max_request_bytes(entity))

    def advise(self, entity: str | None = None, *, seconds: float = 10.0) -> "list[Advice]":
        """Watch an entity's traffic and return the settings that depart from the guidance, as `aio.Client.advise`."""
        return self.run(self.inner.advise(entity, seconds=seconds))

    def rules(self, subscription: str) -> "Rules":
        """Return the rules of a subscription by its path, ``topic/Subscriptions/name``."""
        return Rules(self, self.inner.rules(subscription))

    def open(self) -> Self:
        """Connect all connections now. Raises `ConnectFailed`."""
        self.run(self.inner.open())
        return self

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect(connection_string: str, *, timeout: float = 30.0, container_id: str | None = None) -> Client:
    """Return an open client for tools: each message is a transfer of its own, and no operation is repeated.

    A tool tells its user about an outage at once, and jobs have retries of their own. ``timeout`` is in seconds. Raises
    `ConnectFailed`, and `ArgumentError` for a malformed connection string.
    """
    client = Client(
        connection_string,
        timeout=timeout,
        retry=RetryPolicy(attempts=1),
        batch_flush_interval=0.0,
        container_id=container_id,
    )
    return client.__enter__()


class Rules:
    """The rules of a subscription, made by `Client.rules`. Calls raise `AlreadyExists`, `NotFound` and so on."""

    def __init__(self, client: Client, inner: aio.Rules) -> None:
        self._client = client
        self._inner = inner

    def add(self, rule: RuleInfo) -> None:
        """Add a rule, which applies to messages sent from now on."""
        self._client.run(self._inner.add(rule))

    def remove(self, name: str) -> None:
        """Remove a rule. Messages that it selected stay."""
        self._client.run(self._inner.remove(name))

    def list(self) -> list[RuleInfo]:
        """Return all rules, sorted by name."""
        return self._client.run(self._inner.list())
