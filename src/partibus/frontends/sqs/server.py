"""The SQS port: HTTP/1.1 connections, each with one request at a time.

It is thin: no framework stands between the bytes and the service, since a request has to cost less than a tenth of what
a framework takes. A connection has bounds on its head, its body and the client's time for each of them, as on the HTTP
port.
"""

import asyncio
import logging
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, cast

from partibus.frontends.admission import Admission
from partibus.frontends.origins import Origins
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.http_request import Chunks, Head, Malformed
from partibus.frontends.sqs.protocol import ASIDE_BYTES, Answer, Parsed, Request, parse
from partibus.frontends.sqs.service import SqsService
from partibus.limits import HttpLimits
from partibus.namespace.broker import Broker
from partibus.units.account import Account
from partibus.units.fair_scheduler import FairScheduler

log = logging.getLogger(__name__)

PIPELINED_BYTES: Final = 64 * 1024
"""Bytes of later requests that are read while one is under way."""
LOOK_S: Final = 5.0
"""How often the server looks for clients whose time is over."""
_REQUEST_BYTES: Final = 512
"""A request costs about as much beside its handling as so many bytes."""
_REQUEST_ID: Final = "x-amzn-RequestId: {}\r\n"
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


class SqsServer:
    """The shared state of the connections of the SQS port."""

    def __init__(
        self,
        service: SqsService,
        loop: asyncio.AbstractEventLoop,
        limits: HttpLimits,
        admission: Admission,
        scheduler: FairScheduler,
        origins: Origins,
    ) -> None:
        self.service = service
        self.loop = loop
        self.limits = limits
        self.admission = admission
        self.scheduler = scheduler
        self.origins = origins
        self.connections: set[SqsConnection] = set()
        self._date_s = 0
        self._date = b""
        self._is_looking = False

    def make_protocol(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        return SqsConnection(self)

    def date(self) -> bytes:
        """Return the time for the header ``Date``, made once a second."""
        now_s = self.service.namespaces.default.wall_clock.now_ms() // 1000
        if now_s != self._date_s:
            self._date_s, self._date = now_s, formatdate(now_s, usegmt=True).encode("ascii")
        return self._date

    def enter(self, connection: "SqsConnection") -> None:
        """Register a connection."""
        self.connections.add(connection)
        if not self._is_looking:
            self._is_looking = True
            self.loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Drop the clients whose time is over. One timer serves all: many connections wait, for long polls."""
        now_s = self.loop.time()
        for connection in [one for one in self.connections if 0 < one.deadline_s < now_s]:
            connection.drop()
        self._is_looking = bool(self.connections)
        if self._is_looking:
            self.loop.call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """Close idle connections, and the others after their answers; waiting receives end empty."""
        for connection in list(self.connections):
            connection.stop()


class SqsConnection(asyncio.Protocol):
    """One connection. It reads on while a request is under way, so that it sees the client leave."""

    def __init__(self, server: SqsServer) -> None:
        self._server = server
        self._service = server.service
        self._limits = server.limits
        self._transport: asyncio.Transport | None = None
        self._input = bytearray()
        self._searched = 0
        """The part of the input that has no end of a head."""
        self._head: Head | None = None
        self._chunks: Chunks | None = None
        self._call: Call | None = None
        self._is_busy = False
        """Whether a request is under way."""
        self._is_paused = False
        self._is_claimed = False
        self._stops = False
        self._client: str | None = None
        self._scheme = "http"
        self.deadline_s = 0.0
        """When the client's time is over; 0: it owes nothing."""
        self._untaken: asyncio.TimerHandle | None = None
        self._waiting: tuple[Request, Parsed] | None = None
        """The request that waits for its turn."""
        self.account: Account = server.service.namespaces.default.account
        """The account of the namespace in which the client has shown its key; before, of the default one."""

    # -- the transport's calls -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        server = self._server
        peername = transport.get_extra_info("peername")
        self._client = peername[0] if isinstance(peername, tuple) else None
        self._scheme = "https" if transport.get_extra_info("sslcontext") is not None else "http"
        server.enter(self)
        if len(server.connections) > self._limits.connections_max:
            self._transport.abort()
            return
        self._owe(self._limits.head_s)
        server.admission.enter(self, self._client)

    def drop(self) -> None:
        """Abort the connection (`partibus.frontends.admission.Connection`)."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if not self._input and not self._is_busy and self._head is None:
            if self._took_whole(data):
                return
            self._owe(self._limits.head_s)
        self._input += data
        if not self._is_busy:
            self._advance()
            if not self._is_busy and not self._is_claimed:
                held_bytes = len(self._input) + (0 if self._chunks is None else self._chunks.held_bytes)
                self._server.admission.hold_body(self, held_bytes)
        elif len(self._input) > PIPELINED_BYTES and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Close the connection: a client that has closed its side gets no answer."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the request under way has no client."""
        self._transport = None
        self._server.connections.discard(self)
        self._server.admission.leave(self)
        if self._untaken is not None:
            self._untaken.cancel()
        self._input.clear()
        self._waiting = None
        call, self._call = self._call, None
        if call is not None:
            call.leave()

    def pause_writing(self) -> None:
        """Give the client some time to take the answer."""
        self._untaken = self._server.loop.call_later(self._limits.answer_s, self.drop)

    def resume_writing(self) -> None:
        """Note that the client takes the answer."""
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    # -- time ----------------------------------------------------------------------------------------------------------

    def _owe(self, seconds: float) -> None:
        self.deadline_s = self._server.loop.time() + seconds

    def stop(self) -> None:
        """Close now, or after the answer under way."""
        self._stops = True
        if self._transport is not None and not self._is_busy:
            self._transport.close()
        elif self._call is not None and self._call.end_early is not None:
            self._call.end_early()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin the next request of the input, if it is complete.

        Only one: the answer to it has the next round of the loop go on. A client that pipelines thousands of requests
        would hold the loop otherwise.
        """
        if self._is_busy or self._transport is None or not (self._input or self._head is not None):
            return
        try:
            if self._head is None and not self._read_head():
                return
            body = self._read_body()
            if body is not None:
                self._begin(body)
        except Malformed as error:
            self._input.clear()
            self._reject(error.status, error.text)

    def _took_whole(self, data: bytes) -> bool:
        """Begin the request if the bytes are exactly one, as they mostly are."""
        end = data.find(b"\r\n\r\n")
        if not 0 < end <= self._limits.head_bytes_max:
            return False
        try:
            head = Head(data[:end])
        except Malformed:
            return False
        if head.chunked or head.length != len(data) - end - 4 or "expect" in head.headers:
            return False
        self._head = head
        self._begin(data[end + 4 :])
        return True

    def _read_head(self) -> bool:
        if self._searched == 0:
            while self._input[:2] == b"\r\n":  # RFC 9112 2.2: an empty line before a request
                del self._input[:2]
        end = self._input.find(b"\r\n\r\n", max(self._searched - 3, 0))
        if end < 0:
            self._searched = len(self._input)
            if self._searched > self._limits.head_bytes_max:
                raise Malformed(431, f"The head of a request has at most {self._limits.head_bytes_max} bytes.")
            return False
        if end > self._limits.head_bytes_max:
            raise Malformed(431, f"The head of a request has at most {self._limits.head_bytes_max} bytes.")
        self._head = head = Head(bytes(self._input[:end]))
        del self._input[: end + 4]
        self._searched = 0
        self._owe(self._limits.body_s)
        if head.chunked:
            self._chunks = Chunks()
        if head.headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _read_body(self) -> bytes | None:
        """Return the body once it is complete."""
        assert self._head is not None, "a head was read"
        if self._chunks is not None:
            return self._chunks.take(self._input)
        length = self._head.length
        if len(self._input) < length:
            return None
        body = bytes(self._input[:length])
        del self._input[:length]
        return body

    def _begin(self, body: bytes) -> None:
        head = self._head
        assert head is not None, "a head was read"
        self._chunks = None
        self._is_busy = True
        self.deadline_s = 0.0
        headers = head.headers
        refusal = self._server.origins.sqs_refusal(headers)
        if refusal is not None:
            self._reject(403, refusal)
            return
        admission = self._server.admission
        if len(body) > admission.limits.body_bytes_free and not self._is_claimed:
            admission.hold_body(self, len(body))
        request = Request(head.method, head.path, head.query, headers, body, self._client, self._scheme)
        if len(body) <= ASIDE_BYTES:
            self._take_turn(request, parse(request))
        else:
            parsing = self._server.loop.run_in_executor(None, parse, request)
            parsing.add_done_callback(lambda done: self._parsed(request, done))

    def _parsed(self, request: Request, done: "asyncio.Future[Parsed]") -> None:
        if self._transport is None or done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._take_turn(request, done.result())
        else:
            log.error("an error inside of the broker ends a request", exc_info=error)
            self._reject(500, "An error inside of the broker; its log says more.")

    def _take_turn(self, request: Request, parsed: Parsed) -> None:
        """Have the request carried out now, or in its namespace's turn."""
        scheduler, account = self._server.scheduler, self.account
        if scheduler.begin(account):
            self._carry_out(request, parsed)
            scheduler.end(account, len(request.body) + _REQUEST_BYTES)
        else:
            self._waiting = request, parsed
            scheduler.add(self)

    def read_piece(self) -> bool:
        """Carry out the waiting request (`partibus.units.account.Reader`)."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._carry_out(*waiting)
        return False

    def _carry_out(self, request: Request, parsed: Parsed) -> None:
        call = self._service.handle(request, parsed, self._respond, self._claimed)
        if call is not None and self._is_busy:
            if self._transport is None:
                call.leave()
            else:
                self._call = call

    def _claimed(self, broker: Broker) -> None:
        self.account = broker.account
        if not self._is_claimed:
            self._is_claimed = True
            self._server.admission.claim(self)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _respond(self, answer: Answer) -> None:
        headers = _REQUEST_ID.format(answer.request_id)
        if answer.query_error:
            headers = f"{headers}x-amzn-query-error: {answer.query_error}\r\n"
        self._write(answer.status, answer.content_type, headers, answer.body)

    def _reject(self, status: int, text: str) -> None:
        """Answer a request that is none of SQS, and close."""
        self._stops = True
        self._is_busy = True
        headers = _REQUEST_ID.format(self._service.new_request_id())
        self._write(status, "text/plain; charset=utf-8", headers, text.encode("utf-8", "replace"))

    def _write(self, status: int, content_type: str, headers: str, body: bytes) -> None:
        self._call = None
        self._is_busy = False
        if not self._is_claimed:
            self._server.admission.hold_body(self, 0)
        head, self._head = self._head, None
        transport = self._transport
        if transport is None:
            return
        closes = self._stops or head is None or not head.keep_alive
        is_head = head is not None and head.method == "HEAD"
        start = _start(status, content_type, closes)
        more = headers.encode("latin-1", "replace")
        transport.write(b"%b%d\r\nDate: %b\r\n%b\r\n%b" % (
            start, len(body), self._server.date(), more, b"" if is_head else body,
        ))  # fmt: skip
        if closes:
            transport.close()
            return
        if self._is_paused:
            self._is_paused = False
            transport.resume_reading()
        if self._input:
            self._owe(self._limits.head_s)
            self._server.loop.call_soon(self._advance)
        else:
            self.deadline_s = self._server.loop.time() + self._limits.keep_alive_s


@lru_cache(maxsize=100)
def _start(status: int, content_type: str, closes: bool) -> bytes:
    """Return the beginning of an answer, up to the number of its bytes."""
    connection = "close" if closes else "keep-alive"
    return (
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\nContent-Type: {content_type}\r\nConnection: {connection}\r\n"
        "Content-Length: "
    ).encode("ascii")
