"""A peer whose every byte the test writes, in a websocket with or without TLS."""

from __future__ import annotations

import socket
import ssl
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S
from tests.robustness.raw import RawPeer


class Framed:
    """A websocket as a stream: the calls of a socket that `RawPeer` makes, and frames as the test likes them."""

    def __init__(self, plain: socket.socket) -> None:
        self.plain = plain
        self.framing = ClientProtocol(
            parse_uri("ws://localhost/$servicebus/websocket"),
            subprotocols=[Subprotocol("AMQPWSB10")],
            max_size=None,
        )
        self.framing.send_request(self.framing.connect())
        self.flush()
        while self.framing.state is State.CONNECTING:
            self.framing.receive_data(self.plain.recv(4096))
        assert self.framing.state is State.OPEN, self.framing.handshake_exc
        self.framing.events_received()

    def flush(self) -> None:
        self.plain.sendall(b"".join(self.framing.data_to_send()))

    def sendall(self, data: bytes) -> None:
        self.framing.send_binary(data)
        self.flush()

    def recv(self, size: int) -> bytes:
        """Nothing at the end, whoever has made it."""
        while self.close_code is None:
            data = self.plain.recv(size)
            if not data:
                break
            self.framing.receive_data(data)
            found = [event for event in self.framing.events_received() if isinstance(event, Frame)]
            payload = b"".join(bytes(one.data) for one in found if one.opcode in (Opcode.BINARY, Opcode.CONT))
            if payload:
                return payload
        return b""

    @property
    def close_code(self) -> int | None:
        """Return the code with which the broker has ended it."""
        closed = self.framing.close_rcvd
        return None if closed is None else closed.code

    def settimeout(self, seconds: float) -> None:
        self.plain.settimeout(seconds)

    def close(self) -> None:
        self.plain.close()


class WebsocketPeer(RawPeer):
    """A peer on the HTTP port, or the HTTPS port."""

    def __init__(self, broker: BrokerProcess, *, tls: bool = False, receive_buffer: int | None = None) -> None:
        plain = socket.socket()
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.settimeout(EVENTUALLY_S)
        plain.connect(("127.0.0.1", int(broker.ready["https_port" if tls else "http_port"])))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            plain = ssl.create_default_context(cafile=broker.ca_file).wrap_socket(plain, server_hostname="localhost")
        self.framed = Framed(plain)
        self.sock = cast(socket.socket, self.framed)
        self._unread = b""
