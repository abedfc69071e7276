"""Blocking sends to one entity, and blocking receives and settlements of one entity or session."""

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from partibus.client import aio
from partibus.client.aio import IncomingMessage, OutgoingMessage, Sendable, Transaction
from partibus.client.errors import ClientError, Closed, SendFailed
from partibus.client.sync.loop import Blocking, Caller, blocking


class _Attached(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...


A = TypeVar("A", bound=_Attached)


class Link(Blocking[A]):
    """A blocking sender or receiver."""

    def open(self) -> Self:
        """Attach the link now. Raises as the asyncio form does."""
        self.caller.run(self.inner.open())
        return self

    def close(self) -> None:
        """Wait for all results, release cached messages, then detach. Idempotent."""
        self.caller.run(self.inner.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Sender(Link[aio.Sender]):
    """The blocking form of `partibus.client.aio.Sender`, made by `Client.sender`."""

    @property
    def max_message_bytes(self) -> int | None:
        """The size of the largest message that the broker takes, once the sender is open."""
        return self.inner.max_message_bytes

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
        return self.caller.run(self._send(several, timeout, transaction))

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

        return self.caller.run(send())

    def submit(self, message: Sendable) -> "concurrent.futures.Future[None]":
        """Send a message without waiting; the result is done when it is stored. Such sends are batched.

        Waits while ``buffer_bytes`` of the client have no result. A cancelled result takes an unsent message back.
        """
        inner, caller = self.inner, self.caller
        if inner.outstanding_bytes >= caller.inner.settings.buffer_bytes:
            caller.run(inner.room())
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
                    caller.post(sending.cancel)

        def sent(sending: "asyncio.Future[None]") -> None:
            if sending.cancelled():
                result.cancel()
            if result.set_running_or_notify_cancel():  # Else it wakes up the waits for a cancelled result.
                error = sending.exception()
                if error is None:
                    result.set_result(None)
                else:
                    result.set_exception(error)

        caller.post(send)
        return result

    flush = blocking(aio.Sender.flush)
    schedule = blocking(aio.Sender.schedule)
    cancel_scheduled = blocking(aio.Sender.cancel_scheduled)


class Receiver(Link[aio.Receiver]):
    """The blocking form of `partibus.client.aio.Receiver`, made by `Client.receiver`."""

    @property
    def cached(self) -> int:
        """The number of messages in the prefetch cache."""
        return self.inner.cached

    receive = blocking(aio.Receiver.receive)

    def __iter__(self) -> Iterator[IncomingMessage]:
        """Receive messages one after the other, until the receiver is closed.

        Messages that a loop leaves stay in the cache, for the next call.
        """
        while not self.inner.is_closed:
            try:
                messages = deque(self.receive(max(1, min(self.inner.prefetch, 100))))
            except Closed:
                return
            try:
                while messages:
                    yield messages.popleft()
            finally:
                if messages:
                    self.caller.call(partial(self.inner.take_back, messages))

    def complete(
        self, messages: IncomingMessage | Iterable[IncomingMessage], *, transaction: Transaction | None = None
    ) -> None:
        """Complete a message or several, and wait until that is durable. Raises `LockLost` for the first lost lock."""
        several: list[Any] = list(messages) if isinstance(messages, Iterable) else [messages]

        async def work() -> None:
            completed = self.inner.complete(several, transaction=transaction)
            self.inner.flush()
            await completed

        self.caller.run(work())

    def abandon(
        self, messages: IncomingMessage | Iterable[IncomingMessage], *, transaction: Transaction | None = None
    ) -> None:
        """Unlock messages and count a failed delivery. Raises `LockLost`."""
        self._settle(messages, lambda message: self.inner.abandon(message, transaction=transaction))

    def defer(
        self, messages: IncomingMessage | Iterable[IncomingMessage], *, transaction: Transaction | None = None
    ) -> None:
        """Defer messages until `receive_deferred` asks for their sequence numbers. Raises `LockLost`."""
        self._settle(messages, lambda message: self.inner.defer(message, transaction=transaction))

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
            messages, lambda message: self.inner.dead_letter(message, reason, description, transaction=transaction)
        )

    def release(self, message: IncomingMessage) -> None:
        """Requeue a message in its place without counting a delivery."""
        self.caller.call(lambda: self.inner.release(message))

    def _settle(
        self,
        messages: IncomingMessage | Iterable[IncomingMessage],
        settle: "Callable[[IncomingMessage], asyncio.Future[None]]",
    ) -> None:
        several: list[Any] = list(messages) if isinstance(messages, Iterable) else [messages]

        async def work() -> None:
            futures = [settle(message) for message in several]
            self.inner.flush()
            results = await asyncio.gather(*futures, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

        self.caller.run(work())

    renew_lock = blocking(aio.Receiver.renew_lock)
    peek = blocking(aio.Receiver.peek)
    receive_deferred = blocking(aio.Receiver.receive_deferred)


class SessionReceiver(Receiver):
    """The blocking form of `partibus.client.aio.SessionReceiver`; `open` waits for the session."""

    def __init__(self, caller: Caller, inner: aio.SessionReceiver) -> None:
        super().__init__(caller, inner)
        self._session = inner

    @property
    def session_id(self) -> str | None:
        """The session that the receiver holds; None before the next one is found."""
        return self._session.session_id

    @property
    def locked_until_ms(self) -> int | None:
        """The end of the session's lock, as Unix time in milliseconds."""
        return self._session.locked_until_ms

    renew_session_lock = blocking(aio.SessionReceiver.renew_session_lock)
    get_state = blocking(aio.SessionReceiver.get_state)
    set_state = blocking(aio.SessionReceiver.set_state)
