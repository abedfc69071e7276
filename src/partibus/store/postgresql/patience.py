"""Connections whose every wait ends: a server that is there and says nothing (stopped, its disk gone) is as one that is
away. For those who can't leave the waiting to a thread."""

from collections.abc import Generator
from time import monotonic
from typing import Any, ClassVar, TypeVar

import psycopg

RV = TypeVar("RV")


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """`psycopg.OperationalError` when one statement takes longer than ``PATIENCE_S``; then it is useless."""

    PATIENCE_S: ClassVar[float] = 2.0

    def wait(self, gen: Generator[Any, Any, RV], *args: Any, **kwargs: Any) -> RV:
        """See psycopg, which lets a generator go on every 0.1 s, whether there is something or not."""
        return super().wait(_limited(gen, monotonic() + self.PATIENCE_S), *args, **kwargs)


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
