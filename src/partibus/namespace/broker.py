"""Entities with their routes: the interface of all front ends to a namespace."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from partibus.clock import ClaimClock, Clock
from partibus.errors import ArgumentError, InvalidOperation, PartibusError, Unsupported
from partibus.filters.model import Rule
from partibus.limits import Limits
from partibus.namespace.access import AccessPolicies, SasPolicy
from partibus.namespace.catalog_entities import EntityRecord
from partibus.namespace.changes import Announcer, Change, PolicyChanges, drop
from partibus.namespace.clients import Clients
from partibus.namespace.elastic import ElasticQueues
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions
from partibus.namespace.entity import EntitiesInUse, Entity, MakeHandle
from partibus.namespace.moving import Movers
from partibus.namespace.names import subscription_path
from partibus.namespace.namespace import Namespace, Queue, Topic
from partibus.namespace.namespace_options import DEFAULT_ID
from partibus.namespace.partition_moves import EntitySlots
from partibus.namespace.properties import (
    FORWARD_DEAD_LETTERED_TO,
    FORWARD_TO,
    changed_options,
    options_of,
    replaced_options,
)
from partibus.namespace.requests import RequestCounters
from partibus.namespace.sas import parse_resource
from partibus.routing.arrivals import Arrivals
from partibus.routing.fault_injections import CallLater, FaultInjections, Place, from_plain, to_plain
from partibus.routing.partitions import Numbers
from partibus.routing.store_access import StoreAccess
from partibus.throttling.account import Bank
from partibus.throttling.throttle import Throttle
from partibus.tracing.tracer import Tracer
from partibus.units.account import Account

AskStatus = Callable[[Callable[[dict[object, object]], None]], None]
"""Gets the current brokers and stores of the namespace: ``brokers`` and ``stores``, lists of maps."""

AskMeasured = Callable[[Callable[[Mapping[str, Mapping[str, Any]]], None]], None]
"""Gets the measurements of each broker (`partibus.node.metrics`) by its name."""

BackUp = Callable[[str, Sequence[str], Callable[[dict[object, object] | PartibusError], None]], None]
"""Copies the stores of these names, all for none, to a directory, and calls with the result or an error. May raise,
too.
"""


def _no_backups(directory: str, stores: Sequence[str], answer: object) -> NoReturn:
    raise Unsupported("A backup", "Ask a broker that has its stores in files.")


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
        announcer: Announcer | None = None,
        stores: Mapping[str, StoreAccess] | None = None,
        call_later: CallLater | None = None,
        fault_injections: FaultInjections | None = None,
        bank: Bank | None = None,
    ) -> None:
        """Serve a namespace.

        ``stores`` are the ways to all stores by name, in the order of their numbers. ``call_later`` is needed for fault
        injection, for readers that wait for messages, and beside other brokers. ``fault_injections`` are those of the
        server, where there are other namespaces. ``bank`` has the namespace's credits, where there are other brokers.
        """
        self._announcer = announcer or Announcer()
        self.namespace = namespace
        self.access = access
        self.clock = clock
        self.throttle = Throttle(namespace.record.options.credits, clock, call_later, bank)
        self.wall_clock: Clock = ClaimClock()
        """Tokens expire by real time, also under a manual clock (D26)."""
        self.limits = limits
        self.numbers = numbers
        self.back_up: BackUp = _no_backups
        self.ask_status: AskStatus = lambda answer: answer({"brokers": [], "stores": []})
        """Replaced by the process that runs the broker."""
        self.ask_measured: AskMeasured = lambda answer: answer({})
        """Replaced in the same way."""
        self._stores = dict(stores or {})
        self._store_names = list(self._stores)
        self.fault_injections = fault_injections or FaultInjections(self._store_names, call_later)
        """Injected losses."""
        self.fault_injections.places.append(self._places)
        if fault_injections is None:
            self.fault_injections.on_changed = lambda rules: self._announcer.spread({"rehearsals": to_plain(rules)})
        self.deleted = False
        """Whether the namespace was deleted."""
        self.requests = RequestCounters()
        beside_others = None if self._announcer.is_alone else call_later
        self._entities = EntitiesInUse(
            make_handle,
            numbers,
            limits,
            self.requests,
            beside_others,
            self._made,
            lambda queue: self._follow_entity(queue.name),
        )
        self.movers = Movers(self.entity_of, self.change_slots, clock, call_later)
        """The moves of slots that this broker carries out."""
        self.elastic = ElasticQueues(self.change_slots, clock, call_later, limits.elastic)
        """The elastic queues that this broker's clients use."""
        self.account = Account()
        """The namespace's use of this process."""
        self.clients = Clients(namespace.name, namespace.bounds)
        self.policies = PolicyChanges(namespace, access, self._catch_up, self._tell)
        self.arrivals = Arrivals(call_later)
        """Readers by range that wait for messages."""
        access.follow("", namespace.policies)
        for queue in namespace:
            if queue.policies:
                access.follow(queue.name, queue.policies)
            if queue.slots.moves:
                self.movers.note(queue)

    # -- finding -----------------------------------------------------------------------------------------------------

    def entity(self, path: str) -> Entity:
        """Return the entity of that path, of any kind. Raises `EntityNotFound`."""
        return self.entity_of(self.namespace.entity(path))

    def topic(self, name: str) -> Entity:
        """Return the topic of that name. Raises `EntityNotFound`."""
        return self.entity_of(self.namespace.topic(name))

    def __iter__(self) -> Iterator[Entity]:
        """Iterate over all entities in order of path."""
        return (self.entity_of(queue) for queue in self.namespace)

    def entity_of(self, queue: Queue) -> Entity:
        """Return the entity of a queue of this namespace; its route is made on first use (D1)."""
        return self._entities.of(queue)

    def in_use(self, queue: Queue) -> Entity | None:
        """Return the entity if it was used since the start, or None."""
        return self._entities.find(queue)

    def entities_in_use(self) -> Iterator[Entity]:
        """Iterate over the entities that clients of this broker have used since its start."""
        return iter(self._entities)

    @property
    def tracer(self) -> Tracer | None:
        """The tracer; None: traces are off. It is set before entities are used."""
        return self._entities.tracer

    @tracer.setter
    def tracer(self, tracer: Tracer | None) -> None:
        """Set the tracer."""
        self._entities.tracer = tracer

    # -- entities ----------------------------------------------------------------------------------------------------

    def create_queue(
        self, name: str, properties: Mapping[str, object], *, policies: Iterable[SasPolicy] | None = None
    ) -> Entity:
        """Create a queue from the service's property names. Raises what `options_of` and `Namespace.make` raise."""
        return self._create(name, EntityKind.QUEUE, properties, policies=policies)

    def create_topic(
        self, name: str, properties: Mapping[str, object], *, policies: Iterable[SasPolicy] | None = None
    ) -> Entity:
        """Create a topic as `create_queue` does."""
        return self._create(name, EntityKind.TOPIC, properties, policies=policies)

    def create_subscription(
        self, topic: str, name: str, properties: Mapping[str, object], *, rule: Rule | None = None
    ) -> Entity:
        """Create a subscription as `create_queue` does.

        Without a ``rule`` it begins with one that selects everything.
        """
        return self._create(subscription_path(topic, name), EntityKind.SUBSCRIPTION, properties, rule=rule)

    def update(
        self,
        path: str,
        properties: Mapping[str, object],
        *,
        whole: bool = False,
        policies: Iterable[SasPolicy] | None = None,
        kind: EntityKind | None = None,
        updated_ms: int | None = None,
    ) -> Entity:
        """Change properties by the service's names, with effect on all present users of the entity.

        ``whole``: unnamed properties get their defaults, except those for life. ``policies``: the new policies.
        ``kind``: the required kind of the entity. Raises what `changed_options` and `Namespace.change` raise, and
        `InvalidOperation` for an entity of another kind; then nothing has changed.
        """
        queue = self._known(path, kind)
        self._check_targets(properties)

        def change(old: EntityOptions) -> EntityOptions:
            return (replaced_options if whole else changed_options)(old, properties, queue.kind)

        return self._changed(path, change, policies, updated_ms)

    def update_by(self, path: str, properties: Callable[[EntityOptions], Mapping[str, object]]) -> Entity:
        """Change an entity by the ``properties`` that a function makes of its present options, as `update` does.

        Concurrent changes of other brokers are kept.
        """
        queue = self._known(path, None)
        return self._changed(path, lambda old: changed_options(old, properties(old), queue.kind), None, None)

    def _changed(
        self,
        path: str,
        change: Callable[[EntityOptions], EntityOptions],
        policies: Iterable[SasPolicy] | None,
        updated_ms: int | None,
    ) -> Entity:
        changed = self.namespace.change(path, change, policies=policies, updated_ms=updated_ms)
        entity = self.entity_of(changed)
        self._go_by(entity)
        self._pass_on(changed)
        self._tell(changed.name)
        return entity

    def change_slots(self, path: str, change: Callable[[EntityRecord], tuple[EntitySlots, int]]) -> Entity:
        """Give an entity other slots, and more or fewer partitions (ADR 0026).

        Raises what `Namespace.change_slots` raises.
        """
        queue = self.namespace.entity(path)
        before = list(self.entity_of(queue).route.partitions)
        changed = self.namespace.change_slots(path, change)
        entity = self.entity_of(changed)
        self._go_by(entity)
        self._tell(changed.name)
        gone = before[len(changed.partitions) :]
        if gone:
            self.when_followed(lambda: drop(gone, self.numbers, self.namespace.forget_dropped))
        return entity

    def delete(self, path: str, *, kind: EntityKind | None = None) -> None:
        """Delete an entity with its messages; a topic with its subscriptions.

        ``kind``: the required kind of the entity. Raises `EntityNotFound`, and `InvalidOperation` for another kind.
        """
        self._known(path, kind)
        deleted = self.namespace.delete(path)
        gone = [self.entity_of(queue) for queue in deleted]
        for queue in deleted:
            self._let_go(queue)
        self._tell(deleted[0].name)
        # Links detach first: the commands that they send at their end would load a partition again. Subscriptions come
        # before their topic.
        partitions = [partition for entity in reversed(gone) for partition in entity.route.partitions]
        self.when_followed(lambda: drop(partitions, self.numbers, self.namespace.forget_dropped))

    # -- rules -------------------------------------------------------------------------------------------------------

    def create_rule(self, path: str, rule: Rule) -> Rule:
        """Add a rule to a subscription, for every message published after `when_followed`.

        Raises what `Namespace.add_rule` does.
        """
        self._known(path, EntityKind.SUBSCRIPTION)
        made = self.namespace.add_rule(path, rule)
        self._tell(self.namespace.entity(path).name)
        return made

    def replace_rule(self, path: str, rule: Rule) -> Rule:
        """Replace the rule of that name as `create_rule` does. Raises `EntityNotFound` when there is none."""
        self._known(path, EntityKind.SUBSCRIPTION)
        made = self.namespace.replace_rule(path, rule)
        self._tell(self.namespace.entity(path).name)
        return made

    def delete_rule(self, path: str, name: str) -> None:
        """Delete a rule. Raises `EntityNotFound`."""
        self._known(path, EntityKind.SUBSCRIPTION)
        self.namespace.delete_rule(path, name)
        self._tell(self.namespace.entity(path).name)

    # -- what each change takes --------------------------------------------------------------------------------------

    def _create(
        self,
        path: str,
        kind: EntityKind,
        properties: Mapping[str, object],
        *,
        rule: Rule | None = None,
        policies: Iterable[SasPolicy] | None = None,
    ) -> Entity:
        self._catch_up(path)
        self._check_targets(properties)
        description = EntityDescription(path, options_of(kind, properties), kind)
        queue = self.namespace.make(description, self._stores_away(), rule=rule, policies=policies or ())
        self.access.follow(queue.name, queue.policies)
        self._tell(queue.name)
        return self.entity_of(queue)

    def _check_targets(self, properties: Mapping[str, object]) -> None:
        """Check that absolute forwarding addresses are in this namespace. Raises ArgumentError."""
        for name in (FORWARD_TO, FORWARD_DEAD_LETTERED_TO):
            target = properties.get(name)
            if isinstance(target, str) and "://" in target and not self.access.answers_to(parse_resource(target).host):
                raise ArgumentError(name, target, "a queue or topic of this namespace", "Give its name alone.")

    def _known(self, path: str, kind: EntityKind | None) -> Queue:
        """Return the entity of that path as the catalog has it. It must be of that kind."""
        self._catch_up(path)
        queue = self.namespace.entity(path)
        if kind is not None and queue.kind is not kind:
            raise InvalidOperation(
                f"'{queue.name}' is a {queue.kind.value}, not a {kind.value}. "
                f"Name a {kind.value}, or use the operations of a {queue.kind.value}."
            )
        return queue

    # -- changes, here and elsewhere ---------------------------------------------------------------------------------

    def when_followed(self, call: Callable[[], None]) -> None:
        """Call back once every broker follows the latest change (`Announcer`)."""
        self._announcer.when_followed(call)

    def follow(self, change: Change) -> None:
        """Apply a change that another broker has announced. Idempotent.

        Raises `StoreUnavailable` when the catalog can't be read; then try again.
        """
        if "entity" in change:
            self._follow_entity(change["entity"])
        if "rehearsals" in change:
            self.fault_injections.follow(from_plain(change["rehearsals"]))

    def end(self) -> list[Queue]:
        """End the namespace, which was deleted from the catalog: detach its clients and refuse new ones.

        Returns its entities, for `drop`.
        """
        self.deleted = True
        gone = self.namespace.end()
        for queue in gone:
            self._let_go(queue)
        self.access.close()
        self.fault_injections.places.remove(self._places)
        return gone

    def drop(self, queues: Sequence[Queue]) -> None:
        """Delete the rows of this namespace's deleted entities in the stores. They have no users left."""
        partitions = [partition for queue in reversed(queues) for partition in self._entities.partitions_of(queue)]
        drop(partitions, self.numbers, self.namespace.forget_dropped)

    def _follow_entity(self, path: str) -> None:
        gone, changed = self.namespace.follow(path)
        for queue in gone:
            self._let_go(queue)
        now = self.namespace.find(path) if path else None
        self.access.follow(path, self.namespace.policies if not path else () if now is None else now.policies)
        entity = None if changed is None else self.in_use(changed)
        if changed is not None:
            self._pass_on(changed)
        if entity is not None:
            self._go_by(entity)
        elif now is not None:
            self.movers.note(now)

    def _catch_up(self, path: str) -> None:
        """Read an entity again: the announcement of another broker's change may still be on its way."""
        if not self._announcer.is_alone:
            self._follow_entity(path)

    def _tell(self, path: str) -> None:
        self._announcer.spread({"entity": path, "namespace": self.namespace.record.namespace_id})

    def _go_by(self, entity: Entity) -> None:
        """Apply the entity's new options."""
        queue = entity.queue
        self.access.follow(queue.name, queue.policies)
        self._entities.follow(entity)
        self._inject_fault(entity)
        self.movers.note(queue)
        self.elastic.note(entity)

    def _pass_on(self, queue: Queue) -> None:
        """Apply a topic's default time to live to its subscriptions in use."""
        for subscription in queue.subscriptions if isinstance(queue, Topic) else ():
            entity = self.in_use(subscription)
            if entity is not None and entity.route.partitions[0].options.default_ttl_ms != subscription.default_ttl_ms:
                self._entities.follow(entity)

    def _let_go(self, queue: Queue) -> None:
        """Detach the users of a deleted entity."""
        if self.namespace.find(queue.name) is None:
            self.access.follow(queue.name, ())
        self._entities.let_go(queue)

    # -- where it is -------------------------------------------------------------------------------------------------

    def places_of(self, entity: Entity) -> list[Place]:
        """Return the places of an entity's partitions."""
        names = self._store_names
        return [
            Place(self.qualified(entity.queue.name), names[placement.store_no] if names else "", partition)
            for placement, partition in zip(entity.queue.partitions, entity.route.partitions, strict=True)
        ]

    def _made(self, entity: Entity) -> None:
        """Note the first use of an entity."""
        self._inject_fault(entity)
        self.elastic.note(entity)

    def _inject_fault(self, entity: Entity) -> None:
        """Apply active injected faults to an entity."""
        self.fault_injections.join(self.places_of(entity))

    def _places(self) -> Iterator[Place]:
        return (place for entity in self._entities for place in self.places_of(entity))

    @property
    def is_default(self) -> bool:
        """Whether this is the namespace of the server's operator."""
        return self.namespace.record.namespace_id == DEFAULT_ID

    def qualified(self, path: str) -> str:
        """Return a path that is unique among all namespaces."""
        return path if self.is_default else f"{self.namespace.name}:{path}"

    def _stores_away(self) -> frozenset[int]:
        """Numbers of the stores that can't be used now."""
        return frozenset(
            store_no
            for store_no, (name, store) in enumerate(self._stores.items())
            if store.failure is not None or self.fault_injections.fails(name)
        )
