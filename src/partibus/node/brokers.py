"""Several brokers behind the same ports: the work of their supervisor before and after it starts them (D2).

Keys, catalog, the secret and the files of the stores are made here, before several processes could make them. Ports are
chosen here and held as long as the supervisor lives.
"""

import socket
from secrets import token_hex
from typing import Any

from partibus.clock import SystemClock
from partibus.cluster.handshake import load_secret
from partibus.cluster.supervisor import CLOSE_S, Supervisor
from partibus.namespace.catalog import Catalog
from partibus.namespace.policies import load_policies
from partibus.node.child import launch
from partibus.node.ready_file import prepare_namespaces, publish_ready, remove_ready_file
from partibus.node.settings import Ports, Settings, listening, settings_to_plain
from partibus.store.acknowledged import AcknowledgedChanges
from partibus.store.generations import Owner
from partibus.store.opening import find_stores
from partibus.store.sqlite.directory import lock_data_directory
from partibus.telemetry.settings import CLOSE_S as WRITER_CLOSE_S
from partibus.telemetry.settings import OFF


class Brokers:
    """A supervisor with its children."""

    def __init__(self, settings: Settings) -> None:
        """Prepare the data directory.

        Raises `UnusableFile`, `ConfigError`, `StoreError`, or `ArgumentError` for a port that is taken.
        """
        self._settings = settings
        clock = SystemClock()
        self._lock = lock_data_directory(settings.data, Owner("supervisor", token_hex(8)))
        remove_ready_file(settings)
        self._places = find_stores(settings.data, settings.stores, created_ms=clock.now_ms())
        self._access = load_policies(settings.data, emulator=settings.emulator, emulator_operates=settings.is_local)
        load_secret(settings.data)
        catalog = Catalog(settings.data, len(self._places), record=AcknowledgedChanges(settings.data))
        self._keys = prepare_namespaces(settings, catalog, clock.now_ms())
        catalog.list_entities()  # reports an unreadable catalog once, at the start
        catalog.close()
        held: list[socket.socket | None] = []
        for name, port in settings.ports._asdict().items():
            with listening(settings.host, port or 0, f"--{name.replace('_', '-')}-port"):
                held.append(None if port is None else hold_port(settings.host, port))
        self._held = [one for one in held if one is not None]
        self._ports = Ports._make(None if one is None else one.getsockname()[1] for one in held)
        now_ms = clock.now_ms() if settings.manual_clock else None
        self._supervisor = Supervisor(
            launch,
            settings.brokers,
            [place.store_id for place in self._places],
            self._start_of,
            now_ms,
            settings.brokers_max,
            settings.limits.units.per_broker,
            CLOSE_S if settings.telemetry.mode == OFF else CLOSE_S + WRITER_CLOSE_S,
        )

    async def start(self) -> None:
        """Start the brokers; writes the ready file last. Raises `SupervisorError`."""
        brokers = await self._supervisor.start()
        self.ready = publish_ready(self._settings, self._access, self._ports, brokers, self._keys)

    async def stop(self) -> None:
        """Have everything committed and closed, then all ended."""
        await self._supervisor.stop()
        for held in self._held:
            held.close()
        self._lock.release()

    def reload(self) -> None:
        """Have all take the certificate that is in its files now."""
        self._supervisor.reload()

    def _start_of(self, broker: str) -> dict[str, Any]:
        return {
            "settings": settings_to_plain(self._settings),
            "ports": list(self._ports),
            "store_places": [list(place) for place in self._places],
        }


def hold_port(host: str, port: int) -> socket.socket:
    """Return a bound socket that takes no connections: it holds the port for children that share it.

    Raises OSError when another process listens there, also one that would share the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port != 0:
        # A port that the kernel chooses needs no such check, and must not be let go: another process may take it.
        socket.create_server((host, port), family=family).close()
    held = socket.socket(family, socket.SOCK_STREAM)
    if port != 0:
        # Connections of a former process that did not share the port keep it busy for a minute after their end.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held
