"""A client of SQS that costs little: requests over plain sockets, one under way on each connection."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Sequence

from partibus.bench.load import BenchError

_STALL_S = 30.0
"""The longest time without an answer, beyond a long poll's."""

Following = Callable[[int, bytes], bytes | None]
"""A function that gets a connection's number and the body of the answer, and returns its next request; None: no more.
"""


class Connections:
    """Connections to one SQS port, driven by one thread."""

    def __init__(self, port: int, count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.sockets: list[socket.socket] = []
        self._port = port
        self._input: list[bytes] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        """Open one more connection. The broker drops many that have sent no request."""
        stream = socket.create_connection(("127.0.0.1", self._port), timeout=_STALL_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(stream, selectors.EVENT_READ, len(self.sockets))
        self.sockets.append(stream)
        self._input.append(b"")

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for stream in self.sockets:
            stream.close()

    def send(self, number: int, request: bytes) -> None:
        """Write a request; it is small enough for the socket's buffer, or waits for it."""
        self.sockets[number].sendall(request)

    def answers(self, wait_s: float) -> list[tuple[int, bytes]]:
        """Return the answers that are there, with the numbers of their connections; wait for the first one.

        Raises `BenchError` for a refusal.
        """
        found = []
        for key, _ in self._selector.select(wait_s):
            number: int = key.data
            data = self._input[number] + self.sockets[number].recv(1 << 20)
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if not data:
                    raise BenchError("the broker has closed a connection")
                self._input[number] = data
                continue
            at = data.find(b"Content-Length: ") + 16
            length = int(data[at : data.find(b"\r\n", at)])
            if len(data) < end + 4 + length:
                self._input[number] = data
                continue
            self._input[number] = b""
            if not data.startswith(b"HTTP/1.1 200"):
                raise BenchError(f"the broker has refused a request: {data.decode(errors='replace')[:500]}")
            found.append((number, data[end + 4 :]))
        return found

    def run(self, first: Sequence[bytes], following: Following, wait_s: float = 0.0) -> None:
        """Have one request under way on each connection until ``following`` returns None for each of them."""
        for number, request in enumerate(first):
            self.send(number, request)
        under_way = len(first)
        while under_way:
            found = self.answers(wait_s + _STALL_S)
            if not found and not any(self._input):
                raise BenchError("the broker does not answer")
            for number, body in found:
                after = following(number, body)
                if after is None:
                    under_way -= 1
                else:
                    self.send(number, after)

    def call(self, request: bytes) -> bytes:
        """Make one request on the first connection; return the body of its answer."""
        found = []

        def keep(_: int, body: bytes) -> None:
            found.append(body)

        self.run([request], keep)
        return found[0]
