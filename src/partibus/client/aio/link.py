"""Links that are attached on first use and again after a loss, and attempts that are repeated."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from partibus.amqp import Session
from partibus.client.aio.connection import Connection
from partibus.client.aio.owner import Owner
from partibus.client.aio.settings import retriable
from partibus.client.aio.tasks import outcome_of, seen
from partibus.client.errors import AccessDenied, ClientError, Closed, LinkLost, TimedOut

T = TypeVar("T")

_STEADY_S: Final = 5.0
"""The life of a link after which its loss is not counted with earlier ones."""


class Attachment(Owner):
    """A link that is attached on first use, and again after a loss."""

    def __init__(self, connection: Connection, entity: str, name: str) -> None:
        self.entity = entity
        self.name = name
        self._connection = connection
        self._loop = connection.loop()
        self._session: Session | None = None
        self._attached: asyncio.Future[None] | None = None
        """The result of the attempt under way."""
        self._opening: asyncio.Task[None] | None = None
        self._losses = 0
        """Losses in a row of links on which nothing came."""
        self._opened_at = 0.0
        self._reopen_at = 0.0
        """When the link may be attached again, by the loop's clock."""
        self._closing = False
        """Whether `close` was called: new calls are refused, and what is under way goes on."""
        self._closed = False
        """Whether the link has ended for good."""
        connection.links += 1

    async def open(self) -> None:
        """Attach the link if it is not attached, with retries for as long as the client's time limit.

        Raises `NotFound`, `AccessDenied` and other kinds of `ClientError`.
        """
        if self.is_open:
            return
        self.check_usable()
        await outcome_of(self._reopen(), self._closed_error)

    @property
    def connection(self) -> Connection:
        """The connection of the link."""
        return self._connection

    @property
    def is_closed(self) -> bool:
        """Whether the link was closed for good."""
        return self._closed

    @property
    def is_open(self) -> bool:
        """Whether the link is attached."""
        return self._session is not None and self._attached is None

    def check_usable(self) -> None:
        """Raise `Closed` after `close`, and `InvalidRequest` in another event loop."""
        self._connection.loop()
        if self._closing or self._closed:
            raise self._closed_error()

    def _closed_error(self) -> Closed:
        return Closed(f"the {self.name} is closed; make a new one")

    def _reopen(self) -> asyncio.Task[None]:
        """Return the running attempt to attach the link, or start one.

        A link may be lost in the turn of the loop in which its attempt ends, before that is noted here.
        """
        if self._opening is None or self._opening.done():
            self._opening = self._connection.start(self._open())
            self._opening.add_done_callback(self._opening_done)
        return self._opening

    def _opening_done(self, task: asyncio.Task[None]) -> None:
        if self._opening is task:
            self._opening = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self._closed:
            self._on_open_failed(error if isinstance(error, ClientError) else ClientError(f"{self.name}: {error!r}"))

    async def _open(self) -> None:
        timeout_s = self._open_timeout()
        pause_s = min(self._reopen_at - self._loop.time(), timeout_s / 2)
        if pause_s > 0:
            await self._connection.pause(pause_s)
            timeout_s -= pause_s
        await repeat(self._connection, f"opening the {self.name}", self._attempt, timeout_s)

    def _open_timeout(self) -> float:
        return self._connection.settings.timeout

    async def _attempt(self) -> None:
        connection = self._connection
        await connection.ready()
        await connection.authorize(self.entity)
        if self.is_open or self._closed:
            return
        session = connection.begin(self)
        attached = self._attached = asyncio.get_running_loop().create_future()
        attached.add_done_callback(seen)
        self._session = session
        try:
            self._attach(session)
            connection.flush_soon()
            await attached
        except BaseException as error:
            if isinstance(error, AccessDenied):
                connection.expire_claim(self.entity)  # The next attempt shows a new token.
            if self._session is session:
                self._session = None
            connection.end(session)
            raise
        finally:
            if self._attached is attached:
                self._attached = None
        self._opened_at = self._loop.time()
        if self._session is not session:
            raise LinkLost(f"the {self.name} was detached as soon as it was attached; open it again")
        self._on_open()

    def on_attached(self) -> None:
        """Wake up the attempt. A link that the broker refuses is not open; its detach follows."""
        if self._attached is not None and not self._attached.done():
            self._attached.set_result(None)

    def on_over(self, error: ClientError) -> None:
        """Fail the attempt, or let the owner go on without a link."""
        attached = self._attached
        self._session = None
        if attached is None:
            self._count_loss(error)
            self._on_lost(error)
        elif not attached.done():
            attached.set_exception(error)
        # Else the attempt is about to go on, and finds that its session has ended.

    def _count_loss(self, error: ClientError) -> None:
        """Delay the next attempt if the link was lost again before anything came on it: the first one is at once."""
        now = self._loop.time()
        self._losses = 1 if now - self._opened_at >= _STEADY_S else self._losses + 1
        if self._losses > 1:
            self._reopen_at = now + self._connection.settings.retry.delay(self._losses - 2, error)

    def _end(self) -> None:
        """Detach, without waiting for the answer."""
        session, self._session = self._session, None
        if session is not None:
            self._connection.end(session)
        if self._opening is not None:
            self._opening.cancel()
        self._connection.links -= 1

    # -- of each kind of link ------------------------------------------------------------------------------------------

    def _attach(self, session: Session) -> None:
        """Attach the link to a new session and set its user."""
        raise NotImplementedError

    def _on_open(self) -> None:
        """Go on with an attached link."""

    def _on_lost(self, error: ClientError) -> None:
        """Go on after the link was lost."""

    def _on_open_failed(self, error: ClientError) -> None:
        """Fail what waits for the link."""


async def repeat(
    connection: Connection,
    what: str,
    attempt: Callable[[], Awaitable[T]],
    timeout_s: float,
    repeatable: Callable[[BaseException], bool] = retriable,
) -> T:
    """Call ``attempt`` until it succeeds, fails for good, or ``timeout`` seconds are over.

    Raises the last error; `TimedOut` if an attempt had no answer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    number = 0
    last: ClientError | None = None
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except TimeoutError:
            raise last or TimedOut(f"{what}: no answer from {connection.peer} within {timeout_s:g} s") from None
        except ClientError as error:
            delay = connection.settings.retry.delay(number, error)
            if (
                connection.is_closed
                or not repeatable(error)
                or not connection.settings.retry.allows(number + 1)
                or loop.time() + delay >= deadline
            ):
                raise
            last = error
        number += 1
        connection.statistics.retries += 1
        await connection.pause(delay)
