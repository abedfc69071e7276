"""What the core answers by calling back, for routes that wait.

The core knows no tasks: it calls when something is durable, or found. A route is a task, and waits here.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
Ask = Callable[[Callable[[T], None]], None]
"""Calls what it is given, now or later, once."""


async def answer_of(ask: Ask[T]) -> T:
    """What ``ask`` calls its argument with. Cancelling leaves the core to finish, and nobody hears of it."""
    return await _asked(ask)


async def answers_of(asks: Iterable[Ask[T]]) -> list[T]:
    """As `answer_of` for several that are asked at once, in their order."""
    under_way = [_asked(ask) for ask in asks]
    return [await answer for answer in under_way]


def _asked(ask: Ask[T]) -> "asyncio.Future[T]":
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def take(value: T) -> None:
        if not answer.done():
            answer.set_result(value)

    ask(take)
    return answer
