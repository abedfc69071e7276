"""`add-rule`, `remove-rule`, `enumerate-rules`: the rules of a subscription (section 6.3).

Rules belong to the namespace, so the node answers a change when every broker applies it.
"""

from partibus.errors import InvalidOperation
from partibus.filters.model import Rule
from partibus.frontends.amqp.operations.arguments import integer, mapping, text
from partibus.frontends.amqp.operations.request import EntityRequest
from partibus.frontends.amqp.operations.status import no_content, success
from partibus.frontends.amqp.rule_values import read_rule, write_rule
from partibus.namespace.namespace import Subscription

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
