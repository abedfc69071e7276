"""Descriptions of entities: elements to properties and back (dialect section 9.3).

Elements are read in any order; the namespace has the defaults of absent ones. They are written in the service's order,
and always (trap 30). Authorization rules are part of a description that the operator reads or writes.
"""

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from partibus.errors import ArgumentError, Unsupported, did_you_mean
from partibus.frontends.rest.atom import xml
from partibus.frontends.rest.atom.counts import Counts, counts_xml
from partibus.frontends.rest.atom.values import NEVER, date_text, json_of, text_of
from partibus.frontends.rest.atom.xml import Element, element, text_element
from partibus.namespace.access import Right, SasPolicy
from partibus.namespace.entities import DEFAULT_OPTIONS, EntityKind
from partibus.namespace.namespace import Queue, Topic
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.properties import EXPRESS_BOUND, FORWARD_DEAD_LETTERED_TO, FORWARD_TO, PROPERTIES, properties_of
from partibus.namespace.tier_rules import partition_count, sizes_mb
from partibus.namespace.tiers import ENTITY_SIZES_MB

AUTHORIZATION_RULES = "AuthorizationRules"

_RULE = "AuthorizationRule"
_TYPE = "SharedAccessAuthorizationRule"
_RIGHTS = {"Manage": Right.MANAGE, "Send": Right.SEND, "Listen": Right.LISTEN}


def read_policies(found: Element) -> list[SasPolicy]:
    """Return the policies of an ``AuthorizationRules``; absent keys are empty. Raises `ArgumentError`."""
    return [_read(rule) for rule in found.find_all(_RULE)]


def policies_xml(policies: Iterable[SasPolicy]) -> str:
    """Return an ``AuthorizationRules`` with keys, for readers with Manage by a key of the operator."""
    return element(AUTHORIZATION_RULES, "".join(_policy_xml(policy) for policy in policies))


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


def size_shown(size_mb: int, partitions: int) -> int:
    """Return the ``MaxSizeInMegabytes`` of an entity whose partitions take ``size_mb`` each."""
    return size_mb * partitions


def size_read(size: object, partitions: int, allowed: Container[int], now_mb: int | None = None) -> object:
    """Return the MB of each partition, from a client's value.

    ``allowed``: the sizes of a partition; ``now_mb``: its size in an existing entity. An invalid value stays, for the
    property's own check to refuse.
    """
    if not isinstance(size, int) or partitions == 1:
        return size
    if now_mb is not None and size == now_mb * partitions:
        return now_mb
    if size not in allowed and size % partitions == 0 and size // partitions in ENTITY_SIZES_MB:
        return size // partitions
    return size


ELEMENTS = {
    EntityKind.QUEUE: xml.QUEUE,
    EntityKind.TOPIC: xml.TOPIC,
    EntityKind.SUBSCRIPTION: xml.SUBSCRIPTION,
}
"""The describing element of each kind."""

DEFAULT_RULE_DESCRIPTION = "DefaultRuleDescription"

_ORDER = {
    EntityKind.QUEUE: (
        *("LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession"),
        *("DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration", "DuplicateDetectionHistoryTimeWindow"),
        *("MaxDeliveryCount", "EnableBatchedOperations", "SizeInBytes", "MessageCount", "IsAnonymousAccessible"),
        *("AuthorizationRules", "Status", "ForwardTo", "UserMetadata", "CreatedAt", "UpdatedAt", "AccessedAt"),
        *("SupportOrdering", "CountDetails", "AutoDeleteOnIdle", "EnablePartitioning", "EntityAvailabilityStatus"),
        *("ForwardDeadLetteredMessagesTo", "EnableExpress", "MaxMessageSizeInKilobytes"),
    ),
    EntityKind.TOPIC: (
        *("DefaultMessageTimeToLive", "MaxSizeInMegabytes", "RequiresDuplicateDetection"),
        *("DuplicateDetectionHistoryTimeWindow", "EnableBatchedOperations", "SizeInBytes"),
        *("FilteringMessagesBeforePublishing", "IsAnonymousAccessible", "AuthorizationRules", "Status", "UserMetadata"),
        *("CreatedAt", "UpdatedAt", "AccessedAt", "SupportOrdering", "CountDetails", "SubscriptionCount"),
        *("SqlFilterCount", "CorrelationFilterCount", "AutoDeleteOnIdle", "EnablePartitioning"),
        *("EntityAvailabilityStatus", "EnableSubscriptionPartitioning", "EnableExpress", "MaxMessageSizeInKilobytes"),
    ),
    EntityKind.SUBSCRIPTION: (
        *("LockDuration", "RequiresSession", "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration"),
        *("DeadLetteringOnFilterEvaluationExceptions", "MessageCount", "MaxDeliveryCount", "EnableBatchedOperations"),
        *("Status", "ForwardTo", "CreatedAt", "UpdatedAt", "AccessedAt", "CountDetails", "UserMetadata"),
        *("ForwardDeadLetteredMessagesTo", "AutoDeleteOnIdle", "EntityAvailabilityStatus"),
    ),
}
_FALSE = {"FilteringMessagesBeforePublishing", "EnableSubscriptionPartitioning", "IsAnonymousAccessible"}
"""Options of the service that nothing here offers."""
_IGNORED = {
    *("SizeInBytes", "MessageCount", "CreatedAt", "UpdatedAt", "AccessedAt", "CountDetails", "SupportOrdering"),
    *("SubscriptionCount", "SqlFilterCount", "CorrelationFilterCount", "EntityAvailabilityStatus"),
}
"""Elements that only the broker sets; clients send back those that they have read."""
_TARGETS = {FORWARD_TO, FORWARD_DEAD_LETTERED_TO}
_MAX_SIZE = "MaxSizeInMegabytes"
_ORDERING = "SupportOrdering"
_OWN = "Partibus"
_VALUES = {kind: {prop.name: prop.value for prop in properties} for kind, properties in PROPERTIES.items()}


class Described(NamedTuple):
    """A client's description of an entity."""

    properties: dict[str, object]
    """Properties by the service's names, in JSON form, unchecked."""
    policies: list[SasPolicy] | None
    """None: the description does not speak of authorization rules."""
    default_rule: Element | None
    """The first rule of a subscription."""


def read_description(
    kind: EntityKind, description: Element, namespace: NamespaceOptions, known: Queue | None = None
) -> Described:
    """Return the described properties. Raises `ArgumentError` or `Unsupported` for invalid elements.

    Values are checked later. ``known``: the described entity, where it exists.
    """
    seen: dict[str, Element] = {}
    values = _VALUES[kind]
    xml = {*values, *_ORDER[kind], *_IGNORED, DEFAULT_RULE_DESCRIPTION}
    for child in description.children:
        if child.namespace != description.namespace or child.name not in xml:
            next_step = f"See {child.place}. {did_you_mean(child.name, xml)}".rstrip()
            raise ArgumentError("An element", child.name, f"one that a {description.name} has", next_step)
        if child.name in seen:
            raise ArgumentError("An element", child.name, "there once only", f"See {child.place}.")
        if child.name in _FALSE and child.text.strip().lower() in ("true", "1"):
            raise Unsupported(f"{child.name} with the value true", "Leave it out, or set it to false.")
        seen[child.name] = child
    properties = {name: json_of(seen[name].text, values[name]) for name in values if _says(seen.get(name))}
    if _MAX_SIZE in properties:
        partitions, now_mb = _partitions(namespace, properties), None
        if known is not None:
            partitions, now_mb = len(known.partitions), known.description.options.max_size_mb
        properties[_MAX_SIZE] = size_read(properties[_MAX_SIZE], partitions, sizes_mb(namespace, partitions), now_mb)
    rules = seen.get(AUTHORIZATION_RULES)
    return Described(properties, None if rules is None else read_policies(rules), seen.get(DEFAULT_RULE_DESCRIPTION))


def description_xml(queue: Queue, counts: Counts, host: str, *, keys: bool) -> str:
    """Return the content of the description of an entity of any kind; ``host`` is that of the request.

    Without ``keys`` the authorization rules are absent, not empty: clients send back what they have read.
    """
    order = _ORDER[queue.kind]
    elements = {name: text_element(name, text) for name, text in _facts(queue, counts).items()}
    elements["CountDetails"] = counts_xml(counts)
    if keys:
        elements[AUTHORIZATION_RULES] = policies_xml(queue.policies)
    own = []
    for name, value in properties_of(queue.kind, queue.description.options).items():
        if name in _TARGETS:
            value = value and f"sb://{host}/{value}"
        elif name == _MAX_SIZE:
            value = size_shown(int(value), len(queue.partitions))
        elif name == _ORDERING:
            value = bool(value) and not queue.partitioned
        is_express_bound = name == EXPRESS_BOUND and queue.express_ms > 0
        if name.startswith(_OWN) and (is_express_bound or value != _DEFAULTS[queue.kind][name]):
            own.append(text_element(name, text_of(value)))
        elif value != "":
            elements[name] = text_element(name, text_of(value))
    return "".join(elements[name] for name in order if name in elements) + "".join(own)


def own_properties(queue: Queue) -> dict[str, object]:
    """Return the properties that the service does not have.

    A client that does not know them can't send them back, and its update does not mean to change them.
    """
    values = properties_of(queue.kind, queue.description.options)
    return {name: value for name, value in values.items() if name.startswith(_OWN)}


_DEFAULTS = {kind: properties_of(kind, DEFAULT_OPTIONS) for kind in EntityKind}


def _partitions(namespace: NamespaceOptions, properties: Mapping[str, object]) -> int:
    """Return the number of partitions that an entity of these properties would have."""
    partitioned = properties.get("EnablePartitioning") is True or namespace.partition_count > 1
    return partition_count(namespace, replace(DEFAULT_OPTIONS, partitioned=partitioned))


def _says(found: Element | None) -> bool:
    return found is not None and not found.is_nil


def _facts(queue: Queue, counts: Counts) -> dict[str, str]:
    """Return the elements that only the broker sets."""
    facts = dict.fromkeys(_FALSE, "false") | {
        "SizeInBytes": str(counts.size_bytes),
        "MessageCount": str(counts.messages),
        "CreatedAt": date_text(queue.created_ms),
        "UpdatedAt": date_text(queue.updated_ms),
        "AccessedAt": NEVER,
        # Partitions have an order each, and nothing has an order over them (row P18).
        "SupportOrdering": text_of(not queue.partitioned),
        "EntityAvailabilityStatus": "Limited" if counts.limited else "Available",
    }
    if isinstance(queue, Topic):
        facts["SubscriptionCount"] = str(len(queue.subscriptions))
        facts["SqlFilterCount"] = str(queue.sql_filter_count)
        facts["CorrelationFilterCount"] = str(queue.correlation_filter_count)
    return facts
