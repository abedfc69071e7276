"""The results of settlements, and settlements by lock token at the management node.

The node settles deferred messages, and messages whose link was lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final
from uuid import UUID

from partibus.amqp import DeliveryState, Modified, Rejected, TransactionalState
from partibus.client.aio.link import Attachment, repeat
from partibus.client.errors import (
    AccessDenied,
    ClientError,
    Closed,
    ConnectFailed,
    InvalidRequest,
    LockLost,
    MessageTooLarge,
    NotFound,
    TimedOut,
    extended,
)
from partibus.client.management import SETTLE
from partibus.client.outcomes import COMPLETE

Result = asyncio.Future[None]
"""The caller's result of one settlement."""
ByToken = dict[UUID, tuple[Result, float]]
"""The callers' results of settlements, with their time limits by the loop's clock, by lock token."""
_OF_ONE_TOKEN: Final = (LockLost, NotFound, InvalidRequest, MessageTooLarge)
"""Errors that one token of a request may cause. Others concern the broker or the entity, and so all tokens."""
_UNKNOWN: Final = "the settlement may have been carried out (unknown)"
Settle = Callable[[list[UUID], DeliveryState], Awaitable[None]]
"""One request to the management node that settles messages by their lock tokens.

After an error the service may have settled some of them. Only a `LockLost` with tokens tells which ones.
"""


class Together(Result):
    """The result of several settlements: done with the last of them, and the first error is its own."""

    __slots__ = ("_first", "_left")

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        super().__init__(loop=loop)
        self._left = count
        self._first: BaseException | None = None

    def answered(self, error: BaseException | None, count: int = 1) -> None:
        """Note the result of ``count`` settlements."""
        self._left -= count
        if error is not None and self._first is None:
            self._first = error
        if not self._left and not self.done():
            if self._first is None:
                self.set_result(None)
            else:
                self.set_exception(self._first)

    def follow(self, result: Result) -> None:
        """Note the result of a settlement that has a future of its own."""
        result.add_done_callback(self._followed)

    def _followed(self, result: Result) -> None:
        self.answered(asyncio.CancelledError() if result.cancelled() else result.exception())


def finish(future: Result, error: ClientError | None) -> None:
    """Give one settlement its result. Hot path."""
    if type(future) is Together:
        future.answered(error)
    elif not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def operation_of(outcome: DeliveryState) -> str:
    """Return the name of a settlement, as spans have it."""
    if isinstance(outcome, TransactionalState):
        outcome = outcome.outcome or COMPLETE
    if isinstance(outcome, Rejected):
        return "dead-letter"
    if isinstance(outcome, Modified):
        return "defer" if outcome.undeliverable_here else "abandon"
    return "complete"


class TokenSettlements:
    """The settlements of one receiver that the management node carries out."""

    def __init__(self, owner: Attachment, settle: Settle) -> None:
        self._owner = owner
        self._settle = settle
        self._connection = owner.connection
        self.tasks: dict[asyncio.Task[None], ByToken] = {}
        """The requests under way, with the settlements that have no result."""

    def begin(self, left: ByToken, outcome: DeliveryState, *, lost: bool, delay_s: float = 0.0) -> None:
        """Settle messages by their tokens after a delay: those of a lost link, refused ones, and deferred ones.

        ``lost``: the settlement was sent on the link, and may have been carried out.
        """
        task = self._connection.start(self._begin(left, outcome, lost=lost, delay_s=delay_s))
        self.tasks[task] = left

        def ended(task: "asyncio.Task[None]") -> None:
            del self.tasks[task]
            for future, _ in left.values():  # the client was closed
                over = Closed(f"the {self._owner.name} was closed; the settlement may be carried out (unknown)")
                finish(future, over)

        task.add_done_callback(ended)

    async def _begin(self, left: ByToken, outcome: DeliveryState, *, lost: bool, delay_s: float) -> None:
        if delay_s:
            await self._connection.pause(delay_s)
        if left:
            await self._run(left, outcome, lost=lost)

    async def _run(self, left: ByToken, outcome: DeliveryState, *, lost: bool) -> None:
        """Settle messages, and take each from ``left`` when its result is known.

        The request has the time limit of its last settlement; `expire` ends those with an earlier one.
        """
        wanted = list(left)
        limit = max(limit for _, limit in left.values())
        error = await self._settle_all(wanted, outcome, limit, lost=lost)
        named = set(error.tokens) if isinstance(error, LockLost) else set[UUID]()
        if named and named <= set(wanted):
            for token in wanted:
                self._finish(left, token, error if token in named else None)
            return
        if len(wanted) == 1 or not isinstance(error, _OF_ONE_TOKEN):
            for token in wanted:
                self._finish(left, token, error)
            return
        # The error may concern one token only, and the others may be settled: each is settled alone. If the broker
        # fails meanwhile, the rest fails with it: each further attempt would take what is left of the time.
        error = None
        for token in wanted:
            if token in left:
                if error is None or isinstance(error, _OF_ONE_TOKEN):
                    error = await self._settle_all([token], outcome, limit, lost=True)
                self._finish(left, token, error)

    async def _settle_all(
        self, tokens: list[UUID], outcome: DeliveryState, limit: float, *, lost: bool
    ) -> ClientError | None:
        """Settle messages with one request, repeated as needed, and return its error.

        The error says so if an attempt before the last one, or one without an answer, may have settled the messages.
        """
        is_unknown, was_sent = lost, False

        async def attempt() -> None:
            nonlocal is_unknown, was_sent
            is_unknown, was_sent = is_unknown or was_sent, True
            try:
                await self._settle(tokens, outcome)
            except (ConnectFailed, AccessDenied):
                was_sent = False
                raise
            except asyncio.CancelledError:
                is_unknown = True
                raise

        connection = self._connection
        what = f"{SETTLE} on '{self._owner.entity}'"
        try:
            await repeat(connection, what, attempt, max(0.0, limit - connection.loop().time()))
        except ClientError as error:
            return extended(error, _UNKNOWN) if is_unknown else error
        return None

    def _finish(self, left: ByToken, token: UUID, error: ClientError | None) -> None:
        """Give a settlement its result, unless its time limit has."""
        found = left.pop(token, None)
        if found is not None:
            if error is None:
                self._connection.statistics.settled += 1
            finish(found[0], error)

    def expire(self, now: float) -> float:
        """Fail settlements whose time is over, and return the earliest limit of the others; infinity without any."""
        earliest = inf
        for left in self.tasks.values():
            for token, (future, limit) in list(left.items()):
                if limit <= now:
                    del left[token]
                    finish(future, self.timed_out())
                else:
                    earliest = min(earliest, limit)
        return earliest

    def timed_out(self) -> TimedOut:
        """Return the error of a settlement whose time is over."""
        connection = self._connection
        trouble = connection.trouble or f"no answer from {connection.peer} in time"
        return TimedOut(f"{self._owner.name}: {trouble}; {_UNKNOWN}")
