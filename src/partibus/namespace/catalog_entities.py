"""Rows of entities and of the placement of their partitions, in the catalog, and numbers that are given out once."""

import json
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from partibus.errors import (
    ArgumentError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    PartibusError,
    QuotaExceeded,
    StoreUnavailable,
    UnusableFile,
)
from partibus.filters.model import Rule
from partibus.namespace.access import SasPolicy
from partibus.namespace.catalog_database import OF_NAMESPACE, CatalogDatabase, Row
from partibus.namespace.catalog_rows import NamespaceTable, PolicyTable, RuleTable
from partibus.namespace.entities import STANDARD_PARTITION_COUNT, EntityDescription, EntityKind, EntityOptions
from partibus.namespace.names import check_entity_name, check_short_name, fold_name, split_path, subscription_path
from partibus.namespace.namespace_options import DEFAULT_ID, NamespaceOptions
from partibus.namespace.partition_moves import NO_MOVES, EntitySlots
from partibus.namespace.partition_moves import from_plain as slots_from_plain
from partibus.namespace.partition_moves import to_plain as slots_to_plain
from partibus.namespace.placement import Placement, deal, next_first_store_no
from partibus.namespace.properties import options_of, properties_of
from partibus.namespace.tier_rules import changed_options, new_options, partition_count
from partibus.namespace.tiers import Tier, TierLimits, limits_of

_ENTITY_COLUMNS = "entity_id, name, kind, properties, created_ms, updated_ms"
_PLACEMENT_COLUMNS = "partition_no, store_no, partition_row"


PARTITION_ROW_MAX = (1 << 21) - 1
"""Largest number that the stores' keys have room for."""
_SLOTS = "Slots"
"""A field beside the properties of an entity whose slots have moved."""
_PARTITION_COUNT = "PartitionCount"
"""A field beside the properties of a partitioned entity. Entities older than the field have sixteen partitions."""


class EntityRecord(Struct, frozen=True):
    """One entity as the catalog has it."""

    entity_id: int
    description: EntityDescription
    placements: tuple[Placement, ...]
    created_ms: int
    updated_ms: int
    """Rises with every change of options or policies."""
    rules: tuple[Rule, ...] = ()
    """The rules of a subscription, in order of folded name."""
    policies: tuple[SasPolicy, ...] = ()
    """The policies in order of name."""
    namespace_id: int = 0
    slots: EntitySlots = NO_MOVES
    """The owners of slots, and their moves."""


class EntityTable:
    """Calls are parts of the catalog's transactions."""

    def __init__(
        self,
        database: CatalogDatabase,
        store_count: int,
        namespaces: NamespaceTable,
        rules: RuleTable,
        policies: PolicyTable,
        namespace_id: int = DEFAULT_ID,
        *,
        partition_row_max: int = PARTITION_ROW_MAX,
    ) -> None:
        """Make the table of one namespace's entities."""
        self._database = database
        self._namespace_id = namespace_id
        self._store_count = store_count
        self._namespaces = namespaces
        self._rules = rules
        self._policies = policies
        self._partition_row_max = partition_row_max

    @property
    def _namespace(self) -> NamespaceOptions:
        """The present options of the namespace, which another broker may have changed. Raises `EntityNotFound`."""
        return self._namespaces.numbered(self._namespace_id).options

    @property
    def limits(self) -> TierLimits:
        """The numbers of the namespace."""
        return limits_of(self._namespace)

    def all(self) -> list[EntityRecord]:
        """Return the entities in order of creation."""
        placements: dict[int, list[Placement]] = {}
        for entity_id, *place in self._database.execute(
            f"SELECT entity_id, {_PLACEMENT_COLUMNS} FROM placement WHERE {OF_NAMESPACE}"
            " ORDER BY entity_id, partition_no",
            (self._namespace_id,),
        ):
            placements.setdefault(entity_id, []).append(Placement(*place))
        rules, policies = self._rules.of_all(self._namespace_id), self._policies.of_all(self._namespace_id)
        rows = self._database.execute(
            f"SELECT {_ENTITY_COLUMNS} FROM entity WHERE namespace_id = ? ORDER BY entity_id", (self._namespace_id,)
        )
        return [
            self._record(row, placements.get(row[0], ()), rules.get(row[0], ()), policies.get(row[0], ()))
            for row in rows
        ]

    def existing(self, name: str, *, rules: bool = True) -> EntityRecord:
        """Return the row of an entity, with or without its rules. Raises EntityNotFound."""
        record = self.find(name, rules=rules)
        if record is None:
            raise EntityNotFound(name)
        return record

    def find(self, name: str, *, rules: bool = True) -> EntityRecord | None:
        """Return the entity of that name, if there is one."""
        return next(iter(self._select("folded_name", self._key(name), rules=rules)), None)

    def subscriptions_of(self, topic: EntityRecord) -> list[EntityRecord]:
        """Return a topic's subscriptions in order of folded name; none for another entity."""
        return self._select("topic_id", topic.entity_id)

    def update(self, old: EntityRecord, options: EntityOptions, now_ms: int) -> None:
        """Give an entity other options.

        The time rises, also for two changes in one ms and after the clock was set back. Raises `ArgumentError` for
        options that the namespace's tier does not allow.
        """
        kind, partitions = old.description.kind, len(old.placements)
        options = changed_options(self._namespace, kind, options, old.description.options, partitions)
        self._database.execute(
            "UPDATE entity SET properties = ?, updated_ms = ? WHERE entity_id = ?",
            (_to_text(kind, options, partitions, old.slots), max(now_ms, old.updated_ms + 1), old.entity_id),
        )

    def change_slots(self, old: EntityRecord, slots: EntitySlots, partitions: int) -> None:
        """Give an entity other slots, and so many partitions: new ones at the end, or the last ones removed.

        New partitions go to the stores that have the fewest of the entity's. The time of the entity's last change is
        that of its options, and stays.
        """
        places = list(old.placements)
        if partitions > len(places):
            first_row = self._take_partition_rows(partitions - len(places))
            used = [0] * self._store_count
            for place in places:
                used[place.store_no] += 1
            start = places[-1].store_no
            for number in range(len(places), partitions):
                order = range(start + 1, start + 1 + self._store_count)
                store_no = min((turn % self._store_count for turn in order), key=used.__getitem__)
                used[store_no] += 1
                start = store_no
                place = Placement(number, store_no, first_row)
                first_row += 1
                self._database.execute("INSERT INTO placement VALUES (?, ?, ?, ?)", (old.entity_id, *place))
        for place in places[partitions:]:
            self._database.execute("INSERT INTO dropped_partition VALUES (?, ?)", (place.partition_row, place.store_no))
            self._database.execute(
                "DELETE FROM placement WHERE entity_id = ? AND partition_no = ?", (old.entity_id, place.partition_no)
            )
        kind, options = old.description.kind, old.description.options
        self._database.execute(
            "UPDATE entity SET properties = ? WHERE entity_id = ?",
            (_to_text(kind, options, partitions, slots), old.entity_id),
        )

    def remove(self, records: Sequence[EntityRecord]) -> None:
        """Delete entities with their rules and placements."""
        self._database.execute_many("DELETE FROM entity WHERE entity_id = ?", [(one.entity_id,) for one in records])

    def remove_all(self) -> None:
        """Delete all entities of the namespace, and record their partitions as dropped.

        It takes a few statements: ten thousand single deletes take seconds, in which the broker serves no client.
        """
        number = (self._namespace_id,)
        self._database.execute(
            f"INSERT INTO dropped_partition SELECT partition_row, store_no FROM placement WHERE {OF_NAMESPACE}", number
        )
        self._policies.remove_of_entities(self._namespace_id)
        self._database.execute("DELETE FROM entity WHERE namespace_id = ?", number)

    def _key(self, name: str) -> str:
        """Return the key that is unique among the entities of all namespaces."""
        return f"{self._namespace_id}:{fold_name(name)}" if self._namespace_id else fold_name(name)

    def _select(self, column: str, value: object, *, rules: bool = True) -> list[EntityRecord]:
        rows = self._database.execute(
            f"SELECT {_ENTITY_COLUMNS} FROM entity WHERE {column} = ? ORDER BY folded_name", (value,)
        )
        return [
            self._record(row, self._places(row[0]), self._rules.of(row[0]) if rules else (), self._policies.of(row[0]))
            for row in rows
        ]

    def _places(self, entity_id: int) -> list[Placement]:
        statement = f"SELECT {_PLACEMENT_COLUMNS} FROM placement WHERE entity_id = ? ORDER BY partition_no"
        return [Placement(*place) for place in self._database.execute(statement, (entity_id,))]

    def topic_of(self, record: EntityRecord) -> EntityRecord:
        """Return the topic of a subscription. Raises `InvalidOperation` for another entity."""
        topic, subscription = split_path(record.description.name)
        if not subscription:
            raise InvalidOperation(
                f"'{topic}' is a {record.description.kind.value} and has no rules. Name one of a topic's subscriptions."
            )
        return self.existing(topic)

    def create_storing(self, description: EntityDescription, now_ms: int, away: frozenset[int]) -> EntityRecord:
        """Create a queue or topic."""
        name = check_entity_name(description.name)
        namespace = self._namespace
        options = new_options(namespace, description.kind, description.options)
        count = partition_count(namespace, options)
        self.check_partition_count(namespace, count)
        if self.find(name) is not None:
            raise EntityExists(name)
        self._check_quotas(limits_of(namespace), options)
        if count > self._store_count - len(away):
            raise StoreUnavailable(
                f"'{name}' can't be made now: it needs {count} messaging stores, and of "
                f"{self._store_count} stores {len(away)} can't be used. Nothing was made; try again."
            )
        entity_id, placements = self._take_numbers(count, away)
        return self._insert(entity_id, replace(description, options=options), placements, now_ms)

    def create_subscription(self, description: EntityDescription, now_ms: int, away: frozenset[int]) -> EntityRecord:
        """Create a subscription, with partitions beside those of its topic."""
        topic_name, short_name = split_path(description.name)
        check_short_name(short_name)
        namespace = self._namespace
        options = new_options(namespace, EntityKind.SUBSCRIPTION, description.options)
        topic = self.existing(topic_name)
        if topic.description.kind is not EntityKind.TOPIC:
            raise InvalidOperation(
                f"'{topic.description.name}' is a {topic.description.kind.value} and has no subscriptions. "
                "Create a topic, which needs another name."
            )
        name = subscription_path(topic.description.name, short_name)
        if self.find(name) is not None:
            raise EntityExists(name)
        ((count,),) = self._database.execute("SELECT count(*) FROM entity WHERE topic_id = ?", (topic.entity_id,))
        most = limits_of(namespace).subscriptions
        if count >= most:
            raise QuotaExceeded(f"'{topic_name}'", most, "subscriptions", "Delete one that is not needed.")
        if any(place.store_no in away for place in topic.placements):
            raise StoreUnavailable(
                f"'{name}' can't be made now: a messaging store of its topic can't be used. "
                "Nothing was made; try again."
            )
        entity_id, first_row = self._take_rows(len(topic.placements))
        placements = tuple(
            Placement(place.partition_no, place.store_no, first_row + index)
            for index, place in enumerate(topic.placements)
        )
        described = EntityDescription(name, options, EntityKind.SUBSCRIPTION)
        return self._insert(entity_id, described, placements, now_ms, topic.entity_id)

    def check_partition_count(self, namespace: NamespaceOptions, count: int) -> None:
        """ArgumentError when there are not as many stores as an entity would have partitions."""
        if count <= self._store_count:
            return
        more = f"Serve with at least {count} stores, one for each partition (partibus serve --store sqlite:{count})."
        if namespace.tier is Tier.PREMIUM:
            raise ArgumentError("partition_count", count, f"at most {self._store_count}, the number of stores", more)
        raise ArgumentError("EnablePartitioning", True, f"false with {self._store_count} stores", more)

    def _insert(
        self,
        entity_id: int,
        description: EntityDescription,
        placements: tuple[Placement, ...],
        now_ms: int,
        topic_id: int | None = None,
    ) -> EntityRecord:
        name, options, kind = description.name, description.options, description.kind
        self._database.execute(
            f"INSERT INTO entity ({_ENTITY_COLUMNS}, folded_name, topic_id, namespace_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entity_id,
                name,
                kind.value,
                _to_text(kind, options, len(placements)),
                now_ms,
                now_ms,
                self._key(name),
                topic_id,
                self._namespace_id,
            ),
        )
        self._database.execute_many(
            "INSERT INTO placement VALUES (?, ?, ?, ?)", [(entity_id, *placement) for placement in placements]
        )
        return EntityRecord(entity_id, description, placements, now_ms, now_ms, namespace_id=self._namespace_id)

    def _check_quotas(self, limits: TierLimits, options: EntityOptions) -> None:
        ((entity_count,),) = self._database.execute(
            "SELECT (SELECT count(*) FROM entity WHERE namespace_id = ?)"
            " - (SELECT count(*) FROM entity WHERE topic_id IS NOT NULL AND namespace_id = ?)",
            (self._namespace_id, self._namespace_id),
        )
        if entity_count >= limits.entities:
            raise QuotaExceeded("The namespace", limits.entities, "entities", "Delete one that is not needed.")
        if not options.partitioned:
            return
        ((partitioned_count,),) = self._database.execute(
            f"SELECT count(*) FROM placement WHERE partition_no = 1 AND {OF_NAMESPACE}", (self._namespace_id,)
        )
        if partitioned_count >= limits.partitioned_entities:
            # Subscriptions are among them, and are not counted.
            ((partitioned_count,),) = self._database.execute(
                "SELECT count(*) FROM placement JOIN entity ON entity.entity_id = placement.entity_id"
                " WHERE partition_no = 1 AND topic_id IS NULL AND namespace_id = ?",
                (self._namespace_id,),
            )
        if partitioned_count >= limits.partitioned_entities:
            raise QuotaExceeded(
                "The namespace",
                limits.partitioned_entities,
                "partitioned entities",
                "Delete one, or create this one with EnablePartitioning false.",
            )

    def _take_partition_rows(self, count: int) -> int:
        """Take rows for partitions that are added to an entity; return the first."""
        _, first_row = self._take_rows(count, entities=0)
        return first_row

    def _take_rows(self, count: int, *, entities: int = 1) -> tuple[int, int]:
        """Take the next entity id, and the first of so many partition rows."""
        ((entity_id, first_row),) = self._database.execute("SELECT next_entity_id, next_partition_row FROM numbers")
        if first_row + count - 1 > self._partition_row_max:
            raise QuotaExceeded(
                "The namespace",
                self._partition_row_max,
                "partitions made over its life",
                "Move its entities to a new data directory.",
            )
        self._database.execute(
            "UPDATE numbers SET next_entity_id = ?, next_partition_row = ?",
            (entity_id + entities, first_row + count),
        )
        return entity_id, first_row

    def _take_numbers(self, count: int, away: frozenset[int]) -> tuple[int, tuple[Placement, ...]]:
        """Take the next entity id, and the placement of a new queue's or topic's partitions."""
        entity_id, first_row = self._take_rows(count)
        ((first_store_no,),) = self._database.execute("SELECT next_store_no FROM numbers")
        # The number of stores may have changed since the last entity was placed.
        first_store_no %= self._store_count
        self._database.execute(
            "UPDATE numbers SET next_store_no = ?",
            (next_first_store_no(count, self._store_count, first_store_no),),
        )
        return entity_id, deal(count, self._store_count, first_store_no, first_row, away)

    def _record(
        self,
        row: Row,
        placements: Sequence[Placement],
        rules: tuple[Rule, ...] = (),
        policies: tuple[SasPolicy, ...] = (),
    ) -> EntityRecord:
        entity_id, name, kind, properties, created_ms, updated_ms = row
        try:
            options, count, slots = _from_text(kind, properties, len(placements) > 1)
        except (ValueError, TypeError, PartibusError) as error:
            raise self._damaged(name, f"properties that can't be read ({error})") from error
        if len(placements) != count:
            raise self._damaged(name, f"{len(placements)} of its {count} partitions")
        description = EntityDescription(name, options, EntityKind(kind))
        return EntityRecord(
            entity_id,
            description,
            tuple(placements),
            created_ms,
            updated_ms,
            rules,
            policies,
            self._namespace_id,
            slots,
        )

    def _damaged(self, name: str, what: str) -> UnusableFile:
        return UnusableFile(self._database.name, f"has the entity '{name}' with {what}", "Restore it from a backup.")


def _to_text(kind: EntityKind, options: EntityOptions, partitions: int, slots: EntitySlots = NO_MOVES) -> str:
    more: dict[str, object] = {_PARTITION_COUNT: partitions} if partitions > 1 else {}
    if slots != NO_MOVES:
        more[_SLOTS] = slots_to_plain(slots)
    return json.dumps(properties_of(kind, options) | more)


@lru_cache(maxsize=256)
def _from_text(kind: str, properties: str, several: bool) -> tuple[EntityOptions, int, EntitySlots]:
    """Return the options, and the number of partitions.

    Results are cached, because most entities share a few sets of options: 10,000 are read in 0.05 s instead of 0.6 s. A
    subscription is partitioned if it has several partitions.
    """
    document = json.loads(properties)
    if not isinstance(document, dict):
        raise TypeError("no JSON object")
    count = document.pop(_PARTITION_COUNT, None)
    moved = document.pop(_SLOTS, None)
    slots = NO_MOVES if moved is None else slots_from_plain(moved)
    options = options_of(EntityKind(kind), document)
    if kind == EntityKind.SUBSCRIPTION.value:
        options = replace(options, partitioned=several)
    if type(count) is not int:
        count = STANDARD_PARTITION_COUNT if options.partitioned else 1
    return options, count, slots
