"""AMQP inside a websocket (section 1.4 of the dialect): the bytes of binary messages are the connection's bytes.

Message boundaries mean nothing, so only frames need a limit: a large message, or one of many fragments, is read as it
arrives. `Websocket` stands between a transport and the protocol that serves AMQP over TCP, and acts to each as the
other. Pausing passes through in both directions, so back-pressure works as on TCP. No compression is offered: a few
bytes must not become many.

The framing is that of `websockets`, without its tasks and queues: 5 µs for a message of 1 KiB.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, cast

from websockets.datastructures import MultipleValuesError
from websockets.exceptions import NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from partibus.frontends.amqp import CALLED
from partibus.frontends.origins import Origins

SUBPROTOCOLS: Final = (Subprotocol("AMQPWSB10"), Subprotocol("amqp"))
"""The subprotocols that the service's clients request, and the name in the standard."""
AT_ONCE_BYTES: Final = 32 * 1024
FRAMES_AT_ONCE: Final = 256
"""The bytes and frames of one read that are handled before other connections have their turn. The smallest frames,
pings, take twenty to forty microseconds each.
"""
_HEADER_BYTES_MAX: Final = 14
MESSAGE_BYTES: Final = 64 * 1024
"""The largest message that the broker sends: clients limit what they accept (aiohttp at 4 MiB)."""

_log = logging.getLogger(__name__)
# The library's log of connects and disconnects is not needed here.
_log.setLevel(logging.WARNING)


def _choose(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Choose a subprotocol. Accept a client that offers none; refuse one that offers only others."""
    for one in SUBPROTOCOLS:
        if one in offered:
            return one
    if offered:
        raise NegotiationError(f"sub-protocols {', '.join(offered)}; this path speaks {', '.join(SUBPROTOCOLS)}")
    return None


class _FrameCounter:
    """Follows the boundaries of frames in bytes of any division, without a look at their content."""

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._head = b""
        """The bytes of an incomplete header."""
        self._left = 0
        """The bytes that a begun payload still has."""

    def share(self, data: bytes) -> int:
        """Advance over at most `FRAMES_AT_ONCE` frames or their parts; return the size of the advance."""
        pos = 0
        for _ in range(FRAMES_AT_ONCE):
            if self._left >= len(data) - pos:
                self._left -= len(data) - pos
                return len(data)
            pos += self._left
            known = len(self._head)
            head = self._head + data[pos : pos + _HEADER_BYTES_MAX]
            short = head[1] & 0x7F if len(head) > 1 else 0
            width = 8 if short == 127 else 2 if short == 126 else 0
            size = 2 + width + (4 if len(head) > 1 and head[1] & 0x80 else 0)
            if len(head) < size:
                self._left, self._head = 0, head
                return len(data)
            self._left = int.from_bytes(head[2 : 2 + width]) if width else short
            self._head = b""
            pos += size - known
        return pos


class Websocket(asyncio.Protocol, asyncio.Transport):
    """The server's side of a websocket. ``inner`` is connected after a valid handshake."""

    def __init__(
        self, inner: asyncio.Protocol, frame_bytes_max: int, close_s: float, origins: Origins | None = None
    ) -> None:
        """Wrap ``inner``.

        ``frame_bytes_max``: the size of one frame from the client, which is buffered until it is complete. ``close_s``:
        the time for the client to answer a close.
        """
        asyncio.Transport.__init__(self)
        self._inner = inner
        self._origins = origins or Origins()
        self._close_s = close_s
        self._framing = ServerProtocol(select_subprotocol=_choose, max_size=(None, frame_bytes_max), logger=_log)
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._open = False
        """Whether the inner protocol is connected."""
        self._host: str | None = None
        """The name of the server that the client requested."""
        self._closing = False
        self._paused = False
        """Whether the inner protocol has paused reading."""
        self._held = False
        """Whether the transport's reading is paused."""
        self._later = bytearray()
        """Bytes that were read but not parsed yet."""
        self._counter = _FrameCounter()
        self._turn: asyncio.Handle | None = None
        self._end: asyncio.TimerHandle | None = None

    def take_frames_of(self, bytes_max: int) -> None:
        """Set the largest accepted frame."""
        self._framing.max_fragment_size = bytes_max

    # -- the transport's calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the websocket."""
        self._later += data
        if self._turn is None:
            self._read_on()

    def pause_writing(self) -> None:
        """Tell the inner protocol to pause writing."""
        if self._open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Tell the inner protocol to resume writing."""
        if self._open:
            self._inner.resume_writing()

    def eof_received(self) -> bool:
        """Handle the end of the client's input."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the inner protocol that the connection is lost."""
        self._closing = True
        self._later.clear()
        for waiting in (self._turn, self._end):
            if waiting is not None:
                waiting.cancel()
        if self._open:
            self._open = False
            self._inner.connection_lost(exc)

    # -- the inner protocol's calls ----------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes in binary messages."""
        if self._closing or self._framing.state is not State.OPEN:
            return
        view = memoryview(data)
        for begin in range(0, len(view), MESSAGE_BYTES):
            self._framing.send_binary(view[begin : begin + MESSAGE_BYTES])
        self._send()

    def close(self) -> None:
        """Send a close frame, and end when the client has answered.

        A client's close frame in the same read has been answered already.
        """
        if not self._closing:
            self._closing = True
            if self._framing.state is State.OPEN:
                self._framing.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
            self._end_soon()

    def abort(self) -> None:
        """Abort the transport."""
        self._closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        """Tell whether the connection is closing."""
        return self._closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Stop passing bytes to the inner protocol."""
        self._paused = self._held = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume passing bytes to the inner protocol."""
        self._paused = False
        self._read_on_soon()

    def get_write_buffer_size(self) -> int:
        """Return the size of the transport's write buffer."""
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits of the transport's write buffer."""
        self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return extra information, here or from the transport."""
        if name == CALLED:
            return self._host
        return self._transport.get_extra_info(name, default)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Parse one turn's share of the input, unless the inner protocol has paused."""
        self._turn = None
        if self._paused or self._transport.is_closing():
            return
        if self._later:
            share = bytes(self._later[:AT_ONCE_BYTES])
            if self._open:
                share = share[: self._counter.share(share)]
            else:  # the client's handshake, and what it may have sent ahead
                share = share[: share.find(b"\r\n\r\n") + 4 or len(share)]
            del self._later[: len(share)]
            self._take(share)
        if self._later:
            self._held = True
            self._transport.pause_reading()
            self._read_on_soon()
        elif self._held and not self._paused and not self._transport.is_closing():
            self._held = False
            self._transport.resume_reading()

    def _read_on_soon(self) -> None:
        if self._turn is None:
            self._turn = self._loop.call_soon(self._read_on)

    def _take(self, data: bytes) -> None:
        framing = self._framing
        framing.receive_data(data)
        payloads: list[bytes | bytearray | memoryview] = []
        for event in framing.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif not isinstance(event, Frame):
                continue
            elif event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                payloads.append(event.data)
            elif event.opcode is Opcode.TEXT:
                framing.fail(CloseCode.UNSUPPORTED_DATA, "AMQP is in binary messages")
                break
        if self._open and not self._transport.is_closing():
            # Deliver payloads before an end that came with them, as on TCP. Do so without payloads, too: the answers to
            # pings may be more than the client takes.
            self._inner.data_received(b"".join(payloads))
        self._send()

    def _answer(self, request: Request) -> None:
        """Answer the client's handshake."""
        try:
            origin, host = request.headers.get("Origin"), request.headers.get("Host")
        except MultipleValuesError as error:
            self._framing.send_response(self._framing.reject(400, f"The header {error} came more than once.\n"))
            return
        refusal = self._origins.refusal(origin, host)
        if refusal is not None:
            self._framing.send_response(self._framing.reject(403, f"{refusal}\n"))
            return
        self._framing.send_response(self._framing.accept(request))
        if self._framing.state is State.OPEN:
            self._host = host
            self._send()
            self._open = True
            self._inner.connection_made(self)

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send the framing's output in one piece: a read may bring hundreds of pings. An empty piece means the end."""
        pieces = self._framing.data_to_send()
        if data := b"".join(pieces):
            self._transport.write(data)
        if b"" in pieces:
            self._closing = True
            self._transport.close()
            self._end_soon()

    def _end_soon(self) -> None:
        """Abort after a time, however little of the output the client takes."""
        if self._end is None:
            self._end = self._loop.call_later(self._close_s, self._transport.abort)
