"""The settings of `partibus serve`, and the check that a data directory may be served alone."""

import errno
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from partibus.errors import ArgumentError, UnusableFile
from partibus.limits import Limits
from partibus.telemetry.settings import TelemetrySettings


class Ports(NamedTuple):
    """The ports of the listeners; None: no listener."""

    amqp: int
    http: int
    amqps: int | None
    https: int | None
    sqs: int
    sqs_tls: int | None


SQS_PORT = 9324
"""The port of SQS unless another program has it."""


class SqsSettings(Struct, frozen=True):
    """Names and intervals of SQS (docs/sqs.md)."""

    region: str = "us-east-1"
    """The home region: its queues have entities of the same name."""
    account: str = "000000000000"
    url: str = ""
    """The beginning of queue URLs; empty: as each client has addressed its request."""
    one_region: bool = False
    """Whether all regions are the home region."""
    purge_interval_s: int = 60
    """The time between two purges of a queue."""
    recreate_after_s: int | None = None
    """The time between the deletion of a queue and the creation of another one with its name.

    None: 60 s, and 0 for an emulator.
    """
    propagation_s: int = 60
    """The time after which a change of a queue's DeduplicationScope takes effect."""
    partitions_max: int = 8
    """The most partitions of a new FIFO queue of high throughput."""


class ClusterSettings(NamedTuple):
    """The settings by which the brokers of several machines know and reach each other."""

    broker: str = ""
    """The name of this broker among them; empty: the machine's."""
    host: str = ""
    """The address to listen at for other brokers; empty: as for clients."""
    port: int = 0
    address: str = ""
    """HOST or HOST:PORT by which they reach this one; empty: where it listens."""
    certificate: Path | None = None
    """A file in PEM; None: one that is made in the data directory. Any will do: the handshake proves the identity."""
    certificate_key: Path | None = None
    """The key's file; None: the key is in the certificate's file."""
    secret: Path | None = None
    """The file with the secret of all brokers; None: in the data directory."""


class Settings(Struct, frozen=True):
    """Port 0 lets the system choose; the ready file says which."""

    data: Path
    brokers: int = 1
    """Processes; more than one run under a supervisor."""
    brokers_max: int | None = None
    """The most processes, where ``brokers`` is the least: as many run as messaging units want (row R12). None: always
    as many.
    """
    host: str = "127.0.0.1"
    amqp_port: int = 5672
    http_port: int = 5300
    amqps_port: int | None = None
    https_port: int | None = None
    """The port with TLS; None: not served."""
    sqs_port: int | None = None
    """The port of SQS alone; None: `SQS_PORT`, or a free one if that is taken."""
    sqs_tls_port: int | None = None
    """The port of SQS over TLS; None: not served."""
    sqs: SqsSettings = field(default_factory=SqsSettings)
    certificate: Path | None = None
    """A file in PEM; None: the development certificate in the data directory, made when it is missing."""
    certificate_key: Path | None = None
    """The key's file; None: the key is in the certificate's file."""
    emulator: bool = False
    """Accept the well-known development key, too (and no other protection is lost)."""
    config: Path | None = None
    ready_file: Path | None = None
    manual_clock: bool = False
    accept_clock: bool = False
    """Open stores that were used at a much later time than this machine's clock shows, and turn their time back."""
    stores: tuple[str, ...] = ()
    """URLs of stores in databases, and ``sqlite:N``; none: files in the data directory. See `store.opening`."""
    catalog: str | None = None
    """URL of a catalog in PostgreSQL; None: a file in the data directory. With it this process is one broker of several
    machines' (ADR 0009)."""
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    limits: Limits = field(default_factory=Limits)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    identity: Path | None = None
    """A file that says which identity provider's tokens are taken; None: of none."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may use websockets and change entities over HTTP, beside this broker's."""
    otlp_endpoint: str = ""
    """The URL of an OpenTelemetry collector for spans; empty: as the variables ``OTEL_*`` say."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine's own clients can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def brokers_most(self) -> int:
        """The most broker processes."""
        return self.brokers if self.brokers_max is None else self.brokers_max

    @property
    def sqs_recreate_after_s(self) -> int:
        """The seconds between the deletion of an SQS queue and the creation of another one with its name."""
        if self.sqs.recreate_after_s is not None:
            return self.sqs.recreate_after_s
        return 0 if self.emulator else 60

    @property
    def ports(self) -> Ports:
        """The ports to listen on. Without one for SQS this looks whether its usual port is free."""
        sqs = _free_port(self.host, SQS_PORT) if self.sqs_port is None else self.sqs_port
        return Ports(self.amqp_port, self.http_port, self.amqps_port, self.https_port, sqs, self.sqs_tls_port)

    @property
    def serves_tls(self) -> bool:
        """Whether any port is served over TLS."""
        return any(port is not None for port in (self.amqps_port, self.https_port, self.sqs_tls_port))


def _free_port(host: str, port: int) -> int:
    """Return ``port`` if no program listens there, else 0."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return port
    except OSError:
        return 0


@contextmanager
def listening(host: str, port: int, option: str, host_option: str = "--host") -> Iterator[None]:
    """Name the option of a port or host that no listener can be made for. Raises `ArgumentError`, or other `OSError`s.

    ``option`` is that of the port.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            bound, advice = "an address or host name of this machine", "0.0.0.0 stands for all of them."
            raise ArgumentError(host_option, host, bound, advice) from error
        if error.errno == errno.EADDRINUSE:
            advice = f"It is in use at {host}. Give another one; 0 takes a free one."
            raise ArgumentError(option, port, "a free port", advice) from error
        if error.errno == errno.EACCES:
            advice = f"At {host} it is not. Give one from 1024 on; 0 takes a free one."
            raise ArgumentError(option, port, "a port that your user may listen on", advice) from error
        raise


def settings_to_plain(settings: Settings) -> dict[str, Any]:
    """Return settings as JSON values, for another process."""
    plain: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str)
    return plain


def settings_from_plain(plain: Mapping[str, Any]) -> Settings:
    """Back from `settings_to_plain`."""
    return msgspec.convert(plain, Settings, dec_hook=lambda kind, value: kind(value))


MARK = "cluster.json"
"""The file in the data directory of such a broker that names its namespace."""


def refuse_if_joined(data: Path) -> None:
    """Refuse to serve a data directory alone if its broker has joined others.

    Raises `UnusableFile`: the directory holds no messages itself, so its clients would find an empty namespace.
    """
    path = data / MARK
    if path.exists():
        catalog = json.loads(path.read_text()).get("catalog", "")
        raise UnusableFile(
            str(path),
            f"says that this is the directory of a broker of the catalog {catalog}",
            f"Serve with --catalog {catalog} and its stores, or from another directory.",
        )
