"""A broker that is alone: it owns every store, in one process without a supervisor."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from secrets import token_hex
from typing import Any

from partibus.clock import Clock, ManualClock, SystemClock
from partibus.cluster.store_facts import facts_of
from partibus.namespace.announcing import nobody_else
from partibus.namespace.broker import Broker
from partibus.namespace.catalog import Catalog
from partibus.namespace.config_json import read_config_json
from partibus.namespace.config_namespaces import apply_namespaces
from partibus.namespace.keys_file import load_policies
from partibus.node.front import Front
from partibus.node.host import StoreHosts
from partibus.node.metrics import Measurements, Measuring
from partibus.node.ready_file import first_keys, ready_document, write_ready_file
from partibus.node.settings import Settings
from partibus.node.stored_time import stored_time
from partibus.node.telemetry import Telemetry
from partibus.node.tls import prepare_certificate
from partibus.partition.protocol.fan_out import FanOut
from partibus.partition.protocol.ports import Store, StoreError
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.acknowledged import AcknowledgedChanges
from partibus.store.opening import Opener, StorePlace, find_stores, open_each
from partibus.store.owner import Owner
from partibus.store.sqlite.directory import lock_data_directory

BROKER = "broker-0"


class Node:
    """A broker process."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        """Open the data directory and its stores. Raises `StartError`, `ConfigError` or `StoreError`.

        A store that can't be opened delays no other: its partitions are away until it can be opened, and health gives
        the reason. Only when no store can be opened the broker does not start.
        """
        self._settings = settings
        self.clock: Clock = ManualClock(SystemClock().now_ms()) if settings.manual_clock else SystemClock()
        self._owner = Owner(BROKER, token_hex(8))
        self._lock = lock_data_directory(settings.data, self._owner)
        self._places = find_stores(settings.data, settings.stores, created_ms=self.clock.now_ms())
        check_time = stored_time(self.clock, settings, self._time_jumped, loop)
        openers = [Opener(place, self._owner, settings.data, check_time=check_time) for place in self._places]
        opened = open_each(openers)
        failures = [store for store in opened if isinstance(store, StoreError)]
        if len(failures) == len(opened):
            raise failures[0]
        self._hosts = StoreHosts(loop)
        self._telemetry = Telemetry(settings, BROKER, self._owner.incarnation, loop)
        self._meters = self._telemetry.meters
        self.runtimes = [
            self._runtime(place, opener, store)
            for place, opener, store in zip(self._places, openers, opened, strict=True)
        ]
        catalog = Catalog(settings.data, len(self._places), record=AcknowledgedChanges(settings.data))
        self._access = load_policies(settings.data, emulator=settings.emulator, emulator_operates=settings.is_local)
        if settings.config is not None:
            apply_namespaces(catalog, read_config_json(settings.config), self.clock.now_ms())
        self._keys = first_keys(catalog)
        prepare_certificate(settings, self._keys)
        self._front = Front(
            settings,
            loop,
            self.clock,
            catalog,
            self._access,
            {place.store_id: runtime for place, runtime in zip(self._places, self.runtimes, strict=True)},
            lambda: self.runtimes,
            self,
            self._meters,
        )
        self._front.units.leads = True
        self._telemetry.begin(self._front.namespaces)
        for store_no, runtime in enumerate(self.runtimes):
            self._front.drop_leftovers(store_no, runtime)

    @property
    def broker(self) -> Broker:
        """The entities."""
        return self._front.broker

    @property
    def measuring(self) -> Measuring:
        """The measurements for metrics."""
        return self._front.measuring

    async def start(self) -> None:
        """Serve; writes the ready file last. Raises OSError when a port is taken."""
        settings = self._settings
        ports = await self._front.listen(settings.host, settings.ports)
        brokers = [{"id": BROKER, "pid": os.getpid(), "stores": len(self.runtimes)}]
        self.ready = ready_document(settings, self._access, os.getpid(), ports, brokers, self._keys)
        for store_no, runtime in enumerate(self.runtimes):
            runtime.wake_timed()
            self._front.forwarder.opened(store_no, runtime)
        if settings.ready_file is not None:
            write_ready_file(settings.ready_file, self.ready)

    async def stop(self) -> None:
        """Stop accepting, close clients' connections, commit pending rows, close the stores."""
        async with AsyncExitStack() as stopping:  # the last of these first, whatever another one raises
            stopping.callback(self._lock.release)
            stopping.callback(self._front.close)
            stopping.callback(self._telemetry.close)
            stopping.callback(self._hosts.stop)
            stopping.push_async_callback(self._close_stores)
            stopping.push_async_callback(self._front.drain)

    async def _close_stores(self) -> None:
        results = await asyncio.gather(*map(self._closed, self.runtimes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def reload(self) -> None:
        """Reload the certificate from its files."""
        self._front.reload()

    async def _closed(self, runtime: StoreRuntime) -> None:
        closed = asyncio.Event()
        runtime.close(closed.set)
        await closed.wait()

    def _runtime(self, place: StorePlace, opener: Opener, store: Store | StoreError) -> StoreRuntime:
        def wake(partition_rows: list[int]) -> None:
            self._front.wake(partition_rows)

        def forward(partition_row: int, transfers: bool) -> None:
            self._front.forwarder.see(runtime, partition_row, transfers=transfers)

        opened = None if isinstance(store, StoreError) else store
        host = self._hosts.of(place)
        runtime = StoreRuntime(
            opener, host, self.clock, self._settings.limits.store, opened, wake, forward, self, self._meters
        )
        if isinstance(store, StoreError):
            runtime.begin(lambda: None, str(store))
        return runtime

    def _time_jumped(self) -> None:
        self._front.time_jumped()

    def fan_out(self, row: int) -> FanOut | None:
        """Find the fan-out of a topic's partition (`partition.protocol.fan_out.Subscribers`)."""
        return self._front.subscribers.fan_out(row)

    # -- what `partibus.node.front.ClusterAdmin` asks for -------------------------------------------------------------

    announce = staticmethod(nobody_else)

    async def health(self) -> Mapping[str, str]:
        """Return the health of each store (`ClusterAdmin`)."""
        return {
            place.store_id: runtime.trouble or "ok" for place, runtime in zip(self._places, self.runtimes, strict=True)
        }

    async def status(self) -> dict[str, Any]:
        """Return the status of brokers and stores (`ClusterAdmin`)."""
        broker = {
            "id": BROKER,
            "pid": os.getpid(),
            "incarnation": self._owner.incarnation,
            "state": "serving",
            "stores": len(self.runtimes),
            "connections": self._front.connections,
            "namespaces": self._front.connections_by_namespace,
            "restarts": 0,
            "lag_ms": 0.0,
        }
        stores = [
            {"name": place.store_id, "owner": BROKER, **facts_of(runtime)}
            for place, runtime in zip(self._places, self.runtimes, strict=True)
        ]
        return {"brokers": [broker], "stores": stores}

    async def measurements(self) -> Mapping[str, Measurements]:
        """Return the measurements of this broker (`ClusterAdmin`)."""
        return {BROKER: await self._front.measuring.measure()}

    async def advance(self, milliseconds: int) -> int:
        """Move the manual clock (`ClusterAdmin`)."""
        hand = self._front.hand
        assert hand is not None, "the clock is manual"
        return await hand.advance(milliseconds)

    async def used(self) -> Iterable[int] | None:
        """Return the queues used since the last call (`ClusterAdmin`)."""
        return ()
