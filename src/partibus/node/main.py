"""`partibus serve`: run a broker, or several, until told to stop."""

import asyncio
import gc
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import uvloop

from partibus.errors import PartibusError
from partibus.namespace.config_document import ConfigError
from partibus.node.settings import Settings, refuse_if_joined
from partibus.partition.protocol.ports import StoreError
from partibus.telemetry.settings import check

if TYPE_CHECKING:
    from partibus.node.brokers import Brokers
    from partibus.node.node import Broker

EVERYBODY = """\
partibus: WARNING: --emulator takes a key that everybody knows, and {host} is not this machine's own address only.
partibus: WARNING: Any program that reaches these ports can read, send and delete everything in the default namespace.
partibus: WARNING: Serve without --emulator, or with --host 127.0.0.1. Keys and other namespaces stay closed to it."""


_KNOWN_HASHES = (
    "partibus: PYTHONHASHSEED is 0, so everybody knows the hashes of texts: a client can send keys that collide and "
    "take quadratic time. Unset it outside of tests."
)

_STOPS = (signal.SIGTERM, signal.SIGINT)


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. Errors of the start go to standard error.

    The caller may have disabled garbage collection before it imported this module: it is enabled when the broker is
    ready.
    """
    # Messages, keys and telemetry are in files. The processes that this one starts inherit it.
    os.umask(0o077)
    if not sys.flags.hash_randomization:
        print(_KNOWN_HASHES, file=sys.stderr)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_serve(settings))
        except (PartibusError, ConfigError, StoreError, OSError) as error:
            print(f"partibus: {error}", file=sys.stderr)
            return 1
        finally:
            _ignore_stops(runner.get_loop())


def _ignore_stops(loop: asyncio.AbstractEventLoop) -> None:
    """Ignore further signals to stop: they would kill the process once the loop is closed, after an orderly end."""
    for number in _STOPS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def _service_of(settings: Settings, loop: asyncio.AbstractEventLoop) -> "Broker | Brokers":
    check(settings.telemetry)
    if settings.catalog is not None:
        from partibus.node.clustered import make_broker as make_clustered_broker

        return make_clustered_broker(settings, loop)
    refuse_if_joined(settings.data)
    if settings.brokers_most == 1:
        from partibus.node.single_process import make_broker

        return make_broker(settings, loop)
    from partibus.node.brokers import Brokers

    return Brokers(settings)


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in _STOPS:
        loop.add_signal_handler(number, stopping.set)
    service = _service_of(settings, loop)
    if settings.serves_tls:
        # Without a certificate to take anew a terminal that is closed ends the broker, as it does other programs.
        loop.add_signal_handler(signal.SIGHUP, service.reload)
    starting = asyncio.ensure_future(service.start())
    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait([starting, told], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        await service.stop()
        return 0
    await starting
    if settings.emulator and not settings.is_local:
        print(EVERYBODY.format(host=settings.host), file=sys.stderr)
    print(f"partibus: serving AMQP on {settings.host}:{service.ready['amqp_port']}", file=sys.stderr)
    http = f"{settings.host}:{service.ready['http_port']}, the portal at /portal"
    print(f"partibus: serving HTTP on {http}", file=sys.stderr)
    print(f"partibus: serving SQS on {settings.host}:{service.ready['sqs_port']}", file=sys.stderr)
    for name, key in (("AMQP", "amqps_port"), ("HTTP", "https_port"), ("SQS", "sqs_tls_port")):
        if service.ready[key] is not None:
            print(f"partibus: serving {name} over TLS on {settings.host}:{service.ready[key]}", file=sys.stderr)
    # Objects made until here stay, so no collection need look at them (D25). The first one would find 1,000 garbage
    # objects among 50,000, for a twentieth of the start's time.
    gc.freeze()
    gc.enable()
    await told
    await service.stop()
    return 0
