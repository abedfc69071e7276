"""The blocking client, its processors, and its rules of subscriptions."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from partibus.client import aio
from partibus.client.aio import IncomingMessage, ReceiveMode, RetryPolicy, Statistics, Transaction
from partibus.client.endpoint import Endpoint
from partibus.client.errors import ClientError, Closed
from partibus.client.sync.links import Receiver, Sender, SessionReceiver
from partibus.client.sync.loop import Blocking, Caller, arguments_of, blocking, made_on_loop
from partibus.errors import ArgumentError

Handler = Callable[[IncomingMessage, Receiver], object]
"""The function for each message. The message is completed when it returns, and abandoned when it raises."""


class Processor:
    """The blocking form of `partibus.client.aio.Processor`, made by `Client.processor`: handlers run in threads."""

    def __init__(
        self, caller: Caller, make: Callable[[aio.Handler], aio.Processor], handler: Handler, concurrency: int
    ) -> None:
        self.inner = caller.call(lambda: make(self._handle))
        self._caller = caller
        self._handler = handler
        self._concurrency = concurrency
        self._threads = concurrent.futures.ThreadPoolExecutor(concurrency, "partibus-handler")
        self._in_handler = threading.local()

    def start(self) -> None:
        """Open the receiver and begin, as `aio.Processor.start`."""
        self._caller.run(self.inner.start())

    def stop(self) -> None:
        """Let the handlers under way end, and settle their messages. Idempotent; a handler may call it."""
        if getattr(self._in_handler, "here", False):
            self._caller.start(self.inner.stop())  # Its end waits for this handler.
            return
        try:
            self._caller.run(self.inner.stop())
        finally:
            # The processor may be started again, and a pool can not.
            threads = self._threads
            self._threads = concurrent.futures.ThreadPoolExecutor(self._concurrency, "partibus-handler")
            threads.shutdown(wait=False)

    def run(self) -> None:
        """Process messages until `stop` is called by a handler or another thread, or this thread is interrupted.

        After an interrupt the handlers under way end, and their messages are settled. A second one ends that wait.
        Returns, too, when another thread closes the client; handlers may still be under way then.
        """
        started = False

        async def run() -> None:
            nonlocal started
            await self.inner.start()
            started = True
            await self.inner.run()

        try:
            self._caller.run(run())
        except BaseException as error:
            with suppress(ClientError):  # The client was closed.
                self.stop()
            if not (started and isinstance(error, Closed)):  # The loop may end before the processor.
                raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def _handle(self, message: IncomingMessage, inner: aio.Receiver) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._call, message, inner)

    def _call(self, message: IncomingMessage, inner: aio.Receiver) -> None:
        self._in_handler.here = True
        receiver: Receiver
        if isinstance(inner, aio.SessionReceiver):
            receiver = SessionReceiver(self._caller, inner)
        else:
            receiver = Receiver(self._caller, inner)
        self._handler(message, receiver)


class Client(Caller):
    """The blocking form of `partibus.client.aio.Client`, with the same arguments, units and errors."""

    @arguments_of(aio.Client)
    def __init__(self, *args: Any, **settings: Any) -> None:
        """Make a client; `partibus.client.aio.Client` explains the settings. Raises `ArgumentError`."""
        super().__init__(aio.Client(*args, **settings))

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

    sender = made_on_loop(aio.Client.sender, Sender)
    receiver = made_on_loop(aio.Client.receiver, Receiver)
    session_receiver = made_on_loop(aio.Client.session_receiver, SessionReceiver)

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

    request = blocking(aio.Client.request)
    authorize = blocking(aio.Client.authorize)
    max_request_bytes = blocking(aio.Client.max_request_bytes)
    advise = blocking(aio.Client.advise)

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


class Rules(Blocking[aio.Rules]):
    """The rules of a subscription, made by `Client.rules`. Calls raise `AlreadyExists`, `NotFound` and so on."""

    add = blocking(aio.Rules.add)
    remove = blocking(aio.Rules.remove)
    list = blocking(aio.Rules.list)
