"""Entities with their routes: what a front end needs to serve requests, whatever the protocol."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from partibus.clock import Clock, SystemClock
from partibus.errors import EntityDisabled, EntityNotFound, InvalidOperation, PartibusError, Unsupported
from partibus.limits import Limits
from partibus.namespace.access import AccessPolicies
from partibus.namespace.dropping import DroppedPartition
from partibus.namespace.namespace import Namespace, Queue
from partibus.namespace.placement import Placement
from partibus.namespace.properties import changed_options, queue_options
from partibus.routing.detour import CallLater
from partibus.routing.entity import EntityRoute
from partibus.routing.front_end_cache import CallIdle
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.rehearsals import Place, Rehearsals, from_plain, to_plain
from partibus.routing.store_access import StoreAccess

MakeHandle = Callable[[Queue, Placement], PartitionHandle]

Change = Mapping[str, Any]
"""What other brokers must follow, as JSON can hold it: ``entity``, the name of a queue that was made, changed or
deleted, or ``rehearsals``, all that go on."""

Announce = Callable[[Change, Callable[[], None]], None]
"""Tells a change to the other brokers and calls when all have followed."""


AskStatus = Callable[[Callable[[dict[object, object]], None]], None]
"""Gets the brokers and stores of the namespace as they are now: ``brokers`` and ``stores``, lists of maps."""

BackUp = Callable[[str, Sequence[str], Callable[[dict[object, object] | PartibusError], None]], None]
"""Copies stores of these names, all for none, to a directory, and calls with what it did or why not. May raise, too."""


def _no_backups(directory: str, stores: Sequence[str], answer: object) -> NoReturn:
    raise Unsupported("A backup", "Ask a broker that has its stores in files.")


def nobody_else(change: Change, followed: Callable[[], None]) -> None:
    """The `Announce` of a broker that is alone."""
    followed()


class _Announcement:
    """A change that other brokers may not have followed yet."""

    __slots__ = ("calls", "followed")

    def __init__(self) -> None:
        self.followed = False
        self.calls: list[Callable[[], None]] = []

    def end(self) -> None:
        self.followed = True
        calls, self.calls = self.calls, []
        for call in calls:
            call()


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

    def refusal_of_receivers(self, kind: int) -> InvalidOperation | None:
        """Why nobody can receive from a sub-queue, whatever the entity's Status: its messages go on (row F1)."""
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
        announce: Announce = nobody_else,
        stores: Mapping[str, StoreAccess] | None = None,
        call_later: CallLater | None = None,
    ) -> None:
        """``stores``: the ways to all stores by name, in the order of their numbers. ``call_later`` is needed for
        rehearsals, and beside other brokers."""
        self._call_idle: CallIdle | None = None
        if call_later is not None and announce is not nobody_else:
            self._call_idle = lambda call: call_later(limits.cache_idle_ms, call)
        self.namespace = namespace
        self.access = access
        self.clock = clock
        self.wall_clock: Clock = SystemClock()
        """Tokens expire by the real time, also under a manual clock (D26)."""
        self.limits = limits
        self.numbers = numbers
        self._make_handle = make_handle
        self._announce = announce
        self._announced = _Announcement()
        """The last change; `when_followed` is asked right after it."""
        self._announced.end()
        self.back_up: BackUp = _no_backups
        self.ask_status: AskStatus = lambda answer: answer({"brokers": [], "stores": []})
        """Whoever runs the broker knows better."""
        self._entities: dict[int, Entity] = {}
        self._stores = dict(stores or {})
        self._store_names = list(self._stores)
        self.rehearsals = Rehearsals(self._store_names, self._places, call_later)
        """Losses on purpose."""
        self.rehearsals.on_changed = lambda rules: self._spread({"rehearsals": to_plain(rules)})
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
        self._catch_up(name)
        queue = self.namespace.create(name, queue_options(properties), self._stores_away())
        self._tell(name)
        return self._entity_of(queue)

    def update_queue(self, name: str, changes: Mapping[str, object]) -> Entity:
        """Change some properties, by the service's names, with effect on everybody who uses the queue now. Raises what
        `changed_options` and `Namespace.update` raise; then nothing has changed."""
        self._catch_up(name)
        queue = self.namespace.change(name, lambda options: changed_options(options, changes))
        entity = self._entity_of(queue)
        self._go_by(entity)
        self._tell(name)
        return entity

    def delete_queue(self, name: str) -> None:
        """Take a queue out, and its messages out of the stores. Raises `EntityNotFound`."""
        self._catch_up(name)
        entity = self.entity(name)
        self.namespace.delete(name)
        self._let_go(entity.queue)
        self._tell(name)
        # Who uses it lets go first: what links say to a partition when they end would bring it to life again.
        self.when_followed(lambda: self._drop(entity))

    def _drop(self, entity: Entity) -> None:
        for partition in entity.route.partitions:
            DroppedPartition(partition, self.numbers, lambda row: self.namespace.forget_dropped([row])).start()

    def when_followed(self, call: Callable[[], None]) -> None:
        """Call when every broker goes by the change that was made last: at once where there is only this one."""
        if self._announced.followed:
            call()
        else:
            self._announced.calls.append(call)

    def follow(self, change: Change) -> None:
        """Go by what another broker has announced. Idempotent. Raises `StoreUnavailable` when the catalog can't be
        read; then try again."""
        if "entity" in change:
            self._follow_entity(change["entity"])
        if "rehearsals" in change:
            self.rehearsals.follow(from_plain(change["rehearsals"]))

    def _follow_entity(self, name: str) -> None:
        gone, changed = self.namespace.follow(name)
        if gone is not None:
            self._let_go(gone)
        entity = None if changed is None else self.in_use(changed)
        if entity is not None:
            self._go_by(entity)

    def _catch_up(self, name: str) -> None:
        """A change that others have made may not have been told yet."""
        if self._announce is not nobody_else:
            self._follow_entity(name)

    def _tell(self, name: str) -> None:
        self._spread({"entity": name})

    def _spread(self, change: Change) -> None:
        self._announced = _Announcement()
        self._announce(change, self._announced.end)

    def _go_by(self, entity: Entity) -> None:
        """The queue has other options."""
        queue = entity.queue
        for partition, placement in zip(entity.route.partitions, queue.partitions, strict=True):
            partition.follow(self._make_handle(queue, placement))
            if queue.description.options.forwards:
                partition.wake()  # what waits there is forwarded from now on, though nobody uses it
        entity.tell_changed()

    def _let_go(self, queue: Queue) -> None:
        """The queue is deleted."""
        entity = self._entities.pop(queue.entity_id, None)
        if entity is not None:
            entity.tell_changed()

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

    def places_of(self, entity: Entity) -> list[Place]:
        """Where its partitions are."""
        names = self._store_names
        return [
            Place(entity.queue.name, names[placement.store_no] if names else "", partition)
            for placement, partition in zip(entity.queue.partitions, entity.route.partitions, strict=True)
        ]

    def _places(self) -> Iterator[Place]:
        return (place for entity in list(self._entities.values()) for place in self.places_of(entity))

    def _stores_away(self) -> frozenset[int]:
        """Numbers of the stores that can't be used now."""
        return frozenset(
            store_no
            for store_no, (name, store) in enumerate(self._stores.items())
            if store.failure is not None or self.rehearsals.fails(name)
        )

    def _entity_of(self, queue: Queue) -> Entity:
        entity = self._entities.get(queue.entity_id)
        if entity is None:
            partitions = [self._make_handle(queue, placement) for placement in queue.partitions]
            # Entities begin their turns at different partitions, so that many of little traffic fill all alike.
            first_turn = queue.entity_id % len(partitions)
            route = EntityRoute(
                queue.name,
                partitions,
                self.numbers,
                first_turn,
                lock_kept=self.limits.cache_locks,
                call_idle=self._call_idle,
            )
            entity = self._entities[queue.entity_id] = Entity(queue, route)
            self.rehearsals.join(self.places_of(entity))
        return entity
