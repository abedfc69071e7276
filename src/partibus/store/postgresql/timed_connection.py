"""Connections whose every wait has a limit: a silent server (stopped, its disk failed) counts as unavailable.

They serve callers that can't leave the waiting to a thread.
"""

from collections.abc import Generator
from time import monotonic
from typing import Any, ClassVar, TypeVar

import psycopg

RV = TypeVar("RV")


class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that raises `psycopg.OperationalError` if a statement exceeds ``TIMEOUT_S``; then it is useless."""

    TIMEOUT_S: ClassVar[float] = 2.0

    def wait(self, gen: Generator[Any, Any, RV], *args: Any, **kwargs: Any) -> RV:
        """Wait as psycopg does, but at most ``TIMEOUT_S``.

        psycopg resumes the generator every 0.1 s, whether data has arrived or not.
        """
        return super().wait(_limited(gen, monotonic() + self.TIMEOUT_S), *args, **kwargs)


def _limited(inner: Generator[Any, Any, RV], end_s: float) -> Generator[Any, Any, RV]:
    try:
        wanted = next(inner)
        while True:
            ready = yield wanted
            if not ready and monotonic() > end_s:
                raise psycopg.OperationalError("the server does not answer")
            wanted = inner.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result
