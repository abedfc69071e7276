"""The HTTP listener on the broker's own loop, and the loading of the HTTP libraries.

The libraries take an eighth of a broker's start to import, and many brokers get no HTTP request. So they are imported
with the first connection, or on a thread of their own when the broker has run for `LOAD_S`. Then the first client does
not wait, other clients are not delayed, and errors of the import are in the log.
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
        self._listener: asyncio.Server | None = None
        self._loading: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def make_protocol(self) -> asyncio.Protocol:
        """Make the protocol of a new connection.

        When the application can't be loaded the connection is closed, and the next one tries again: a loop that gets no
        protocol for a connection may stop accepting others.
        """
        if self._engine is None:
            try:
                self._engine = self._load()
            except Exception:
                log.exception(_TROUBLE)
                return _SentAway()
        return self._engine.make_protocol()

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
        self._loading = loop.call_later(load_s, self._load_beside)
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Answer pending requests, then stop."""
        if self._loading is not None:
            self._loading.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._task is not None:
            await self._task
        if self._engine is not None:
            await self._engine.stop()

    def _load(self) -> "HttpEngine":
        from partibus.node.http_engine import HttpEngine

        engine = HttpEngine(self._make_app(), self._limits, self._open_websocket, self._admission)
        if gc.get_freeze_count():
            gc.freeze()  # as at the start: it stays, and a collection need not look at it again (D25)
        return engine

    def _load_beside(self) -> None:
        if self._engine is None:
            self._task = asyncio.get_running_loop().create_task(self._import())

    async def _import(self) -> None:
        try:
            for module in self._modules:
                await asyncio.to_thread(import_module, module)
            if self._engine is None:
                self._engine = self._load()
        except Exception:  # any error: the next connection imports it again
            log.exception(_TROUBLE)


class _SentAway(asyncio.Protocol):
    """The protocol of a connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()  # uvloop's are not registered as such
