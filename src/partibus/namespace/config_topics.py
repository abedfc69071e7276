"""Topics of a Config.json, with their subscriptions and rules: read as strictly as queues."""

from collections.abc import Mapping

from msgspec import Struct

from partibus.errors import ArgumentError
from partibus.filters.config_form import CORRELATION_MEMBERS, from_config
from partibus.filters.model import Rule, TrueFilter
from partibus.namespace.config_document import Document, member
from partibus.namespace.config_names import declared_name
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions
from partibus.namespace.names import check_rule_name, check_short_name, subscription_path
from partibus.namespace.properties import PROPERTIES, read_options
from partibus.namespace.rules import check_rule, default_rule

SQL_TEXT_MAX = 1024
"""Characters of a filter or action."""

_FILTERS = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}


class DeclaredSubscription(Struct, frozen=True):
    """A subscription, and where the file says so."""

    path: str
    description: EntityDescription
    rules: tuple[Rule, ...]


class DeclaredTopic(Struct, frozen=True):
    """A topic, and where the file says so."""

    path: str
    description: EntityDescription
    subscriptions: tuple[DeclaredSubscription, ...]


def read_topic(document: Document, value: object, path: str, taken: dict[str, str]) -> DeclaredTopic:
    """Return the topic as far as it can be read; ``taken`` are the earlier names of the namespace's entities."""
    members = document.members(value, path, ("Name", "Properties", "Subscriptions"), required=("Name",))
    name = declared_name(document, members, path, taken)
    options = read_properties(document, members, path, EntityKind.TOPIC)
    names: dict[str, str] = {}
    subscriptions = [
        _subscription(document, subscription, subscription_at, name, names)
        for subscription_at, subscription in document.elements(
            members.get("Subscriptions", []), f"{path}.Subscriptions"
        )
    ]
    return DeclaredTopic(path, EntityDescription(name, options, EntityKind.TOPIC), tuple(subscriptions))


def read_properties(document: Document, members: Mapping[str, object], path: str, kind: EntityKind) -> EntityOptions:
    """Return the options of the entity at ``path``."""
    path = f"{path}.Properties"
    known = tuple(prop.name for prop in PROPERTIES[kind])
    options, problems = read_options(kind, document.members(members.get("Properties", {}), path, known))
    for name, error in problems.items():
        document.refuse(f"{path}.{name}", str(error))
    return options


def _subscription(
    document: Document, value: object, path: str, topic: str, taken: dict[str, str]
) -> DeclaredSubscription:
    members = document.members(value, path, ("Name", "Properties", "Rules"), required=("Name",))
    name = declared_name(document, members, path, taken, check_short_name)
    options = read_properties(document, members, path, EntityKind.SUBSCRIPTION)
    names: dict[str, str] = {}
    rules = [
        _rule(document, rule, rule_path, names)
        for rule_path, rule in document.elements(members.get("Rules", []), f"{path}.Rules")
    ]
    description = EntityDescription(subscription_path(topic, name), options, EntityKind.SUBSCRIPTION)
    return DeclaredSubscription(path, description, tuple(rules) or (default_rule(),))


def _rule(document: Document, value: object, path: str, taken: dict[str, str]) -> Rule:
    """Return the rule; `Document.finish` refuses a document with problems."""
    members = document.members(value, path, ("Name", "Properties"), required=("Name", "Properties"))
    name = declared_name(document, members, path, taken, check_rule_name)
    rule = Rule(name, TrueFilter())
    if "Properties" not in members:
        return rule
    path = f"{path}.Properties"
    before = len(document.problems)
    properties = document.members(
        members["Properties"], path, ("FilterType", *_FILTERS.values(), "Action"), required=("FilterType",)
    )
    if "FilterType" in properties:
        _check_filter_type(document, properties, path)
    if "CorrelationFilter" in properties:
        _check_correlation_filter(document, properties["CorrelationFilter"], f"{path}.CorrelationFilter")
    if "SqlFilter" in properties:
        _check_sql(document, properties["SqlFilter"], f"{path}.SqlFilter", required=("SqlExpression",))
    if "Action" in properties:
        _check_sql(document, properties["Action"], f"{path}.Action")
    if not name or len(document.problems) > before:
        return rule
    rule = from_config(name, properties)
    _check_text(document, Rule(name, rule.filter), f"{path}.SqlFilter.SqlExpression")
    _check_text(document, Rule(name, TrueFilter(), rule.action), f"{path}.Action.SqlExpression")
    return rule


def _check_text(document: Document, rule: Rule, path: str) -> None:
    try:
        check_rule(rule)
    except ArgumentError as error:
        document.refuse(path, str(error))


def _check_filter_type(document: Document, properties: dict[str, object], path: str) -> None:
    """Check the type of a filter, and that only the filter of that type is present."""
    filter_type = document.choice(properties["FilterType"], f"{path}.FilterType", tuple(_FILTERS))
    if not filter_type:
        return
    for other_type, name in _FILTERS.items():
        if other_type == filter_type and name not in properties:
            document.refuse(path, f"{name} is missing; FilterType {filter_type} needs it")
        if other_type != filter_type and name in properties:
            document.refuse(f"{path}.{name}", f"does not go with FilterType {filter_type}; take one of them out")


def _check_correlation_filter(document: Document, value: object, path: str) -> None:
    members = document.members(value, path, (*CORRELATION_MEMBERS, "Properties"))
    if value == {}:
        document.refuse(path, "is empty, but must name at least one property to compare")
    for name, raw in members.items():
        if name != "Properties":
            document.text(raw, f"{path}.{name}")
    for name, raw in document.members(members.get("Properties", {}), f"{path}.Properties").items():
        if not isinstance(raw, str | int | float | bool):
            document.refuse_value(member(f"{path}.Properties", name), raw, "text, a number, true or false")


def _check_sql(document: Document, value: object, path: str, required: tuple[str, ...] = ()) -> None:
    members = document.members(value, path, ("SqlExpression",), required)
    if "SqlExpression" in members:
        document.text(members["SqlExpression"], f"{path}.SqlExpression", SQL_TEXT_MAX)
