"""Authorization rules inside of descriptions, both ways (dialect section 9.3)."""

from collections.abc import Iterable

from partibus.errors import ArgumentError
from partibus.frontends.rest.atom.values import date_text
from partibus.frontends.rest.atom.xml_in import Element
from partibus.frontends.rest.atom.xml_out import element, text_element
from partibus.namespace.access import Right, SasPolicy

ELEMENT = "AuthorizationRules"

_RULE = "AuthorizationRule"
_TYPE = "SharedAccessAuthorizationRule"
_RIGHTS = {"Manage": Right.MANAGE, "Send": Right.SEND, "Listen": Right.LISTEN}


def read_policies(found: Element) -> list[SasPolicy]:
    """Return the policies of an ``AuthorizationRules``; absent keys are empty. Raises `ArgumentError`."""
    return [_read(rule) for rule in found.find_all(_RULE)]


def policies_xml(policies: Iterable[SasPolicy]) -> str:
    """Return an ``AuthorizationRules`` with keys: its readers may do everything with the entity."""
    return element(ELEMENT, "".join(_policy_xml(policy) for policy in policies))


def _read(rule: Element) -> SasPolicy:
    if rule.type not in ("", _TYPE):
        raise ArgumentError("The type of an AuthorizationRule", rule.type, _TYPE, f"See {rule.place}.")
    name = _text(rule, "KeyName")
    if not name:
        raise ArgumentError("KeyName", name, "the name of the rule", f"See {rule.place}.")
    return SasPolicy(name, _rights(rule), _text(rule, "PrimaryKey"), _text(rule, "SecondaryKey"))


def _rights(rule: Element) -> Right:
    rights = Right(0)
    found = rule.find("Rights")
    for one in found.find_all("AccessRights") if found is not None else ():
        if one.text not in _RIGHTS:
            raise ArgumentError("AccessRights", one.text, f"one of {', '.join(_RIGHTS)}", f"See {one.place}.")
        rights |= _RIGHTS[one.text]
    if not rights:
        raise ArgumentError("Rights", "", f"at least one of {', '.join(_RIGHTS)}", f"See {rule.place}.")
    return rights


def _text(rule: Element, name: str) -> str:
    child = rule.find(name)
    return "" if child is None else child.text


def _policy_xml(policy: SasPolicy) -> str:
    rights = "".join(text_element("AccessRights", name) for name, right in _RIGHTS.items() if right in policy.rights)
    return element(
        _RULE,
        text_element("ClaimType", "SharedAccessKey")
        + text_element("ClaimValue", "None")
        + element("Rights", rights)
        + text_element("CreatedTime", date_text(policy.created_ms))
        + text_element("ModifiedTime", date_text(policy.modified_ms))
        + text_element("KeyName", policy.name)
        + text_element("PrimaryKey", policy.primary_key)
        + text_element("SecondaryKey", policy.secondary_key),
        {"i:type": _TYPE},
    )
