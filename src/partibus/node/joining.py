"""The join of a broker to those of a catalog in PostgreSQL, with all checks that may refuse it, in order (ADR 0009).

All brokers of a namespace share the catalog, the stores, the keys and a secret. A difference is refused with the reason
and never repaired. A broker with other keys would refuse half of the clients; one with other stores would not find
messages.
"""

import hmac
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from partibus import __version__
from partibus.cluster.forms import FINGERPRINT
from partibus.cluster.handshake import FILE_NAME as SECRET_FILE
from partibus.cluster.handshake import read_secret
from partibus.cluster.ownership import Identity
from partibus.cluster.sockets import bound_tcp
from partibus.cluster.wire import VERSION as WIRE
from partibus.durable import replace_file
from partibus.errors import StartError, StoreUnavailable, UnusableFile
from partibus.namespace.catalog_database import FORMAT_VERSION, schema_steps
from partibus.namespace.catalog_file import FILE_NAME as CATALOG_FILE
from partibus.namespace.policies import FILE_NAME as KEYS_FILE
from partibus.namespace.policies import load_policies
from partibus.node.settings import MARK, Settings, listening
from partibus.partition.protocol.ports import StoreError
from partibus.store.acknowledged import CATALOG_RECORD, AcknowledgedCommits
from partibus.store.opening import StorePlace, find_distant_stores

if TYPE_CHECKING:
    from partibus.store.postgresql.connection import Address
    from partibus.store.postgresql.registry import Registry, Version


_RUNS_NOTED = 16
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Joined:
    """A broker that has joined the cluster and has no clients yet."""

    us: Identity
    catalog: "Address"
    registry: "Registry"
    places: list[StorePlace]
    secret: bytes
    listener: socket.socket
    """The socket for other brokers: bound, but not listening yet."""
    followed: int
    """Version of the last change, as of before the catalog is read."""
    record: AcknowledgedCommits
    """The last change of the catalog that this machine knows."""
    ended: list[str]
    """Incarnations of earlier runs of this broker that have surely ended."""


def version() -> "Version":
    """Return the version of this program."""
    from partibus.store.postgresql.registry import Version
    from partibus.store.postgresql.sql import FORMAT_VERSION as STORE_FORMAT

    return Version(f"{WIRE}.{FINGERPRINT}.{FORMAT_VERSION}.{STORE_FORMAT}", __version__)


def catalog_address(settings: Settings) -> "Address":
    """Return the address of the catalog. Raises `StartError`, `StoreError`."""
    assert settings.catalog is not None
    if not settings.catalog.startswith(("postgresql://", "postgres://")):
        kind = settings.catalog.partition(":")[0]
        raise StartError(
            f"{kind}:...: is no kind of catalog. Give postgresql://USER:PASSWORD@HOST/DATABASE, or leave --catalog out "
            "for a file in the data directory."
        )
    try:
        from partibus.store.postgresql.catalog import SCHEMA_DEFAULT
        from partibus.store.postgresql.connection import parse_address
    except ImportError as error:
        raise StartError(
            f"A catalog in PostgreSQL needs its driver ({error}). Install partibus[postgresql]."
        ) from error
    address, *more = parse_address(settings.catalog, SCHEMA_DEFAULT)
    if more:
        raise StartError(f"{address.name}: a catalog is one schema. Leave stores=N out of --catalog.")
    return address


def join(settings: Settings, address: "Address", created_ms: int) -> Joined:
    """Join the brokers of a catalog. The caller has locked the data directory.

    Raises `StartError`, `StoreError`, and `ArgumentError` when the port is taken.
    """
    from partibus.store.postgresql.catalog import check_changes, prepare_catalog
    from partibus.store.postgresql.registry import Registry, refuse_other_versions

    _refuse_own_catalog(settings.data)
    check_address(settings)
    refuse_other_versions(address, version())
    prepare_catalog(address, FORMAT_VERSION, partial(schema_steps, "postgresql"))
    try:
        record = AcknowledgedCommits(settings.data, CATALOG_RECORD)
    except OSError as error:
        raise UnusableFile(str(settings.data), f"can't be read ({error})", "Give it to the broker's user.") from error
    us = Identity(settings.cluster.broker or socket.gethostname(), token_hex(8))
    registry = Registry(address, us.broker, us.incarnation, version())
    try:
        with registry.starting():
            check_changes(address, record)
            return _join(settings, created_ms, us, address, registry, record)
    except StoreUnavailable as error:
        raise StartError(str(error)) from error


def _join(
    settings: Settings,
    created_ms: int,
    us: Identity,
    address: "Address",
    registry: "Registry",
    record: AcknowledgedCommits,
) -> Joined:
    from partibus.store.postgresql.registry import refuse_other_versions

    refuse_other_versions(address, version())  # others may have come since this was asked first
    is_new = registry.is_new
    keys = settings.data / KEYS_FILE
    if not is_new and not keys.exists():
        raise UnusableFile(
            str(keys),
            f"is not there, but the namespace of {registry.name} has keys already",
            "Copy it from the data directory of one of its brokers.",
        )
    load_policies(settings.data, emulator=settings.emulator, emulator_operates=settings.is_local)  # makes missing keys
    secret = read_secret(settings.cluster.secret or settings.data / SECRET_FILE, make=is_new)
    cluster = registry.join(token_hex(8), sha256(secret).hexdigest(), _digest_of_keys(keys, secret))
    mark = check_mark(settings.data, registry.name, cluster)
    places = find_distant_stores(CatalogListing(registry, cluster), settings.stores, created_ms=created_ms)
    host = settings.cluster.host or settings.host
    host_option = "--cluster-host" if settings.cluster.host else "--host"
    with listening(host, settings.cluster.port, "--cluster-port", host_option):
        listener = bound_tcp(host, settings.cluster.port)
    try:
        ended = note_run(settings.data, mark, registry.name, cluster, us)
        address_shown = _shown_address(_address(settings), listener.getsockname()[1])
        followed = registry.register(address_shown, ended)
    except BaseException:
        listener.close()
        raise
    return Joined(us, address, registry, places, secret, listener, followed, record, ended)


class CatalogListing:
    """A `partibus.store.opening.Listing` in the catalog."""

    def __init__(self, registry: "Registry", cluster: str) -> None:
        self.cluster = cluster
        self.places = registry.stores()
        self._registry = registry
        self._others: list[str] | None = None

    @property
    def name(self) -> str:
        """The name of the file."""
        return self._registry.name

    def admit(self, name: str) -> None:
        """Refuse a new store: the present brokers know only the stores that existed when they started."""
        if self._others is None:  # found out once for all new stores: it may take seconds
            self._others = self._registry.others()
        if others := self._others:
            raise StoreError(
                f"{name}: is not one of the stores of this namespace ({', '.join(self.places.values())}), and its "
                f"brokers {', '.join(others)} would not know it; give all brokers the same --store, and stop all of "
                "them to add one",
                executed=False,
            )

    def save(self) -> None:
        """Write the places of the stores into the catalog."""
        try:
            self._registry.save_stores(self.places)
        except StoreUnavailable as error:
            raise StoreError(str(error), executed=False) from error


def _refuse_own_catalog(data: Path) -> None:
    path = data / CATALOG_FILE
    if path.exists():
        raise UnusableFile(
            str(path),
            "is the catalog of a broker that was served alone, whose entities and messages would not be seen",
            "Use another data directory with --catalog.",
        )


def check_mark(data: Path, catalog: str, cluster: str) -> Mapping[str, Any]:
    """Return the mark of a data directory; empty if it has none.

    Raises `UnusableFile` if the directory belongs to another namespace.
    """
    path = data / MARK
    try:
        known: Mapping[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UnusableFile(
            str(path), f"can't be read ({error})", "Remove it if the keys beside it are right."
        ) from error
    if known.get("cluster") != cluster:
        raise UnusableFile(
            str(path),
            f"says that this is the directory of a broker of another namespace ({known.get('catalog')}), not of the "
            f"one of {catalog}",
            "Use another data directory, or the catalog that it was used with.",
        )
    return known


def note_run(data: Path, mark: Mapping[str, Any], catalog: str, cluster: str, us: Identity) -> list[str]:
    """Note this run in the mark; return the earlier runs of this broker that have surely ended.

    This process has the lock of the data directory, so an earlier run that had it has ended. The lock tells nothing of
    a run on another machine, of a run with a copy of the directory, or of one before the machine's last start.
    """
    place = _place_of(data)
    runs = [one for one in mark.get("runs", ()) if (one.get("place"), one.get("broker")) == (place, us.broker)]
    ours = {"broker": us.broker, "incarnation": us.incarnation, "place": place}
    document = {"catalog": catalog, "cluster": cluster, "runs": [*runs, ours][-_RUNS_NOTED:]}
    replace_file(data / MARK, json.dumps(document).encode() + b"\n")
    return [str(one["incarnation"]) for one in runs] if place else []


def _place_of(data: Path) -> str:
    """Return a name of the directory that no other one has until the machine restarts; empty where that is unknown."""
    try:
        boot = _BOOT_ID.read_text().strip()
        status = data.stat()
    except OSError:
        return ""
    return f"{boot} {status.st_dev} {status.st_ino}"


def _digest_of_keys(path: Path, secret: bytes) -> str:
    """Return a digest of the keys, whatever their order in the file, that is useless without the secret."""
    said = json.dumps(json.loads(path.read_bytes()), sort_keys=True).encode()
    return hmac.digest(secret, said, "sha256").hex()


def check_address(settings: Settings) -> None:
    """Check that other brokers can connect to the address that this one gives them. Raises `StartError`."""
    host, _ = _host_and_port(_address(settings))
    try:
        is_one = not ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        is_one = True
    if not is_one:
        raise StartError(
            f"Other brokers can't connect to {host}, which is every address of a machine. Give --cluster-address the "
            "name or address by which they reach this broker."
        )


def _address(settings: Settings) -> str:
    """Return the address for other brokers, with or without a port."""
    return settings.cluster.address or settings.cluster.host or settings.host


def _host_and_port(address: str) -> tuple[str, str]:
    """Return the parts of HOST:PORT; the port is empty if the address has none."""
    host, colon, port = address.rpartition(":")
    return (host, port) if colon and port.isdecimal() and ("]" in host or ":" not in host) else (address, "")


def _shown_address(address: str, port: int) -> str:
    """Return HOST:PORT; the port is ours unless the address has one."""
    if _host_and_port(address)[1]:
        return address
    return f"[{address}]:{port}" if ":" in address and not address.startswith("[") else f"{address}:{port}"
