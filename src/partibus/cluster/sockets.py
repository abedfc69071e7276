"""Connections between brokers: Unix sockets in the data directory, or TCP with TLS between machines.

A Unix socket is made with the mode 0600 in a directory with the mode 0700: another user does not get as far as the
handshake.
"""

import asyncio
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

UNIX_PATH_BYTES_MAX = 107
"""The capacity of `sockaddr_un`."""
_DESCRIPTORS = Path("/proc/self/fd")
BACKLOG = 128

MakeProtocol = Callable[[], asyncio.Protocol]


class TcpAddress(NamedTuple):
    """The address of a broker on another machine.

    The connection is encrypted. The handshake proves the peer's identity and covers the digest of the certificate, so
    any certificate will do.
    """

    host: str
    port: int
    context: ssl.SSLContext


Address = Path | TcpAddress
"""A path is that of a Unix socket."""


async def listen(path: Path, make: MakeProtocol, loop: asyncio.AbstractEventLoop) -> asyncio.Server:
    """Listen at a Unix socket, in place of one of an earlier run. Raises OSError.

    Its directory is made if it is missing, and closed to other users.
    """
    listener = _bound(path)
    try:
        return await loop.create_unix_server(make, sock=listener)
    except BaseException:
        listener.close()
        raise


def _bound(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(path.parent.stat().st_mode) & 0o077:
        path.parent.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        with suppress(FileNotFoundError):
            path.unlink()
        with _reachable(path) as short:
            listener.bind(short)
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def bound_tcp(host: str, port: int) -> socket.socket:
    """Return a bound socket without a listener, so that its port is known early. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


async def listen_tls(
    listener: socket.socket,
    make: MakeProtocol,
    context: ssl.SSLContext,
    loop: asyncio.AbstractEventLoop,
    handshake_s: float,
) -> asyncio.Server:
    """Listen at a bound socket for connections from other machines. A TLS handshake may take ``handshake_s``.

    Raises OSError.
    """
    return await loop.create_server(
        make, sock=listener, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake_s
    )


async def connect(address: Address, make: MakeProtocol, loop: asyncio.AbstractEventLoop) -> None:
    """Connect, and leave the protocol running. Raises OSError."""
    if isinstance(address, TcpAddress):
        await loop.create_connection(make, address.host, address.port, ssl=address.context, server_hostname="")
        return
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        with _reachable(address) as short:
            await loop.sock_connect(connection, short)
        await loop.create_unix_connection(make, sock=connection)
    except BaseException:
        connection.close()
        raise


def binding_of(certificate: bytes) -> bytes:
    """Return the binding of a handshake over TLS: the digest of the owner's certificate (DER)."""
    return b"tls " + sha256(certificate).digest()


@contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """Yield a path short enough for a socket's address.

    For a longer one on Linux, a descriptor of the directory stands for it.
    """
    if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
        yield str(path)
        return
    if not _DESCRIPTORS.is_dir():
        raise OSError(
            f"{path}: {len(os.fsencode(path))} bytes are too long for a socket's path, at most {UNIX_PATH_BYTES_MAX} "
            "can be; choose another data directory"
        )
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{_DESCRIPTORS}/{directory}/{path.name}"
    finally:
        os.close(directory)
