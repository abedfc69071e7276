"""All pumps of a broker: one for each sub-queue that forwards, in each partition in use whose store is here."""

from collections.abc import Callable, Sequence
from functools import partial

from partibus.forwarding.destination import Destination
from partibus.forwarding.pump import CallLater, Pump, Source
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.namespace.namespace import Queue
from partibus.namespace.namespaces import Namespaces
from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.partitions import PartitionHandle
from partibus.routing.store_access import StoreAccess

LOOK_AGAIN_MS = 100.0
LOOKS_MAX = 50
"""How often a partition's entity is looked for that another broker has just made, or changed."""


class Forwarder:
    """Begins and ends pumps."""

    def __init__(self, namespaces: Namespaces, call_later: CallLater) -> None:
        self._namespaces = namespaces
        self._call_later = call_later
        self._forwarding: dict[int, _Forwarding] = {}
        """By entity id."""
        self._opened: dict[int, StoreRuntime] = {}
        """Stores to be looked at, together: there may be ten thousand entities."""

    def opened(self, store_no: int, store: StoreRuntime) -> None:
        """A store is this broker's and reached by its route: what waits there to be forwarded is."""
        if not self._opened:
            self._call_later(0.0, self._look)
        self._opened[store_no] = store

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
        """Have those of the partitions loaded that hold anything."""

        def found(rows: list[int] | None) -> None:
            if rows is None:
                store.when_usable(lambda: self.opened(store_no, store))
                return
            self._load(store_no, store, [partitions[row] for row in rows])

        store.questions.find_filled(list(partitions), found)

    def _load(self, store_no: int, store: StoreRuntime, places: list[tuple[Queue, int]]) -> None:
        """Have partitions loaded, and look whether they are: nobody answers, and a store that fails in between, or a
        route that leads elsewhere for a moment, leaves them waiting for somebody to use them."""
        if store.failure is not None:
            store.when_usable(lambda: self.opened(store_no, store))
            return
        missing = [(queue, index) for queue, index in places if not queue.deleted and not self._pumps(queue, index)]
        for queue, index in missing:
            self._namespaces.entity_of(queue).route.partitions[index].wake()
        if missing:
            self._call_later(LOOK_AGAIN_MS, lambda: self._load(store_no, store, missing))

    def _pumps(self, queue: Queue, index: int) -> bool:
        """The partition is in use here, or what it holds is not to be forwarded any more."""
        forwarding = self._forwarding.get(queue.entity_id)
        return not targets_of(queue) or (forwarding is not None and forwarding.has(index))

    def see(self, store: StoreAccess, row: int, looks: int = LOOKS_MAX, *, transfers: bool = False) -> None:
        """A partition of a store of this broker is in use, and forwards. ``transfers``: what was sent through it."""
        if store.failure is not None:
            store.when_usable(lambda: self.see(store, row, transfers=transfers))
            return
        found = self._find_any(row) if transfers else self._find(row)
        if found is None:
            if looks:
                self._call_later(LOOK_AGAIN_MS, lambda: self.see(store, row, looks - 1, transfers=transfers))
            return
        queue, index = found
        forwarding = self._forwarding.get(queue.entity_id)
        if forwarding is None:
            entity = self._namespaces.entity_of(queue)
            forwarding = self._forwarding[queue.entity_id] = _Forwarding(self, entity)
            entity.join(forwarding)
        forwarding.see(store, index, transfers=transfers)

    def _find_any(self, row: int) -> tuple[Queue, int] | None:
        """The entity, and the partition's place among its."""
        queue = self._namespaces.queue_of(row)
        return None if queue is None else (queue, queue.index_of(row))

    def _find(self, row: int) -> tuple[Queue, int] | None:
        """As `_find_any`, of an entity that forwards."""
        found = self._find_any(row)
        return found if found is not None and targets_of(found[0]) else None

    def forget(self, entity_id: int) -> None:
        """The entity is deleted."""
        self._forwarding.pop(entity_id, None)

    def pump(self, of: Queue, source: Source, target: str | None, on_lost: Callable[[], None]) -> Pump:
        """One of this entity that has not begun."""
        broker = self._namespaces.broker_of(of)
        find = partial(_destination, broker)
        return Pump(source, target, find, broker.numbers, self._call_later, on_lost, broker.tracer)


class _Forwarding:
    """The pumps of one entity."""

    def __init__(self, forwarder: Forwarder, entity: Entity) -> None:
        self._forwarder = forwarder
        self._entity = entity
        self._stores: dict[int, StoreAccess] = {}
        """Partitions in use here, by their place -> their store."""
        self._pumps: dict[tuple[int, int], Pump] = {}
        """By place and kind of sub-queue; one that is being stopped stays until it has."""
        self._stopping: set[tuple[int, int]] = set()
        self._sent_through: set[int] = set()
        """Places of partitions with messages that were sent through them."""

    waiting = False
    """As an `EntityUser`: no receiver."""

    def has(self, index: int) -> bool:
        """The partition of that place is in use here."""
        return index in self._stores

    def see(self, store: StoreAccess, index: int, *, transfers: bool) -> None:
        """A partition is in use."""
        if transfers:
            self._sent_through.add(index)
        if self._stores.get(index) is not store:
            # The store has come (back) here: what a pump had to do with it before is over.
            self._stores[index] = store
            for key in [key for key in self._pumps if key[0] == index]:
                self._pumps.pop(key).abandon()
                self._stopping.discard(key)
        self._begin(index)

    def on_entity_changed(self) -> None:
        """Other targets, or the end."""
        if self._entity.queue.deleted:
            for pump in self._pumps.values():
                pump.abandon()
            self._pumps.clear()
            self._entity.leave(self)
            self._forwarder.forget(self._entity.queue.entity_id)
            return
        targets: dict[int, str | None] = {**targets_of(self._entity.queue), SubqueueKind.TRANSFER: None}
        for key, pump in list(self._pumps.items()):
            if (key[1] not in targets or targets[key[1]] != pump.target) and key not in self._stopping:
                self._stopping.add(key)
                pump.stop(lambda key=key, pump=pump: self._ended(key, pump))  # type: ignore[misc]
        for index in self._stores:
            self._begin(index)

    def _begin(self, index: int) -> None:
        queue = self._entity.queue
        partition = self._entity.route.partitions[index]
        targets: dict[int, str | None] = dict(targets_of(queue))
        if index in self._sent_through:
            targets[SubqueueKind.TRANSFER] = None
        for kind, target in targets.items():
            key = (index, kind)
            if key in self._pumps or index not in self._stores:
                continue
            source, lost = self._source(index, kind, partition), partial(self._lost, key)
            pump = self._forwarder.pump(queue, source, target, lost)
            self._pumps[key] = pump
            pump.begin()

    def _source(self, index: int, kind: int, partition: PartitionHandle) -> Source:
        return Source(
            self._stores[index],
            partition.row,
            kind,
            lambda: partition.options,
            self._entity.queue.name,
            partition.partition_id,
            partial(_generations_of, self._stores[index]),
        )

    def _ended(self, key: tuple[int, int], pump: Pump) -> None:
        """A pump has stopped."""
        if self._pumps.get(key) is pump:
            del self._pumps[key]
            self._stopping.discard(key)
            self._begin(key[0])

    def _lost(self, key: tuple[int, int]) -> None:
        """The store has failed, or goes to another broker."""
        self._pumps.pop(key, None)
        store = self._stores.pop(key[0], None)
        if store is not None:
            row = self._entity.route.partitions[key[0]].row
            transfers = key[0] in self._sent_through
            self._sent_through.discard(key[0])
            store.when_usable(lambda: self._again(store, row, transfers=transfers))

    def _again(self, store: StoreAccess, row: int, *, transfers: bool) -> None:
        """The store can be used again."""
        if targets_of(self._entity.queue):
            self._forwarder.see(store, row)
        if transfers:
            self._forwarder.see(store, row, transfers=True)


def _destination(broker: Broker, name: str) -> Destination | None:
    queue = broker.namespace.find(name)
    if queue is None or queue.deleted:
        return None
    return Destination(
        queue.name,
        broker.entity_of(queue).route.partitions,
        queue.can_send,
        queue.message_size_max_bytes,
        queue.requires_session,
        queue.requires_duplicate_detection,
    )


def _generations_of(store: StoreAccess) -> Sequence[Generation]:
    """The generations of a store that is open here."""
    assert isinstance(store, StoreRuntime), "what is forwarded is in a store of this broker"
    return store.generations


def targets_of(queue: Queue) -> dict[int, str]:
    """Kind of sub-queue -> name of the entity that its messages go on to."""
    options = queue.description.options
    targets: dict[int, str] = {}
    if options.forward_to:
        targets[SubqueueKind.ACTIVE] = options.forward_to
    if options.forward_dead_lettered_to:
        targets[SubqueueKind.DEAD_LETTER] = options.forward_dead_lettered_to
    return targets
