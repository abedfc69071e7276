"""A broker of its own for the demo: a child process with a partitioned queue, on free ports."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partibus.demo.errors import DemoError
from partibus.testing.broker_process import BrokerFailed, BrokerProcess

QUEUE = "flights"
PARTITION_COUNT = 16


@contextmanager
def demo_broker(folder: Path) -> Iterator[str]:
    """The connection string of a running broker with the queue `QUEUE`. Data and log are kept in ``folder``.

    Raises `DemoError` with the broker's log when it does not start, or does not end gracefully.
    """
    try:
        with BrokerProcess(folder) as broker:
            broker.create_queue(QUEUE, EnablePartitioning=True)
            yield broker.connection_string
    except BrokerFailed as error:
        raise DemoError(str(error)) from error
