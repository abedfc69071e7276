"""The way to the broker: a TCP connection, with TLS and a websocket where the settings have them."""

import asyncio
import socket
import ssl

from partibus.client.aio.settings import Settings
from partibus.client.errors import ConnectFailed


async def connect_tcp(settings: Settings, connection: asyncio.Protocol) -> None:
    """Connect a protocol over TCP, with TLS where the endpoint has it. Raises `ConnectFailed` with the next step."""
    loop = asyncio.get_running_loop()
    endpoint = settings.endpoint
    context = tls_context(settings) if endpoint.tls else None
    host = endpoint.address
    protocol: asyncio.Protocol = connection
    opened: asyncio.Future[None] | None = None
    if settings.websocket:
        # Imported here: only some clients need it, and each import costs every client time.
        from partibus.client.aio.websocket import Websocket

        protocol = websocket = Websocket(connection, endpoint)
        opened = websocket.opened
    try:
        try:
            transport, _ = await _connect(loop, protocol, host, endpoint.port, context, endpoint.address)
        except socket.gaierror:
            # Names below localhost are this machine (RFC 6761), even if the system's resolver does not know that.
            if not host.lower().endswith(".localhost"):
                raise
            transport, _ = await _connect(loop, protocol, "localhost", endpoint.port, context, endpoint.address)
    except ssl.SSLError as error:
        raise ConnectFailed(
            f"no TLS with {endpoint}: {error.reason or error}. Pass ca_file or ssl_context for a private "
            "authority; for a broker without TLS add UseDevelopmentEmulator=true to the connection string."
        ) from error
    except OSError as error:
        raise ConnectFailed(
            f"no connection to {endpoint}: {error.strerror or error}. Start a broker there (partibus serve), or "
            "correct Endpoint in the connection string."
        ) from error
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if opened is not None:
        try:
            await opened
        except BaseException:
            transport.abort()
            raise


async def _connect(
    loop: asyncio.AbstractEventLoop,
    protocol: asyncio.Protocol,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    name: str,
) -> tuple[asyncio.Transport, asyncio.Protocol]:
    """Connect to the first address of a host that takes the connection."""
    failure: OSError | None = None
    for address in await _addresses(loop, host, port):
        try:
            return await loop.create_connection(
                lambda: protocol, address, port, ssl=context, server_hostname=name if context is not None else None
            )
        except ssl.SSLError:
            raise
        except OSError as error:
            failure = failure or error
    raise failure or socket.gaierror(f"{host} has no address")


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
    """Resolve a host name.

    Its bytes are passed on: a text makes Python import its tables of international names, a twentieth of the time to
    import a client and connect.
    """
    if _is_address(host) or not host.isascii():
        return [host]
    found = await loop.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


def tls_context(settings: Settings) -> ssl.SSLContext:
    """Return the caller's context, or one that trusts ``ca_file`` or the system."""
    if settings.ssl_context is not None:
        return settings.ssl_context
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        raise ConnectFailed(f"ca_file {settings.ca_file!r} can not be read: {error}. Name a file of PEM.") from error
