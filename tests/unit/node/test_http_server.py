"""The bounds of an HTTP connection, with sockets whose every byte the test writes. Limits are short here, and nothing
depends on how short: each of them ends what would never end by itself."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import h11
import pytest
import uvloop
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from partibus.limits import AdmissionLimits, HttpLimits, TlsLimits
from partibus.node import http_server
from partibus.node.certificates import default_names, ensure_development
from partibus.node.http_engine import AT_ONCE_BYTES, LINES_AT_ONCE, QUERY_PAIRS_MAX, BoundedRequests
from partibus.node.http_server import HttpServer
from partibus.node.tls import ServerTls, TlsListener

EVENTUALLY_S = 90.0
LIMITS = HttpLimits(head_bytes_max=4096, body_bytes_max=10_000, connections_max=20, keep_alive_s=60)
CHUNK = b"1000\r\n" + 4096 * b"x" + b"\r\n"
GET = b"GET /size HTTP/1.1\r\nHost: x\r\n\r\n"


async def _size(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def _large(request: Request) -> Response:
    return PlainTextResponse(b"x" * (64 << 20))


class Echo(asyncio.Protocol):
    """A stand-in for a websocket, which repeats all input."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Served:
    """A server on a loop of its own."""

    def __init__(self, limits: HttpLimits) -> None:
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(limits)), daemon=True)
        self._thread.start()
        assert self._ready.wait(EVENTUALLY_S)

    async def _run(self, limits: HttpLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = Starlette(routes=[Route("/size", _size, methods=["GET", "POST"]), Route("/large", _large)])
        server = HttpServer(lambda: app, limits, Echo)
        self.port = await server.start("127.0.0.1", 0)
        self._ready.set()
        await self._stop.wait()
        await server.stop()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(EVENTUALLY_S)
        assert not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=EVENTUALLY_S)


Serve = Callable[..., Served]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """``serve(head_s=0.1)``: with other limits than `LIMITS`."""
    monkeypatch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)
    running: list[Served] = []

    def make(**limits: Any) -> Served:
        running.append(Served(replace(LIMITS, **limits)))
        return running[-1]

    yield make
    for one in running:
        if one.is_running:
            one.stop()


def everything(sock: socket.socket) -> bytes:
    """Read until the server ends the connection; time-outs fail."""
    found = b""
    try:
        while data := sock.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def answer(sock: socket.socket, request: bytes) -> bytes:
    """Read the answer to a request, head and body; for the stand-in of a websocket as many bytes as were sent."""
    sock.sendall(request)
    found, size = b"", len(request)
    while len(found) < size:
        data = sock.recv(65536)
        assert data, found
        found += data
        if length := re.match(rb"HTTP(?s:.)*content-length: (\d+)(?s:.)*?\r\n\r\n", found):
            size = length.end() + int(length[1])
    return found


def test_requests_are_answered_one_after_the_other_on_one_connection(serve: Serve) -> None:
    with serve().connect() as sock:
        for body in (b"", b"abc"):
            head = b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            assert answer(sock, head + body).endswith(b"\r\n\r\n%d" % len(body))


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_head_that_does_not_end_ends_the_connection(serve: Serve, sent: bytes) -> None:
    with serve(head_s=0.1).connect() as sock:
        sock.sendall(sent)
        assert everything(sock) == b""


def test_drops_of_a_head_do_not_lengthen_its_time(serve: Serve) -> None:
    with serve(head_s=0.2).connect() as sock:
        sock.settimeout(0.01)
        sock.sendall(b"GET / HTTP/1.1\r\n")
        for number in range(2_000):
            try:
                sock.sendall(b"X-%d: drop\r\n" % number)
                assert sock.recv(100) == b""
                return
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                return
    pytest.fail("the connection goes on")


def test_second_head_has_an_end_too(serve: Serve) -> None:
    with serve(head_s=0.1).connect() as sock:
        assert b"200 OK" in answer(sock, GET)
        sock.sendall(b"GET")
        assert everything(sock) == b""


def test_body_that_does_not_end_ends_the_connection(serve: Serve) -> None:
    with serve(body_s=0.1).connect() as sock:
        sock.sendall(b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        assert b"200 OK" not in everything(sock)


def test_idle_connection_ends(serve: Serve) -> None:
    with serve(keep_alive_s=0).connect() as sock:
        sock.sendall(GET)
        assert b"200 OK" in everything(sock)


def test_answer_that_nobody_takes_ends_the_connection(serve: Serve) -> None:
    served = serve(answer_s=0.2)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(EVENTUALLY_S)
        sock.connect(("127.0.0.1", served.port))
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        # Nothing is read until the server has hung up: then writing fails.
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012
            for _ in range(9_000):
                sock.sendall(b"\r\n")
                threading.Event().wait(0.01)
    with served.connect() as sock:
        assert b"200 OK" in answer(sock, GET)


def test_head_that_is_too_large_is_refused(serve: Serve) -> None:
    with serve().connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2 * LIMITS.head_bytes_max)
        assert everything(sock).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n",
        b"POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + 3 * (b"1000\r\n" + 4096 * b"x" + b"\r\n"),
    ],
    ids=["declared", "chunked"],
)
def test_body_that_is_too_large_is_refused_before_all_of_it_is_there(serve: Serve, request_bytes: bytes) -> None:
    with serve().connect() as sock:
        sock.sendall(request_bytes)
        found = everything(sock)
        assert found.startswith(b"HTTP/1.1 413")
        assert b"at most 10000 bytes" in found


CHUNKED = b"POST /large HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "rest", [b"no length\r\n", b"1;" + b"a" * 2 * LIMITS.head_bytes_max], ids=["length", "extension"]
)
def test_a_body_that_goes_wrong_after_its_answer_ends_the_connection(serve: Serve, rest: bytes) -> None:
    """Also in a later turn of the loop, where no transport sees the error."""
    with serve().connect() as sock:
        assert b" 405 " in answer(sock, CHUNKED)
        sock.sendall(b"1\r\nx\r\n" * (2 * AT_ONCE_BYTES // 6) + rest)
        assert everything(sock) == b""


def test_a_connection_that_can_say_nothing_any_longer_ends_with_the_server(
    monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    def refuse(_: H11Protocol) -> None:
        raise h11.LocalProtocolError("Can't send data when our state is ERROR")

    monkeypatch.setattr(H11Protocol, "shutdown", refuse)
    served = serve()
    with served.connect() as sock:
        assert b"200 OK" in answer(sock, GET)
        served.stop()
        assert everything(sock) == b""


def test_what_is_no_http_leaves_no_line_in_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve()
    for sent in (b"\x16\x03\x01\x02\r\n\r\n", GET[:-2] + b"Connection: upgrade\r\nUpgrade: h3\r\n\r\n"):
        with served.connect() as sock:
            sock.sendall(sent)
            assert sock.recv(100).startswith(b"HTTP/1.1")
    assert caplog.messages == []


def test_head_of_too_many_lines_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    parsed: list[int] = []
    make = h11.Request.__init__

    def counting(request: h11.Request, **parts: Any) -> None:
        parsed.append(len(parts["headers"]))
        make(request, **parts)

    monkeypatch.setattr(h11.Request, "__init__", counting)
    with serve(head_bytes_max=32 * 1024).connect() as sock:
        sock.sendall(GET[:-2] + b"a:\r\n" * 6_000 + b"\r\n")
        assert b"400 Bad Request" in everything(sock)
    assert parsed == []
    with serve(head_bytes_max=32 * 1024).connect() as sock:
        assert b"200 OK" in answer(sock, GET[:-2] + b"a:\r\n" * 900 + b"\r\n")
    assert parsed == [901]


def test_body_of_the_bound_is_taken(serve: Serve) -> None:
    with serve().connect() as sock:
        body = b"x" * LIMITS.body_bytes_max
        assert answer(sock, b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n" + body).endswith(
            b"10000"
        )


def test_more_connections_than_there_may_be_are_not_taken(serve: Serve) -> None:
    served = serve(connections_max=3)
    kept = [served.connect() for _ in range(3)]
    assert all(b"200 OK" in answer(sock, GET) for sock in kept)
    with served.connect() as sock:
        assert everything(sock) == b""
    assert b"200 OK" in answer(kept[0], GET)
    for sock in kept:
        sock.close()


UPGRADE = (
    b"GET /prefix/$servicebus/websocket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def test_websocket_gets_the_request_and_all_that_follows_and_has_no_end_of_http(serve: Serve) -> None:
    served = serve(head_s=0.1, connections_max=1)
    with served.connect() as sock:
        said = answer(sock, UPGRADE)
        assert said.lower() == UPGRADE.lower()
        # It counts no longer, and its time has no end.
        with served.connect() as other:
            assert b"200 OK" in answer(other, GET)
        with served.connect() as slow:
            assert everything(slow) == b""
        assert answer(sock, b"bytes") == b"bytes"


def test_websocket_opened_by_a_pipelined_request_gets_all_that_follows(serve: Serve) -> None:
    """More follows than is read at once, and the answer to the first request opens the websocket in between."""
    rest = b"".join(b"%07d\n" % number for number in range(30 * LINES_AT_ONCE))
    with serve().connect() as sock:
        sock.sendall(GET + UPGRADE + rest)
        found = b""
        while len(found.partition(rest[:8])[2]) < len(rest) - 8:
            found += sock.recv(1 << 16)
        assert found.endswith(rest)


@pytest.mark.parametrize("encoding", [b"chunked", b"CHUNKED"])
def test_a_body_of_two_lengths_is_refused_and_ends_the_connection(serve: Serve, encoding: bytes) -> None:
    """A proxy that believes the other length would see another request behind it."""
    head = b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: " + encoding
    with serve().connect() as sock:
        sock.sendall(head + b"\r\n\r\n0\r\n\r\n" + GET)
        found = everything(sock)
        assert found.startswith(b"HTTP/1.1 400")
        assert found.count(b"HTTP/1.1") == 1


def test_websocket_elsewhere_is_an_ordinary_request(serve: Serve) -> None:
    with serve().connect() as sock:
        assert b"404" in answer(sock, UPGRADE.replace(b"$servicebus", b"elsewhere"))


def test_what_answers_comes_with_the_first_connection_or_after_a_while() -> None:
    async def run(load_s: float, requests: int) -> int:
        made: list[Starlette] = []
        is_made = asyncio.Event()

        def make_app() -> Starlette:
            made.append(Starlette(routes=[Route("/size", _size)]))
            is_made.set()
            return made[-1]

        server = HttpServer(make_app, LIMITS, Echo)
        port = await server.start("127.0.0.1", 0, load_s=load_s)
        assert made == []
        for _ in range(requests):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            assert b"date:" in await reader.readuntil(b"\r\n\r\n")
            writer.close()
        if load_s == 0:
            await asyncio.wait_for(is_made.wait(), EVENTUALLY_S)
        await server.stop()
        return len(made)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run(load_s=EVENTUALLY_S, requests=2)) == 1
        assert runner.run(run(load_s=0, requests=0)) == 1
        assert runner.run(run(load_s=0, requests=2)) == 1
        assert runner.run(run(load_s=EVENTUALLY_S, requests=0)) == 0


def test_who_comes_when_nothing_can_answer_is_sent_away_and_the_next_one_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> list[bytes]:
        left = [OSError(24, "Too many open files")]

        def make_app() -> Starlette:
            if left:
                raise left.pop()
            return Starlette(routes=[Route("/size", _size)])

        server = HttpServer(make_app, LIMITS, Echo)
        port = await server.start("127.0.0.1", 0, load_s=EVENTUALLY_S)
        found = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            try:
                found.append(await asyncio.wait_for(reader.readline(), EVENTUALLY_S))
            except ConnectionError:
                found.append(b"")
            writer.close()
        await server.stop()
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == [b"", b"HTTP/1.1 200 OK\r\n"]
    assert "HTTP can't be answered now" in caplog.text
    assert "Too many open files" in caplog.text


def test_a_start_imports_nothing_of_what_answers_http() -> None:
    brokers = "partibus.node.single_process, partibus.node.supervised, partibus.node.clustered"
    what = f"import sys; import {brokers}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", what], capture_output=True, text=True, check=True)
    imported = {module.partition(".")[0] for module in done.stdout.split()}
    assert "partibus" in imported
    assert not imported & {"starlette", "uvicorn", "h11", "websockets", "anyio", "jinja2"}


LOADED_ON_THE_LOOP = """
import asyncio, sys, threading
from pathlib import Path
from partibus.node.settings import Settings
from partibus.node.single_process import make_broker

async def run():
    data = Path(sys.argv[1])
    settings = Settings(data=data / "data", amqp_port=0, http_port=0, ready_file=data / "ready.json")
    broker = make_broker(settings, asyncio.get_running_loop())
    await broker.start()
    loop, server, imported = threading.get_ident(), broker.front._http, {True: [], False: []}
    note = lambda event, found: event == "import" and imported[threading.get_ident() == loop].append(found[0])
    sys.addaudithook(note)
    server._load_if_needed()
    await server._loading
    assert "starlette" in imported[False] and server._engine is not None
    print(*imported[True])
    await broker.stop()

asyncio.run(run())
"""


def test_a_running_broker_imports_what_answers_http_beside_its_loop(tmp_path: Path) -> None:
    """An import on the loop holds up every message: 130 ms where there was no compiled form of the modules."""
    run = [sys.executable, "-c", LOADED_ON_THE_LOOP, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_large_read_takes_turns_with_others(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    """Read in turns: in chunks of a byte, 256 KiB would hold the loop for a quarter of a second."""
    taken: list[tuple[int, int]] = []
    original = H11Protocol.data_received

    def noting(protocol: H11Protocol, data: bytes) -> None:
        taken.append((len(data), data.count(b"\n")))
        original(protocol, data)

    monkeypatch.setattr(H11Protocol, "data_received", noting)
    head = b"POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    with serve(body_bytes_max=200_000).connect() as sock:
        sock.sendall(head + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
        assert everything(sock).endswith(b"100000")
    assert max(size for size, _ in taken) <= AT_ONCE_BYTES
    assert max(lines for _, lines in taken) <= LINES_AT_ONCE


def test_a_query_of_too_many_parameters_is_refused_unread(serve: Serve) -> None:
    with serve().connect() as sock:
        for pairs, status in ((QUERY_PAIRS_MAX, b"405"), (QUERY_PAIRS_MAX + 1, b"414")):
            target = b"/large?" + b"&".join([b"a"] * pairs)
            assert b" %b " % status in answer(
                sock, b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % target
            )


def test_bodies_without_a_claim_are_bounded_over_all_connections(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    limits = AdmissionLimits(body_bytes_free=1_000, bodies_bytes_max=9_000)
    monkeypatch.setattr(http_server, "AdmissionLimits", lambda: limits)
    server = serve()
    head = b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 6000\r\n\r\n"
    with server.connect() as one, server.connect() as other:
        for sock in (one, other):
            sock.sendall(head + b"x" * 5_000)
        (dropped,), _, _ = select.select([one, other], [], [], EVENTUALLY_S)
        assert everything(dropped) == b""
        left = other if dropped is one else one
        assert b"6000" in answer(left, b"x" * 1_000)
        for _ in range(3):
            assert b"6000" in answer(left, head + b"x" * 6_000)


@pytest.mark.parametrize("secure", [False, True])
def test_connections_that_come_before_the_application_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secure: bool
) -> None:
    """The broker's loop goes on meanwhile: an import takes 110 ms, and seconds on a machine under load."""
    may_import = threading.Event()

    def slow_import(name: str) -> Any:
        may_import.wait(EVENTUALLY_S)
        return import_module(name)

    monkeypatch.setattr(http_server, "import_module", slow_import)

    async def run() -> list[bytes]:
        server = HttpServer(lambda: Starlette(routes=[Route("/size", _size)]), LIMITS, Echo)
        port = await server.start("127.0.0.1", 0)
        listener: TlsListener | None = None
        tls: dict[str, Any] = {}
        if secure:
            made = ensure_development(tmp_path, default_names(), datetime.now(UTC))
            listener = TlsListener(ServerTls(made.server, None), server.make_protocol, TlsLimits())
            port = listener.start("127.0.0.1", 0)
            tls = {"ssl": ssl.create_default_context(cafile=made.authority), "server_hostname": "localhost"}
        connections = [await asyncio.open_connection("127.0.0.1", port, **tls) for _ in range(4)]
        for _, writer in connections:
            writer.write(GET)
            await writer.drain()
        left = connections.pop()[1]
        left.transport.abort()
        _, last = await asyncio.open_connection("127.0.0.1", port, **tls)  # the loop has seen what came before
        may_import.set()
        found = [await asyncio.wait_for(reader.readline(), EVENTUALLY_S) for reader, _ in connections]
        for writer in (*(writer for _, writer in connections), last):
            writer.close()
        if listener is not None:
            listener.stop()
        await server.stop()
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == [b"HTTP/1.1 200 OK\r\n"] * 3


@pytest.mark.parametrize("address", [b"http://y.example:80/%73ize?a=1", b"HTTP://y.example:80/size"])
def test_a_request_for_a_whole_address_is_for_its_path_and_its_host(serve: Serve, address: bytes) -> None:
    with serve().connect() as sock:
        assert answer(sock, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % address).endswith(b"\r\n\r\n0")


def test_the_host_of_a_whole_address_replaces_the_header() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    def ask(raw_path: bytes) -> Scope:
        headers = [(b"host", b"x"), (b"accept", b"*/*")]
        scope = {"type": "http", "raw_path": raw_path, "path": "?", "query_string": b"", "headers": headers}
        asyncio.run(BoundedRequests(app, 0)(scope, cast(Receive, None), cast(Send, None)))
        return seen[-1]

    scope = ask(b"https://y.example/a%2Fb")
    assert (scope["path"], scope["raw_path"]) == ("/a/b", b"/a%2Fb")
    assert scope["headers"] == [(b"host", b"y.example"), (b"accept", b"*/*")]
    assert ask(b"http://y.example")["path"] == "/"
    assert ask(b"/http://y")["path"] == ask(b"ftp://y/z")["path"] == "?"
