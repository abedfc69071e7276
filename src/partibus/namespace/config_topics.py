"""Topics of a Config.json: checked as strictly as queues, then refused by name until there are topics."""

from partibus.errors import Unsupported
from partibus.namespace.config_document import Document, member
from partibus.namespace.config_names import declared_name
from partibus.namespace.names import check_short_name
from partibus.namespace.properties import QUEUE_PROPERTIES
from partibus.namespace.values import BooleanValue

SQL_TEXT_MAX = 1024
"""Characters of a filter or action."""

_VALUES = {prop.name: prop.value for prop in QUEUE_PROPERTIES} | {
    "DeadLetteringOnFilterEvaluationExceptions": BooleanValue()
}
_TOPIC_PROPERTIES = (
    "AutoDeleteOnIdle",
    "DefaultMessageTimeToLive",
    "DuplicateDetectionHistoryTimeWindow",
    "EnableBatchedOperations",
    "EnableExpress",
    "EnablePartitioning",
    "MaxMessageSizeInKilobytes",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "Status",
    "UserMetadata",
)
_SUBSCRIPTION_PROPERTIES = (
    "AutoDeleteOnIdle",
    "DeadLetteringOnFilterEvaluationExceptions",
    "DeadLetteringOnMessageExpiration",
    "DefaultMessageTimeToLive",
    "EnableBatchedOperations",
    "ForwardDeadLetteredMessagesTo",
    "ForwardTo",
    "LockDuration",
    "MaxDeliveryCount",
    "RequiresSession",
    "Status",
    "UserMetadata",
)
_FILTERS = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}
_CORRELATION_TEXTS = (
    "ContentType",
    "CorrelationId",
    "Label",
    "MessageId",
    "ReplyTo",
    "ReplyToSessionId",
    "SessionId",
    "To",
)


def check_topic(document: Document, value: object, path: str, taken: dict[str, str]) -> None:
    """Checks a topic with its subscriptions; ``taken`` are the names of the namespace's entities so far."""
    members = document.members(value, path, ("Name", "Properties", "Subscriptions"), required=("Name",))
    name = declared_name(document, members, path, taken)
    _check_properties(document, members, path, _TOPIC_PROPERTIES)
    names: dict[str, str] = {}
    for subscription_path, subscription in document.elements(members.get("Subscriptions", []), f"{path}.Subscriptions"):
        _check_subscription(document, subscription, subscription_path, names)
    if name:
        document.refuse(path, str(Unsupported(f"The topic '{name}'", "Take it out of the file; use queues.")))


def _check_subscription(document: Document, value: object, path: str, taken: dict[str, str]) -> None:
    members = document.members(value, path, ("Name", "Properties", "Rules"), required=("Name",))
    declared_name(document, members, path, taken, check_short_name)
    _check_properties(document, members, path, _SUBSCRIPTION_PROPERTIES)
    names: dict[str, str] = {}
    for rule_path, rule in document.elements(members.get("Rules", []), f"{path}.Rules"):
        _check_rule(document, rule, rule_path, names)


def _check_properties(document: Document, members: dict[str, object], path: str, known: tuple[str, ...]) -> None:
    path = f"{path}.Properties"
    for name, raw in document.members(members.get("Properties", {}), path, known).items():
        if raw is None:
            continue
        try:
            _VALUES[name].parse(raw)
        except ValueError:
            document.refuse_value(member(path, name), raw, _VALUES[name].bound)


def _check_rule(document: Document, value: object, path: str, taken: dict[str, str]) -> None:
    members = document.members(value, path, ("Name", "Properties"), required=("Name", "Properties"))
    declared_name(document, members, path, taken, check_short_name)
    if "Properties" not in members:
        return
    path = f"{path}.Properties"
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


def _check_filter_type(document: Document, properties: dict[str, object], path: str) -> None:
    """The type, and that the filter of that type is there and no other."""
    filter_type = document.choice(properties["FilterType"], f"{path}.FilterType", tuple(_FILTERS))
    if not filter_type:
        return
    for other_type, name in _FILTERS.items():
        if other_type == filter_type and name not in properties:
            document.refuse(path, f"{name} is missing; FilterType {filter_type} needs it")
        if other_type != filter_type and name in properties:
            document.refuse(f"{path}.{name}", f"does not go with FilterType {filter_type}; take one of them out")


def _check_correlation_filter(document: Document, value: object, path: str) -> None:
    members = document.members(value, path, (*_CORRELATION_TEXTS, "Properties"))
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
