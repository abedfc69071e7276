"""The HTTP server: uvicorn with a protocol of our own, and bounds on bodies and queries.

It is imported with the first connection (`partibus.node.http_server`).

A connection has a time limit for every wait for its client. uvicorn closes connections that are idle between two
requests. This module bounds the rest: a head or a body that arrives slowly or never, an answer that the client does not
read, and the number of connections. All of them close the connection without an answer, because such a client does not
read.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast
from urllib.parse import unquote

import h11
import uvicorn
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from partibus.frontends.admission import Admission
from partibus.frontends.amqp.server import is_websocket_path
from partibus.limits import HttpLimits
from partibus.units.account import CLAIMED

_log: Final = logging.getLogger("uvicorn.error.connection")
_log.setLevel(logging.ERROR)  # uvicorn warns of each request that is no HTTP, and strangers can send any number
AT_ONCE_BYTES: Final = 8 * 1024
"""Bytes handled at once before other connections are served."""
LINES_AT_ONCE: Final = 512
"""The most lines among them: a chunk of a body has two, and takes thirty microseconds, also with a single byte."""
HEAD_LINES_MAX: Final = 1_000
"""The most lines of an incomplete head. The 7,500 of three bytes for which there is room take 40 ms."""

_HOLD_BODY: Final = "partibus.hold_body"
"""Key in the state of a request: notes how many bytes of its body are held."""


class HttpConnection(H11Protocol):
    """``open_websocket`` makes the protocol that goes on with a connection whose client asks for the path of AMQP."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        limits: HttpLimits,
        open_websocket: Callable[[], asyncio.Protocol],
        admission: Admission,
    ) -> None:
        super().__init__(config, server_state, {CLAIMED: self._claim, _HOLD_BODY: self._hold_body})
        self.logger = _log
        self._admission = admission
        self._limits = limits
        self._open_websocket = open_websocket
        self._waits_for: str | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._untaken: asyncio.TimerHandle | None = None
        self._later = bytearray()
        """Read and not looked at."""
        self._head_lines = 0
        """The lines of an incomplete head."""
        self._turn: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection, or close it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections_max:
            transport.abort()
            return
        if self._admission.enter(self, None if self.client is None else self.client[0]):
            self._watch()

    def drop(self) -> None:
        """Abort the connection (`partibus.frontends.admission.Connection`)."""
        self.transport.abort()

    def _claim(self) -> None:
        """Note that a request has shown a claim."""
        self._admission.claim(self)

    def _hold_body(self, size_bytes: int) -> None:
        """Note the bytes that the application holds of a request's body."""
        self._admission.hold_body(self, size_bytes)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client, and handle the first of them."""
        if not self._later and len(data) <= AT_ONCE_BYTES and data.count(b"\n") <= LINES_AT_ONCE:
            self._take(data)
            return
        self._later += data
        self.transport.pause_reading()
        if self._turn is None:
            self._read_on()

    def _take(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_protocol() is self:
            self._watch()
            self._count_lines(data)

    def _count_lines(self, data: bytes) -> None:
        """Refuse a head of too many lines as long as it is incomplete: then none of them is parsed."""
        if self.conn.their_state is not h11.IDLE:
            self._head_lines = 0
            return
        self._head_lines += data.count(b"\n")
        if self._head_lines > HEAD_LINES_MAX and not self.transport.is_closing():
            self.send_400_response(f"The head of a request has at most {HEAD_LINES_MAX} lines.")

    def _read_on(self) -> None:
        """Handle the next `AT_ONCE_BYTES` of the bytes read, or fewer if they have many lines."""
        self._turn = None
        # An answer since the last turn may have begun the next request, which may have opened a websocket.
        if self.transport.get_protocol() is self:
            share = bytes(self._later[:AT_ONCE_BYTES])
            while share.count(b"\n") > LINES_AT_ONCE:
                share = share[: len(share) // 2]
            del self._later[: len(share)]
            self._take(share)
        if self.transport.is_closing():
            self._later.clear()
        elif (protocol := self.transport.get_protocol()) is not self:
            rest, self._later = bytes(self._later), bytearray()
            self.transport.resume_reading()
            if rest:
                cast("asyncio.Protocol", protocol).data_received(rest)
        elif self._later:
            self._turn = self.loop.call_soon(self._read_on)
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP. It may be the rest of a request that has its answer, and then nothing can be sent."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """End with the server, after an answer under way. The bytes may have gone wrong before."""
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Handle the next request after an answer."""
        super().on_response_complete()
        if self.transport.get_protocol() is self:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self._stop_watching()
        self._admission.leave(self)
        self._later.clear()
        if self._turn is not None:
            self._turn.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop writing, and start the client's time to read."""
        super().pause_writing()
        self._untaken = self.loop.call_later(self._limits.answer_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    # -- time --------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Start the time limit of the client's present obligation."""
        owes = None
        if self.conn.their_state is h11.SEND_BODY:
            owes = "body"
        elif self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
            owes = "head"
        if owes == self._waits_for and self._deadline is not None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._waits_for = owes
        if owes is not None and not self.transport.is_closing():
            seconds = self._limits.head_s if owes == "head" else self._limits.body_s
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _stop_watching(self) -> None:
        for timer in (self._deadline, self._untaken):
            if timer is not None:
                timer.cancel()
        self._deadline = self._untaken = None

    # -- websockets --------------------------------------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        return self._get_upgrade() == b"websocket" and is_websocket_path(self.scope["path"])

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Pass the connection with its first request to the websocket protocol."""
        self._stop_watching()
        self.connections.discard(self)
        self._admission.leave(self)
        lines = [b"%b %b HTTP/1.1" % (event.method, event.target), *(b"%b: %b" % pair for pair in self.headers)]
        protocol = self._open_websocket()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received(b"\r\n".join([*lines, b"\r\n"]) + self.conn.trailing_data[0])


class _Server(uvicorn.Server):
    """Signals belong to the node, which stops this server in its order."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell it even after an error."""
        try:
            await super().startup(sockets)
        finally:
            self.is_started.set()

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
            BoundedRequests(app, limits.body_bytes_max),
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

    async def wait_until_started(self) -> None:
        """Wait until the server has what it adds to each answer, such as the date."""
        await self._server.is_started.wait()

    async def stop(self) -> None:
        """Answer pending requests, then stop."""
        self._server.should_exit = True
        await self._task


QUERY_PAIRS_MAX: Final = 1_000
"""The most parameters in a query. A head has room for 30,000, which take 30 ms."""


def _origin_form(scope: Scope) -> Scope:
    """Return a request whose target is a whole address (RFC 9112, 3.2.2) as one for its path, with its host."""
    scheme, colon, rest = scope["raw_path"].partition(b"://")
    if not colon or scheme.lower() not in (b"http", b"https"):
        return scope
    host, _, path = rest.partition(b"/")
    headers = [(b"host", host), *(pair for pair in scope["headers"] if pair[0] != b"host")]
    return {**scope, "path": unquote("/" + path.decode("ascii")), "raw_path": b"/" + path, "headers": headers}


class BoundedRequests:
    """An application that never sees more than ``bytes_max`` of a request's body, 413 instead, or a longer query."""

    def __init__(self, app: ASGIApp, bytes_max: int) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose body is within the bound; refuse a larger one."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _origin_form(scope)
        if scope["query_string"].count(b"&") >= QUERY_PAIRS_MAX:
            text = f"The query of a request has at most {QUERY_PAIRS_MAX} parameters; send fewer."
            await PlainTextResponse(text, 414)(scope, receive, send)
            return
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if lengths and any(name == b"transfer-encoding" for name, _ in scope["headers"]):
            # Another server before this one may have read another body, and so another next request.
            text = "A request has the header Content-Length or Transfer-Encoding, not both."
            await PlainTextResponse(text, 400, {"connection": "close"})(scope, receive, send)
            return
        if lengths and int(lengths[0]) > self._bytes_max:  # h11 has seen that it is a number
            await PlainTextResponse(self._refusal, 413, {"connection": "close"})(scope, receive, send)
            return
        received = 0
        hold_body = scope.get("state", {}).get(_HOLD_BODY)

        async def receive_bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._bytes_max:
                raise HTTPException(413, self._refusal, {"connection": "close"})
            if hold_body is not None:
                hold_body(received)
            return message

        try:
            await self._app(scope, receive_bounded, send)
        finally:
            if hold_body is not None:
                hold_body(0)

    @property
    def _refusal(self) -> str:
        return f"The body of a request has at most {self._bytes_max} bytes; send less at once."
