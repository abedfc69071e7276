"""Settlements by lock token, at the management node: of deferred messages, and of messages whose link was lost."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

from partibus.amqp import DeliveryState
from partibus.client.aio.link import Attachment
from partibus.client.aio.settlement import Result, finish
from partibus.client.errors import ClientError, Closed, LockLost

ByToken = dict[UUID, Result]
"""The callers' results of settlements, by lock token."""
Settle = Callable[[list[UUID], DeliveryState], Awaitable[None]]
"""A request to the management node that settles messages by their lock tokens, all or none."""


class TokenSettlements:
    """The settlements of one receiver that the management node carries out."""

    def __init__(self, owner: Attachment, settle: Settle) -> None:
        self._owner = owner
        self._settle = settle
        self._connection = owner.connection
        self.tasks: set[asyncio.Task[None]] = set()
        """The requests under way."""

    def begin(self, left: ByToken, outcome: DeliveryState, *, lost: bool) -> None:
        """Settle messages by their tokens: those of a lost link, and deferred ones.

        ``lost``: the settlement was sent on the lost link, and may have been carried out.
        """
        task = self._connection.start(self._run(left, outcome, lost=lost))
        self.tasks.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self.tasks.discard(task)
            for future in left.values():  # the client was closed
                over = Closed(f"the {self._owner.name} was closed; the settlement may be carried out (unknown)")
                finish(future, over)

        task.add_done_callback(ended)

    async def _run(self, left: ByToken, outcome: DeliveryState, *, lost: bool) -> None:
        """Settle messages, and take each from ``left`` when its result is known."""
        wanted = list(left)
        error: ClientError | None = None
        try:
            await self._settle(wanted, outcome)
        except ClientError as found:
            error = found
            if lost and isinstance(found, LockLost):
                error = LockLost(
                    f"{found}; the connection broke while the message was settled, so it may be settled (unknown)",
                    found.condition,
                )
        if error is not None and len(wanted) > 1:
            # One expired lock fails the whole request; the others are settled alone.
            for token in wanted:
                alone = {token: left[token]}
                await self._run(alone, outcome, lost=lost)
                del left[token]
            return
        for token in wanted:
            if error is None:
                self._connection.statistics.settled += 1
            finish(left.pop(token), error)
