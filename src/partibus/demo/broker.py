"""A broker of its own for the demo: a child process with the topic and its subscriptions, on free ports."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partibus.demo.errors import DemoError
from partibus.demo.topology import config
from partibus.testing.broker_process import BrokerFailed, BrokerProcess


@contextmanager
def demo_broker(folder: Path, telemetry: Path) -> Iterator[str]:
    """The connection string of a running broker that has made what Config.json declares. Data and log are kept in
    ``folder``; a row for every operation on every message goes into the folder ``telemetry``, all of them by the end.

    Raises `DemoError` with the broker's log when it does not start, or does not end gracefully.
    """
    arguments = ("--telemetry", "full", "--telemetry-dir", str(telemetry))
    try:
        with BrokerProcess(folder, config=config(), arguments=arguments) as broker:
            yield broker.connection_string
    except BrokerFailed as error:
        raise DemoError(str(error)) from error
