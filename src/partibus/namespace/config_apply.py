"""Application of a Config.json: entities get the declared properties, others stay as they are. Idempotent.

The file describes an entity completely. A property that it omits gets its default, and a subscription has the rules of
the file and no others. So the same file gives the same entities, whatever their former state. Subscriptions that a
declared topic has beside those of the file stay. All changes are durable together. A file for a whole server has
several namespaces, each with its entities.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from partibus.errors import EntityNotFound, PartibusError
from partibus.filters.model import Rule
from partibus.namespace.catalog import Catalog, EntityRecord
from partibus.namespace.config_document import ConfigError, Problem
from partibus.namespace.config_json import Config
from partibus.namespace.entities import EntityDescription, EntityOptions
from partibus.namespace.forwards import check_targets
from partibus.namespace.names import fold_name
from partibus.namespace.namespace_options import NamespaceOptions, NamespaceRecord
from partibus.namespace.policies import first_policies
from partibus.namespace.properties import change_refused, immutable_changes
from partibus.namespace.rules import same_rules
from partibus.namespace.tier_rules import changed_options
from partibus.namespace.tiers import Tier

T = TypeVar("T")


class Applied(NamedTuple):
    """The result of applying a file, as numbers of entities."""

    created: int
    updated: int
    unchanged: int


class _Declared(Struct, frozen=True):
    """An entity of any kind."""

    path: str
    description: EntityDescription
    rules: tuple[Rule, ...] = ()


def apply_config(catalog: Catalog, config: Config, now_ms: int) -> tuple[Applied, list[EntityRecord]]:
    """Apply a file; return the result, and the new and the changed entities.

    Raises `ConfigError` when an entity exists with another value of a property that can't change, or is of another
    kind, and when the catalog refuses one. Then nothing was changed.
    """
    with catalog.together():
        # Targets of forwarding may stand anywhere in the file: first all are there, then they forward.
        applying = _Applying(catalog, config.file, now_ms)
        declared = list(_all_of(config))
        for one in declared:
            applying.prepare(one)
        applying.finish()
        for one in declared:
            applying.settle(one)
        applying.finish()
    return applying.applied(len(declared)), [catalog.get(name) for name in applying.names()]


class _Applying:
    def __init__(self, catalog: Catalog, file: str, now_ms: int) -> None:
        self._catalog = catalog
        self._file = file
        self._now_ms = now_ms
        self._namespace = catalog.options()
        self._created: list[str] = []
        self._updated: list[str] = []
        self._problems: list[Problem] = []

    def prepare(self, one: _Declared) -> None:
        """Make an entity exist, perhaps not yet with all declared properties."""
        name, options, kind = one.description.name, one.description.options, one.description.kind
        old = self._find(name)
        if old is None:
            at_first = replace(options, forward_to="", forward_dead_lettered_to="")
            rules = [replace(rule, created_ms=self._now_ms) for rule in one.rules]
            description = replace(one.description, options=at_first)
            self._try(one.path, lambda: self._catalog.create(description, self._now_ms, rules=rules))
            self._created.append(name)
        elif old.description.kind is not kind:
            text = f"'{old.description.name}' is a {old.description.kind.value} already. Rename it, or delete that one."
            self._problems.append(Problem(one.path, text))
        else:
            if self._namespace.tier is Tier.PREMIUM:
                # Whether entities are partitioned is the namespace's to say, or was before it became premium.
                options = replace(options, partitioned=old.description.options.partitioned)
            self._problems += [
                Problem(f"{one.path}.Properties.{change.name}", change_refused(old.description.name, change, kind))
                for change in immutable_changes(old.description.options, options, kind)
            ]

    def settle(self, one: _Declared) -> None:
        """Give an entity its declared properties."""
        name = one.description.name
        old = self._catalog.get(name)
        before = old.description.options
        options = replace(one.description.options, partitioned=before.partitioned)
        different = False
        if options != before:
            with_targets = self._try(
                f"{one.path}.Properties",
                lambda: self._fitted(old, check_targets(self._catalog, name, options, before)),
            )
            if with_targets is not None and with_targets != before:
                different = True
                is_new = name in self._created
                self._try(
                    f"{one.path}.Properties",
                    lambda: self._catalog.update(name, with_targets, self._now_ms, is_new=is_new),
                )
        if not same_rules(old.rules, one.rules):
            different = True
            rules = [replace(rule, created_ms=self._now_ms) for rule in one.rules]
            self._try(one.path, lambda: self._catalog.replace_rules(name, rules))
        if different and name not in self._created:
            self._updated.append(name)

    def _fitted(self, old: EntityRecord, options: EntityOptions) -> EntityOptions:
        """Return options as the catalog would store them: an omitted property has the default of the tier."""
        kind, before = old.description.kind, old.description.options
        return changed_options(self._namespace, kind, options, before, len(old.placements))

    def finish(self) -> None:
        """ConfigError with all problems so far, if there is one."""
        if self._problems:
            raise ConfigError(self._file, self._problems)

    def applied(self, declared: int) -> Applied:
        created, updated = len(self._created), len(self._updated)
        return Applied(created, updated, declared - created - updated)

    def names(self) -> Iterator[str]:
        """Yield the names of new and changed entities."""
        yield from self._created
        yield from self._updated

    def _find(self, name: str) -> EntityRecord | None:
        try:
            return self._catalog.get(name)
        except EntityNotFound:
            return None

    def _try(self, path: str, change: Callable[[], T]) -> T | None:
        try:
            return change()
        except PartibusError as error:
            self._problems.append(Problem(path, str(error)))
            return None


def _all_of(config: Config) -> Iterator[_Declared]:
    for queue in config.queues:
        yield _Declared(queue.path, queue.description)
    for topic in config.topics:
        yield _Declared(topic.path, topic.description)
        for subscription in topic.subscriptions:
            yield _Declared(subscription.path, subscription.description, subscription.rules)


def apply_namespaces(catalog: Catalog, config: Config, now_ms: int) -> None:
    """Create missing namespaces, as standard ones, and apply the declared entities to all, or change nothing.

    Raises what `apply_config` and `Catalog.create_namespace` do. ``catalog`` is that of the default namespace. A caller
    that has read it before must read it again.
    """
    with catalog.together():
        apply_config(catalog, config, now_ms)
        for other in config.others:
            record = _existing(catalog, other.namespace_name, now_ms)
            apply_config(catalog.of(record.namespace_id), other, now_ms)


def _existing(catalog: Catalog, name: str, now_ms: int) -> NamespaceRecord:
    for record in catalog.list_namespaces():
        if fold_name(record.name) == fold_name(name):
            return record
    return catalog.create_namespace(name, NamespaceOptions(), now_ms, first_policies(now_ms))
