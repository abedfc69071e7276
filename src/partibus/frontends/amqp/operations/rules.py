"""`add-rule`, `remove-rule`, `enumerate-rules`: the rules of a subscription (section 6.3).

Rules belong to the namespace, so the node answers a change when every broker applies it.

A rule is a map in `add-rule`, and a described list in the reply of `enumerate-rules`. Descriptors have ten hex digits
for filters and eleven for the rule and its action.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from partibus.amqp.codec.types import Described, Int, Timestamp, ULong
from partibus.errors import ArgumentError, InvalidOperation
from partibus.filters.model import (
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
from partibus.frontends.amqp.operations.request import (
    EntityRequest,
    integer,
    mapping,
    no_content,
    optional_text,
    success,
    text,
)
from partibus.namespace.namespace import Subscription

RULE: Final = 0x137_0000_0004
EMPTY_ACTION: Final = 0x137_0000_0005
SQL_ACTION: Final = 0x137_0000_0006
SQL_FILTER: Final = 0x13_7000_0006
TRUE_FILTER: Final = 0x13_7000_0007
FALSE_FILTER: Final = 0x13_7000_0008
CORRELATION_FILTER: Final = 0x13_7000_0009

COMPATIBILITY_LEVEL: Final = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

_FIELDS: Final = {
    "correlation-id": "correlation_id",
    "message-id": "message_id",
    "to": "to",
    "reply-to": "reply_to",
    "label": "label",
    "session-id": "session_id",
    "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}
"""The text fields of a correlation filter by their names on the wire, in the order of the described list."""


def read_rule(name: str, description: Mapping[object, object]) -> Rule:
    """Return the rule of an `add-rule` request. Raises `ArgumentError`; the SQL text is not parsed here."""
    action = description.get("sql-rule-action")
    return Rule(
        name, _read_filter(description), None if action is None else SqlAction(_expression("sql-rule-action", action))
    )


def _read_filter(description: Mapping[object, object]) -> Filter:
    sql, correlation = description.get("sql-filter"), description.get("correlation-filter")
    if (sql is None) == (correlation is None):
        raise ArgumentError(
            "rule-description", sorted(map(str, description)), "a map with either sql-filter or correlation-filter"
        )
    if sql is not None:
        return sql_filter(_expression("sql-filter", sql))  # JavaScript spells the true and the false filter out
    if not isinstance(correlation, dict):
        raise ArgumentError("correlation-filter", type(correlation).__name__, "a map")
    return CorrelationFilter(
        **{field: optional_text(correlation, wire) for wire, field in _FIELDS.items()},
        properties={
            str(key): _read_constant(str(key), value) for key, value in mapping(correlation, "properties").items()
        },
    )


def _expression(name: str, value: object) -> str:
    if not isinstance(value, dict):
        raise ArgumentError(name, type(value).__name__, "a map with the key expression")
    return text(value, "expression")


def _read_constant(name: str, value: object) -> Constant:
    """Return a property that a correlation filter compares. AMQP's narrow types are subclasses of Python's."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        try:
            return _EPOCH + int(value) * _MS
        except OverflowError:
            raise ArgumentError(f"properties.{name}", int(value), "a timestamp in the years 1 to 9999") from None
    for plain in (int, float, str):
        if isinstance(value, plain):
            return plain(value)
    raise ArgumentError(f"properties.{name}", value, "a string, a number, a boolean or a timestamp")


def write_rule(rule: Rule) -> Described:
    """Return the described list of a rule.

    JavaScript's library requires the action there and descriptors as numbers.
    """
    action = (
        Described(ULong(EMPTY_ACTION), [])
        if rule.action is None
        else Described(ULong(SQL_ACTION), [rule.action.expression, Int(COMPATIBILITY_LEVEL)])
    )
    return Described(ULong(RULE), [_write_filter(rule.filter), action, rule.name, Timestamp(rule.created_ms)])


def _write_filter(described: Filter) -> Described:
    match described:
        case SqlFilter():
            return Described(ULong(SQL_FILTER), [described.expression, Int(COMPATIBILITY_LEVEL)])
        case TrueFilter():
            return Described(ULong(TRUE_FILTER), [])
        case FalseFilter():
            return Described(ULong(FALSE_FILTER), [])
        case CorrelationFilter():
            properties = {key: _write_constant(value) for key, value in described.properties.items()}
            texts = [getattr(described, field) for field in _FIELDS.values()]
            return Described(ULong(CORRELATION_FILTER), [*texts, properties])


def _write_constant(value: Constant) -> object:
    if isinstance(value, datetime):
        return Timestamp(((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _MS)
    if isinstance(value, timedelta):  # AMQP has no duration: ticks of 100 ns, as .NET counts them
        return value // timedelta(microseconds=1) * 10
    return value


ADD = "com.microsoft:add-rule"
REMOVE = "com.microsoft:remove-rule"
ENUMERATE = "com.microsoft:enumerate-rules"

PAGE_RULES_MAX = 1_000
"""The most rules in one answer: a page, at a kilobyte of text each, is no larger than a message."""
INT_MAX = (1 << 31) - 1


def add(request: EntityRequest) -> None:
    """Add the rule ``rule-name`` from ``rule-description``; refuse a text that can't be parsed."""
    subscription = _subscription(request)
    rule = read_rule(text(request.arguments, "rule-name"), mapping(request.arguments, "rule-description"))
    broker = request.connection.broker
    broker.create_rule(subscription.name, rule)
    broker.when_followed(lambda: request.respond(success()))


def remove(request: EntityRequest) -> None:
    """Remove the rule ``rule-name``."""
    subscription = _subscription(request)
    broker = request.connection.broker
    broker.delete_rule(subscription.name, text(request.arguments, "rule-name"))
    broker.when_followed(lambda: request.respond(success()))


def enumerate_rules(request: EntityRequest) -> None:
    """Reply with ``top`` ``rules`` by name after the first ``skip``; 204 after the last one."""
    rules = _subscription(request).rules
    skip = integer(request.arguments, "skip", 0, INT_MAX, 0)
    top = integer(request.arguments, "top", 1, INT_MAX, PAGE_RULES_MAX)
    page = rules[skip : skip + min(top, PAGE_RULES_MAX)]
    if page:
        request.respond(success({"rules": [_described(rule) for rule in page]}))
    else:
        request.respond(no_content())


def _described(rule: Rule) -> dict[object, object]:
    return {"rule-description": write_rule(rule)}


def _subscription(request: EntityRequest) -> Subscription:
    """Return the subscription of the request. Raises `InvalidOperation`."""
    entity = request.entity.queue
    if not isinstance(entity, Subscription):
        raise InvalidOperation(
            f"'{entity.name}' is a {entity.kind.value}, and only subscriptions have rules. Name a subscription: "
            "<topic>/Subscriptions/<name>/$management."
        )
    return entity
