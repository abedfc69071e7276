"""The entities of a namespace in memory, which front ends look up on every attach and request.

The catalog is the truth. It is read once at start, and each change goes there first; memory follows when it is durable.
Other brokers change the same catalog and announce it; then memory follows the catalog (`Namespace.follow`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from partibus.clock import Clock
from partibus.errors import EntityChanged, EntityNotFound, OutcomeUnknown, StoreUnavailable
from partibus.filters.model import Rule
from partibus.namespace.access import SasPolicy
from partibus.namespace.catalog import Catalog, EntityRecord, KnownRules
from partibus.namespace.catalog_rows import DEFAULT_RECORD
from partibus.namespace.config_apply import Applied, apply_config
from partibus.namespace.config_json import Config
from partibus.namespace.entities import DEFAULT_OPTIONS, EntityDescription, EntityKind, EntityOptions
from partibus.namespace.forwards import check_targets
from partibus.namespace.names import fold_name, split_path
from partibus.namespace.namespace_options import Bounds, NamespaceRecord
from partibus.namespace.partition_moves import EntitySlots
from partibus.namespace.placement import Placement
from partibus.namespace.policies import completed
from partibus.namespace.queues import Queue, Subscription, Topic
from partibus.namespace.rules import check_rule, default_rule

__all__ = ["Applied", "Followed", "Namespace", "Queue", "Subscription", "Topic"]

ChangePolicies = Callable[[Sequence[SasPolicy]], Iterable[SasPolicy]]
"""Makes the new policies from the existing ones."""


TopicsByRow = dict[int, tuple[Topic, int]]
"""The topic of a partition, and the partition's index, by the partition's row."""

QueuesByRow = dict[int, Queue]
"""The entity of a partition by the partition's row."""


class Followed(NamedTuple):
    """The result of following a name."""

    gone: Sequence[Queue]
    """The deleted entity with its subscriptions; there may be a new one of that name."""
    changed: Queue | None
    """The entity, if it has other options, rules or policies."""


class Namespace:
    """Entities by name, subscriptions by their path. Names compare without case.

    A change raises what `Catalog` raises; then nothing has changed here either.
    """

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        record: NamespaceRecord = DEFAULT_RECORD,
        topics_by_row: TopicsByRow | None = None,
        queues_by_row: QueuesByRow | None = None,
    ) -> None:
        """Read the entities from a ``catalog`` that looks at this namespace.

        ``topics_by_row`` gets the partitions of its topics, and ``queues_by_row`` those of all its entities; several
        namespaces of a broker share both.
        """
        self._record = record
        self.namespace_id: int = record.namespace_id
        self.bounds = Bounds(record.options)
        self._catalog = catalog
        self._clock = clock
        self._entities: dict[str, Queue] = {}
        self.topics_by_row = {} if topics_by_row is None else topics_by_row
        self.queues_by_row = {} if queues_by_row is None else queues_by_row
        self.policies = catalog.namespace_policies()
        """The policies of the namespace in the catalog, beside those of the keys file."""
        for entity in catalog.list_entities():
            self._add(entity)

    @property
    def record(self) -> NamespaceRecord:
        """The catalog's record, replaced with every change of the namespace's options."""
        return self._record

    @record.setter
    def record(self, record: NamespaceRecord) -> None:
        """Replace the record and the bounds that follow from it."""
        self._record = record
        self.bounds.follow(record.options)

    @property
    def name(self) -> str:
        """The name, which its host names begin with."""
        return self._record.name

    # -- what there is -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entities)

    def __iter__(self) -> Iterator[Queue]:
        """Iterate over all entities by folded name."""
        return iter([entity for _, entity in sorted(self._entities.items())])

    @property
    def queues(self) -> list[Queue]:
        """The queues by folded name."""
        return [entity for entity in self if entity.kind is EntityKind.QUEUE]

    @property
    def topics(self) -> list[Topic]:
        """The topics by folded name."""
        return [entity for entity in self if isinstance(entity, Topic)]

    @property
    def deleted_on_idle(self) -> list[Queue]:
        """The entities with an AutoDeleteOnIdle, in any order."""
        return [entity for entity in self._entities.values() if entity.auto_delete_on_idle_ms is not None]

    def find(self, name: str) -> Queue | None:
        """Return the entity of that name, or None."""
        return self._entities.get(fold_name(name))

    def entity(self, name: str) -> Queue:
        """Return the entity of that name. Raises EntityNotFound."""
        entity = self._entities.get(fold_name(name))
        if entity is None:
            raise EntityNotFound(name)
        return entity

    def queue(self, name: str) -> Queue:
        """Return the queue or subscription of that name. Raises EntityNotFound."""
        entity = self.entity(name)
        if entity.kind is EntityKind.TOPIC:
            raise EntityNotFound(name)
        return entity

    def topic(self, name: str) -> Topic:
        """Return the topic of that name. Raises EntityNotFound."""
        entity = self.entity(name)
        if not isinstance(entity, Topic):
            raise EntityNotFound(name)
        return entity

    def subscription(self, topic: str, name: str) -> Subscription:
        """Return a subscription of a topic. Raises EntityNotFound."""
        return self.topic(topic).subscription(name)

    def end(self) -> list[Queue]:
        """End a deleted namespace; returns its entities."""
        return [gone for queue in list(self._entities.values()) if not queue.deleted for gone in self._take_out(queue)]

    # -- changes -----------------------------------------------------------------------------------------------------

    def create(self, name: str, options: EntityOptions = DEFAULT_OPTIONS, away: frozenset[int] = frozenset()) -> Queue:
        """Create a queue, durably, in stores whose numbers are not in ``away``.

        Raises ArgumentError, EntityExists, QuotaExceeded, and StoreUnavailable when too many stores are away.
        """
        return self.make(EntityDescription(name, options), away)

    def make(
        self,
        description: EntityDescription,
        away: frozenset[int] = frozenset(),
        *,
        rule: Rule | None = None,
        policies: Iterable[SasPolicy] = (),
    ) -> Queue:
        """Create an entity of any kind. A subscription begins with ``rule``, or with one that selects everything.

        Raises what `Catalog.create` and `check_targets` do.
        """
        now_ms = self._clock.now_ms()
        rules = []
        if description.kind is EntityKind.SUBSCRIPTION:
            rules = [self._new_rule(rule or default_rule())]
        with self._catalog.together():
            options = check_targets(self._catalog, description.name, description.options)
            record = self._catalog.create(
                replace(description, options=options),
                now_ms,
                away,
                rules=rules,
                policies=completed(policies, (), now_ms),
            )
        if description.kind is EntityKind.SUBSCRIPTION and self.find(split_path(description.name)[0]) is None:
            self.follow(split_path(description.name)[0])
        return self.find(record.description.name) or self._add(record)

    def update(self, name: str, options: EntityOptions) -> Queue:
        """Replace all options of an entity.

        Raises EntityNotFound, and InvalidOperation for an option that can't change.

        `Broker.update` also tells the users of the entity.
        """
        return self.change(name, lambda _: options)

    def change(
        self,
        name: str,
        change: Callable[[EntityOptions], EntityOptions],
        *,
        policies: Iterable[SasPolicy] | ChangePolicies | None = None,
        updated_ms: int | None = None,
    ) -> Queue:
        """Give an entity the options that ``change`` makes of those in the catalog.

        So a concurrent change of other options, through another broker, is kept. ``policies``: the new policies, or a
        function of the existing ones. Raises what `update` and ``change`` raise, and `EntityChanged` when
        ``updated_ms`` is given and is not that of the entity.
        """
        with self._catalog.together():
            old = self._catalog.get(name)
            if updated_ms is not None and old.updated_ms != updated_ms:
                raise EntityChanged(old.description.name)
            now_ms = self._clock.now_ms()
            before = old.description.options
            options = check_targets(self._catalog, old.description.name, change(before), before)
            wanted = policies(old.policies) if callable(policies) else policies
            new = None if wanted is None else completed(wanted, old.policies, now_ms)
            record = self._catalog.update(name, options, now_ms, new)
        return self._follow_record(record)

    def delete(self, name: str) -> list[Queue]:
        """Delete an entity, a topic with its subscriptions; returns them, the entity first. Raises EntityNotFound.

        Their rows are still in the stores: see `Catalog.dropped_partitions`.
        """
        followed = [self._follow_record(record) for record in self._catalog.delete(name)]
        return self._take_out(followed[0])

    def change_slots(self, name: str, change: Callable[[EntityRecord], tuple[EntitySlots, int]]) -> Queue:
        """Give an entity other slots, and partitions at its end, durably. Raises what `Catalog.change_slots` does."""
        return self._follow_record(self._catalog.change_slots(name, change))

    def add_rule(self, path: str, rule: Rule) -> Rule:
        """Add a rule to the subscription of that path.

        Raises ArgumentError, EntityNotFound, EntityExists, QuotaExceeded, and the errors of `partibus.filters`.
        """
        return self._rule_changed(
            self._catalog.add_rule(path, self._new_rule(rule), self._known_rules(path)), rule.name
        )

    def replace_rule(self, path: str, rule: Rule) -> Rule:
        """Replace the rule of that name. Raises as `add_rule`, and EntityNotFound when there is none."""
        return self._rule_changed(
            self._catalog.replace_rule(path, self._new_rule(rule), self._known_rules(path)), rule.name
        )

    def delete_rule(self, path: str, name: str) -> None:
        """Delete a rule. Raises EntityNotFound for the subscription as well as for the rule."""
        self._follow_record(self._catalog.remove_rule(path, name, self._known_rules(path)))

    def change_policies(self, change: ChangePolicies) -> None:
        """Give the namespace the policies that ``change`` makes of those in the catalog."""
        with self._catalog.together():
            old = self._catalog.namespace_policies()
            new = completed(change(old), old, self._clock.now_ms())
            self._catalog.replace_namespace_policies(new)
        self.policies = new

    def follow(self, name: str) -> Followed:
        """Follow a change by another broker. Idempotent.

        It concerns the entity of that name, or with an empty name the policies of the namespace.
        """
        if not name:
            self.policies = self._catalog.namespace_policies()
            return Followed((), None)
        topic, subscription = split_path(name)
        gone = list(self.follow(topic).gone) if subscription else []
        try:
            record = self._catalog.get(name)
        except EntityNotFound:
            record = None
        known = self.find(name)
        if known is not None and (record is None or record.entity_id != known.entity_id):
            gone += self._take_out(known)
            known = None
        if record is None:
            return Followed(gone, None)
        if known is not None and known.is_as(record):
            return Followed(gone, None)
        entity = self._follow_record(record)
        if known is None and record.description.kind is EntityKind.TOPIC:
            for one in self._catalog.subscriptions_of(record):
                self._follow_record(one)
        return Followed(gone, None if known is None else entity)

    def unlike(self, records: Iterable[EntityRecord]) -> set[str]:
        """Return the names of entities that differ from these records, which are all that exist."""
        by_name = {fold_name(record.description.name): record for record in records}
        gone = {queue.name for name, queue in self._entities.items() if name not in by_name}
        return gone | {
            record.description.name
            for name, record in by_name.items()
            if (known := self._entities.get(name)) is None
            or known.entity_id != record.entity_id
            or not known.is_as(record)
        }

    def forget_dropped(self, partition_rows: Iterable[int]) -> None:
        """Record that the stores have deleted the rows of these partitions.

        If that can't be recorded now, the rows are deleted again when their store is opened the next time.
        """
        with suppress(StoreUnavailable, OutcomeUnknown):
            self._catalog.forget_dropped(partition_rows)

    def apply(self, config: Config) -> Applied:
        """Apply a configuration (`partibus.namespace.config_apply`)."""
        applied, records = apply_config(self._catalog, config, self._clock.now_ms())
        for record in records:
            self._follow_record(record)
        return applied

    # -- memory ------------------------------------------------------------------------------------------------------

    def _new_rule(self, rule: Rule) -> Rule:
        """Check a new rule, and date it."""
        check_rule(rule)
        return replace(rule, created_ms=self._clock.now_ms())

    def _known_rules(self, path: str) -> KnownRules | None:
        """Return a subscription's rules in memory. Beside others, a broker has just read them."""
        known = self.find(path)
        return (known.entity_id, known.rules) if isinstance(known, Subscription) else None

    def _rule_changed(self, record: EntityRecord, name: str) -> Rule:
        subscription = self._follow_record(record)
        assert isinstance(subscription, Subscription), "only they have rules"
        return subscription.rule(name)

    def _follow_record(self, record: EntityRecord) -> Queue:
        """Make or update the entity of a record."""
        known = self.find(record.description.name)
        if known is not None and known.entity_id == record.entity_id:
            before = known.partitions
            known.follow(record)
            if known.partitions != before:
                self._replaced(known, before)
            return known
        if known is not None:
            self._take_out(known)
        return self._add(record)

    def _add(self, record: EntityRecord) -> Queue:
        entity: Queue
        if record.description.kind is EntityKind.QUEUE:
            entity = Queue(record, self.bounds)
        elif record.description.kind is EntityKind.TOPIC:
            entity = Topic(record, self.bounds)
            for index, placement in enumerate(entity.partitions):
                self.topics_by_row[placement.partition_row] = (entity, index)
        else:
            topic = self.topic(split_path(record.description.name)[0])
            entity = Subscription(record, topic)
            topic.add(entity)
        self._entities[fold_name(entity.name)] = entity
        for placement in entity.partitions:
            self.queues_by_row[placement.partition_row] = entity
        return entity

    def _replaced(self, entity: Queue, before: Sequence[Placement]) -> None:
        """Follow partitions that were added to an entity, or removed."""
        for placement in before:
            del self.queues_by_row[placement.partition_row]
        for placement in entity.partitions:
            self.queues_by_row[placement.partition_row] = entity

    def _take_out(self, entity: Queue) -> list[Queue]:
        """Remove an entity from memory, a topic with its subscriptions; returns them."""
        gone = [entity, *(entity.subscriptions if isinstance(entity, Topic) else ())]
        for one in reversed(gone):
            self._remove(one)
        return gone

    def _remove(self, entity: Queue) -> None:
        entity.deleted = True
        del self._entities[fold_name(entity.name)]
        for placement in entity.partitions:
            del self.queues_by_row[placement.partition_row]
        if isinstance(entity, Subscription):
            entity.topic.remove(entity)
        elif isinstance(entity, Topic):
            for placement in entity.partitions:
                del self.topics_by_row[placement.partition_row]
