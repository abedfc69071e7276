"""The results of settlements, and settlements by lock token at the management node.

The node settles deferred messages, and messages whose link was lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from partibus.amqp import DeliveryState, Modified, Rejected, TransactionalState
from partibus.client.aio.link import Attachment
from partibus.client.errors import ClientError, Closed, InvalidRequest, LockLost, MessageTooLarge, NotFound
from partibus.client.outcomes import COMPLETE

Result = asyncio.Future[None]
"""The caller's result of one settlement."""
ByToken = dict[UUID, Result]
"""The callers' results of settlements, by lock token."""
_OF_ONE_TOKEN: Final = (LockLost, NotFound, InvalidRequest, MessageTooLarge)
"""Errors that one token of a request may cause. Others concern the broker or the entity, and so all tokens."""
Settle = Callable[[list[UUID], DeliveryState], Awaitable[None]]
"""A request to the management node that settles messages by their lock tokens, all or none."""


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
        self.tasks: set[asyncio.Task[None]] = set()
        """The requests under way."""

    def begin(self, left: ByToken, outcome: DeliveryState, *, lost: bool, delay_s: float = 0.0) -> None:
        """Settle messages by their tokens after a delay: those of a lost link, refused ones, and deferred ones.

        ``lost``: the settlement was sent on the link, and may have been carried out.
        """
        task = self._connection.start(self._begin(left, outcome, lost=lost, delay_s=delay_s))
        self.tasks.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self.tasks.discard(task)
            for future in left.values():  # the client was closed
                over = Closed(f"the {self._owner.name} was closed; the settlement may be carried out (unknown)")
                finish(future, over)

        task.add_done_callback(ended)

    async def _begin(self, left: ByToken, outcome: DeliveryState, *, lost: bool, delay_s: float) -> None:
        if delay_s:
            await self._connection.pause(delay_s)
        await self._run(left, outcome, lost=lost)

    async def _run(self, left: ByToken, outcome: DeliveryState, *, lost: bool) -> None:
        """Settle messages, and take each from ``left`` when its result is known."""
        wanted = list(left)
        error = await self._attempt(wanted, outcome, lost=lost)
        if len(wanted) == 1 or not isinstance(error, _OF_ONE_TOKEN):
            for token in wanted:
                self._finish(left.pop(token), error)
            return
        # One expired lock fails the whole request; the others are settled alone. If the broker fails meanwhile, the
        # rest fails with it: each further attempt would take the client's time limit.
        error = None
        for token in wanted:
            if error is None or isinstance(error, _OF_ONE_TOKEN):
                error = await self._attempt([token], outcome, lost=lost)
            self._finish(left.pop(token), error)

    async def _attempt(self, tokens: list[UUID], outcome: DeliveryState, *, lost: bool) -> ClientError | None:
        """Settle messages with one request, and return its error."""
        try:
            await self._settle(tokens, outcome)
        except ClientError as error:
            if lost and isinstance(error, LockLost):
                return LockLost(
                    f"{error}; the connection broke while the message was settled, so it may be settled (unknown)",
                    error.condition,
                )
            return error
        return None

    def _finish(self, future: Result, error: ClientError | None) -> None:
        if error is None:
            self._connection.statistics.settled += 1
        finish(future, error)
