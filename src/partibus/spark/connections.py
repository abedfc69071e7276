"""Connections kept from task to task. Spark reuses its Python workers, so module state survives a task.

A client is out of the cache while it is used, and returns only after a use that ended well. So no two uses share one,
and a connection that failed or was left half read is closed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from partibus.spark.options import Options
from partibus.spark.ports import OpenClient, RangeReader

IDLE_MAX = 4
"""Idle connections per process. A job reads one or two queues; a notebook that walks through many must not keep all."""

_idle: dict[tuple[OpenClient, str, str], RangeReader] = {}


@contextmanager
def borrowed_client(options: Options, open_client: OpenClient, *, fresh: bool = False) -> Iterator[RangeReader]:
    """Lend an open client for one use. ``fresh`` passes over the cache, after a kept connection failed."""
    key = (open_client, options.connection, options.entity)
    kept = _idle.pop(key, None)
    if kept is not None and fresh:
        kept.close()
        kept = None
    client = kept if kept is not None else open_client(options.connection, options.entity)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _give_back(key, client)


def close_idle() -> None:
    """Close every kept connection."""
    while _idle:
        _, client = _idle.popitem()
        client.close()


def _give_back(key: tuple[OpenClient, str, str], client: RangeReader) -> None:
    before = _idle.pop(key, None)
    if before is not None:
        before.close()
    while len(_idle) >= IDLE_MAX:
        _idle.pop(next(iter(_idle))).close()
    _idle[key] = client
