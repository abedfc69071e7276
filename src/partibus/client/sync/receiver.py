"""Blocking receives and settlements of one entity or session."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from partibus.client import aio
from partibus.client.aio import IncomingMessage, Transaction
from partibus.client.errors import Closed
from partibus.client.sync.loop import Caller


class Receiver:
    """The blocking form of `partibus.client.aio.Receiver`, made by `Client.receiver`."""

    def __init__(self, client: Caller, inner: aio.Receiver) -> None:
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

    def __init__(self, client: Caller, inner: aio.SessionReceiver) -> None:
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
