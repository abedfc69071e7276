"""All pumps of a broker: one for each forwarding sub-queue of each loaded partition in the broker's stores."""

from collections.abc import Callable, Sequence
from functools import partial

from partibus.forwarding.destination import Destination
from partibus.forwarding.pump import CallLater, Pump, Source
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.namespace.namespace import Queue
from partibus.namespace.namespaces import Namespaces
from partibus.partition.protocol.fan_out import COPIES_MAX
from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.partitions import PartitionHandle
from partibus.routing.store_access import StoreAccess

LOOK_AGAIN_MS = 100.0
LOOKS_MAX = 50
"""The number of quick attempts to find a partition's entity that another broker has just created or changed."""
LOOK_LATER_MS = 2_000.0
"""The pause between later attempts: the catalog may be out of reach for any time."""


class Forwarder:
    """The owner of all pumps, which starts and stops them."""

    def __init__(self, namespaces: Namespaces, call_later: CallLater) -> None:
        self._namespaces = namespaces
        self._call_later = call_later
        self._forwarding: dict[int, _Forwarding] = {}
        """Forwarding entities by entity id."""
        self._stores: dict[int, StoreRuntime] = {}
        """The runtimes of the stores that this broker has opened, by number. A closed one stays until the next."""
        self._opened: dict[int, StoreRuntime] = {}
        """Opened stores to be scanned together, because there may be ten thousand entities."""
        self._unknown: dict[tuple[int, bool], StoreAccess] = {}
        """The stores of loaded partitions whose entities this broker does not know as forwarding, by row, and whether
        with transfers.
        """
        namespaces.on_followed.append(self._followed)

    def opened(self, store_no: int, store: StoreRuntime) -> None:
        """Forward the waiting messages of a store that this broker now owns and reaches by its route."""
        self._stores[store_no] = store
        self._look_soon(store_no, store)

    def _look_soon(self, store_no: int, store: StoreRuntime) -> None:
        if self._stores[store_no] is not store:
            return  # the store has left and come back since
        if not self._opened:
            self._call_later(0.0, self._look)
        self._opened[store_no] = store

    def _followed(self, queue: Queue | None) -> None:
        """Forward the waiting messages of an entity that another broker has made or changed; None: of all.

        This broker may have opened their stores before it followed the change.
        """
        if queue is None:
            for store_no, store in self._stores.items():
                self._look_soon(store_no, store)
        elif targets_of(queue):
            for index, placement in enumerate(queue.partitions):
                store_no = placement.store_no
                if store_no in self._stores and not self._pumps(queue, index):
                    self._wake(store_no, self._stores[store_no], {placement.partition_row: (queue, index)})

    def _look(self) -> None:
        opened, self._opened = self._opened, {}
        partitions: dict[int, dict[int, tuple[Queue, int]]] = {store_no: {} for store_no in opened}
        for queue in self._namespaces.queues():
            if targets_of(queue):
                for index, placement in enumerate(queue.partitions):
                    if placement.store_no in opened:
                        partitions[placement.store_no][placement.partition_row] = (queue, index)
        for store_no, store in opened.items():
            if partitions[store_no]:
                self._wake(store_no, store, partitions[store_no])

    def _wake(self, store_no: int, store: StoreRuntime, partitions: dict[int, tuple[Queue, int]]) -> None:
        """Load the partitions that hold messages."""

        def found(rows: list[int] | None) -> None:
            if rows is None:
                store.when_usable(lambda: self._look_soon(store_no, store))
                return
            self._load(store_no, store, [partitions[row] for row in rows])

        store.questions.find_filled(list(partitions), found)

    def _load(self, store_no: int, store: StoreRuntime, places: list[tuple[Queue, int]]) -> None:
        """Load partitions, and check later whether they are loaded.

        Loading has no reply. A store that fails meanwhile, or a route that briefly leads elsewhere, would leave the
        partitions unloaded until a client uses them.
        """
        if store.failure is not None:
            store.when_usable(lambda: self._look_soon(store_no, store))
            return
        missing = [
            (queue, index)
            for queue, index in places
            if not queue.deleted and index < len(queue.partitions) and not self._pumps(queue, index)
        ]
        for queue, index in missing:
            self._namespaces.entity_of(queue).route.partitions[index].wake()
        if missing:
            self._call_later(LOOK_AGAIN_MS, lambda: self._load(store_no, store, missing))

    def _pumps(self, queue: Queue, index: int) -> bool:
        """Tell whether the partition needs no loading: it is loaded here, or its entity has stopped forwarding."""
        forwarding = self._forwarding.get(queue.entity_id)
        return not targets_of(queue) or (forwarding is not None and forwarding.has(index))

    def see(self, store: StoreAccess, row: int, looks: int = LOOKS_MAX, *, transfers: bool = False) -> None:
        """Start the pumps of a loaded partition in a store of this broker.

        ``transfers`` includes the messages that were sent through the partition.
        """
        if store.failure is not None:
            store.when_usable(lambda: self.see(store, row, transfers=transfers))
            return
        found = self._find_any(row) if transfers else self._find(row)
        if found is None:
            if looks:
                self._call_later(LOOK_AGAIN_MS, lambda: self.see(store, row, looks - 1, transfers=transfers))
            else:
                self._see_later(store, row, transfers=transfers)
            return
        queue, index = found
        forwarding = self._forwarding.get(queue.entity_id)
        if forwarding is None:
            entity = self._namespaces.entity_of(queue)
            forwarding = self._forwarding[queue.entity_id] = _Forwarding(self, entity)
            entity.join(forwarding)
        forwarding.see(store, row, index, transfers=transfers)

    def _see_later(self, store: StoreAccess, row: int, *, transfers: bool) -> None:
        if not self._unknown:
            self._call_later(LOOK_LATER_MS, self._see_unknown)
        self._unknown[row, transfers] = store

    def _see_unknown(self) -> None:
        """Look for the entities again. A store that was closed meanwhile is not asked further."""
        unknown, self._unknown = self._unknown, {}
        for (row, transfers), store in unknown.items():
            self.see(store, row, 0, transfers=transfers)

    def _find_any(self, row: int) -> tuple[Queue, int] | None:
        """Find the entity of a partition row, and the partition's index in it."""
        queue = self._namespaces.queue_of(row)
        return None if queue is None else (queue, queue.index_of(row))

    def _find(self, row: int) -> tuple[Queue, int] | None:
        """Find the entity of a partition row as `_find_any` does, but only if it forwards."""
        found = self._find_any(row)
        return found if found is not None and targets_of(found[0]) else None

    def forget(self, entity_id: int) -> None:
        """Remove a deleted entity."""
        self._forwarding.pop(entity_id, None)

    def pump(self, of: Queue, source: Source, target: str | None, on_lost: Callable[[], None]) -> Pump:
        """Build a pump for this entity, not yet started."""
        broker = self._namespaces.broker_of(of)
        find = partial(_destination, broker)
        return Pump(source, target, find, broker.numbers, self._call_later, on_lost, broker.tracer)


class _Forwarding:
    """The pumps of one entity."""

    def __init__(self, forwarder: Forwarder, entity: Entity) -> None:
        self._forwarder = forwarder
        self._entity = entity
        self._places: dict[int, tuple[StoreAccess, int]] = {}
        """The store and the row of each partition loaded here, by partition index."""
        self._pumps: dict[tuple[int, int], Pump] = {}
        """The pumps by partition index and kind of sub-queue. A stopping pump stays until it has stopped."""
        self._stopping: set[tuple[int, int]] = set()
        self._sent_through: set[int] = set()
        """Indexes of the partitions with messages that were sent through them."""

    waiting = False
    """Part of `EntityUser`: this user has no receiver."""

    def has(self, index: int) -> bool:
        """Tell whether the partition of that index is loaded here."""
        return index in self._places

    def see(self, store: StoreAccess, row: int, index: int, *, transfers: bool) -> None:
        """Start the pumps of a loaded partition."""
        if self._places.get(index) != (store, row):
            # The store has been opened here, possibly again, or the partition was removed and another one added:
            # discard what an earlier pump had in flight.
            self._abandon(index)
            self._places[index] = store, row
        if transfers:
            self._sent_through.add(index)
        self._begin(index)

    def _abandon(self, index: int) -> None:
        """Stop the pumps of a partition at once, and forget where it is."""
        self._places.pop(index, None)
        for key in [key for key in self._pumps if key[0] == index]:
            self._pumps.pop(key).abandon()
            self._stopping.discard(key)

    def on_entity_changed(self) -> None:
        """Apply changed targets, or stop when the entity has none."""
        if self._entity.queue.deleted:
            for pump in self._pumps.values():
                pump.abandon()
            self._pumps.clear()
            self._entity.leave(self)
            self._forwarder.forget(self._entity.queue.entity_id)
            return
        for index in [index for index in self._places if index >= len(self._entity.route.partitions)]:
            self._abandon(index)  # an elastic queue has removed this partition, which was empty
            self._sent_through.discard(index)
        targets: dict[int, str | None] = {**targets_of(self._entity.queue), SubqueueKind.TRANSFER: None}
        for key, pump in list(self._pumps.items()):
            if (key[1] not in targets or targets[key[1]] != pump.target) and key not in self._stopping:
                self._stopping.add(key)
                pump.stop(lambda key=key, pump=pump: self._ended(key, pump))  # type: ignore[misc]
        for index in self._places:
            self._begin(index)

    def _begin(self, index: int) -> None:
        queue = self._entity.queue
        partition = self._entity.route.partitions[index]
        targets: dict[int, str | None] = dict(targets_of(queue))
        if index in self._sent_through:
            targets[SubqueueKind.TRANSFER] = None
        for kind, target in targets.items():
            key = (index, kind)
            if key in self._pumps or index not in self._places:
                continue
            source, lost = self._source(index, kind, partition), partial(self._lost, key)
            pump = self._forwarder.pump(queue, source, target, lost)
            self._pumps[key] = pump
            pump.begin()

    def _source(self, index: int, kind: int, partition: PartitionHandle) -> Source:
        store, row = self._places[index]
        return Source(
            store,
            row,
            kind,
            lambda: partition.options,
            self._entity.queue.name,
            partition.partition_id,
            partial(_generations_of, store),
        )

    def _ended(self, key: tuple[int, int], pump: Pump) -> None:
        """Remove a pump that has stopped."""
        if self._pumps.get(key) is pump:
            del self._pumps[key]
            self._stopping.discard(key)
            self._begin(key[0])

    def _lost(self, key: tuple[int, int]) -> None:
        """Remove a pump whose store has failed or moves to another broker."""
        self._pumps.pop(key, None)
        place = self._places.pop(key[0], None)
        if place is not None:
            store, row = place
            transfers = key[0] in self._sent_through
            self._sent_through.discard(key[0])
            store.when_usable(lambda: self._again(store, row, transfers=transfers))

    def _again(self, store: StoreAccess, row: int, *, transfers: bool) -> None:
        """Restart the pumps of a store that is usable again."""
        if targets_of(self._entity.queue):
            self._forwarder.see(store, row)
        if transfers:
            self._forwarder.see(store, row, transfers=True)


def _destination(broker: Broker, name: str) -> Destination | None:
    queue = broker.namespace.find(name)
    if queue is None or queue.deleted:
        return None
    route = broker.entity_of(queue).route
    return Destination(
        queue.name,
        route.partitions,
        queue.can_send,
        queue.message_size_max_bytes,
        queue.requires_session,
        queue.requires_duplicate_detection,
        route.slots,
        max(1, COPIES_MAX // queue.rule_count) if queue.rule_count else 1 << 30,
        route.catch_up,
    )


def _generations_of(store: StoreAccess) -> Sequence[Generation]:
    """Return the generations of a store that is open here."""
    assert isinstance(store, StoreRuntime), "what is forwarded is in a store of this broker"
    return store.generations


def targets_of(queue: Queue) -> dict[int, str]:
    """Return the name of the destination entity for each kind of sub-queue that forwards."""
    options = queue.description.options
    targets: dict[int, str] = {}
    if options.forward_to:
        targets[SubqueueKind.ACTIVE] = options.forward_to
    if options.forward_dead_lettered_to:
        targets[SubqueueKind.DEAD_LETTER] = options.forward_dead_lettered_to
    return targets
