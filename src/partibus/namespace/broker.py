"""Entities with their routes: what a front end needs to serve requests, whatever the protocol."""

from collections.abc import Callable, Iterator, Mapping

from partibus.clock import Clock, SystemClock
from partibus.limits import Limits
from partibus.namespace.access import AccessPolicies
from partibus.namespace.namespace import Namespace, Queue
from partibus.namespace.placement import Placement
from partibus.namespace.properties import queue_options
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import Numbers, PartitionHandle

MakeHandle = Callable[[Queue, Placement], PartitionHandle]


class Entity:
    """A queue and the way to its partitions."""

    __slots__ = ("queue", "route")

    def __init__(self, queue: Queue, route: EntityRoute) -> None:
        self.queue = queue
        self.route = route


class Broker:
    """The entities of one namespace, as this broker reaches them."""

    def __init__(
        self,
        namespace: Namespace,
        access: AccessPolicies,
        clock: Clock,
        numbers: Numbers,
        limits: Limits,
        make_handle: MakeHandle,
    ) -> None:
        self.namespace = namespace
        self.access = access
        self.clock = clock
        self.wall_clock: Clock = SystemClock()
        """Tokens expire by the real time, also under a manual clock (D26)."""
        self.limits = limits
        self.numbers = numbers
        self._make_handle = make_handle
        self._entities: dict[int, Entity] = {}

    def entity(self, name: str) -> Entity:
        """The entity of that name; routes are made on first use (D1). Raises `EntityNotFound`."""
        return self._entity_of(self.namespace.queue(name))

    def __iter__(self) -> Iterator[Entity]:
        """All entities, in order of name."""
        return (self._entity_of(queue) for queue in self.namespace)

    def create_queue(self, name: str, properties: Mapping[str, object]) -> Entity:
        """Make a queue from the service's property names. Raises what `queue_options` and `Namespace.create` raise."""
        return self._entity_of(self.namespace.create(name, queue_options(properties)))

    def delete_queue(self, name: str) -> None:
        """Take a queue out, and its messages out of the stores. Raises `EntityNotFound`."""
        entity = self.entity(name)
        self.namespace.delete(name)
        self._entities.pop(entity.queue.entity_id, None)
        for partition in entity.route.partitions:
            partition.drop(lambda row: self.namespace.forget_dropped([row]))

    def _entity_of(self, queue: Queue) -> Entity:
        entity = self._entities.get(queue.entity_id)
        if entity is None:
            partitions = [self._make_handle(queue, placement) for placement in queue.partitions]
            # Entities begin their turns at different partitions, so that many of little traffic fill all alike.
            first_turn = queue.entity_id % len(partitions)
            route = EntityRoute(queue.name, partitions, self.numbers, first_turn, lock_kept=self.limits.cache_locks)
            entity = self._entities[queue.entity_id] = Entity(queue, route)
        return entity
