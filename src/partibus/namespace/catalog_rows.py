"""Rows of namespaces, access policies and rules in the catalog.

The default namespace is there without a row, until it is changed. Policies are those of queues and topics, and those of
the namespace beside its keys file. Rules are those of subscriptions (dialect section 11.2).
"""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

from partibus.errors import EntityExists, EntityNotFound, PartibusError, QuotaExceeded, UnusableFile
from partibus.filters.model import CorrelationFilter, Rule
from partibus.filters.plain import from_plain, to_plain
from partibus.namespace.access import SasPolicy, names_of, rights_of
from partibus.namespace.catalog_database import OF_NAMESPACE, CatalogDatabase, Row
from partibus.namespace.names import RULES, fold_name
from partibus.namespace.namespace_options import (
    DEFAULT_ID,
    DEFAULT_NAME,
    NamespaceOptions,
    NamespaceRecord,
    options_from_plain,
    options_to_plain,
)
from partibus.namespace.tiers import TierLimits

_SQL = "sql"
_CORRELATION = "correlation"


def rule_path(subscription: str, rule: str) -> str:
    """Return the name of a rule in errors."""
    return f"{subscription}/{RULES}/{rule}"


class RuleTable:
    """Calls are parts of the catalog's transactions."""

    def __init__(self, database: CatalogDatabase) -> None:
        self._database = database

    def of_all(self, namespace_id: int) -> dict[int, tuple[Rule, ...]]:
        """Return the rules of all subscriptions of a namespace by entity id, in order of folded name."""
        found: dict[int, list[Rule]] = {}
        rows = self._database.execute(
            f"SELECT entity_id, content FROM rule WHERE {OF_NAMESPACE} ORDER BY entity_id, folded_name", (namespace_id,)
        )
        for entity_id, content in rows:
            found.setdefault(entity_id, []).append(_from_text(content))
        return {entity_id: tuple(rules) for entity_id, rules in found.items()}

    def of(self, entity_id: int) -> tuple[Rule, ...]:
        """Return the rules of a subscription in order of folded name."""
        statement = "SELECT content FROM rule WHERE entity_id = ? ORDER BY folded_name"
        return tuple(_from_text(content) for (content,) in self._database.execute(statement, (entity_id,)))

    def add(self, entity_id: int, subscription: str, topic_id: int, rule: Rule, limits: TierLimits) -> None:
        """Add a rule. Raises EntityExists or QuotaExceeded."""
        if self.find(entity_id, rule.name) is not None:
            raise EntityExists(rule_path(subscription, rule.name))
        self._check_quota(topic_id, rule, limits)
        self._put(entity_id, rule)

    def replace(self, entity_id: int, subscription: str, topic_id: int, rule: Rule, limits: TierLimits) -> Rule:
        """Another rule in place of the one of that name, whose time of creation it keeps. EntityNotFound."""
        known = self.find(entity_id, rule.name)
        if known is None:
            raise EntityNotFound(rule_path(subscription, rule.name))
        self.remove(entity_id, subscription, rule.name)
        self._check_quota(topic_id, rule, limits)
        new = Rule(known.name, rule.filter, rule.action, known.created_ms)
        self._put(entity_id, new)
        return new

    def replace_all(
        self, entity_id: int, subscription: str, topic_id: int, rules: Iterable[Rule], limits: TierLimits
    ) -> None:
        """Replace all rules of a subscription."""
        self._database.execute("DELETE FROM rule WHERE entity_id = ?", (entity_id,))
        for rule in rules:
            self.add(entity_id, subscription, topic_id, rule, limits)

    def remove(self, entity_id: int, subscription: str, name: str) -> None:
        """Remove a rule. Raises EntityNotFound."""
        statement = "DELETE FROM rule WHERE entity_id = ? AND folded_name = ? RETURNING folded_name"
        if not self._database.execute(statement, (entity_id, fold_name(name))):
            raise EntityNotFound(rule_path(subscription, name))

    def find(self, entity_id: int, name: str) -> Rule | None:
        """Return the rule of that name, if there is one."""
        statement = "SELECT content FROM rule WHERE entity_id = ? AND folded_name = ?"
        rows = self._database.execute(statement, (entity_id, fold_name(name)))
        return _from_text(rows[0][0]) if rows else None

    def _put(self, entity_id: int, rule: Rule) -> None:
        content = json.dumps(to_plain(rule))
        self._database.execute(
            "INSERT INTO rule (entity_id, folded_name, counts_as, content) VALUES (?, ?, ?, ?)",
            (entity_id, fold_name(rule.name), _counts_as(rule), content),
        )

    def _check_quota(self, topic_id: int, rule: Rule, limits: TierLimits) -> None:
        counts_as = _counts_as(rule)
        ((count,),) = self._database.execute(
            "SELECT count(*) FROM entity JOIN rule ON rule.entity_id = entity.entity_id"
            " WHERE entity.topic_id = ? AND rule.counts_as = ?",
            (topic_id, counts_as),
        )
        if counts_as == _CORRELATION:
            most, unit = limits.correlation_filters, "correlation filters"
        else:
            most, unit = limits.sql_filters, "SQL filters, true and false ones included"
        if count >= most:
            raise QuotaExceeded("The topic", most, unit, "Delete a rule that is not needed.")


def _counts_as(rule: Rule) -> str:
    return _CORRELATION if isinstance(rule.filter, CorrelationFilter) else _SQL


@lru_cache(maxsize=4096)
def _from_text(content: str) -> Rule:
    """Parse a rule, from memory where it was read before: other brokers read all rules again after a change."""
    return from_plain(json.loads(content))


def owner_of(namespace_id: int) -> int:
    """Stands for a namespace where an entity's id stands otherwise."""
    return -namespace_id


_POLICY_COLUMNS = "name, rights, primary_key, secondary_key, created_ms, modified_ms"


class PolicyTable:
    """Calls are parts of the catalog's transactions."""

    def __init__(self, database: CatalogDatabase) -> None:
        self._database = database

    def of_all(self, namespace_id: int) -> dict[int, tuple[SasPolicy, ...]]:
        """Return the policies of all entities of a namespace by entity id, in order of name."""
        found: dict[int, list[SasPolicy]] = {}
        statement = f"SELECT entity_id, {_POLICY_COLUMNS} FROM policy WHERE {OF_NAMESPACE} ORDER BY name"
        for entity_id, *row in self._database.execute(statement, (namespace_id,)):
            found.setdefault(entity_id, []).append(_from_row(*row))
        return {entity_id: tuple(policies) for entity_id, policies in found.items()}

    def of(self, entity_id: int) -> tuple[SasPolicy, ...]:
        """Return the policies of an entity in order of name."""
        statement = f"SELECT {_POLICY_COLUMNS} FROM policy WHERE entity_id = ? ORDER BY name"
        return tuple(_from_row(*row) for row in self._database.execute(statement, (entity_id,)))

    def replace_all(self, entity_id: int, owner: str, policies: Sequence[SasPolicy], most: int) -> None:
        """Replace all policies of an entity; ``owner`` is its name in errors. Raises `QuotaExceeded`."""
        if len(policies) > most:
            raise QuotaExceeded(owner, most, "authorization rules", "Delete one that is not needed.")
        self.remove_all(entity_id)
        self._database.execute_many(
            f"INSERT INTO policy (entity_id, {_POLICY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    entity_id,
                    policy.name,
                    ",".join(names_of(policy.rights)),
                    policy.primary_key,
                    policy.secondary_key,
                    policy.created_ms,
                    policy.modified_ms,
                )
                for policy in policies
            ],
        )

    def remove_of_entities(self, namespace_id: int) -> None:
        """Delete the policies of all entities of a namespace."""
        self._database.execute(f"DELETE FROM policy WHERE {OF_NAMESPACE}", (namespace_id,))

    def remove_all(self, entity_id: int) -> None:
        """Delete the policies of an entity."""
        self._database.execute("DELETE FROM policy WHERE entity_id = ?", (entity_id,))


def _from_row(
    name: str, rights: str, primary_key: str, secondary_key: str, created_ms: int, modified_ms: int
) -> SasPolicy:
    return SasPolicy(name, rights_of(rights.split(",")), primary_key, secondary_key, created_ms, modified_ms)


_NAMESPACE_COLUMNS = "namespace_id, name, options, created_ms, updated_ms"
DEFAULT_RECORD = NamespaceRecord(DEFAULT_ID, DEFAULT_NAME, NamespaceOptions(), 0, 0)


class NamespaceTable:
    """Calls are parts of the catalog's transactions."""

    def __init__(self, database: CatalogDatabase) -> None:
        self._database = database

    def all(self) -> list[NamespaceRecord]:
        """Return the namespaces in order of creation, the default one first."""
        rows = self._database.execute(f"SELECT {_NAMESPACE_COLUMNS} FROM namespace ORDER BY namespace_id")
        records = [self._record(row) for row in rows]
        return records if records and records[0].namespace_id == DEFAULT_ID else [DEFAULT_RECORD, *records]

    def existing(self, name: str) -> NamespaceRecord:
        """Return the row of a namespace. Raises EntityNotFound."""
        found = self.find(name)
        if found is None:
            raise EntityNotFound(f"namespace {name}")
        return found

    def numbered(self, namespace_id: int) -> NamespaceRecord:
        """Return a namespace by number. Raises `EntityNotFound` when it was deleted."""
        rows = self._database.execute(
            f"SELECT {_NAMESPACE_COLUMNS} FROM namespace WHERE namespace_id = ?", (namespace_id,)
        )
        if rows:
            return self._record(rows[0])
        if namespace_id == DEFAULT_ID:
            return DEFAULT_RECORD
        raise EntityNotFound(f"namespace {namespace_id}")

    def find(self, name: str) -> NamespaceRecord | None:
        """Return the namespace of that name, if there is one."""
        statement = f"SELECT {_NAMESPACE_COLUMNS} FROM namespace WHERE folded_name = ?"
        rows = self._database.execute(statement, (fold_name(name),))
        if not rows and fold_name(name) == DEFAULT_NAME:
            return DEFAULT_RECORD
        return self._record(rows[0]) if rows else None

    def create(self, name: str, options: NamespaceOptions, now_ms: int) -> NamespaceRecord:
        """Create a namespace. Raises EntityExists."""
        if self.find(name) is not None:
            raise EntityExists(f"namespace {name}")
        ((namespace_id,),) = self._database.execute("SELECT next_namespace_id FROM numbers")
        self._database.execute("UPDATE numbers SET next_namespace_id = ?", (namespace_id + 1,))
        record = NamespaceRecord(namespace_id, name, options, now_ms, now_ms)
        self._put(record)
        return record

    def update(self, old: NamespaceRecord, options: NamespaceOptions, now_ms: int) -> NamespaceRecord:
        """Other options."""
        new = NamespaceRecord(old.namespace_id, old.name, options, old.created_ms, max(now_ms, old.updated_ms + 1))
        self._database.execute("DELETE FROM namespace WHERE namespace_id = ?", (old.namespace_id,))
        self._put(new)
        return new

    def remove(self, namespace_id: int) -> None:
        """Delete a namespace whose entities and policies were deleted before."""
        self._database.execute("DELETE FROM namespace WHERE namespace_id = ?", (namespace_id,))

    def _put(self, record: NamespaceRecord) -> None:
        self._database.execute(
            f"INSERT INTO namespace ({_NAMESPACE_COLUMNS}, folded_name) VALUES (?, ?, ?, ?, ?, ?)",
            (
                record.namespace_id,
                record.name,
                json.dumps(options_to_plain(record.options)),
                record.created_ms,
                record.updated_ms,
                fold_name(record.name),
            ),
        )

    def _record(self, row: Row) -> NamespaceRecord:
        namespace_id, name, options, created_ms, updated_ms = row
        try:
            return NamespaceRecord(namespace_id, name, options_from_plain(json.loads(options)), created_ms, updated_ms)
        except (ValueError, PartibusError) as error:
            raise UnusableFile(
                self._database.name,
                f"has the namespace '{name}' with options that can't be read ({error})",
                "Restore it from a backup.",
            ) from error
