"""The results of settlements: of one message, or of several that one call completes."""

import asyncio

from partibus.amqp import DeliveryState, Modified, Rejected, TransactionalState
from partibus.client.errors import ClientError
from partibus.client.outcomes import COMPLETE

Result = asyncio.Future[None]
"""The caller's result of one settlement."""


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
