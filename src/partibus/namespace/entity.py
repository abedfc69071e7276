"""Entities as front ends use them: options, the way to the partitions, and the users to tell of changes.

A namespace keeps those that were used since the start; their routes are made on first use (D1).
"""

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from partibus.errors import EntityDisabled, EntityNotFound, InvalidOperation
from partibus.limits import Limits
from partibus.namespace.entities import EntityKind
from partibus.namespace.placement import Placement
from partibus.namespace.queues import Queue
from partibus.namespace.requests import RequestCounters
from partibus.routing.elastic import Elastic
from partibus.routing.entity import EntityRoute
from partibus.routing.fault_injections import CallLater
from partibus.routing.front_end_cache import CallIdle
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.tracing.tracer import Tracer

log = logging.getLogger(__name__)


class EntityUser(Protocol):
    """A user of an entity for longer than one request: a link, mostly."""

    @property
    def waiting(self) -> bool:
        """Whether it waits for messages, so that the entity is not idle."""
        ...

    def on_entity_changed(self) -> None:
        """Look at the queue again: it has other options, or is ``deleted``."""
        ...


class Entity:
    """A queue, topic or subscription, and the way to its partitions."""

    __slots__ = ("_users", "elastic", "hot_slot", "queue", "requests", "route", "tracer", "transmissions")

    def __init__(
        self, queue: Queue, route: EntityRoute, requests: RequestCounters, tracer: Tracer | None = None
    ) -> None:
        self.queue = queue
        self.route = route
        self.requests = requests
        """The counters of the whole namespace."""
        self.tracer = tracer
        """The tracer; None: traces are off."""
        self._users: set[EntityUser] = set()
        self.elastic: Elastic | None = None
        """The measurement and the budgets of partitions, of an elastic queue or one that enforces its throughput."""
        self.transmissions = 0
        """Reads of this broker's connections that brought messages for the entity."""
        self.hot_slot: int | None = None
        """A slot with most of a partition's load, which keeps an elastic queue from being split."""

    @property
    def away(self) -> list[int]:
        """Ids of the partitions whose stores can't be used now."""
        return [partition.partition_id for partition in self.route.partitions if not partition.available]

    @property
    def deleted(self) -> bool:
        """Whether it was deleted. An entity that is made again at its path is another one."""
        return self.queue.deleted

    def status(self) -> str:
        """Return the EntityAvailabilityStatus (row A4)."""
        return "Limited" if self.away else "Available"

    def check_send(self) -> None:
        """Check that the entity takes messages. Raises `EntityNotFound`, `EntityDisabled` and `InvalidOperation`."""
        queue = self.queue
        if queue.deleted:
            raise EntityNotFound(queue.name)
        if queue.kind is EntityKind.SUBSCRIPTION:
            raise InvalidOperation(
                f"'{queue.name}' is a subscription: it gets what its topic gives it. Send to the topic."
            )
        if not queue.can_send:
            raise EntityDisabled(queue.name, queue.description.options.status.value)

    def check_receive(self) -> None:
        """Check that the entity hands out messages.

        Raises `EntityNotFound`, `EntityDisabled` and `InvalidOperation`.
        """
        queue = self.queue
        if queue.deleted:
            raise EntityNotFound(queue.name)
        if queue.kind is EntityKind.TOPIC:
            raise InvalidOperation(f"'{queue.name}' is a topic. Receive from one of its subscriptions.")
        if not queue.can_receive:
            raise EntityDisabled(queue.name, queue.description.options.status.value)

    def refusal_of_receivers(self, kind: int) -> InvalidOperation | None:
        """Return why a sub-queue takes no receivers whatever the entity's Status: it forwards (row F1).

        It returns None if the sub-queue takes receivers.
        """
        options = self.queue.description.options
        target = {0: options.forward_to, 1: options.forward_dead_lettered_to}.get(kind)
        if not target:
            return None
        what = "an entity" if kind == 0 else "a dead-letter queue"
        return InvalidOperation(
            f"Cannot create a message receiver on {what} with auto-forwarding enabled: '{self.queue.name}' forwards to "
            f"'{target}'. Receive from there, or take the forwarding away."
        )

    def join(self, user: EntityUser) -> None:
        """Tell ``user`` of changes until it leaves."""
        self._users.add(user)

    def leave(self, user: EntityUser) -> None:
        """Remove a user. Idempotent."""
        self._users.discard(user)

    @property
    def awaited(self) -> bool:
        """Whether a user waits for messages."""
        return any(user.waiting for user in self._users)

    def tell_changed(self) -> None:
        """Tell the users of an update, or of the entity's end."""
        for user in list(self._users):
            try:
                user.on_entity_changed()
            except Exception:  # a bug of ours: the others, and what follows the change, go on
                log.exception("internal error: a user of '%s' does not follow its change", self.queue.name)


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
        # One that was removed may have come again since, with another row.
        kept = list(map(_is_of, route.partitions, queue.partitions))
        count = len(kept) if all(kept) else kept.index(False)
        if len(route.partitions) > count:
            route.shrink(count)
        added = [self._make_handle(queue, placement) for placement in queue.partitions[count:]]
        route.is_elastic = queue.is_elastic
        if added or route.slots.version != queue.slots.version:
            route.follow(added, queue.slots.map(len(queue.partitions)))
        for partition, placement in zip(route.partitions, queue.partitions, strict=True):
            partition.follow(self._make_handle(queue, placement))
            if queue.description.options.forwards:
                _wake(entity, partition)  # it forwards its waiting messages from now on, also without clients
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


def _is_of(partition: PartitionHandle, placement: Placement) -> bool:
    return partition.row == placement.partition_row


def _wake(entity: Entity, partition: PartitionHandle) -> None:
    """Load a partition now, or when its store is available: a lost `Tick` has no reply."""

    def wake() -> None:
        if not entity.deleted and partition in entity.route.partitions:
            partition.wake()

    if partition.available:
        wake()
    else:
        partition.when_usable(wake)
