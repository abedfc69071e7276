"""Rules as JSON values: in the catalog, and in the form of Config.json.

In the catalog, `to_plain` and `from_plain` are inverse, types included:

```text
{"name": "delayed", "created_ms": 1700000000000,
 "filter": {"type": "sql", "expression": "delay > @least", "parameters": {"@least": 60}},
 "action": {"expression": "SET late = TRUE", "parameters": {}}}
```

``filter.type`` is sql, true, false or correlation; a correlation filter has the members of `CorrelationFilter` that it
compares. A value for which JSON has no type is an object of one member: ``{"time": microseconds since 1970}``,
``{"duration": microseconds}``, ``{"double": "nan" | "inf" | "-inf"}``.

Config.json has FilterType, CorrelationFilter or SqlFilter, and Action:

```text
{"Name": "delayed", "Properties": {
    "FilterType": "Sql", "SqlFilter": {"SqlExpression": "delay > 60"},
    "Action": {"SqlExpression": "SET late = TRUE"}}}
```
"""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from partibus.errors import Unsupported, shown
from partibus.filters.correlation import SYSTEM_FIELDS
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
from partibus.filters.values import EPOCH

Json = dict[str, object]

_MICROSECOND: Final = timedelta(microseconds=1)


def to_plain(rule: Rule) -> Json:
    """Return the JSON object of a rule, without members that have no value."""
    plain: Json = {"name": rule.name, "created_ms": rule.created_ms, "filter": _filter_to_plain(rule.filter)}
    if rule.action is not None:
        plain["action"] = _sql_to_plain(rule.action)
    return plain


def from_plain(plain: Mapping[str, object]) -> Rule:
    """Return the rule of an object from `to_plain`. Raises ValueError for any other object."""
    try:
        action = plain.get("action")
        return Rule(
            cast("str", plain["name"]),
            _filter_from_plain(cast("Json", plain["filter"])),
            None if action is None else SqlAction(*_sql_from_plain(cast("Json", action))),
            cast("int", plain["created_ms"]),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{shown(dict(plain))} is no rule: {error!r}") from error


def same(one: Rule, other: Rule) -> bool:
    """Tell whether two rules have the same definition.

    Types count, which ``==`` ignores (1, 1.0, true). The creation time does not.
    """
    return _fingerprint(one) == _fingerprint(other)


def _fingerprint(rule: Rule) -> str:
    return json.dumps(to_plain(rule) | {"created_ms": 0, "name": rule.name.lower()}, sort_keys=True)


def _filter_to_plain(described: Filter) -> Json:
    match described:
        case TrueFilter():
            return {"type": "true"}
        case FalseFilter():
            return {"type": "false"}
        case SqlFilter():
            return {"type": "sql", **_sql_to_plain(described)}
        case CorrelationFilter():
            texts = {member: getattr(described, member) for member in SYSTEM_FIELDS}
            plain: Json = {"type": "correlation"}
            plain |= {member: text for member, text in texts.items() if text is not None}
            return plain | {"properties": _constants_to_plain(described.properties)}


def _filter_from_plain(plain: Json) -> Filter:
    match plain["type"]:
        case "true":
            return TrueFilter()
        case "false":
            return FalseFilter()
        case "sql":
            return SqlFilter(*_sql_from_plain(plain))
        case "correlation":
            texts = {member: cast("str | None", plain.get(member)) for member in SYSTEM_FIELDS}
            return CorrelationFilter(**texts, properties=_constants_from_plain(cast("Json", plain["properties"])))
        case other:
            raise ValueError(f"{shown(other)} is no type of a filter; there are sql, true, false, correlation")


def _sql_to_plain(described: SqlFilter | SqlAction) -> Json:
    return {"expression": described.expression, "parameters": _constants_to_plain(described.parameters)}


def _sql_from_plain(plain: Json) -> tuple[str, dict[str, Constant]]:
    return cast("str", plain["expression"]), _constants_from_plain(cast("Json", plain["parameters"]))


def _constants_to_plain(constants: Mapping[str, Constant]) -> Json:
    return {name: _constant_to_plain(value) for name, value in constants.items()}


def _constants_from_plain(plain: Json) -> dict[str, Constant]:
    return {name: _constant_from_plain(value) for name, value in plain.items()}


def _constant_to_plain(value: Constant) -> object:
    match value:
        case datetime():
            if value.tzinfo is None:
                return {"time": (value.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND, "zone": False}
            return {"time": (value - EPOCH) // _MICROSECOND}
        case timedelta():
            return {"duration": value // _MICROSECOND}
        case float() if not math.isfinite(value):
            return {"double": str(value)}
    return value


def _constant_from_plain(value: object) -> Constant:
    match value:
        case {"time": int(microseconds), "zone": False}:
            return (EPOCH + microseconds * _MICROSECOND).replace(tzinfo=None)
        case {"time": int(microseconds)}:
            return EPOCH + microseconds * _MICROSECOND
        case {"duration": int(microseconds)}:
            return microseconds * _MICROSECOND
        case {"double": str(text)}:
            return float(text)
        case bool() | int() | float() | str():
            return value
    raise ValueError(f"{shown(value)} is no constant of a rule")


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
