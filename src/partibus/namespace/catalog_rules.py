"""Rules of subscriptions in the catalog (dialect section 11.2)."""

import json
from collections.abc import Iterable
from functools import lru_cache

from partibus.errors import EntityExists, EntityNotFound, QuotaExceeded
from partibus.filters.model import CorrelationFilter, Rule
from partibus.filters.plain import from_plain, to_plain
from partibus.namespace.catalog_database import OF_NAMESPACE, CatalogDatabase
from partibus.namespace.names import RULES, fold_name
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
        """EntityExists, QuotaExceeded."""
        if self._find(entity_id, rule.name) is not None:
            raise EntityExists(rule_path(subscription, rule.name))
        self._check_quota(topic_id, rule, limits)
        self._put(entity_id, rule)

    def replace(self, entity_id: int, subscription: str, topic_id: int, rule: Rule, limits: TierLimits) -> Rule:
        """Another rule in place of the one of that name, whose time of creation it keeps. EntityNotFound."""
        known = self._find(entity_id, rule.name)
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
        """EntityNotFound."""
        statement = "DELETE FROM rule WHERE entity_id = ? AND folded_name = ? RETURNING folded_name"
        if not self._database.execute(statement, (entity_id, fold_name(name))):
            raise EntityNotFound(rule_path(subscription, name))

    def _find(self, entity_id: int, name: str) -> Rule | None:
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
    """Kept: after each change all rules of the subscription are read again."""
    return from_plain(json.loads(content))
