"""A broker process from start to stop: stores, entities and front ends."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

from partibus.clock import Clock
from partibus.cluster.admin import facts_of
from partibus.cluster.ownership import Identity
from partibus.errors import StoreUnavailable
from partibus.namespace.catalog import Catalog
from partibus.namespace.changes import in_batches
from partibus.namespace.policies import load_policies
from partibus.node.clocks import stored_time
from partibus.node.coordinator import Coordinator
from partibus.node.front import Front
from partibus.node.host import StoreHosts
from partibus.node.ready_file import Keys, publish_ready
from partibus.node.settings import Ports, Settings
from partibus.node.telemetry import Telemetry
from partibus.partition.protocol.fan_out import FanOut
from partibus.partition.protocol.ports import Store
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.opening import StorePlace

log = logging.getLogger(__name__)


class Broker:
    """A broker. Its coordinator decides which stores it owns, and speaks with the other brokers."""

    def __init__(
        self,
        us: Identity,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        places: Sequence[StorePlace],
        catalog: Catalog,
        coordinate: Callable[["Broker"], Coordinator],
        on_closed: Callable[[], None],
        keys: Keys | None = None,
    ) -> None:
        """Build the broker; the certificate of ``settings`` exists already.

        ``places`` are those of all stores, by number. ``coordinate`` makes the coordinator before the front end exists.
        ``on_closed`` is called after `close`. ``keys`` are for the ready file. Raises the errors of ``coordinate``,
        those of reading the catalog, and `UnusableFile` for keys or a certificate.
        """
        self.us = us
        self.settings = settings
        self.loop = loop
        self.clock = clock
        self.places = places
        self.state: Literal["starting", "serving", "leaving"] = "starting"
        self.on_state: Callable[[], None] = lambda: None
        """Called when ``state`` has changed."""
        self.hosts = StoreHosts(loop)
        self.check_time = stored_time(clock, settings, self._time_jumped, loop)
        """The check of the times in stores, for openers."""
        self._access = load_policies(settings.data, emulator=settings.emulator, emulator_operates=settings.is_local)
        self._on_closed = on_closed
        self._keys = keys or {}
        self._telemetry = Telemetry(settings, *us, loop)
        self.coordinator = coordinate(self)
        self.stores = self.coordinator.stores
        meters = self._telemetry.meters
        self.front = Front(settings, loop, clock, catalog, self._access, self.coordinator, meters, us.broker)
        self._telemetry.begin(self.front.namespaces)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Own stores, serve, and write the ready file last.

        Raises `StartError` when no store can be opened, `ArgumentError` when a port is taken.
        """
        try:
            await self.coordinator.join()
            ports = await self.listen(self.settings.ports)
        except BaseException:
            await self.stop()
            raise
        brokers = [{"id": self.us.broker, "pid": os.getpid(), "stores": len(self.stores.runtimes)}]
        self.ready = publish_ready(self.settings, self._access, ports, brokers, self._keys)

    async def listen(self, ports: Ports, *, shared: bool = False) -> Ports:
        """Accept connections; return the ports. ``shared``: other brokers listen on them, too."""
        found = await self.front.listen(self.settings.host, ports, shared=shared)
        if self.state == "starting":
            self.state = "serving"
        self.on_state()
        return found

    def reload(self) -> None:
        """Reload the certificate from its files."""
        self.front.reload()

    async def stop(self) -> None:
        """Tell clients to go, give up the stores, end. Idempotent."""
        if self.state != "leaving":
            try:
                await self.drain()
            finally:
                await self.close()

    async def drain(self) -> None:
        """Stop accepting connections and tell clients to go. Idempotent."""
        if self.state != "leaving":
            self.state = "leaving"
            self.on_state()
            await self.front.drain()

    async def close(self) -> None:
        """Commit pending rows, give up the stores, and release everything else."""
        async with AsyncExitStack() as closing:  # the last of these first, also after an exception
            closing.callback(self._on_closed)
            closing.callback(self.front.close)
            closing.callback(self._telemetry.close)
            closing.callback(self.hosts.stop)
            closing.push_async_callback(self.coordinator.leave)
            closing.push_async_callback(self._give_up_all)

    # -- stores ------------------------------------------------------------------------------------------------------

    def make_runtime(self, store_no: int, open_store: Callable[[], Store], store: Store | None = None) -> StoreRuntime:
        """Make the runtime of a store that this broker owns. ``store``: the store if it is open already."""

        def forward(partition_row: int, transfers: bool) -> None:
            self.front.forwarder.see(runtime, partition_row, transfers=transfers)

        runtime = StoreRuntime(
            open_store,
            self.hosts.of(self.places[store_no]),
            self.clock,
            self.settings.limits.store,
            store,
            wake=self._wake,
            forward=forward,
            subscribers=self,
            meters=self._telemetry.meters,
        )
        return runtime

    def _wake(self, partition_rows: list[int]) -> None:
        """Load partitions in which something is due."""
        self.front.namespaces.wake_partitions(partition_rows)

    def _time_jumped(self) -> None:
        """React to a clock that went forward by itself: earlier delays are too long."""
        self.front.namespaces.clock_moved()
        for runtime in self.stores.runtimes.values():
            runtime.run_due()

    def fan_out(self, row: int) -> FanOut | None:
        """Find the fan-out of a topic's partition (`partition.protocol.fan_out.Subscribers`)."""
        return self.front.subscribers.fan_out(row)

    def opened(self, store_no: int, runtime: StoreRuntime) -> None:
        """Forward from a store that has just been opened, and drop the rows of deleted entities in it."""
        self.front.forwarder.opened(store_no, runtime)
        try:
            rows = [row for row, number in self.front.catalog.dropped_partitions() if number == store_no]
        except StoreUnavailable as error:
            name = self.places[store_no].store_id
            log.warning("the rows of deleted entities in %s stay until it is opened again: %s", name, error)
            return
        forget = in_batches(len(rows), self.front.namespace.forget_dropped)
        for row in rows:
            runtime.drop(row, forget)

    async def give_up(self, store_no: int) -> None:
        """Commit pending rows, and close a store."""
        given = asyncio.Event()
        self.stores.give_up(store_no, given.set)
        await given.wait()

    async def _give_up_all(self) -> None:
        results = await asyncio.gather(*map(self.give_up, self.stores.runtimes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    # -- as one of several -------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Return the facts for the status of this broker and its stores (`partibus.cluster.admin`)."""
        runtimes = self.stores.runtimes.items()
        return {
            "pid": os.getpid(),
            "incarnation": self.us.incarnation,
            "state": self.state,
            "stores": {self.places[store_no].store_id: facts_of(runtime) for store_no, runtime in runtimes},
            "connections": self.front.connections,
            "namespaces": self.front.connections_by_namespace,
        }

    def lead(self, leads: bool) -> None:
        """Let this broker delete idle queues and move slots for all, or leave that to another one."""
        units = self.front.units
        if leads and not units.leads:
            self.front.idle.begin()
        units.leads = leads
