"""The HTTP listener on the broker's own loop, and the loading of the HTTP libraries.

The libraries take as long to import as half a start of the broker, and many brokers get no HTTP request. So a thread
imports them with the first connection, or when the broker has run for `LOAD_S`. Connections that come before wait, and
AMQP clients are not delayed. Errors of the import are in the log.
"""

import asyncio
import gc
import logging
import socket
from collections.abc import Callable, Sequence
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, cast

from partibus.frontends.admission import Admission
from partibus.limits import AdmissionLimits, HttpLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from partibus.node.http_engine import HttpEngine

LOAD_S = 5.0
"""The delay after the start; by then clients have come back and stores are read."""

_TROUBLE = "HTTP can't be answered now; the next connection tries again"

log = logging.getLogger(__name__)


class HttpServer:
    """Serves one application, and hands over connections that become websockets."""

    def __init__(
        self,
        make_app: Callable[[], "ASGIApp"],
        limits: HttpLimits,
        open_websocket: Callable[[], asyncio.Protocol],
        app_modules: Sequence[str] = (),
        admission: Admission | None = None,
    ) -> None:
        """Prepare a listener.

        ``make_app`` is called for the first connection, and again if it fails; ``app_modules`` are the modules that it
        imports. ``open_websocket`` makes the protocol of a connection on the path of AMQP.
        """
        self._make_app = make_app
        self._admission = admission or Admission(AdmissionLimits(), perf_counter)
        self._limits = limits
        self._open_websocket = open_websocket
        self._modules = ("partibus.node.http_engine", *app_modules)
        self._engine: HttpEngine | None = None
        self._waiting: set[_Waiting] = set()
        """Connections that came before the application was loaded."""
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loading: asyncio.Task[None] | None = None

    def make_protocol(self) -> asyncio.Protocol:
        """Make the protocol of a new connection.

        When the application can't be loaded the connection is closed, and the next one tries again: a loop that gets no
        protocol for a connection may stop accepting others.
        """
        return _Waiting(self) if self._engine is None else self._engine.make_protocol()

    def wait(self, connection: "_Waiting") -> None:
        """Keep a connection until the application is loaded; load it unless that is under way."""
        self._waiting.add(connection)
        self._load_if_needed()

    def forget(self, connection: "_Waiting") -> None:
        """Drop a connection that was lost while it waited."""
        self._waiting.discard(connection)

    async def start(
        self, host: str, port: int, *, shared: bool = False, load_s: float = LOAD_S, queue: int = 100
    ) -> int:
        """Listen without TLS and return the port. Raises OSError.

        ``shared``: with other processes that share the port. ``queue``: connections that the system holds until they
        are accepted.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, reuse_port=shared)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self.make_protocol, sock=listener, backlog=queue)
        self._timer = loop.call_later(load_s, self._load_if_needed)
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Answer pending requests, then stop."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._loading is not None:
            await self._loading
        if self._engine is not None:
            await self._engine.stop()

    def _load_if_needed(self) -> None:
        if self._engine is None and (self._loading is None or self._loading.done()):
            self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        try:
            for module in self._modules:
                await asyncio.to_thread(import_module, module)
            engine = self._make_engine()
            await engine.wait_until_started()
            self._engine = engine
        except Exception:  # any error: the next connection imports it again
            log.exception(_TROUBLE)
        waiting, self._waiting = self._waiting, set()
        for connection in waiting:
            connection.go_on(None if self._engine is None else self._engine.make_protocol())

    def _make_engine(self) -> "HttpEngine":
        from partibus.node.http_engine import HttpEngine

        engine = HttpEngine(self._make_app(), self._limits, self._open_websocket, self._admission)
        if gc.get_freeze_count():
            gc.freeze()  # as at the start: it stays, and a collection need not look at it again (D25)
        return engine


class _Waiting(asyncio.Protocol):
    """The protocol of a connection that came before the application was loaded."""

    _transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._first = b""
        """The bytes of the client meanwhile: one read at most."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        self._server.wait(self)

    def data_received(self, data: bytes) -> None:
        self._first += data
        self._transport.pause_reading()  # not earlier: uvloop begins to read after `connection_made`

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)

    def go_on(self, protocol: asyncio.Protocol | None) -> None:
        """Pass the connection to its protocol, or close it when there is none."""
        if protocol is None:
            self._transport.abort()
            return
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if self._first and not self._transport.is_closing():
            self._transport.resume_reading()
            protocol.data_received(self._first)
