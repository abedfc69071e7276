"""Entities with their routes: what a front end needs to serve requests, whatever the protocol."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from partibus.clock import Clock, SystemClock
from partibus.errors import EntityDisabled, EntityNotFound
from partibus.limits import Limits
from partibus.namespace.access import AccessPolicies
from partibus.namespace.namespace import Namespace, Queue
from partibus.namespace.placement import Placement
from partibus.namespace.properties import changed_options, queue_options
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import Numbers, PartitionHandle

MakeHandle = Callable[[Queue, Placement], PartitionHandle]


class EntityUser(Protocol):
    """Who uses an entity for longer than one request: a link, mostly."""

    @property
    def waiting(self) -> bool:
        """It waits for messages: the entity is not idle."""
        ...

    def on_entity_changed(self) -> None:
        """The queue has other options, or is ``deleted``: look at it again."""
        ...


class Entity:
    """A queue and the way to its partitions."""

    __slots__ = ("_users", "queue", "route")

    def __init__(self, queue: Queue, route: EntityRoute) -> None:
        self.queue = queue
        self.route = route
        self._users: set[EntityUser] = set()

    def check_send(self) -> None:
        """Raises `EntityNotFound` and `EntityDisabled` when nobody can send to it now."""
        queue = self.queue
        if queue.deleted:
            raise EntityNotFound(queue.name)
        if not queue.can_send:
            raise EntityDisabled(queue.name, queue.description.options.status.value)

    def check_receive(self) -> None:
        """Raises `EntityNotFound` and `EntityDisabled` when nobody can receive from it now."""
        queue = self.queue
        if queue.deleted:
            raise EntityNotFound(queue.name)
        if not queue.can_receive:
            raise EntityDisabled(queue.name, queue.description.options.status.value)

    def join(self, user: EntityUser) -> None:
        """Tell ``user`` of changes, until it leaves."""
        self._users.add(user)

    def leave(self, user: EntityUser) -> None:
        """Idempotent."""
        self._users.discard(user)

    @property
    def awaited(self) -> bool:
        """Somebody waits for messages."""
        return any(user.waiting for user in self._users)

    def tell_changed(self) -> None:
        """After an update, and after the end."""
        for user in list(self._users):
            user.on_entity_changed()


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
        self.on_clock_moved: list[Callable[[], None]] = []
        """Called when the clock was moved by hand (D26): run what has fallen due by `clock`. Timers that the loop has
        were set for the time that was."""

    def entity(self, name: str) -> Entity:
        """The entity of that name; routes are made on first use (D1). Raises `EntityNotFound`."""
        return self._entity_of(self.namespace.queue(name))

    def __iter__(self) -> Iterator[Entity]:
        """All entities, in order of name."""
        return (self._entity_of(queue) for queue in self.namespace)

    def create_queue(self, name: str, properties: Mapping[str, object]) -> Entity:
        """Make a queue from the service's property names. Raises what `queue_options` and `Namespace.create` raise."""
        return self._entity_of(self.namespace.create(name, queue_options(properties)))

    def update_queue(self, name: str, changes: Mapping[str, object]) -> Entity:
        """Change some properties, by the service's names, with effect on everybody who uses the queue now. Raises what
        `changed_options` and `Namespace.update` raise; then nothing has changed."""
        queue = self.namespace.queue(name)
        self.namespace.update(name, changed_options(queue.description.options, changes))
        entity = self._entity_of(queue)
        for partition, placement in zip(entity.route.partitions, queue.partitions, strict=True):
            partition.follow(self._make_handle(queue, placement))
        entity.tell_changed()
        return entity

    def delete_queue(self, name: str) -> None:
        """Take a queue out, and its messages out of the stores. Raises `EntityNotFound`."""
        entity = self.entity(name)
        self.namespace.delete(name)
        self._entities.pop(entity.queue.entity_id, None)
        # Who uses it lets go first: what links say to a partition when they end would bring it to life again.
        entity.tell_changed()
        for partition in entity.route.partitions:
            partition.drop(lambda row: self.namespace.forget_dropped([row]))

    def wake_partitions(self, partition_rows: list[int]) -> None:
        """Have partitions loaded that nobody may use: something falls due in them."""
        rows = set(partition_rows)
        for queue in self.namespace if rows else ():
            wanted = [i for i, placement in enumerate(queue.partitions) if placement.partition_row in rows]
            for index in wanted:
                self._entity_of(queue).route.partitions[index].wake()

    def in_use(self, queue: Queue) -> Entity | None:
        """The entity, if anybody has asked for it since the start."""
        return self._entities.get(queue.entity_id)

    def _entity_of(self, queue: Queue) -> Entity:
        entity = self._entities.get(queue.entity_id)
        if entity is None:
            partitions = [self._make_handle(queue, placement) for placement in queue.partitions]
            # Entities begin their turns at different partitions, so that many of little traffic fill all alike.
            first_turn = queue.entity_id % len(partitions)
            route = EntityRoute(queue.name, partitions, self.numbers, first_turn, lock_kept=self.limits.cache_locks)
            entity = self._entities[queue.entity_id] = Entity(queue, route)
        return entity
