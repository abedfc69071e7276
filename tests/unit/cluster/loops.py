"""Tests on the loop that brokers run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import uvloop

P = ParamSpec("P")
LIMIT_S = 120.0


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs on a loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), LIMIT_S))

    return run


async def eventually(look: Callable[[], bool]) -> None:
    """Wait until it comes true; the limit is the test's."""
    while not look():  # noqa: ASYNC110 (what is looked at is nobody's event)
        await asyncio.sleep(0.001)
