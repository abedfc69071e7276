"""Config.json, the file of entities that Microsoft's Service Bus emulator reads at its start.

```text
 {"UserConfig": {
     "Namespaces": [{
         "Name": "sbemulatorns",
         "Queues": [{"Name": …, "Properties": {…}}],
         "Topics": [{"Name": …, "Properties": {…}, "Subscriptions": […]}]}],
     "Logging": {"Type": "File"}}}
```

Entities take every property of the service (`properties`), also those that the emulator does not know, such as
EnablePartitioning. An omitted property has the service's default, not the emulator's. A subscription without rules has
the one that selects everything. The reader is strict: it refuses names and values that are unknown, misspelt or out of
range, so that the entities are those that the file declares.

One of the namespaces is the server's default one, whatever the file calls it: ``sbemulatorns``, as the emulator knows
no other name, or ``default``, or else the first. The others are made by their names.
"""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from partibus.errors import ArgumentError
from partibus.filters.model import Rule, TrueFilter
from partibus.filters.plain import CORRELATION_MEMBERS, from_config
from partibus.namespace.config_document import ConfigError, Document, Problem, declared_name, member
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions
from partibus.namespace.names import (
    check_namespace_name,
    check_rule_name,
    check_short_name,
    fold_name,
    subscription_path,
)
from partibus.namespace.namespace_options import DEFAULT_NAME
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


_DEFAULT_NAMES = ("sbemulatorns", DEFAULT_NAME)
_LOGGING_TYPES = ("File", "Console", "File,Console", "Console,File")


class DeclaredQueue(Struct, frozen=True):
    """A queue, and where the file says so."""

    path: str
    description: EntityDescription


class Config(Struct, frozen=True):
    """The declarations of a Config.json.

    Its logging is checked and has no effect: the flags of partibus decide that.
    """

    file: str
    namespace_name: str
    queues: tuple[DeclaredQueue, ...]
    topics: tuple[DeclaredTopic, ...] = ()
    others: tuple["Config", ...] = ()
    """The namespaces beside the default one."""


def read_config_json(file: Path) -> Config:
    """Return the checked content of ``file``. Raises `ConfigError` with all problems."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(str(file), [Problem("$", f"can't be read: {error.strerror}. Check its path.")]) from error
    return parse_config_json(text, str(file))


def parse_config_json(text: bytes, file: str = "Config.json") -> Config:
    """Return the checked content of a document; ``file`` is its name in errors."""
    document = Document(file, text)
    root = document.members(document.root, "$", ("UserConfig",), required=("UserConfig",))
    config = Config(file, "", ())
    if "UserConfig" in root:
        config = _user_config(document, root["UserConfig"], "$.UserConfig", file)
    document.finish()
    return config


def _user_config(document: Document, value: object, path: str, file: str) -> Config:
    members = document.members(value, path, ("Namespaces", "Logging"), required=("Namespaces",))
    if "Logging" in members:
        _check_logging(document, members["Logging"], f"{path}.Logging")
    if "Namespaces" not in members:
        return Config(file, "", ())
    namespaces = document.elements(members["Namespaces"], f"{path}.Namespaces")
    if not namespaces and isinstance(members["Namespaces"], list):
        document.refuse(f"{path}.Namespaces", "is empty, but must have a namespace")
    taken: dict[str, str] = {}
    configs = [_namespace(document, element, element_path, file, taken) for element_path, element in namespaces]
    if not configs:
        return Config(file, "", ())
    default = next((one for one in configs if fold_name(one.namespace_name) in _DEFAULT_NAMES), configs[0])
    others = [one for one in configs if one is not default]
    for (element_path, _), one in zip(namespaces, configs, strict=True):
        if one is not default and one.namespace_name:
            _check_other(document, one.namespace_name, f"{element_path}.Name")
    return replace(default, others=tuple(others))


def _check_other(document: Document, name: str, path: str) -> None:
    """Check a namespace that is made by its name."""
    try:
        check_namespace_name(name)
    except ArgumentError as error:
        document.refuse(path, str(error))
    if fold_name(name) == DEFAULT_NAME:
        document.refuse(path, f"is '{name}', which is the default namespace; the file has that already")


def _check_logging(document: Document, value: object, path: str) -> None:
    logging = document.members(value, path, ("Type",), required=("Type",))
    if "Type" in logging:
        document.choice(logging["Type"], f"{path}.Type", _LOGGING_TYPES)


def _namespace(document: Document, value: object, path: str, file: str, taken: dict[str, str]) -> Config:
    members = document.members(value, path, ("Name", "Queues", "Topics"), required=("Name",))
    name = declared_name(document, members, path, taken, check_short_name)
    names: dict[str, str] = {}
    queues = [
        _queue(document, element, queue_path, names)
        for queue_path, element in document.elements(members.get("Queues", []), f"{path}.Queues")
    ]
    topics = [
        read_topic(document, element, topic_path, names)
        for topic_path, element in document.elements(members.get("Topics", []), f"{path}.Topics")
    ]
    return Config(file, name, tuple(queues), tuple(topics))


def _queue(document: Document, value: object, path: str, taken: dict[str, str]) -> DeclaredQueue:
    """Return the queue as far as it can be read; `Document.finish` refuses a document with problems."""
    members = document.members(value, path, ("Name", "Properties"), required=("Name",))
    name = declared_name(document, members, path, taken)
    options = read_properties(document, members, path, EntityKind.QUEUE)
    return DeclaredQueue(path, EntityDescription(name, options))
