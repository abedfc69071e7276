"""Processors whose handlers run in threads."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from partibus.client import aio
from partibus.client.aio import IncomingMessage
from partibus.client.sync.loop import Caller
from partibus.client.sync.receiver import Receiver, SessionReceiver

Handler = Callable[[IncomingMessage, Receiver], object]
"""The function for each message. The message is completed when it returns, and abandoned when it raises."""


class Processor:
    """The blocking form of `partibus.client.aio.Processor`, made by `Client.processor`: handlers run in threads."""

    def __init__(
        self, client: Caller, make: Callable[[aio.Handler], aio.Processor], handler: Handler, concurrency: int
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
