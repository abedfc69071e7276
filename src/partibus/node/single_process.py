"""A broker in one process: it owns every store from its start to its end."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from secrets import token_hex
from typing import Any

from partibus.clock import Clock, ManualClock, SystemClock
from partibus.cluster.admin import broker_status, stores_status
from partibus.cluster.ownership import Identity
from partibus.namespace.catalog import Catalog
from partibus.namespace.changes import nobody_else
from partibus.node.metrics import Measurements
from partibus.node.node import Broker
from partibus.node.ready_file import prepare_namespaces, remove_ready_file
from partibus.node.settings import Settings
from partibus.partition.protocol.ports import StoreError
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.store_access import StoreAccess
from partibus.store.acknowledged import AcknowledgedChanges
from partibus.store.generations import Owner
from partibus.store.opening import Opener, find_stores, open_each
from partibus.store.sqlite.directory import lock_data_directory

NAME = "broker-0"
CATALOG_BUSY_S = 0.05
"""How long a change of the catalog waits for another program that has locked the file. The loop, and so every message,
stands still meanwhile. No other broker uses the file.
"""


def make_broker(settings: Settings, loop: asyncio.AbstractEventLoop) -> Broker:
    """Open the data directory and its stores. Raises `StartError`, `ConfigError` or `StoreError`.

    A store that can't be opened delays no other: its partitions are away until it can be opened, and health gives the
    reason. The broker refuses to start only when no store can be opened.
    """
    us = Identity(NAME, token_hex(8))
    clock: Clock = ManualClock(SystemClock().now_ms()) if settings.manual_clock else SystemClock()
    with ExitStack() as opened:  # closed if the start fails
        lock = lock_data_directory(settings.data, Owner(*us))
        opened.callback(lock.release)
        remove_ready_file(settings)
        places = find_stores(settings.data, settings.stores, created_ms=clock.now_ms())
        catalog = Catalog(
            settings.data, len(places), busy_timeout_s=CATALOG_BUSY_S, record=AcknowledgedChanges(settings.data)
        )
        opened.callback(catalog.close)
        keys = prepare_namespaces(settings, catalog, clock.now_ms())
        coordinate = partial(SingleProcess, opened=opened)
        broker = Broker(us, settings, loop, clock, places, catalog, coordinate, lock.release, keys)
        opened.pop_all()
    return broker


class OwnStores:
    """The stores of a data directory that no other broker uses (`partibus.node.coordinator.BrokerStores`)."""

    credits = None

    def __init__(self, broker: Broker, opened: ExitStack) -> None:
        """Open the stores, several at once, and add them to ``opened``.

        Raises the first `StoreError` when none can be opened.
        """
        owner, data = Owner(*broker.us), broker.settings.data
        openers = [Opener(place, owner, data, check_time=broker.check_time) for place in broker.places]
        stores = open_each(openers)
        failures = [store for store in stores if isinstance(store, StoreError)]
        if len(failures) == len(stores):
            raise failures[0]
        self.runtimes: dict[int, StoreRuntime] = {}
        for store_no, (opener, store) in enumerate(zip(openers, stores, strict=True)):
            if isinstance(store, StoreError):
                self.runtimes[store_no] = broker.make_runtime(store_no, opener)
                self.runtimes[store_no].begin(lambda: None, str(store))
            else:
                opened.callback(store.close)
                self.runtimes[store_no] = broker.make_runtime(store_no, opener, store)
        self.access: Mapping[str, StoreAccess] = {
            place.store_id: runtime for place, runtime in zip(broker.places, self.runtimes.values(), strict=True)
        }

    def give_up(self, store_no: int, given: Callable[[], None]) -> None:
        """Commit pending rows, close a store, and call ``given``."""
        self.runtimes[store_no].close(given)


class SingleProcess:
    """The coordinator of a broker without others (`partibus.node.coordinator.Coordinator`)."""

    announce = staticmethod(nobody_else)

    def __init__(self, broker: Broker, opened: ExitStack) -> None:
        """Open the stores and add them to ``opened``. Raises `StoreError`."""
        self._broker = broker
        self.stores = OwnStores(broker, opened)

    async def join(self) -> None:
        """Use the stores, which are open."""
        self._broker.lead(True)
        for store_no, runtime in self.stores.runtimes.items():
            runtime.wake_timed()
            self._broker.opened(store_no, runtime)

    async def leave(self) -> None:
        """Do nothing: no other broker has a connection."""

    async def status(self) -> dict[str, Any]:
        """Return the status of this broker and its stores."""
        name, report = self._broker.us.broker, self._broker.report() | {"lag_ms": 0.0}
        return {"brokers": [broker_status(name, report)], "stores": stores_status(self.stores.access, {name: report})}

    async def measurements(self) -> Mapping[str, Measurements]:
        """Return the measurements of this broker."""
        return {self._broker.us.broker: await self._broker.front.measuring.measure()}

    async def advance(self, milliseconds: int) -> int:
        """Move the manual clock."""
        hand = self._broker.front.hand
        assert hand is not None, "the clock is manual"
        return await hand.advance(milliseconds)

    async def used(self, *, surely: bool = False) -> Iterable[int] | None:
        """Return none: the broker knows the queues that were used through it."""
        return ()
