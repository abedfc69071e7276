"""The entities of a namespace that were used since the start; their routes are made on first use (D1)."""

from collections.abc import Callable, Iterator

from partibus.limits import Limits
from partibus.namespace.entity import Entity
from partibus.namespace.namespace import Queue
from partibus.namespace.placement import Placement
from partibus.namespace.requests import RequestCounters
from partibus.routing.entity import EntityRoute
from partibus.routing.faulty_route import CallLater
from partibus.routing.front_end_cache import CallIdle
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.tracing.tracer import Tracer

MakeHandle = Callable[[Queue, Placement], PartitionHandle]


class EntitiesInUse:
    """Entities by the ids of their queues."""

    def __init__(
        self,
        make_handle: MakeHandle,
        numbers: Numbers,
        limits: Limits,
        requests: RequestCounters,
        call_later: CallLater | None,
        made: Callable[[Entity], None],
        catch_up: Callable[[Queue], None] = lambda _: None,
    ) -> None:
        """Begin without entities.

        ``call_later`` is None where there is one broker, which may keep messages for its receivers without limit.
        ``made`` is called with each entity before its first use. ``catch_up`` reads an entity from the catalog, and
        tells `follow`.
        """
        self._make_handle = make_handle
        self._numbers = numbers
        self._limits = limits
        self._requests = requests
        self._call_idle: CallIdle | None = None
        if call_later is not None:
            self._call_idle = lambda call: call_later(limits.cache_idle_ms, call)
        self._made = made
        self._catch_up = catch_up
        self._entities: dict[int, Entity] = {}
        self.tracer: Tracer | None = None
        """The tracer; None: traces are off."""

    def __iter__(self) -> Iterator[Entity]:
        return iter(list(self._entities.values()))

    def find(self, queue: Queue) -> Entity | None:
        """Return the entity if it was used, or None."""
        return self._entities.get(queue.entity_id)

    def of(self, queue: Queue) -> Entity:
        """Return the entity, and make it on first use."""
        return self._entities.get(queue.entity_id) or self._make(queue)

    def follow(self, entity: Entity) -> None:
        """Apply new options to an entity and its users."""
        queue, route = entity.queue, entity.route
        added = [self._make_handle(queue, placement) for placement in queue.partitions[len(route.partitions) :]]
        if len(route.partitions) > len(queue.partitions):
            route.shrink(len(queue.partitions))
        route.is_elastic = queue.is_elastic
        if added or route.slots.version != queue.slots.version:
            route.follow(added, queue.slots.map(len(queue.partitions)))
        for partition, placement in zip(route.partitions, queue.partitions, strict=True):
            partition.follow(self._make_handle(queue, placement))
            if queue.description.options.forwards:
                partition.wake()  # it forwards its waiting messages from now on, also without clients
        entity.tell_changed()

    def let_go(self, queue: Queue) -> None:
        """Tell the users of an entity that it was deleted."""
        entity = self._entities.pop(queue.entity_id, None)
        if entity is not None:
            entity.tell_changed()

    def partitions_of(self, queue: Queue) -> list[PartitionHandle]:
        """Make new ways to its partitions, whether it is in use or not."""
        return [self._make_handle(queue, placement) for placement in queue.partitions]

    def _make(self, queue: Queue) -> Entity:
        partitions = self.partitions_of(queue)
        # Entities begin at different partitions, so that many with little traffic fill all alike.
        first_turn = queue.entity_id % len(partitions)
        route = EntityRoute(
            queue.name,
            partitions,
            self._numbers,
            first_turn,
            lock_kept=self._limits.cache_locks,
            call_idle=self._call_idle,
            slots=queue.slots.map(len(partitions)),
            is_elastic=queue.is_elastic,
        )
        route.on_unknown = lambda: self._catch_up(queue)
        entity = self._entities[queue.entity_id] = Entity(queue, route, self._requests, self.tracer)
        self._made(entity)
        return entity
