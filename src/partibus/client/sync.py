"""The blocking client: the one for asyncio, run by a thread.

```python
with Client(connection_string) as client:
    client.sender("orders").send([OutgoingMessage(body=b"hello")])
    with client.receiver("orders", prefetch=20) as receiver:
        for message in receiver.receive(max_messages=10, max_wait=5):
            receiver.complete(message)
```

All blocking clients of a process share one thread with an event loop, which starts with the first client and ends with
the last. So there is one engine and one set of rules, locks and tokens are renewed while the caller works, and any
thread may use a client. A call costs two switches between threads, some 50 µs: pass many messages at a time.

Every call sends at once, as the service's guidance says of synchronous operations: client-side batching is for
asynchronous ones. The messages of one call still travel together. `Sender.submit` sends without waiting and is batched.
"""

import asyncio
import concurrent.futures
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from partibus.client import aio
from partibus.client.aio import (
    NEXT_SESSION,
    IncomingMessage,
    NextSession,
    OutgoingMessage,
    ReceiveMode,
    RetryPolicy,
    RuleInfo,
    Sendable,
    Statistics,
    Token,
    Transaction,
)
from partibus.client.endpoint import Endpoint
from partibus.client.errors import ClientError, Closed, InvalidRequest, SendFailed
from partibus.errors import ArgumentError

if TYPE_CHECKING:
    from partibus.advice.rules import Advice

T = TypeVar("T")

__all__ = [
    "NEXT_SESSION",
    "Client",
    "Handler",
    "IncomingMessage",
    "NextSession",
    "OutgoingMessage",
    "Processor",
    "ReceiveMode",
    "Receiver",
    "RetryPolicy",
    "RuleInfo",
    "Rules",
    "Sender",
    "SessionReceiver",
    "Statistics",
    "Token",
    "connect",
]


class _Loop:
    """The event loop that all blocking clients of the process share, in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def enter(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, for one more client."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="partibus-client", daemon=True)
                self._thread.start()
            self._users += 1
            return self._loop

    def leave(self) -> None:
        """Stop the loop with its last client, and cancel what other threads have begun on it meanwhile."""
        with self._lock:
            self._users -= 1
            if self._users or self._loop is None or self._thread is None:
                return
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on the loop, which a blocking call would stop."""
        return self._thread is threading.current_thread()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until `_Loop.leave` stops it, then end what is left and close it."""
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()

    async def end() -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # The callbacks of their results.

    loop.run_until_complete(end())
    loop.close()


_LOOP = _Loop()


def _forget_loop() -> None:
    """Begin anew in a forked process, which has the loop's memory without its thread."""
    global _LOOP
    _LOOP = _Loop()


os.register_at_fork(after_in_child=_forget_loop)


class Client:
    """The blocking form of `partibus.client.aio.Client`, with the same arguments, units and errors."""

    def __init__(self, connection_string: str | None = None, **settings: Any) -> None:
        """Make a client; `partibus.client.aio.Client` explains the settings. Raises `ArgumentError`."""
        self.inner = aio.Client(connection_string, **settings)
        self._shared = _LOOP
        self._loop: asyncio.AbstractEventLoop | None = self._shared.enter()
        self._closing = threading.Lock()
        self._using = threading.Lock()
        """Held while a call is handed to the loop, so that a close by another thread comes before or behind it."""

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

    def sender(self, entity: str | None = None, *, batch_flush_interval: float | None = None) -> "Sender":
        """Return a new sender to a queue or topic, as `aio.Client.sender`."""
        return Sender(self, self.call(lambda: self.inner.sender(entity, batch_flush_interval=batch_flush_interval)))

    def receiver(
        self,
        entity: str | None = None,
        *,
        mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        prefetch: int | None = None,
        auto_renew: float = 0.0,
    ) -> "Receiver":
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
    ) -> "SessionReceiver":
        """Return a receiver that holds one session once it is open, as `aio.Client.session_receiver`."""

        def make() -> aio.SessionReceiver:
            return self.inner.session_receiver(
                entity, session_id, mode=mode, prefetch=prefetch, auto_renew=auto_renew, max_wait=max_wait
            )

        return SessionReceiver(self, self.call(make))

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
        on_error: "aio.OnError | None" = None,
    ) -> "Processor":
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
    def transaction(self, beside: "Sender | Receiver | None" = None) -> "Iterator[Transaction]":
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

    def close(self) -> None:
        """Send what is open, wait for the answers, and close all connections. Idempotent; any thread may call it."""
        with self._closing:
            if self._loop is None:
                return
            if self._shared is not _LOOP:
                self._loop = None  # A forked process: the connection and the loop belong to the parent.
                return
            try:
                self.run(self.inner.close())
            finally:
                with self._using:
                    self._loop = None
                self._shared.leave()

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

    # -- the way into the loop -----------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. An interrupted wait cancels it."""
        self._check_thread(work)
        future = self.start(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._loop is None:
                raise self._closed_error() from None
            raise
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start a coroutine on the loop and return its future result."""
        with self._using:
            try:
                loop = self._running()
            except ClientError:
                work.close()
                raise
            return asyncio.run_coroutine_threadsafe(work, loop)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop and return its result."""
        self._check_thread()
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        def work() -> None:
            try:
                result.set_result(function())
            except Exception as error:  # noqa: BLE001 (whatever it is, the caller's thread raises it)
                result.set_exception(error)

        self.post(work)
        return result.result()

    def post(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting for it."""
        with self._using:
            self._running().call_soon_threadsafe(function)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise self._closed_error()
        if self._shared is not _LOOP:
            raise InvalidRequest("the client was made before this process was forked; make a new one")
        return self._loop

    def _check_thread(self, work: Coroutine[Any, Any, Any] | None = None) -> None:
        if self._shared.is_here:
            if work is not None:
                work.close()
            raise InvalidRequest(
                "a blocking call in the client's own thread (from a credential, say) would wait for itself; "
                "use partibus.client.aio there"
            )

    def _closed_error(self) -> Closed:
        return Closed(f"the client of {self.endpoint} is closed; make a new one")


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


class Sender:
    """The blocking form of `partibus.client.aio.Sender`, made by `Client.sender`."""

    def __init__(self, client: Client, inner: aio.Sender) -> None:
        self.inner = inner
        self._client = client

    @property
    def max_message_bytes(self) -> int | None:
        """The size of the largest message that the broker takes, once the sender is open."""
        return self.inner.max_message_bytes

    def open(self) -> Self:
        """Attach the link now. Raises as `aio.Sender.open`."""
        self._client.run(self.inner.open())
        return self

    def send(
        self,
        messages: Sendable | Iterable[Sendable],
        *,
        timeout: float | None = None,
        transaction: Transaction | None = None,
    ) -> int:
        """Send a message or several at once, wait until all are stored durably, and return how many.

        Raises the error of a single message, and `SendFailed` with the failures of several; the others are stored.
        """
        if isinstance(messages, OutgoingMessage | bytes) or not isinstance(messages, Iterable):
            several: list[Any] = [messages]
        else:
            several = list(messages)
        return self._client.run(self._send(several, timeout, transaction))

    async def _send(self, messages: list[Sendable], timeout_s: float | None, transaction: Transaction | None) -> int:
        if transaction is None:
            sendings = self.inner.send_now(messages, timeout_s)
        else:
            sendings = [self.inner.send(one, transaction=transaction, timeout=timeout_s) for one in messages]
        results = await asyncio.gather(*sendings, return_exceptions=True)
        failures = [(index, error) for index, error in enumerate(results) if isinstance(error, ClientError)]
        if len(failures) == len(messages) == 1:
            raise failures[0][1]
        if failures:
            raise SendFailed(failures, len(messages))
        return len(messages)

    def send_batch(self, messages: Iterable[Sendable], *, timeout: float | None = None) -> int:
        """Send messages as one batch, all stored or none, as `aio.Sender.send_batch`; return how many."""
        several = list(messages)

        async def send() -> int:
            await self.inner.send_batch(several, timeout=timeout)
            return len(several)

        return self._client.run(send())

    def submit(self, message: Sendable) -> "concurrent.futures.Future[None]":
        """Send a message without waiting; the result is done when it is stored. Such sends are batched.

        Waits while ``buffer_bytes`` of the client have no result. A cancelled result takes an unsent message back.
        """
        inner, client = self.inner, self._client
        if inner.outstanding_bytes >= client.inner.settings.buffer_bytes:
            client.run(inner.room())
        result: concurrent.futures.Future[None] = concurrent.futures.Future()

        def send() -> None:
            try:
                sending = inner.send(message)
            except Exception as error:  # noqa: BLE001 (whatever it is, the result has it)
                if result.set_running_or_notify_cancel():
                    result.set_exception(error)
                return
            sending.add_done_callback(sent)
            result.add_done_callback(partial(taken_back, sending))

        def taken_back(sending: "asyncio.Future[None]", result: "concurrent.futures.Future[None]") -> None:
            if result.cancelled():
                with suppress(Closed):
                    client.post(sending.cancel)

        def sent(sending: "asyncio.Future[None]") -> None:
            if sending.cancelled():
                result.cancel()
            elif result.set_running_or_notify_cancel():
                error = sending.exception()
                if error is None:
                    result.set_result(None)
                else:
                    result.set_exception(error)

        client.post(send)
        return result

    def flush(self) -> None:
        """Wait until every submitted message has its result."""
        self._client.run(self.inner.flush())

    def schedule(self, messages: Sequence[Sendable], enqueue_at_ms: int) -> list[int]:
        """Schedule messages and return their sequence numbers, as `aio.Sender.schedule`."""
        return self._client.run(self.inner.schedule(messages, enqueue_at_ms))

    def cancel_scheduled(self, sequence_numbers: Sequence[int]) -> None:
        """Cancel scheduled messages by their numbers. Raises `NotFound`."""
        self._client.run(self.inner.cancel_scheduled(sequence_numbers))

    def close(self) -> None:
        """Wait for all results, then detach. Idempotent."""
        self._client.run(self.inner.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Receiver:
    """The blocking form of `partibus.client.aio.Receiver`, made by `Client.receiver`."""

    def __init__(self, client: Client, inner: aio.Receiver) -> None:
        self._inner = inner
        self._client = client

    @property
    def inner(self) -> aio.Receiver:
        """The receiver on the loop."""
        return self._inner

    @property
    def cached(self) -> int:
        """The number of messages in the prefetch cache."""
        return self._inner.cached

    def open(self) -> Self:
        """Attach the link now. Raises as `aio.Receiver.open`."""
        self._client.run(self._inner.open())
        return self

    def receive(self, max_messages: int = 1, max_wait: float = 60.0) -> list[IncomingMessage]:
        """Receive messages, as `aio.Receiver.receive`."""
        return self._client.run(self._inner.receive(max_messages, max_wait))

    def __iter__(self) -> Iterator[IncomingMessage]:
        """Receive messages one after the other, until the receiver is closed.

        Messages that a loop leaves stay in the cache, for the next call.
        """
        while not self._inner.is_closed:
            try:
                messages = deque(self.receive(max(1, min(self._inner.prefetch, 100))))
            except Closed:
                return
            try:
                while messages:
                    yield messages.popleft()
            finally:
                if messages:
                    self._client.call(partial(self._inner.take_back, messages))

    def complete(
        self, messages: IncomingMessage | Iterable[IncomingMessage], *, transaction: Transaction | None = None
    ) -> None:
        """Complete a message or several, and wait until that is durable. Raises `LockLost` for the first lost lock."""
        several: list[Any] = list(messages) if isinstance(messages, Iterable) else [messages]

        async def work() -> None:
            completed = self._inner.complete(several, transaction=transaction)
            self._inner.flush()
            await completed

        self._client.run(work())

    def abandon(
        self, messages: IncomingMessage | Iterable[IncomingMessage], *, transaction: Transaction | None = None
    ) -> None:
        """Unlock messages and count a failed delivery. Raises `LockLost`."""
        self._settle(messages, lambda message: self._inner.abandon(message, transaction=transaction))

    def defer(
        self, messages: IncomingMessage | Iterable[IncomingMessage], *, transaction: Transaction | None = None
    ) -> None:
        """Defer messages until `receive_deferred` asks for their sequence numbers. Raises `LockLost`."""
        self._settle(messages, lambda message: self._inner.defer(message, transaction=transaction))

    def dead_letter(
        self,
        messages: IncomingMessage | Iterable[IncomingMessage],
        reason: str | None = None,
        description: str | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        """Move messages to the dead-letter sub-queue. Raises `LockLost`."""
        self._settle(
            messages, lambda message: self._inner.dead_letter(message, reason, description, transaction=transaction)
        )

    def release(self, message: IncomingMessage) -> None:
        """Requeue a message in its place without counting a delivery."""
        self._client.call(lambda: self._inner.release(message))

    def _settle(
        self,
        messages: IncomingMessage | Iterable[IncomingMessage],
        settle: "Callable[[IncomingMessage], asyncio.Future[None]]",
    ) -> None:
        several: list[Any] = list(messages) if isinstance(messages, Iterable) else [messages]

        async def work() -> None:
            futures = [settle(message) for message in several]
            self._inner.flush()
            results = await asyncio.gather(*futures, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

        self._client.run(work())

    def renew_lock(self, message: IncomingMessage) -> int:
        """Renew a message's lock and return its new end, as Unix time in milliseconds. Raises `LockLost`."""
        return self._client.run(self._inner.renew_lock(message))

    def peek(self, count: int = 1, from_sequence_number: int = 1) -> list[IncomingMessage]:
        """Return messages without locks, as `aio.Receiver.peek`."""
        return self._client.run(self._inner.peek(count, from_sequence_number))

    def receive_deferred(self, sequence_numbers: Sequence[int]) -> list[IncomingMessage]:
        """Lock or delete deferred messages by their numbers. Raises `NotFound`."""
        return self._client.run(self._inner.receive_deferred(sequence_numbers))

    def close(self) -> None:
        """Release cached messages and detach. Idempotent."""
        self._client.run(self._inner.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SessionReceiver(Receiver):
    """The blocking form of `partibus.client.aio.SessionReceiver`; `open` waits for the session."""

    def __init__(self, client: Client, inner: aio.SessionReceiver) -> None:
        super().__init__(client, inner)
        self._session = inner

    @property
    def session_id(self) -> str | None:
        """The session that the receiver holds; None before the next one is found."""
        return self._session.session_id

    @property
    def locked_until_ms(self) -> int | None:
        """The end of the session's lock, as Unix time in milliseconds."""
        return self._session.locked_until_ms

    def renew_session_lock(self) -> int:
        """Renew the lock of the session and return its new end. Raises `LockLost`."""
        return self._client.run(self._session.renew_session_lock())

    def get_state(self) -> bytes | None:
        """Return the state of the session, None if it has none. Raises `LockLost`."""
        return self._client.run(self._session.get_state())

    def set_state(self, state: bytes | None) -> None:
        """Set the state of the session; None removes it. Raises `LockLost`."""
        self._client.run(self._session.set_state(state))


Handler = Callable[[IncomingMessage, Receiver], object]
"""The function for each message. The message is completed when it returns, and abandoned when it raises."""


class Processor:
    """The blocking form of `partibus.client.aio.Processor`, made by `Client.processor`: handlers run in threads."""

    def __init__(
        self, client: Client, make: Callable[[aio.Handler], aio.Processor], handler: Handler, concurrency: int
    ) -> None:
        self.inner = client.call(lambda: make(self._handle))
        self._client = client
        self._handler = handler
        self._threads = concurrent.futures.ThreadPoolExecutor(concurrency, "partibus-handler")
        self._in_handler = threading.local()

    def start(self) -> None:
        """Open the receiver and begin, as `aio.Processor.start`."""
        self._client.run(self.inner.start())

    def stop(self) -> None:
        """Let the handlers under way end, and settle their messages. Idempotent; a handler may call it."""
        if getattr(self._in_handler, "here", False):
            self._client.start(self.inner.stop())  # Its end waits for this handler.
        else:
            self._client.run(self.inner.stop())

    def run(self) -> None:
        """Process messages until `stop` is called by a handler or another thread, or this thread is interrupted."""
        self._client.run(self.inner.run())

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
            receiver = SessionReceiver(self._client, inner)
        else:
            receiver = Receiver(self._client, inner)
        self._handler(message, receiver)


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
