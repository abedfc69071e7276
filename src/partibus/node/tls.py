"""TLS of the broker's listeners: the certificate for new connections, and their acceptance.

A certificate is replaced without a restart, at SIGHUP and when its files have changed. New handshakes get the new one;
existing connections stay. Unusable files change nothing: the former certificate stays, the log and health give the
reason, and the files are read again when they change.

Connections are accepted here and not by the loop's own server, which does not bound the number of pending handshakes.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from partibus.errors import UnusableFile
from partibus.limits import TlsLimits
from partibus.node.settings import Settings

log = logging.getLogger(__name__)

FOLDER = "certs"
"""The folder of the development certificates in the data directory."""
LOOK_S = 2.0
"""Seconds between two looks at the files."""
BACKLOG = 1024
OUT_OF_FILES_S = 0.5
"""Seconds before the next try, when the process has no file descriptor for a connection."""


class NamedConnection(ssl.SSLObject):
    """The TLS object of a server's connection.

    It keeps the name that the client asked for, which may select a namespace.
    """

    server_name: str | None = None
    """The name that the client asked for; None: the client sent none."""


def _note_name(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
    assert isinstance(connection, NamedConnection), "made by a context of `make_context`"
    connection.server_name = name


def make_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Make a context. ``key``: None when it is in the same file. Raises `UnusableFile`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.sslobject_class = NamedConnection
    context.sni_callback = _note_name
    shown = str(certificate) if key is None else f"{certificate}, {key}"
    try:
        # Without a function that gives a password OpenSSL would ask for it on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        reason = next((words for code, words in _REASONS.items() if code in str(error)), error.reason or str(error))
        raise UnusableFile(shown, reason, "Give a certificate and its key in PEM, without a password.") from error
    except OSError as error:
        missing = error.filename or shown
        raise UnusableFile(str(missing), error.strerror or str(error), "Give a file that can be read.") from error
    return context


_REASONS = {
    "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
    "NO_START_LINE": "there is no certificate or no key in it",
    "PEM lib": "there is no certificate or no key in it",
    "BAD_DECRYPT": "the key needs a password",
    "BAD_PASSWORD_READ": "the key needs a password",
}


def _load(certificate: Path, key: Path | None) -> tuple[ssl.SSLContext, float]:
    """Return a context and the end of the certificate's time, in seconds since 1970."""
    from partibus.node.certificates import read_facts

    return make_context(certificate, key), read_facts(certificate).ends.timestamp()


def certificate_files(settings: Settings) -> tuple[Path, Path | None]:
    """Return the configured files, or else those for development."""
    if settings.certificate is not None:
        return settings.certificate, settings.certificate_key
    return settings.data / FOLDER / "server.pem", None


def prepare_certificate(settings: Settings, namespaces: Iterable[str]) -> None:
    """Make the development certificate if it is used and is missing or does not cover the ``namespaces``.

    The caller has locked the data directory. Raises `UnusableFile`, also for an unusable certificate of the operator.
    """
    if not settings.serves_tls:
        return
    if settings.certificate is None:
        fit_certificate(settings, namespaces)
    make_context(*certificate_files(settings))


def fit_certificate(settings: Settings, namespaces: Iterable[str]) -> bool:
    """Make the development certificate cover the namespaces' names below ``localhost``; return whether it is new.

    Each name is listed, because OpenSSL does not accept ``*.localhost``. Raises `UnusableFile`.
    """
    from partibus.node.certificates import default_names, ensure_development, now_utc

    names = (*default_names(settings.host), *(f"{name}.localhost".lower() for name in namespaces))
    return ensure_development(settings.data / FOLDER, names, now_utc()).new_server


class ServerTls:
    """The certificate of all listeners of a broker."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Read a certificate. Raises `UnusableFile`."""
        self._files = (certificate, key)
        self._seen = self._stamp()
        self.context, self._ends = _load(certificate, key)
        self.trouble: str | None = None
        """Why the files as they are now are not used."""
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Return the TLS of a broker, or None without TLS. `prepare_certificate` must have been called."""
        if not settings.serves_tls:
            return None
        return cls(*certificate_files(settings))

    def says(self) -> str:
        """Return ``ok``, or a problem that the operator should solve."""
        if self.trouble is not None:
            return f"the former one is in use: {self.trouble}"
        if self._ends <= time.time():
            return f"it has ended on {datetime.fromtimestamp(self._ends, UTC):%Y-%m-%d}; clients refuse it"
        return "ok"

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the files now and then, until `stop`."""

        def look() -> None:
            self._timer = loop.call_later(LOOK_S, look)  # first: an unexpected error must not end the watch
            if self._stamp() != self._seen:
                self.reload()

        self._timer = loop.call_later(LOOK_S, look)

    def stop(self) -> None:
        """Stop watching the files."""
        if self._timer is not None:
            self._timer.cancel()

    def reload(self) -> None:
        """Use the present content of the files, if it is valid."""
        # Before the files are read: what changes meanwhile is seen at the next look.
        self._seen = self._stamp()
        try:
            self.context, self._ends = _load(*self._files)
        except UnusableFile as error:
            self.trouble = str(error)
            log.warning("the certificate stays as it was: %s", error)
            return
        self.trouble = None
        log.warning("new connections get the certificate that is now in %s", self._files[0])

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(None if path is None else _stamp_of(path) for path in self._files)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes with a file, also when a link leads to another one; None for a missing one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class TlsListener:
    """A listener that passes connections, after a good handshake, to protocols of ``make_protocol``."""

    def __init__(self, tls: ServerTls, make_protocol: Callable[[], asyncio.Protocol], limits: TlsLimits) -> None:
        self._tls = tls
        self._make_protocol = make_protocol
        self._limits = limits
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """The handshakes under way, in the order in which they began."""

    def start(self, host: str, port: int, *, shared: bool = False) -> int:
        """Listen; returns the port. ``shared``: with other processes that say so, too. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)
        self._listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._listener))
        return int(self._listener.getsockname()[1])

    def stop(self) -> None:
        """Accept no further connections; pending handshakes end."""
        for task in (self._accepting, *self._handshakes):
            if task is not None:
                task.cancel()
        if self._listener is not None:
            self._listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except ConnectionError:  # gone before it was accepted
                continue
            except OSError as error:
                log.warning("no connection can be accepted for %g s: %s", OUT_OF_FILES_S, error)
                await asyncio.sleep(OUT_OF_FILES_S)
                continue
            if len(self._handshakes) >= self._limits.handshakes_max:
                self._end_oldest()
            task = loop.create_task(self._shake_hands(connection))
            self._handshakes[task] = None
            task.add_done_callback(self._ended)

    def _end_oldest(self) -> None:
        oldest = next(iter(self._handshakes))
        del self._handshakes[oldest]
        oldest.cancel()

    async def _shake_hands(self, connection: socket.socket) -> None:
        # A client that does not speak TLS, or trusts us not, is no concern of the log.
        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._limits.handshake_s,
                ssl_shutdown_timeout=self._limits.goodbye_s,
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error: a handshake ends", exc_info=error)
