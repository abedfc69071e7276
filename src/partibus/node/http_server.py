"""The HTTP listener, on the broker's own loop."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette


class _Server(uvicorn.Server):
    """Signals belong to the node, which stops this server in its order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves one application."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(app, log_config=None, lifespan="off", access_log=False, timeout_graceful_shutdown=1)
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, *, shared: bool = False) -> int:
        """Listen; returns the port. ``shared``: with other processes that say so, too. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, reuse_port=shared)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Answer what is under way, then stop."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
