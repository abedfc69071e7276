"""A connected socket, plain or with TLS, that blocks only in `wait`."""

import selectors
import socket
import ssl
from typing import Final

from partibus.client.endpoint import Endpoint
from partibus.client.errors import ConnectFailed, ConnectionLost

_READ_BYTES: Final = 1 << 18
_READ: Final = selectors.EVENT_READ
_READ_WRITE: Final = selectors.EVENT_READ | selectors.EVENT_WRITE


class SocketStream:
    """A socket with buffered output.

    Output is buffered until the peer takes it, so that a writing caller continues to read: both sides of a busy
    connection can have full buffers at once.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._peer = peer
        self._unsent = memoryview(b"")
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, _READ)
        self._writing = False

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not taken."""
        return len(self._unsent)

    def write(self, data: bytes) -> None:
        """Send as much as fits now and keep the rest. Raises `ConnectionLost`."""
        self._unsent = memoryview(bytes(self._unsent) + data) if self._unsent else memoryview(data)
        self.send_more()

    def send_more(self) -> None:
        """Send as much of the buffered output as fits now."""
        while self._unsent:
            try:
                sent = self._sock.send(self._unsent)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                raise self._lost(error) from error
            self._unsent = self._unsent[sent:]

    def read(self) -> bytes:
        """Return the received bytes, b"" if there are none.

        Raises `ConnectionLost`, also at the end of the stream.
        """
        try:
            data = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise ConnectionLost(f"{self._peer} closed the connection; connect again")
        return data

    def wait(self, timeout_s: float | None) -> None:
        """Wait until there is input, room for unsent output, or the time is over (None: no limit)."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return
        writing = bool(self._unsent)
        if writing is not self._writing:
            self._selector.modify(self._sock, _READ_WRITE if writing else _READ)
            self._writing = writing
        self._selector.select(timeout_s)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._selector.close()
        self._sock.close()

    def _lost(self, error: OSError) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self._peer} broke: {_reason(error)}; connect again")


def connect_stream(endpoint: Endpoint, timeout_s: float) -> SocketStream:
    """Connect to an endpoint.

    TLS trusts the system's certificates and those in SSL_CERT_FILE. Raises `ConnectFailed` with the next step.
    """
    try:
        sock = _connect(endpoint, timeout_s)
    except OSError as error:
        raise ConnectFailed(
            f"no connection to {endpoint}: {_reason(error)}. Start a broker there (partibus serve), or "
            "correct Endpoint in the connection string."
        ) from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.tls:
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=endpoint.address)
    except OSError as error:
        sock.close()
        raise ConnectFailed(
            f"no TLS with {endpoint}: {_reason(error)}. For a broker without TLS add "
            "UseDevelopmentEmulator=true to the connection string."
        ) from error
    return SocketStream(sock, str(endpoint))


def _connect(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """Open a TCP connection.

    Names below ``localhost`` are this machine (RFC 6761), even if the system's resolver does not know that.
    """
    try:
        return socket.create_connection((endpoint.address, endpoint.port), timeout_s)
    except socket.gaierror:
        if not endpoint.address.lower().endswith(".localhost"):
            raise
    return socket.create_connection(("localhost", endpoint.port), timeout_s)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
