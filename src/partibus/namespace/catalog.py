"""The catalog: the entities, their properties, and the placement of their partitions (D1, D19).

It is a small database, used by every administrative operation and by none that moves a message: a SQLite file in the
data directory, or a schema in PostgreSQL (`partibus.namespace.catalog_database` has the rules for its statements). Each
change is one transaction, durable when the call returns. Calls block for about one disk sync and run one at a time.

Several brokers may have it open. One sees another's changes when it asks; `partibus.namespace.namespace` keeps their
memory up to date.

Entity ids and partition rows are given out once, even when the entity is deleted or the process dies. The rows that a
deleted entity leaves in the stores are recorded until they are deleted (`dropped_partitions`).
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from pathlib import Path

from msgspec.structs import replace

from partibus.errors import InvalidOperation, UnusableFile
from partibus.filters.model import Rule
from partibus.namespace.access import SasPolicy
from partibus.namespace.catalog_database import CatalogDatabase
from partibus.namespace.catalog_entities import PARTITION_ROW_MAX, EntityRecord, EntityTable
from partibus.namespace.catalog_file import BUSY_TIMEOUT_S, CatalogFile, ChangeRecord
from partibus.namespace.catalog_rows import NamespaceTable, PolicyTable, RuleTable, owner_of
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions
from partibus.namespace.names import fold_name
from partibus.namespace.namespace_options import DEFAULT_ID, NamespaceOptions, NamespaceRecord
from partibus.namespace.partition_moves import EntitySlots
from partibus.namespace.properties import change_refused, immutable_changes
from partibus.namespace.tiers import limits_of

__all__ = ["Catalog", "EntityRecord"]

KnownRules = tuple[int, tuple[Rule, ...]]
"""The entity id of a subscription, and its rules in order of folded name."""

_LAST_STORE_NO = """
    SELECT max(store_no) FROM (SELECT store_no FROM placement UNION ALL SELECT store_no FROM dropped_partition) AS used
"""


class Catalog:
    """Every call may raise StoreUnavailable (nothing was changed) or, rarely, OutcomeUnknown."""

    def __init__(
        self,
        place: Path | CatalogDatabase,
        store_count: int,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        partition_row_max: int = PARTITION_ROW_MAX,
        record: ChangeRecord | None = None,
    ) -> None:
        """Open a catalog.

        ``place``: a data directory, in which ``catalog.db`` is opened or made, or an open database.
        ``busy_timeout_s``: how long a call on the file waits while another process makes a change. ``record``: of the
        last change of the file. Raises `UnusableFile` when the catalog can't be used, is an older copy by the record,
        or has partitions in a store past ``store_count``.
        """
        self._database = CatalogFile(place, busy_timeout_s, record) if isinstance(place, Path) else place
        self._store_count = store_count
        self._partition_row_max = partition_row_max
        self._rules = RuleTable(self._database)
        self._policies = PolicyTable(self._database)
        self._namespaces = NamespaceTable(self._database)
        self._look_at(DEFAULT_ID)
        ((last_store_no,),) = self._database.execute(_LAST_STORE_NO)
        if last_store_no is not None and last_store_no >= store_count:
            self.close()
            raise UnusableFile(
                self._database.name,
                f"places partitions in store {last_store_no}, but there are only {store_count} stores",
                f"Serve with at least {last_store_no + 1} stores.",
            )

    def of(self, namespace_id: int) -> "Catalog":
        """Return the same catalog for the entities and policies of another namespace. It is closed with this one."""
        other = copy(self)
        other._look_at(namespace_id)  # noqa: SLF001 (of this class)
        return other

    def _look_at(self, namespace_id: int) -> None:
        self.namespace_id = namespace_id
        self._entities = EntityTable(
            self._database,
            self._store_count,
            self._namespaces,
            self._rules,
            self._policies,
            namespace_id,
            partition_row_max=self._partition_row_max,
        )

    def _note(self, path: str) -> None:
        """Note a change of the entity of that path; with an empty path, of the namespace's policies."""
        self._database.note({"entity": path, "namespace": self.namespace_id})

    @property
    def store_count(self) -> int:
        """The number of stores over which partitions are dealt."""
        return self._store_count

    def close(self) -> None:
        """Close the catalog. Idempotent."""
        self._database.close()

    def together(self) -> AbstractContextManager[None]:
        """Make all changes of a block durable together at its end, or none."""
        return self._changing()

    # -- namespaces --------------------------------------------------------------------------------------------------

    def list_namespaces(self) -> list[NamespaceRecord]:
        """Return the namespaces in order of creation, the default one first."""
        with self._reading():
            return self._namespaces.all()

    def namespace(self, name: str) -> NamespaceRecord:
        """Return a namespace. Raises EntityNotFound."""
        with self._reading():
            return self._namespaces.existing(name)

    def create_namespace(
        self, name: str, options: NamespaceOptions, now_ms: int, policies: Sequence[SasPolicy]
    ) -> NamespaceRecord:
        """Create a namespace. Raises EntityExists, or ArgumentError for more partitions than stores."""
        with self._changing():
            self._entities.check_partition_count(options, options.partition_count)
            record = self._namespaces.create(name, options, now_ms)
            most = limits_of(options).policies
            self._policies.replace_all(owner_of(record.namespace_id), f"'{name}'", policies, most)
            self._database.note({"namespaces": True})
        return record

    def update_namespace(
        self, name: str, change: Callable[[NamespaceOptions], NamespaceOptions], now_ms: int
    ) -> NamespaceRecord:
        """Give a namespace the options that ``change`` makes of its present ones.

        Raises `EntityNotFound`, `ArgumentError` for more partitions than stores, and what ``change`` raises.
        """
        with self._changing():
            old = self._namespaces.existing(name)
            options = change(old.options)
            self._entities.check_partition_count(options, options.partition_count)
            record = self._namespaces.update(old, options, now_ms)
            self._database.note({"namespaces": True})
        return record

    def delete_namespace(self, name: str) -> NamespaceRecord:
        """Delete a namespace with all that is in it, and note the partitions as dropped. Raises `EntityNotFound`."""
        with self._changing():
            record = self._namespaces.existing(name)
            self.of(record.namespace_id)._entities.remove_all()  # noqa: SLF001 (of this class)
            self._policies.remove_all(owner_of(record.namespace_id))
            self._namespaces.remove(record.namespace_id)
            self._database.note({"namespaces": True})
        return record

    def options(self) -> NamespaceOptions:
        """Return the present options of this namespace. Raises `EntityNotFound` when it was deleted."""
        with self._reading():
            return self._namespaces.numbered(self.namespace_id).options

    # -- entities ----------------------------------------------------------------------------------------------------

    def list_entities(self) -> list[EntityRecord]:
        """Return all entities in order of their creation."""
        with self._reading():
            return self._entities.all()

    def get(self, name: str) -> EntityRecord:
        """Return an entity. Raises EntityNotFound."""
        with self._reading():
            return self._entities.existing(name)

    def subscriptions_of(self, topic: EntityRecord) -> list[EntityRecord]:
        """Return the subscriptions of a topic in order of folded name."""
        with self._reading():
            return self._entities.subscriptions_of(topic)

    def create(
        self,
        description: EntityDescription,
        now_ms: int,
        away: frozenset[int] = frozenset(),
        *,
        rules: Sequence[Rule] = (),
        policies: Sequence[SasPolicy] = (),
    ) -> EntityRecord:
        """Add an entity, and place its partitions on the stores that are not ``away``.

        Partitions of a subscription lie beside those of its topic (D17). Raises `ArgumentError` for its name or for
        more partitions than stores, `EntityExists`, `QuotaExceeded`, `EntityNotFound` for a missing topic, and
        `StoreUnavailable` when too many stores are away (row A2).
        """
        with self._changing():
            if description.kind is EntityKind.SUBSCRIPTION:
                record = self._entities.create_subscription(description, now_ms, away)
            else:
                record = self._entities.create_storing(description, now_ms, away)
            name = record.description.name
            limits = self._entities.limits
            for rule in rules:
                self._rules.add(record.entity_id, name, self._entities.topic_of(record).entity_id, rule, limits)
            if policies:
                self._policies.replace_all(record.entity_id, f"'{name}'", policies, limits.policies)
            self._note(name)
            return self._entities.existing(name)

    def update(
        self,
        name: str,
        options: EntityOptions,
        now_ms: int,
        policies: Sequence[SasPolicy] | None = None,
        *,
        is_new: bool = False,
    ) -> EntityRecord:
        """Give an entity other options, and other policies if given.

        ``is_new``: it was created in the same change of the catalog, without its forwarding. Raises `EntityNotFound`,
        `QuotaExceeded`, `InvalidOperation` when one of the options can't change (row P9), and `ArgumentError` when the
        tier does not allow one.
        """
        with self._changing():
            old = self._entities.existing(name)
            kind, name = old.description.kind, old.description.name
            for change in immutable_changes(old.description.options, options, kind, is_new=is_new):
                raise InvalidOperation(change_refused(name, change, kind))
            self._entities.update(old, options, now_ms)
            if policies is not None:
                self._policies.replace_all(old.entity_id, f"'{name}'", policies, self._entities.limits.policies)
            self._note(name)
            return self._entities.existing(name)

    def change_slots(self, name: str, change: Callable[[EntityRecord], tuple[EntitySlots, int]]) -> EntityRecord:
        """Give an entity the slots and the number of partitions that ``change`` makes of its record.

        Raises EntityNotFound, QuotaExceeded, and what ``change`` raises.
        """
        with self._changing():
            old = self._entities.existing(name)
            slots, partitions = change(old)
            if (slots, partitions) == (old.slots, len(old.placements)):
                return old
            self._entities.change_slots(old, slots, partitions)
            self._note(old.description.name)
            return self._entities.existing(name)

    def delete(self, name: str) -> list[EntityRecord]:
        """Delete an entity, a topic with its subscriptions, and record their partitions as dropped.

        Returns the deleted records, the entity first. Raises `EntityNotFound`.
        """
        with self._changing():
            record = self._entities.existing(name)
            records = [record, *self._entities.subscriptions_of(record)]
            self._database.execute_many(
                "INSERT INTO dropped_partition VALUES (?, ?)",
                [(place.partition_row, place.store_no) for one in records for place in one.placements],
            )
            for one in records:
                self._policies.remove_all(one.entity_id)
            self._entities.remove(records)
            self._note(record.description.name)
        return records

    def add_rule(self, subscription: str, rule: Rule, known: KnownRules | None = None) -> EntityRecord:
        """Add a rule to a subscription. Raises `EntityNotFound`, `EntityExists`, `QuotaExceeded`.

        ``known``: the rules before the change, if the caller has them. Reading 10,000 takes a tenth of a second.
        """
        with self._changing_rules(subscription) as (record, topic_id):
            self._rules.add(record.entity_id, record.description.name, topic_id, rule, self._entities.limits)
            return self._with_rules(record, known, rule.name)

    def replace_rule(self, subscription: str, rule: Rule, known: KnownRules | None = None) -> EntityRecord:
        """Replace the rule of that name; ``known`` as in `add_rule`. Raises `EntityNotFound`, `QuotaExceeded`."""
        with self._changing_rules(subscription) as (record, topic_id):
            self._rules.replace(record.entity_id, record.description.name, topic_id, rule, self._entities.limits)
            return self._with_rules(record, known, rule.name)

    def replace_rules(self, subscription: str, rules: Sequence[Rule]) -> EntityRecord:
        """Replace all rules of a subscription. Raises `EntityNotFound`, `EntityExists`, `QuotaExceeded`."""
        with self._changing_rules(subscription) as (record, topic_id):
            self._rules.replace_all(record.entity_id, record.description.name, topic_id, rules, self._entities.limits)
            return self._with_rules(record, None, "")

    def remove_rule(self, subscription: str, name: str, known: KnownRules | None = None) -> EntityRecord:
        """Remove a rule from a subscription; ``known`` as in `add_rule`. Raises `EntityNotFound`."""
        with self._changing_rules(subscription) as (record, _):
            self._rules.remove(record.entity_id, record.description.name, name)
            return self._with_rules(record, known, name)

    def _with_rules(self, record: EntityRecord, known: KnownRules | None, name: str) -> EntityRecord:
        """Return the record of a subscription whose rule of that name was changed."""
        if known is None or known[0] != record.entity_id:
            return replace(record, rules=self._rules.of(record.entity_id))
        rules = [rule for rule in known[1] if fold_name(rule.name) != fold_name(name)]
        changed = self._rules.find(record.entity_id, name)
        if changed is not None:
            insort(rules, changed, key=lambda rule: fold_name(rule.name))
        return replace(record, rules=tuple(rules))

    def namespace_policies(self) -> tuple[SasPolicy, ...]:
        """Return the policies of the namespace, beside those of the keys file."""
        with self._reading():
            return self._policies.of(owner_of(self.namespace_id))

    def replace_namespace_policies(self, policies: Sequence[SasPolicy]) -> None:
        """QuotaExceeded."""
        with self._changing():
            most = self._entities.limits.policies
            self._policies.replace_all(owner_of(self.namespace_id), "The namespace", policies, most)
            self._note("")

    def dropped_partitions(self) -> list[tuple[int, int]]:
        """Return (partition row, store number) of deleted partitions whose rows may still be in their stores."""
        with self._reading():
            return [
                (row, store_no)
                for row, store_no in self._database.execute(
                    "SELECT partition_row, store_no FROM dropped_partition ORDER BY partition_row"
                )
            ]

    def forget_dropped(self, partition_rows: Iterable[int]) -> None:
        """Their rows are durably gone from the stores."""
        with self._changing():
            self._database.execute_many(
                "DELETE FROM dropped_partition WHERE partition_row = ?", [(row,) for row in partition_rows]
            )

    @contextmanager
    def _changing_rules(self, subscription: str) -> Iterator[tuple[EntityRecord, int]]:
        """Yield the subscription without its rules, and the id of its topic, within a change."""
        with self._changing():
            record = self._entities.existing(subscription, rules=False)
            yield record, self._entities.topic_of(record).entity_id
            self._note(record.description.name)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Read the catalog as of one moment; inside a change, as of that change."""
        if self._database.in_transaction:
            yield
            return
        self._database.begin(writing=False)
        try:
            yield
        finally:
            self._database.rollback()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Run the body as one transaction, or inside `together` as a part of that one."""
        if self._database.in_transaction:
            yield
            return
        self._database.begin(writing=True)
        try:
            yield
        except BaseException:
            self._database.rollback()
            raise
        self._database.commit()
