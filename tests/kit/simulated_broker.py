"""Brokers over stores in memory, on simulated time, whose queues get and lose partitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from partibus.errors import ArgumentError, InvalidOperation
from partibus.limits import Limits
from partibus.namespace.access import AccessPolicies
from partibus.namespace.broker import Broker
from partibus.namespace.moving import plan
from partibus.namespace.namespace import Namespace, Queue
from partibus.namespace.partition_moves import even_counts, even_moves
from partibus.node.options import partition_options
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.partitions import Numbers, PartitionHandle
from tests.kit.stores.memory import MemoryDisk, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partibus.namespace.catalog import Catalog
    from partibus.namespace.changes import Announcer
    from partibus.namespace.placement import Placement
    from tests.kit.simulated_host import SimulatedHost, Timeline


Forward = Callable[[int, int, bool], None]
"""Gets the number of a store, the row of a partition that forwards, and whether messages were sent through it."""


class SimulatedProcess:
    """The open stores of one process, and brokers over them."""

    def __init__(
        self, disks: Iterable[MemoryDisk], host: SimulatedHost, timeline: Timeline, forward: Forward | None = None
    ) -> None:
        """Open a store on each disk. ``forward`` learns which partitions forward."""
        self.host = host
        self.timeline = timeline
        self.stores: list[StoreRuntime] = []
        for number, disk in enumerate(disks):
            told = None if forward is None else partial(forward, number)
            self.stores.append(StoreRuntime(partial(MemoryStore, disk), host, timeline, forward=told))
        self._numbers = Numbers()
        """The numbers of all its brokers, which share the stores."""
        for store in self.stores:
            store.open()

    def broker(self, catalog: Catalog, announcer: Announcer | None = None) -> Broker:
        """Begin a broker."""
        return Broker(
            Namespace(catalog, self.timeline),
            AccessPolicies([]),
            self.timeline,
            self._numbers,
            Limits(),
            self.handle,
            announcer,
            call_later=self.host.call_later,
            stores={f"store-{number}": store for number, store in enumerate(self.stores)},
        )

    def handle(self, queue: Queue, placement: Placement) -> PartitionHandle:
        """Reach a partition of a queue."""
        runtime = self.stores[placement.store_no]
        options = partition_options(queue, Limits())
        return PartitionHandle(placement.partition_no, placement.partition_row, runtime, options, batched=False)


def resize(broker: Broker, name: str, partitions: int) -> bool:
    """Begin to split or merge a queue into so many partitions; return whether it may be done now."""

    def change(record: Any) -> Any:
        have = max(len(record.placements), partitions)
        slots = record.slots.map(len(record.placements))
        wanted = even_moves(slots, even_counts(have, partitions), record.slots.unsettled())
        return plan(record, wanted, have, broker.clock.now_ms(), "test")

    try:
        broker.change_slots(name, change)
    except (InvalidOperation, ArgumentError):
        return False
    return True
