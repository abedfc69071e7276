"""Blocking sends to one entity."""

import asyncio
import concurrent.futures
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from partibus.client import aio
from partibus.client.aio import OutgoingMessage, Sendable, Transaction
from partibus.client.errors import ClientError, Closed, SendFailed
from partibus.client.sync.loop import Caller


class Sender:
    """The blocking form of `partibus.client.aio.Sender`, made by `Client.sender`."""

    def __init__(self, client: Caller, inner: aio.Sender) -> None:
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
