"""`partibus serve`: run a broker until it is told to stop."""

import asyncio
import gc
import signal
import sys

import uvloop

from partibus.errors import PartibusError
from partibus.namespace.config_document import ConfigError
from partibus.node.node import Node
from partibus.node.settings import Settings
from partibus.partition.ports import StoreError


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. What prevents the start goes to standard error."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_serve(settings))
        except (PartibusError, ConfigError, StoreError, OSError) as error:
            print(f"partibus: {error}", file=sys.stderr)
            return 1


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = Node(settings, loop)
    await node.start()
    print(f"partibus: serving AMQP on {settings.host}:{node.ready['amqp_port']}", file=sys.stderr)
    print(f"partibus: serving HTTP on {settings.host}:{node.ready['http_port']}", file=sys.stderr)
    # What was made until here stays: a collection need not look at it again (D25).
    gc.collect()
    gc.freeze()
    await stopping.wait()
    await node.stop()
    return 0
