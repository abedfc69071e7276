"""AMQP inside of a websocket, between a transport and a protocol that only take notes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from partibus.frontends.amqp.server import is_websocket_path
from partibus.frontends.amqp.websocket import AT_ONCE_BYTES, FRAMES_AT_ONCE, MESSAGE_BYTES, Websocket

FRAME_MAX = 1 << 20
SMALLEST = bytes([0x82, 0x81]) + b"mask" + b"x"
"""A binary message of one byte, masked."""


class Wire(asyncio.Transport):
    """The side of the network: what was written, and whether reading is on."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.reading = True
        self.closed = False
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return len(self.written)


class Inner(asyncio.Protocol):
    """The protocol whose bytes the websocket carries."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.came = bytearray()
        self.sizes: list[int] = []
        self.said: list[str] = []
        self.on_data: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.said.append("made")

    def data_received(self, data: bytes) -> None:
        self.came += data
        self.sizes.append(len(data))
        self.on_data()

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append("lost")


class Pair:
    """A client, and the server under test."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *offered: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.loop = loop
        self.wire = Wire()
        self.inner = Inner()
        self.client = ClientProtocol(
            parse_uri("ws://localhost/$servicebus/websocket"),
            subprotocols=[Subprotocol(one) for one in offered] or None,
            max_size=None,
        )
        self.socket = self._run(lambda: Websocket(self.inner, FRAME_MAX, 60.0))
        self.socket.connection_made(self.wire)
        request = self.client.connect()
        for name, value in headers:
            request.headers[name] = value
        self.client.send_request(request)
        self.pass_on()

    def _run(self, make: Callable[[], Websocket]) -> Websocket:
        async def call() -> Websocket:
            return make()

        return self.loop.run_until_complete(call())

    def turn(self) -> None:
        """One turn of the loop."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def until_it_reads(self) -> None:
        """Let the server handle what it has read."""
        while not self.wire.reading:
            self.turn()

    def pass_on(self) -> list[Any]:
        """Pass on the client's bytes to the server, and back; return the client's events."""
        for data in self.client.data_to_send():
            if data:
                self.feed(data)
        if self.wire.written:
            self.client.receive_data(bytes(self.wire.written))
            self.wire.written.clear()
        return self.client.events_received()

    def feed(self, data: bytes) -> int:
        """One read of the network; how many bytes the inner protocol has had when it is done."""

        async def call() -> int:
            self.socket.data_received(data)
            return len(self.inner.came)

        return self.loop.run_until_complete(call())

    def received(self) -> bytes:
        """Binary payloads that have come to the client."""
        frames = [event for event in self.pass_on() if isinstance(event, Frame)]
        return b"".join(bytes(frame.data) for frame in frames if frame.opcode in (Opcode.BINARY, Opcode.CONT))

    @property
    def close_code(self) -> int | None:
        """Return the code with which the server has closed."""
        self.pass_on()
        return None if self.client.close_rcvd is None else self.client.close_rcvd.code


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.fixture
def pair(loop: asyncio.AbstractEventLoop) -> Iterator[Pair]:
    pair = Pair(loop, "AMQPWSB10")
    yield pair
    pair.socket.connection_lost(None)


@pytest.mark.parametrize(
    "path",
    [
        "/$servicebus/websocket",
        "/$servicebus/websocket/",
        "/my/path/$servicebus/websocket",
        "/$ServiceBus/WebSocket",
    ],
)
def test_path_may_have_a_prefix_and_a_slash(path: str) -> None:
    assert is_websocket_path(path)


@pytest.mark.parametrize("path", ["/", "/websocket", "/$servicebus/websocket/more", "/$servicebus"])
def test_other_paths_are_no_websockets(path: str) -> None:
    assert not is_websocket_path(path)


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(("AMQPWSB10",), "AMQPWSB10"), (("amqp",), "amqp"), (("x", "amqp", "AMQPWSB10"), "AMQPWSB10"), ((), None)],
)
def test_sub_protocol_is_the_service_s_or_the_standard_s(
    loop: asyncio.AbstractEventLoop, offered: tuple[str, ...], chosen: str | None
) -> None:
    pair = Pair(loop, *offered)
    assert pair.client.state is State.OPEN
    assert pair.client.subprotocol == chosen
    assert pair.inner.said == ["made"]
    pair.socket.connection_lost(None)


def test_client_that_speaks_something_else_is_refused_and_nobody_hears_of_it(loop: asyncio.AbstractEventLoop) -> None:
    pair = Pair(loop, "mqtt")
    assert pair.client.handshake_exc is not None
    assert pair.wire.closed
    pair.socket.connection_lost(None)
    assert pair.inner.said == []


@pytest.mark.parametrize("name", ["Origin", "Host"])
def test_a_header_that_decides_comes_once(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """The library raises an error for the second one."""
    headers = [("Origin", "http://localhost")] * (name == "Origin") + [(name, "http://evil.example")]
    pair = Pair(loop, "AMQPWSB10", headers=headers)
    assert pair.client.handshake_exc is not None
    assert "400" in str(pair.client.handshake_exc)
    assert pair.wire.closed
    pair.socket.connection_lost(None)
    assert pair.inner.said == []


def test_bytes_pass_in_both_directions_wherever_messages_end(pair: Pair) -> None:
    pair.client.send_binary(b"one")
    pair.client.send_binary(b"", fin=True)
    pair.client.send_binary(b"tw", fin=False)
    pair.client.send_continuation(b"o", fin=True)
    pair.pass_on()
    assert bytes(pair.inner.came) == b"onetwo"
    large = os.urandom(3 * MESSAGE_BYTES + 5)
    pair.inner.transport.write(large)
    frames = [event for event in pair.pass_on() if isinstance(event, Frame)]
    assert b"".join(bytes(frame.data) for frame in frames) == large
    assert max(len(frame.data) for frame in frames) == MESSAGE_BYTES


def test_frames_of_one_read_come_as_one(pair: Pair) -> None:
    for _ in range(50):
        pair.client.send_binary(b"x" * 100)
    before = len(pair.inner.sizes)
    assert pair.feed(b"".join(pair.client.data_to_send())) == 5_000
    assert len(pair.inner.sizes) == before + 1


def test_byte_by_byte_is_the_same(pair: Pair) -> None:
    pair.client.send_binary(b"slow")
    pair.client.send_ping(b"p")
    pair.client.send_binary(b"ly")
    for byte in b"".join(pair.client.data_to_send()):
        pair.feed(bytes([byte]))
    assert bytes(pair.inner.came) == b"slowly"
    assert [event.opcode for event in pair.pass_on()] == [Opcode.PONG]


def test_message_without_an_end_is_a_stream(pair: Pair) -> None:
    pair.client.send_binary(b"", fin=False)
    for _ in range(40):
        pair.client.send_continuation(b"x" * (FRAME_MAX // 8), fin=False)
        pair.pass_on()
        pair.until_it_reads()
    assert len(pair.inner.came) == 5 * FRAME_MAX
    assert pair.client.state is State.OPEN


def test_pings_are_answered_and_make_the_inner_protocol_look_at_what_is_unsent(pair: Pair) -> None:
    pair.inner.on_data = pair.inner.transport.pause_reading
    pair.client.send_ping(b"are you there")
    (pong,) = pair.pass_on()
    assert pong.opcode is Opcode.PONG
    assert bytes(pong.data) == b"are you there"
    assert not pair.wire.reading


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (Frame(Opcode.TEXT, b"AMQP").serialize(mask=True), CloseCode.UNSUPPORTED_DATA),
        (Frame(Opcode.BINARY, b"AMQP").serialize(mask=False), CloseCode.PROTOCOL_ERROR),
        (Frame(Opcode.CONT, b"AMQP").serialize(mask=True), CloseCode.PROTOCOL_ERROR),
        (bytes([0xF2, 0x81]) + b"mask" + b"x", CloseCode.PROTOCOL_ERROR),
        (bytes([0x82, 0xFF]) + (FRAME_MAX + 1).to_bytes(8), CloseCode.MESSAGE_TOO_BIG),
        (bytes([0x82, 0xFF]) + (1 << 63).to_bytes(8), CloseCode.MESSAGE_TOO_BIG),
    ],
    ids=["text", "not masked", "no beginning", "compressed", "too large", "largest"],
)
def test_what_breaks_the_rules_ends_the_connection_with_a_reason(pair: Pair, data: bytes, code: CloseCode) -> None:
    pair.feed(data)
    assert pair.close_code == code
    assert pair.wire.closed
    assert pair.inner.came == b""
    pair.feed(Frame(Opcode.BINARY, b"later").serialize(mask=True))
    assert pair.inner.came == b""
    pair.inner.transport.write(b"nobody takes it")
    assert not pair.wire.written


def test_end_of_ours_waits_for_the_client_s(pair: Pair) -> None:
    pair.inner.transport.write(b"last words")
    pair.inner.transport.close()
    pair.inner.transport.close()
    assert pair.inner.transport.is_closing()
    early = pair.wire.is_closing()
    assert pair.received() == b"last words"
    assert pair.close_code == CloseCode.NORMAL_CLOSURE
    assert (early, pair.wire.is_closing(), pair.wire.aborted) == (False, True, False)


def test_client_that_says_goodbye_is_answered(pair: Pair) -> None:
    pair.client.send_binary(b"last words")
    pair.client.send_close(CloseCode.GOING_AWAY)
    assert pair.close_code == CloseCode.GOING_AWAY
    assert bytes(pair.inner.came) == b"last words"
    assert pair.wire.closed
    pair.socket.connection_lost(None)
    assert pair.inner.said == ["made", "lost"]


def test_what_comes_with_a_goodbye_is_read_and_its_answer_is_not_sent(pair: Pair) -> None:
    pair.inner.on_data = lambda: pair.inner.transport.write(b"answer")
    pair.client.send_binary(b"last words")
    pair.client.send_close()
    assert pair.feed(b"".join(pair.client.data_to_send())) == len(b"last words")
    assert pair.received() == b""
    assert pair.wire.closed


def test_inner_protocol_that_ends_on_what_came_with_a_goodbye_says_no_second_one(pair: Pair) -> None:
    pair.inner.on_data = pair.inner.transport.close
    pair.client.send_binary(b"last words")
    pair.client.send_close(CloseCode.GOING_AWAY)
    pair.feed(b"".join(pair.client.data_to_send()))
    pair.received()
    assert pair.close_code == CloseCode.GOING_AWAY
    assert pair.wire.closed


def test_pausing_passes_through_both_ways(pair: Pair) -> None:
    pair.socket.pause_writing()
    pair.socket.resume_writing()
    assert pair.inner.said == ["made", "pause", "resume"]
    pair.inner.transport.pause_reading()
    assert not pair.wire.reading
    pair.feed(SMALLEST)
    assert pair.inner.came == b""
    pair.inner.transport.resume_reading()
    pair.turn()
    pair.turn()
    assert len(pair.inner.came) == 1
    assert pair.wire.reading


def test_large_read_is_done_in_turns_and_reads_nothing_more_meanwhile(pair: Pair) -> None:
    assert 0 < pair.feed(SMALLEST * (5 * FRAMES_AT_ONCE)) <= FRAMES_AT_ONCE
    pair.until_it_reads()
    assert sum(pair.inner.sizes) == 5 * FRAMES_AT_ONCE
    assert max(pair.inner.sizes) == FRAMES_AT_ONCE


def test_large_frames_are_read_in_turns_by_their_bytes(pair: Pair) -> None:
    pair.client.send_binary(bytes(3 * AT_ONCE_BYTES))
    assert pair.feed(b"".join(pair.client.data_to_send())) == 0
    for _ in range(3):
        pair.turn()
    assert len(pair.inner.came) == 3 * AT_ONCE_BYTES
    assert pair.wire.reading


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 300, 1 << 20])
def test_frames_are_counted_however_the_network_divides_them(pair: Pair, piece: int) -> None:
    """A wrong boundary would show in the number of small frames that are read at once."""
    sizes = (0, 1, 125, 126, 300, 65_536)
    for size in sizes:
        pair.client.send_binary(bytes(size))
    pair.client.send_ping(b"x" * 9)
    frames = b"".join(pair.client.data_to_send())
    for first in range(0, len(frames), piece):
        pair.feed(frames[first : first + piece])
        pair.until_it_reads()
    assert sum(pair.inner.sizes) == sum(sizes)
    pair.inner.sizes.clear()
    pair.feed(SMALLEST * (3 * FRAMES_AT_ONCE))
    pair.until_it_reads()
    assert pair.inner.sizes == [FRAMES_AT_ONCE - 1, FRAMES_AT_ONCE, FRAMES_AT_ONCE, 1]


def test_many_pings_are_answered_in_one_piece(pair: Pair) -> None:
    writes: list[bytes] = []
    pair.wire.write = lambda data: writes.append(bytes(data))  # type: ignore[method-assign]
    for _ in range(100):
        pair.client.send_ping(b"x")
    pair.feed(b"".join(pair.client.data_to_send()))
    assert [len(written) for written in writes] == [300]


def test_pause_in_the_middle_of_a_large_read_holds(pair: Pair) -> None:
    pair.inner.on_data = pair.inner.transport.pause_reading
    pair.feed(SMALLEST * (3 * FRAMES_AT_ONCE))
    first = len(pair.inner.came)
    assert 0 < first <= FRAMES_AT_ONCE
    for _ in range(5):
        pair.turn()
    assert len(pair.inner.came) == first
    assert not pair.wire.reading
    pair.inner.on_data = lambda: None
    pair.inner.transport.resume_reading()
    for _ in range(5):
        pair.turn()
    assert len(pair.inner.came) == 3 * FRAMES_AT_ONCE
    assert pair.wire.reading
