"""Rules: filter and action as elements, both ways (dialect section 9.3)."""

from collections.abc import Mapping

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
from partibus.frontends.rest.atom.names import SCHEMA
from partibus.frontends.rest.atom.values import date_text, read_constant, write_constant
from partibus.frontends.rest.atom.xml_in import Element
from partibus.frontends.rest.atom.xml_out import element, text_element

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
