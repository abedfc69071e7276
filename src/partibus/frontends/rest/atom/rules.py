"""Rules of subscriptions, with their filter and action as elements, both ways (dialect section 9.3).

A rule that was answered holds for every message that is published afterwards.
"""

from collections.abc import Mapping
from hashlib import blake2b

from starlette.responses import Response

from partibus.errors import ArgumentError
from partibus.filters.model import (
    DEFAULT_RULE,
    Constant,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from partibus.frontends.rest.atom import xml
from partibus.frontends.rest.atom.calls import Call
from partibus.frontends.rest.atom.envelope import Entry
from partibus.frontends.rest.atom.values import date_text, read_constant, write_constant
from partibus.frontends.rest.atom.xml import SCHEMA, Element, element, text_element
from partibus.namespace.names import RULES, fold_name
from partibus.namespace.namespace import Subscription

_PAIR = "KeyValueOfstringanyType"
_CORRELATION = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
_FILTER_TYPES = "SqlFilter, CorrelationFilter, TrueFilter or FalseFilter"
_COMPATIBILITY = text_element("CompatibilityLevel", "20")


def read_rule(description: Element, name: str) -> Rule:
    """Return the rule of a description, under ``name``. Raises `ArgumentError`."""
    found = description.find("Filter")
    if found is None:
        chosen: Filter = TrueFilter()
    else:
        chosen = _read_filter(found)
    action = description.find("Action")
    return Rule(name, chosen, None if action is None else _read_action(action))


def read_default_rule(description: Element) -> Rule:
    """Return the rule that a new subscription has in place of the default one. Raises `ArgumentError`."""
    name = description.find("Name")
    return read_rule(description, DEFAULT_RULE if name is None else name.text)


def rule_xml(rule: Rule) -> str:
    """Return the content of a ``RuleDescription``."""
    return (
        _filter_xml(rule.filter)
        + _action_xml(rule.action)
        + text_element("CreatedAt", date_text(rule.created_ms))
        + text_element("Name", rule.name)
    )


def _read_filter(found: Element) -> Filter:
    match found.type:
        case "SqlFilter":
            return SqlFilter(_expression(found), _pairs(found.find("Parameters")))
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "CorrelationFilter":
            texts = {
                field: child.text for name, field in _CORRELATION.items() if (child := found.find(name)) is not None
            }
            return CorrelationFilter(**texts, properties=_pairs(found.find("Properties")))
    raise ArgumentError("The type of the Filter", found.type, _FILTER_TYPES, f"See {found.place}.")


def _read_action(found: Element) -> SqlAction | None:
    if found.type in ("", "EmptyRuleAction"):
        return None
    if found.type != "SqlRuleAction":
        raise ArgumentError(
            "The type of the Action", found.type, "SqlRuleAction or EmptyRuleAction", f"See {found.place}."
        )
    return SqlAction(_expression(found), _pairs(found.find("Parameters")))


def _expression(found: Element) -> str:
    child = found.find("SqlExpression")
    if child is None or not child.text.strip():
        raise ArgumentError("SqlExpression", "", f"text, since {found.name} has the type {found.type}")
    return child.text


def _pairs(found: Element | None) -> dict[str, Constant]:
    pairs: dict[str, Constant] = {}
    for pair in found.find_all(_PAIR) if found is not None else ():
        key, value = pair.find("Key"), pair.find("Value")
        if key is None or value is None:
            raise ArgumentError(_PAIR, pair.place, "a Key and a Value")
        if key.text in pairs:
            raise ArgumentError("Key", key.text, "different from the other keys", f"See {key.place}.")
        pairs[key.text] = read_constant(value)
    return pairs


def _filter_xml(chosen: Filter) -> str:
    if isinstance(chosen, CorrelationFilter):
        values = {name: getattr(chosen, field) for name, field in _CORRELATION.items()}
        texts = "".join(text_element(name, value) for name, value in values.items() if value is not None)
        return element("Filter", texts + _pairs_xml("Properties", chosen.properties), {"i:type": "CorrelationFilter"})
    if isinstance(chosen, SqlFilter):
        return _sql_xml("Filter", "SqlFilter", chosen.expression, chosen.parameters)
    if isinstance(chosen, TrueFilter):
        return _sql_xml("Filter", "TrueFilter", "1=1", {})
    return _sql_xml("Filter", "FalseFilter", "1=0", {})


def _action_xml(action: SqlAction | None) -> str:
    if action is None:
        return element("Action", "", {"i:type": "EmptyRuleAction"})
    return _sql_xml("Action", "SqlRuleAction", action.expression, action.parameters)


def _sql_xml(name: str, kind: str, expression: str, parameters: Mapping[str, Constant]) -> str:
    content = text_element("SqlExpression", expression) + _COMPATIBILITY + _pairs_xml("Parameters", parameters)
    return element(name, content, {"i:type": kind})


def _pairs_xml(name: str, pairs: Mapping[str, Constant]) -> str:
    """Write the pairs; an empty text without pairs. JavaScript clients need this spelling (trap 30)."""
    written = ""
    for key, constant in pairs.items():
        kind, text = write_constant(constant)
        value = text_element("Value", text, {"i:type": f"d6p1:{kind}", "xmlns:d6p1": SCHEMA})
        written += element(_PAIR, text_element("Key", key) + value)
    return element(name, written) if written else ""


async def get_rule(call: Call) -> Response:
    """Show a rule."""
    return _show(call, subscription_of(call).rule(call.resource.rule))


async def put_rule(call: Call) -> Response:
    """Make a rule, or put another in its place."""
    description = await call.description(xml.RULE)
    rule = read_rule(description, call.resource.rule)
    said = description.find("Name")
    if said is not None and fold_name(said.text) != fold_name(rule.name):
        raise ArgumentError("Name", said.text, f"'{rule.name}', as in the address", "Use one name, or leave it out.")
    path = subscription_of(call).name
    if call.if_match is None:
        rule, status = call.broker.create_rule(path, rule), 201
    else:
        _check_tag(call)
        rule, status = call.broker.replace_rule(path, rule), 200
    await call.followed()
    return _show(call, rule, status)


async def delete_rule(call: Call) -> Response:
    """Delete a rule."""
    _check_tag(call)
    call.broker.delete_rule(subscription_of(call).name, call.resource.rule)
    await call.followed()
    return Response()


def subscription_of(call: Call) -> Subscription:
    """Return the subscription of the request's rules. Raises `EntityNotFound`."""
    return call.broker.namespace.subscription(call.resource.entity, call.resource.subscription)


def entry_of_rule(subscription: Subscription, rule: Rule) -> Entry:
    """Return the entry of a rule."""
    path = f"{subscription.name}/{RULES}/{rule.name}"
    return Entry(path, rule.name, xml.RULE, rule_xml(rule), rule.created_ms, rule.created_ms)


def _show(call: Call, rule: Rule, status: int = 200) -> Response:
    return call.show(entry_of_rule(subscription_of(call), rule), _tag(rule), status)


def _check_tag(call: Call) -> None:
    rule = subscription_of(call).rule(call.resource.rule)
    call.check_tag(rule.name, _tag(rule))


def _tag(rule: Rule) -> str:
    """Return the tag of a rule, made of all its content: a rule has no version, but it is small."""
    return f'"{blake2b(repr(rule).encode("utf-8", "replace"), digest_size=8).hexdigest()}"'
