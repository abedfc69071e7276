"""The entities of a namespace as a Config.json, which gives the same entities in an empty namespace.

Only values that differ from the defaults are written. Keys are left out: access policies have no place in the file. A
few values of rules have no form in it. Each omission is reported beside the text, by the path of the entity, rule or
policy.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

from partibus.errors import Unsupported
from partibus.filters.plain import to_config
from partibus.namespace.catalog_rows import rule_path
from partibus.namespace.entities import DEFAULT_OPTIONS
from partibus.namespace.namespace import Namespace
from partibus.namespace.policies import policy_path
from partibus.namespace.properties import properties_of
from partibus.namespace.queues import Queue, Subscription, Topic
from partibus.namespace.rules import default_rule, same_rules

_Object = dict[str, object]


class LeftOut(NamedTuple):
    """Something that the file can't say."""

    path: str
    """The path of the entity, rule or policy."""
    reason: str


class Exported(NamedTuple):
    """A Config.json and its omissions."""

    text: str
    left_out: list[LeftOut]


def export_config(namespace: Namespace) -> Exported:
    """Export all queues and topics, in order of name.

    The name of the namespace has no effect when the file is applied.
    """
    left_out = [LeftOut(policy_path("", policy.name), _NO_POLICIES) for policy in namespace.policies]
    described: _Object = {"Name": namespace.name}
    described["Queues"] = [_entity(queue, queue.name, left_out) for queue in namespace.queues]
    described["Topics"] = [_topic(topic, left_out) for topic in namespace.topics]
    document = {"UserConfig": {"Namespaces": [described]}}
    return Exported(json.dumps(document, indent=2) + "\n", left_out)


_NO_POLICIES = "a Config.json has no access policies; set them anew, or copy catalog and keys"
_NO_RULES = "every subscription in a Config.json has at least one rule; delete $Default after applying it"


def _topic(topic: Topic, left_out: list[LeftOut]) -> _Object:
    described = _entity(topic, topic.name, left_out)
    subscriptions = [_subscription(subscription, left_out) for subscription in topic.subscriptions]
    return described | ({"Subscriptions": subscriptions} if subscriptions else {})


def _subscription(subscription: Subscription, left_out: list[LeftOut]) -> _Object:
    described = _entity(subscription, subscription.short_name, left_out)
    if not subscription.rules:
        left_out.append(LeftOut(subscription.name, _NO_RULES))
    elif not same_rules(subscription.rules, (default_rule(),)):
        described["Rules"] = list(_rules(subscription, left_out))
    return described


def _rules(subscription: Subscription, left_out: list[LeftOut]) -> Iterable[_Object]:
    for rule in subscription.rules:
        try:
            yield to_config(rule)
        except Unsupported as error:
            left_out.append(LeftOut(rule_path(subscription.name, rule.name), str(error)))


def _entity(entity: Queue, name: str, left_out: list[LeftOut]) -> _Object:
    left_out += [LeftOut(policy_path(entity.name, policy.name), _NO_POLICIES) for policy in entity.policies]
    defaults = properties_of(entity.kind, DEFAULT_OPTIONS)
    values = properties_of(entity.kind, entity.description.options)
    different = {key: value for key, value in values.items() if value != defaults[key]}
    return {"Name": name} | ({"Properties": different} if different else {})
