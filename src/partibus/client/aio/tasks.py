"""Tasks and results that several callers wait for, or none."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from partibus.client.errors import ClientError

T = TypeVar("T")


async def outcome_of(task: "asyncio.Task[T]", closed: Callable[[], ClientError]) -> T:
    """Wait for a task that others wait for, too: a cancelled wait does not stop it.

    If `close` cancelled the task, this raises the error of ``closed``: a CancelledError would tell the caller that its
    own task was cancelled.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        own = asyncio.current_task()
        if not task.cancelled() or (own is not None and own.cancelling()):
            raise
        raise closed() from None


def seen(future: asyncio.Future[Any]) -> None:
    """Mark the error of a future as seen, for results that may be awaited by no caller."""
    if not future.cancelled():
        future.exception()
