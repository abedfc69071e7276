"""The settings of a client, checked, and the delays between attempts."""

import os
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from partibus.client.endpoint import PLAIN_PORT, TLS_PORT, Endpoint, endpoint_of
from partibus.client.errors import ClientError, Throttled
from partibus.errors import ArgumentError
from partibus.namespace.connection_string import ConnectionString, parse_connection_string

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from partibus.client.aio.tracing import Tracing

CONNECTIONS_MAX: Final = 64
FLUSH_INTERVAL_MAX_S: Final = 1.0
PREFETCH_MAX: Final = 100_000
TIMEOUT_MAX_S: Final = 86_400.0


class Token(Struct, frozen=True):
    """A token for `$cbs`: a shared access signature or a JWT, and when it expires (Unix seconds)."""

    text: str
    expires_at: float


TokenProvider = Callable[[str], "Token | Awaitable[Token]"]
"""A function from an audience such as ``sb://host/queue`` to a token for it."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """The delays between attempts, in seconds; the client's time limit bounds their number, and so does ``attempts``.

    With ``attempts=1`` each operation is tried once: an outage, a lost connection and a busy broker are errors at once.
    The next operation connects again.

    The delay doubles from ``base`` up to ``cap``, and varies at random by the share ``jitter``. A throttled request
    (error code 50009) waits for ``busy`` at least.
    """

    base: float = 0.1
    cap: float = 10.0
    busy: float = 2.0
    jitter: float = 0.2
    attempts: int | None = None
    """The number of attempts of an operation, None for as many as the time limit allows."""

    def __post_init__(self) -> None:
        within("base", self.base, 0.001, 60.0, "s")
        within("cap", self.cap, self.base, 600.0, "s")
        within("busy", self.busy, 0.0, 600.0, "s")
        within("jitter", self.jitter, 0.0, 1.0, "")
        if self.attempts is not None:
            whole("attempts", self.attempts, 1, 1_000_000)

    def allows(self, done: int) -> bool:
        """Tell whether another attempt is allowed after ``done`` of them."""
        return self.attempts is None or done < self.attempts

    def delay(self, attempt: int, error: BaseException | None) -> float:
        """Return the delay after the failure of an attempt, counted from 0."""
        # The exponent is bounded: an outage may last for more attempts than a float has exponents.
        delay = min(self.cap, self.base * 2.0 ** min(attempt, 30))
        import random  # Here, because it takes 2 ms, and few clients ever wait.

        delay *= 1 + random.uniform(-self.jitter, self.jitter)
        return max(self.busy, delay) if isinstance(error, Throttled) else delay


class Settings(Struct, frozen=True, kw_only=True):
    """The checked settings of a client; `Client` explains them."""

    endpoint: Endpoint
    """Where the TCP connections lead."""
    namespace: str
    """The host name of the namespace, as `open` and tokens spell it."""
    audience: str
    """The beginning of all audiences: ``sb://host/``."""
    connection: ConnectionString | None
    credential: TokenProvider | None
    connections: int
    flush_interval: float
    prefetch: int
    timeout: float
    retry: RetryPolicy
    buffer_bytes: int
    websocket: bool
    ssl_context: ssl.SSLContext | None
    ca_file: str | None
    container_id: str | None
    tracing: "Tracing | None"
    """The tracer of the client's operations; None without a provider."""

    @property
    def entity_path(self) -> str:
        """The entity that the connection string names; "" for the namespace."""
        return "" if self.connection is None else self.connection.entity_path


def make_settings(
    connection_string: str | None,
    *,
    namespace: str | None,
    credential: TokenProvider | None,
    connections: int,
    batch_flush_interval: float,
    prefetch: int,
    timeout: float,
    retry: RetryPolicy,
    buffer_bytes: int,
    endpoint: str | None,
    transport: Literal["tcp", "websocket"],
    ssl_context: ssl.SSLContext | None,
    ca_file: str | None,
    container_id: str | None,
    tracer_provider: "TracerProvider | None",
) -> Settings:
    """Check the arguments of a client. Raises `ArgumentError` that names the value, the bound and the next step."""
    _check_types(connection_string=connection_string, namespace=namespace, endpoint=endpoint, container_id=container_id)
    if not isinstance(retry, RetryPolicy):
        raise ArgumentError("retry", retry, "a RetryPolicy")
    if transport not in ("tcp", "websocket"):
        raise ArgumentError("transport", transport, "'tcp' or 'websocket'; over HTTP there is no client to batch")
    _check_authorities(ssl_context, ca_file)
    websocket = transport == "websocket"
    connection, reached = _namespace(connection_string, namespace, credential)
    port = f":{reached.port}" if connection is not None and connection.emulator else ""
    host = reached.host
    if endpoint is not None:
        reached = _endpoint("endpoint", endpoint, 443 if websocket else reached.port)
    elif websocket and (connection is None or connection.port is None) and reached.tls:
        reached = Endpoint(reached.host, 443, True)
    return Settings(
        endpoint=reached,
        namespace=host,
        audience=f"sb://{host}{port}/",
        connection=connection,
        credential=credential,
        connections=whole("connections", connections, 1, CONNECTIONS_MAX),
        flush_interval=flush_interval(batch_flush_interval),
        prefetch=whole("prefetch", prefetch, 0, PREFETCH_MAX),
        timeout=within("timeout", timeout, 0.001, TIMEOUT_MAX_S, "s"),
        retry=retry,
        buffer_bytes=whole("buffer_bytes", buffer_bytes, 1024, 1 << 32),
        websocket=websocket,
        ssl_context=ssl_context,
        ca_file=ca_file,
        container_id=container_id,
        tracing=_tracing(tracer_provider, host),
    )


def _namespace(
    connection_string: str | None, namespace: str | None, credential: TokenProvider | None
) -> tuple[ConnectionString | None, Endpoint]:
    """Return the connection string, if one is given, and the namespace's own address. Raises `ArgumentError`."""
    if credential is not None and not callable(credential):
        raise ArgumentError("credential", credential, "a function from an audience to a Token")
    if (connection_string is None) is (namespace is None):
        raise ArgumentError(
            "connection_string",
            "given" if connection_string else connection_string,
            "given, or else namespace with a credential, not both",
        )
    if connection_string is None:
        if credential is None:
            raise ArgumentError("credential", None, "a function from an audience to a Token, where namespace is given")
        assert namespace is not None
        return None, _endpoint("namespace", namespace, TLS_PORT)
    connection = parse_connection_string(connection_string)
    if credential is not None and (connection.key or connection.signature):
        raise ArgumentError("credential", "given", "None where the connection string has a key or a signature")
    return connection, endpoint_of(connection)


def _check_authorities(ssl_context: "ssl.SSLContext | None", ca_file: str | None) -> None:
    if ssl_context is not None and not isinstance(ssl_context, ssl.SSLContext):
        raise ArgumentError("ssl_context", ssl_context, "an ssl.SSLContext")
    if ca_file is not None and not isinstance(ca_file, str | os.PathLike):
        raise ArgumentError("ca_file", ca_file, "the path of a file of PEM")
    if ssl_context is not None and ca_file is not None:
        raise ArgumentError("ca_file", ca_file, "None where ssl_context is given: load the file into the context")


def _check_types(**texts: object) -> None:
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            # A connection string of another type, bytes say, holds the key: it is not shown.
            raise ArgumentError(name, type(text).__name__, "a text")


def _tracing(provider: "TracerProvider | None", host: str) -> "Tracing | None":
    if provider is None:
        return None
    if not callable(getattr(provider, "get_tracer", None)):
        raise ArgumentError("tracer_provider", provider, "a TracerProvider of OpenTelemetry, or None")
    # Imported here: few programs trace, and OpenTelemetry takes as long to import as the client.
    from partibus.client.aio.tracing import Tracing

    return Tracing(provider, host)


def _endpoint(name: str, text: str, port: int) -> Endpoint:
    """Parse ``host``, ``host:port`` or a URL. TLS is off for ``http://``, ``ws://``, ``amqp://`` and AMQP's port."""
    from urllib.parse import urlsplit  # Here, because few clients need it.

    parts = urlsplit(text if "://" in text else f"//{text}")
    try:
        found = parts.port or port
    except ValueError:
        found = 0
    if not parts.hostname or not 1 <= found <= 65_535:
        raise ArgumentError(name, text, "host, host:port or https://host:port with a port of 1 to 65535")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Endpoint(host, found, parts.scheme not in ("http", "ws", "amqp") and found != PLAIN_PORT)


def flush_interval(value: float) -> float:
    """Check the seconds of a batch flush interval."""
    return within("batch_flush_interval", value, 0.0, FLUSH_INTERVAL_MAX_S, "s (0 disables batching)")


def within(name: str, value: float, least: float, most: float, unit: str) -> float:
    """Return a number in its range. Raises `ArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ArgumentError(name, value, f"{least:g} to {most:g} {unit}".rstrip())
    return float(value)


def whole(name: str, value: int, least: int, most: int) -> int:
    """Return a whole number in its range. Raises `ArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ArgumentError(name, value, f"{least} to {most}")
    return value


_TRANSIENT: Final = frozenset(
    {
        "amqp:internal-error",
        "amqp:link:transfer-limit-exceeded",
        "com.microsoft:auth-failed",
        "com.microsoft:container-close",
        "com.microsoft:operation-cancelled",
        "com.microsoft:partition-not-owned",
        "com.microsoft:store-lock-lost",
    }
)
"""Conditions without a class of their own that the service's clients repeat (dialect, section 7.1)."""


def retriable(error: BaseException) -> bool:
    """Tell whether another attempt may succeed."""
    return isinstance(error, ClientError) and (error.retriable or error.condition in _TRANSIENT)
