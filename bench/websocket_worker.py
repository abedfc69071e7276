"""`partibus.bench.worker` in a websocket over TLS: `python -m bench.websocket_worker`, with the address in `URL`."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from typing import cast
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from partibus.client import client
from partibus.client.endpoint import Endpoint
from partibus.client.socket_stream import SocketStream

URL = "PARTIBUS_BENCH_WEBSOCKET"
_READ_BYTES = 1 << 18
_MESSAGE_BYTES = 1 << 16


class WebsocketSocket:
    """As much of a socket as `SocketStream` uses."""

    def __init__(self, sock: ssl.SSLSocket, framing: ClientProtocol) -> None:
        self._sock = sock
        self._framing = framing
        self._unsent = memoryview(b"")
        self._framed = 0

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(flag)

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, data: memoryview) -> int:
        """Says that something was sent when all of its frame was; until then it is asked to send the same again."""
        if not self._unsent:
            self._framed = min(len(data), _MESSAGE_BYTES)
            self._framing.send_binary(data[: self._framed])
            self._unsent = memoryview(b"".join(self._framing.data_to_send()))
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        return self._framed

    def recv(self, size: int) -> bytes:
        """All that has come."""
        came = False
        while True:
            try:
                data = self._sock.recv(size)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not data:
                return b""
            came = True
            self._framing.receive_data(data)
        found = b"".join(
            event.data
            for event in self._framing.events_received()
            if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT)
        )
        if not came or not found:
            raise BlockingIOError
        return found

    def close(self) -> None:
        self._sock.close()


def connect_stream(endpoint: Endpoint, timeout_s: float) -> SocketStream:
    """In place of the client's own: to `URL`, whatever the connection string says."""
    url = os.environ[URL]
    parts = urlsplit(url)
    assert parts.hostname is not None
    plain = socket.create_connection((parts.hostname, parts.port), timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock = ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname)
    framing = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol("AMQPWSB10")], max_size=None)
    framing.send_request(framing.connect())
    sock.sendall(b"".join(framing.data_to_send()))
    while framing.state is State.CONNECTING:
        framing.receive_data(sock.recv(_READ_BYTES))
    assert framing.state is State.OPEN, framing.handshake_exc
    framing.events_received()
    return SocketStream(cast(socket.socket, WebsocketSocket(sock, framing)), str(endpoint))


if __name__ == "__main__":
    client.connect_stream = connect_stream  # type: ignore[attr-defined]
    from partibus.bench.worker import main

    sys.exit(main())
