"""Rules in the form of Config.json: FilterType, CorrelationFilter or SqlFilter, and Action.

```text
{"Name": "delayed", "Properties": {
    "FilterType": "Sql", "SqlFilter": {"SqlExpression": "delay > 60"},
    "Action": {"SqlExpression": "SET late = TRUE"}}}
```
"""

from collections.abc import Mapping
from typing import Final, cast

from partibus.errors import Unsupported
from partibus.filters.model import (
    FALSE_EXPRESSION,
    TRUE_EXPRESSION,
    Constant,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
    sql_filter,
)

Json = dict[str, object]

CORRELATION_MEMBERS: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
"""Members of the file's correlation filter, and the matching members of `CorrelationFilter`."""


def from_config(name: str, properties: Mapping[str, object]) -> Rule:
    """Return the rule of an element with a checked shape: one filter, of the type in FilterType."""
    action = cast("Json", properties.get("Action") or {}).get("SqlExpression")
    return Rule(name, _filter_from_config(properties), SqlAction(cast("str", action)) if action else None)


def _filter_from_config(properties: Mapping[str, object]) -> Filter:
    if properties["FilterType"] == "Sql":
        return sql_filter(cast("Json", properties["SqlFilter"])["SqlExpression"])  # type: ignore[arg-type]
    members = cast("Json", properties["CorrelationFilter"])
    texts = {ours: cast("str | None", members.get(theirs)) for theirs, ours in CORRELATION_MEMBERS.items()}
    return CorrelationFilter(**texts, properties=cast("dict[str, Constant]", members.get("Properties") or {}))


def to_config(rule: Rule) -> Json:
    """Return the element of a rule, with Name and Properties.

    Raises `Unsupported` for a rule that the file can't express.
    """
    properties = _filter_to_config(rule.name, rule.filter)
    if rule.action is not None:
        properties["Action"] = _sql_to_config(rule.name, rule.action)
    return {"Name": rule.name, "Properties": properties}


def _filter_to_config(name: str, described: Filter) -> Json:
    match described:
        case TrueFilter():
            described = SqlFilter(TRUE_EXPRESSION)
        case FalseFilter():
            described = SqlFilter(FALSE_EXPRESSION)
        case CorrelationFilter():
            texts = {theirs: getattr(described, ours) for theirs, ours in CORRELATION_MEMBERS.items()}
            members: Json = {theirs: text for theirs, text in texts.items() if text is not None}
            for key, value in described.properties.items():
                if not isinstance(value, str | int | float):
                    raise _no_form(name, f"the {type(value).__name__} property {key}")
            if described.properties:
                members["Properties"] = dict(described.properties)
            return {"FilterType": "Correlation", "CorrelationFilter": members}
    return {"FilterType": "Sql", "SqlFilter": _sql_to_config(name, described)}


def _sql_to_config(name: str, described: SqlFilter | SqlAction) -> Json:
    if described.parameters:
        raise _no_form(name, "parameters")
    return {"SqlExpression": described.expression}


def _no_form(name: str, what: str) -> Unsupported:
    return Unsupported(f"Rule '{name}' with {what} in a Config.json", "Write the values into the expression.")
