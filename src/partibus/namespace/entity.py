"""One entity as front ends use it: its options, the way to its partitions, and the users to tell of changes."""

from typing import Protocol

from partibus.errors import EntityDisabled, EntityNotFound, InvalidOperation
from partibus.namespace.entities import EntityKind
from partibus.namespace.queues import Queue
from partibus.namespace.requests import RequestCounters
from partibus.routing.elastic import Elastic
from partibus.routing.entity import EntityRoute
from partibus.tracing.tracer import Tracer


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
            user.on_entity_changed()
