"""The HTTP server: uvicorn with a protocol of our own, and a bound on the size of bodies.

It is imported with the first connection (`partibus.node.http_server`).
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from partibus.frontends.admission import Admission
from partibus.limits import HttpLimits
from partibus.node.http_connection import HttpConnection


class _Server(uvicorn.Server):
    """Signals belong to the node, which stops this server in its order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpEngine:
    """The server of one application; made on the loop that it answers on."""

    def __init__(
        self, app: ASGIApp, limits: HttpLimits, open_websocket: Callable[[], asyncio.Protocol], admission: Admission
    ) -> None:
        self._limits = limits
        self._admission = admission
        self._open_websocket = open_websocket
        self._config = uvicorn.Config(
            BoundedBodies(app, limits.body_bytes_max),
            log_config=None,
            lifespan="off",
            access_log=False,
            http="h11",
            ws="none",
            proxy_headers=False,
            h11_max_incomplete_event_size=limits.head_bytes_max,
            timeout_keep_alive=limits.keep_alive_s,
            timeout_graceful_shutdown=1,
        )
        self._config.load()
        self._server = _Server(self._config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[]))

    def make_protocol(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        return HttpConnection(
            self._config, self._server.server_state, self._limits, self._open_websocket, self._admission
        )

    async def stop(self) -> None:
        """Answer pending requests, then stop."""
        self._server.should_exit = True
        await self._task


class BoundedBodies:
    """An application that never sees more than ``bytes_max`` of a request's body: 413 instead."""

    def __init__(self, app: ASGIApp, bytes_max: int) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose body is within the bound; refuse a larger one."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if lengths and int(lengths[0]) > self._bytes_max:  # h11 has seen that it is a number
            await PlainTextResponse(self._refusal, 413, {"connection": "close"})(scope, receive, send)
            return
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._bytes_max:
                raise HTTPException(413, self._refusal, {"connection": "close"})
            return message

        await self._app(scope, receive_bounded, send)

    @property
    def _refusal(self) -> str:
        return f"The body of a request has at most {self._bytes_max} bytes; send less at once."
