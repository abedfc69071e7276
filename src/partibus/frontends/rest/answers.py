"""Answers of the core, which calls back, for routes that wait.

The core knows no tasks: it calls when a change is durable, or a result is found. A route is a task, and waits here.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from starlette.requests import Request

T = TypeVar("T")
Ask = Callable[[Callable[[T], None]], None]
"""A call to the core, which calls its argument once, now or later."""


async def answer_of(ask: Ask[T]) -> T:
    """Return the value that ``ask`` calls its argument with. After a cancellation the core goes on, unheard."""
    return await _asked(ask)


async def answers_of(asks: Iterable[Ask[T]]) -> list[T]:
    """Return several answers in the order of ``asks``, as `answer_of` does; all are asked at once."""
    under_way = [_asked(ask) for ask in asks]
    return [await answer for answer in under_way]


def _asked(ask: Ask[T]) -> "asyncio.Future[T]":
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def take(value: T) -> None:
        if not answer.done():
            answer.set_result(value)

    ask(take)
    return answer


async def done_elsewhere(call: Callable[[], T]) -> T:
    """Return the result of ``call``, run on another thread because it would block the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, call)


class Handover(Generic[T]):
    """One value that is given and awaited, in any order. Made where a task runs."""

    def __init__(self) -> None:
        self._value: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def give(self, value: T) -> bool:
        """Give the value. Return False when there was one before, which stays."""
        if self._value.done():
            return False
        self._value.set_result(value)
        return True

    def look(self) -> T | None:
        """Return the value, if it was given."""
        return self._value.result() if self._value.done() else None

    async def wait(self) -> T:
        """Wait until there is an answer."""
        return await asyncio.shield(self._value)

    async def wait_with(self, request: Request, timeout_s: float) -> bool:
        """Wait until there is an answer, the client has left or the time is over; return whether it has left."""
        gone = asyncio.ensure_future(_left(request))
        try:
            either: set[asyncio.Future[Any]] = {self._value, gone}
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return gone.done()
        finally:
            gone.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def others_first() -> None:
    """Let what else waits for the loop have its turn."""
    await asyncio.sleep(0)
