"""Processors: a handler called for each message, several at a time, with locks kept alive."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from partibus.client.aio.receiver import Receiver
from partibus.client.aio.session_receiver import SessionReceiver
from partibus.client.aio.settings import RetryPolicy, retriable, whole
from partibus.client.errors import ClientError, Closed, SessionHeld, TimedOut
from partibus.client.messages import IncomingMessage
from partibus.client.outcomes import ReceiveMode

Handler = Callable[[IncomingMessage, Receiver], Awaitable[None]]
"""The function for each message. The message is completed when it returns, and abandoned when it raises."""
OnError = Callable[[BaseException, IncomingMessage | None], None]
"""The function for each error: of a handler, of a settlement, or (without a message) of receiving."""

_IDLE_S = 1.0
"""How long a held session may be without messages before the processor looks for another one."""
WAIT_S = 30.0
"""How long one receive, or one look for a session, waits."""
_log = logging.getLogger(__name__)


class Processor:
    """A loop that receives messages of an entity and calls a handler for each, made by `Client.processor`."""

    def __init__(
        self,
        entity: str,
        handler: Handler,
        *,
        concurrency: int,
        make_receiver: Callable[[], Receiver],
        make_session: Callable[[], SessionReceiver] | None,
        retry: RetryPolicy,
        on_error: OnError | None,
    ) -> None:
        """Prepare a loop; ``make_session`` makes a receiver of the next session, where sessions are wanted."""
        self.entity = entity
        self._handler = handler
        self._concurrency = whole("concurrency", concurrency, 1, 10_000)
        self._make_receiver = make_receiver
        self._make_session = make_session
        self._retry = retry
        self._on_error = on_error
        self._tasks: list[asyncio.Task[None]] = []
        self._settling: set[asyncio.Future[None]] = set()
        self._receiver: Receiver | None = None
        self._stopping = asyncio.Event()
        self._finishing: asyncio.Task[None] | None = None
        """The end of the loop, which all calls of `stop` wait for."""

    async def start(self) -> None:
        """Open the receiver and begin. Raises `NotFound`, `AccessDenied` and other kinds of `ClientError`."""
        if self._finishing is not None:
            await asyncio.shield(self._finishing)
            self._finishing = None
            self._stopping.clear()
        if (make := self._make_session) is not None:
            if not self._tasks:
                self._tasks = [asyncio.create_task(self._work_on_sessions(make)) for _ in range(self._concurrency)]
            return
        if self._receiver is None:
            self._receiver = self._make_receiver()
        receiver = self._receiver
        try:
            await receiver.open()
        except BaseException:
            if self._receiver is receiver:
                self._receiver = None
            await receiver.close()
            raise
        if not self._tasks and self._receiver is receiver:
            self._tasks = [asyncio.create_task(self._work(receiver)) for _ in range(self._concurrency)]

    async def stop(self) -> None:
        """Let the handlers under way end, settle their messages, and release the others. Idempotent.

        A handler may call it: then it returns at once, since the end waits for the handler.
        """
        self._stopping.set()
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish())
        if asyncio.current_task() not in self._tasks:
            await asyncio.shield(self._finishing)

    async def _finish(self) -> None:
        receiver = self._receiver
        if receiver is not None:
            if self._tasks:
                receiver.stop_waiting()
            else:
                await receiver.close()  # It is being opened.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._settling:
            await asyncio.wait(set(self._settling))
        if receiver is not None:
            await receiver.close()
        self._tasks, self._receiver = [], None

    async def run(self) -> None:
        """Process messages until the task is cancelled, `stop` is called or the client is closed."""
        await self.start()
        try:
            await self._stopping.wait()
        finally:
            await self.stop()

    async def _work(self, receiver: Receiver) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                while not receiver.is_open:
                    if not await self._open(receiver):
                        return
                messages = await receiver.receive(1, WAIT_S)
                failures = 0
            except Closed as error:  # The client was closed, and it stays so.
                self._tell(error, None)
                self._stopping.set()
                return
            except ClientError as error:
                self._tell(error, None)
                await self._pause(failures, error)
                failures += 1
                continue
            for message in messages:
                await self._process(receiver, message)

    async def _work_on_sessions(self, make: Callable[[], SessionReceiver]) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                receiver = make()
            except Closed as error:
                self._tell(error, None)
                self._stopping.set()
                return
            try:
                if not await self._open(receiver):
                    break
                failures = 0
                while not self._stopping.is_set() and (messages := await receiver.receive(1, _IDLE_S)):
                    for message in messages:
                        await self._process(receiver, message)
            except (TimedOut, SessionHeld):
                pass  # No session has messages: look again.
            except ClientError as error:
                self._tell(error, None)
                await self._pause(failures, error)
                failures += 1
            finally:
                await receiver.close()

    async def _open(self, receiver: Receiver) -> bool:
        """Open a receiver, no longer than until `stop`; return whether it was opened. Raises its `ClientError`."""
        opening = asyncio.ensure_future(receiver.open())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
            return opening.done()
        finally:
            opening.cancel()
            stopping.cancel()

    async def _process(self, receiver: Receiver, message: IncomingMessage) -> None:
        try:
            await self._handler(message, receiver)
        except (Exception, asyncio.CancelledError) as error:  # A handler may raise anything; the loop goes on.
            own = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and own is not None and own.cancelling():
                raise
            self._tell(error, message)
            self._settle(receiver, message, failed=True)
        else:
            self._settle(receiver, message, failed=False)
        if isinstance(receiver, SessionReceiver) and self._settling:
            await asyncio.wait(set(self._settling))  # The order of a session is that of its settlements.

    def _settle(self, receiver: Receiver, message: IncomingMessage, *, failed: bool) -> None:
        """Settle a message unless the handler has. The loop goes on meanwhile, so that completions share a batch."""
        if receiver.mode is not ReceiveMode.PEEK_LOCK or message.settled:
            return
        try:
            future = receiver.abandon(message) if failed else receiver.complete(message)
        except ClientError as error:  # Its session is lost, or the client was closed.
            self._tell(error, message)
            return
        self._settling.add(future)

        def settled(done: asyncio.Future[None]) -> None:
            self._settling.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                self._tell(error, message)

        future.add_done_callback(settled)

    async def _pause(self, failures: int, error: ClientError) -> None:
        """Wait before receiving again; an error that no repetition mends waits for longest."""
        retry = self._retry
        delay = retry.delay(failures, error) if retriable(error) else retry.cap
        try:
            async with asyncio.timeout(delay):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _tell(self, error: BaseException, message: IncomingMessage | None) -> None:
        try:
            if self._on_error is not None:
                self._on_error(error, message)
                return
            about = "" if message is None else f" message {message.message_id!r}"
            _log.error("processor of '%s'%s: %s", self.entity, about, error, exc_info=error)
        except Exception as failure:  # noqa: BLE001 (the error of an error's report must not end the loop)
            _log.error("on_error of the processor of '%s': %s", self.entity, failure, exc_info=failure)
