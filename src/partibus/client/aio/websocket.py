"""AMQP inside a websocket (section 1.4 of the dialect), the client's side.

`Websocket` stands between the transport and the protocol that speaks AMQP, and acts to each as the other. The framing
is that of the library `websockets`, without its tasks and queues.
"""

import asyncio
from typing import Final, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from partibus.client.endpoint import Endpoint
from partibus.client.errors import ConnectFailed

PATH: Final = "/$servicebus/websocket"
SUBPROTOCOL: Final = Subprotocol("AMQPWSB10")
_FRAME_BYTES_MAX: Final = 128 << 20


class Websocket(asyncio.Protocol, asyncio.Transport):
    """The client's side of a websocket; ``inner`` is connected after the handshake."""

    def __init__(self, inner: asyncio.Protocol, endpoint: Endpoint) -> None:
        asyncio.Transport.__init__(self)
        self._inner = inner
        self._peer = str(endpoint)
        uri = parse_uri(f"{'wss' if endpoint.tls else 'ws'}://{endpoint}{PATH}")
        self._protocol = ClientProtocol(uri, subprotocols=[SUBPROTOCOL], max_size=_FRAME_BYTES_MAX)
        self._outer: asyncio.Transport | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handshake is over."""

    # -- the transport's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._outer = cast("asyncio.Transport", transport)
        self._protocol.send_request(self._protocol.connect())
        self._send()

    def data_received(self, data: bytes) -> None:
        """Pass the content of messages on."""
        self._protocol.receive_data(data)
        self._read()
        self._send()

    def eof_received(self) -> None:
        """Process the end of the stream."""
        self._protocol.receive_eof()
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the inner protocol."""
        if not self.opened.done():
            self.opened.set_exception(ConnectFailed(f"{self._peer} closed the connection in the handshake"))
        self._inner.connection_lost(exc)

    def _read(self) -> None:
        content: list[bytes] = []
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    content.append(bytes(event.data))
            elif isinstance(event, Response) and not self.opened.done() and self._protocol.state is State.OPEN:
                self._inner.connection_made(self)
                self.opened.set_result(None)
        failure = self._protocol.handshake_exc
        if failure is not None and not self.opened.done():
            self.opened.set_exception(
                ConnectFailed(f"{self._peer} takes no websocket at {PATH}: {failure}. Check host and port.")
            )
        if content:
            self._inner.data_received(b"".join(content))

    def _send(self) -> None:
        outer = self._outer
        if outer is None or outer.is_closing():
            return
        for data in self._protocol.data_to_send():
            if data:
                outer.write(data)
            else:
                outer.close()

    # -- the inner side ------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes as one message."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._send()

    def is_closing(self) -> bool:
        """Tell whether the connection ends."""
        return self._outer is None or self._outer.is_closing() or self._protocol.state is not State.OPEN

    def close(self) -> None:
        """Close the websocket without waiting for the peer."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close()
            self._send()
        if self._outer is not None:
            self._outer.close()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return what the outer transport knows."""
        return default if self._outer is None else self._outer.get_extra_info(name, default)
