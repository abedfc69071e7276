"""Rules of a subscription, and the bodies of the requests about them."""

from collections.abc import Mapping

from msgspec import Struct, field

from partibus.amqp.codec.types import Described, Int
from partibus.client.errors import ClientError
from partibus.client.management import maps

CORRELATION_TEXTS = (
    "correlation-id",
    "message-id",
    "to",
    "reply-to",
    "label",
    "session-id",
    "reply-to-session-id",
    "content-type",
)
"""Fields that a correlation filter compares beside application properties, in wire order."""
PAGE = 100
ADD_RULE = "com.microsoft:add-rule"
REMOVE_RULE = "com.microsoft:remove-rule"
LIST_RULES = "com.microsoft:enumerate-rules"

_SQL_FILTER, _TRUE_FILTER, _FALSE_FILTER, _CORRELATION_FILTER = range(0x1370000006, 0x137000000A)


class RuleInfo(Struct, frozen=True):
    """A rule with an SQL text, or with values to compare."""

    name: str
    sql: str | None = None
    correlation: Mapping[str, object] = field(default_factory=dict)
    """The values by the names in `CORRELATION_TEXTS`, and ``properties``."""
    action: str | None = None


def add_arguments(rule: RuleInfo) -> dict[str, object]:
    """Return the body of a request to add a rule."""
    described: dict[str, object] = {"rule-name": rule.name}
    if rule.sql is not None:
        described["sql-filter"] = {"expression": rule.sql}
    else:
        described["correlation-filter"] = dict(rule.correlation)
    if rule.action is not None:
        described["sql-rule-action"] = {"expression": rule.action}
    return {"rule-name": rule.name, "rule-description": described}


def list_arguments(skip: int) -> dict[str, object]:
    """Return the body of a request for a page of rules."""
    return {"top": Int(PAGE), "skip": Int(skip)}


def listed(reply: Mapping[str, object]) -> list[RuleInfo]:
    """Return the rules of a page."""
    return [_rule(entry.get("rule-description")) for entry in maps(reply, "rules")]


def _rule(described: object) -> RuleInfo:
    """Convert the described list of section 6.3. Raises `ClientError` for any other value."""
    match described:
        case Described(value=[Described() as selects, Described() as action, str(name), *_]):
            sql, correlation = _filter(selects)
            match action.value:
                case [str(expression), *_]:
                    return RuleInfo(name, sql, correlation, expression)
            return RuleInfo(name, sql, correlation)
    raise ClientError("the broker's reply has something in 'rule-description' that is no rule")


def _filter(described: Described) -> tuple[str | None, Mapping[str, object]]:
    match described.descriptor, described.value:
        case int(code), [str(expression), *_] if code == _SQL_FILTER:
            return expression, {}
        case int(code), _ if code == _TRUE_FILTER:
            return "1=1", {}
        case int(code), _ if code == _FALSE_FILTER:
            return "1=0", {}
        case int(code), [*fields] if code == _CORRELATION_FILTER:
            *texts, properties = fields
            values = {name: value for name, value in zip(CORRELATION_TEXTS, texts, strict=True) if value is not None}
            return None, values | ({"properties": properties} if properties else {})
    raise ClientError("the broker's reply has a filter of an unknown kind")
