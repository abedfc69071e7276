"""Rules of subscriptions. One that was answered holds for every message that is published afterwards."""

from hashlib import blake2b

from starlette.responses import Response

from partibus.errors import ArgumentError
from partibus.filters.model import Rule
from partibus.frontends.rest.atom import names
from partibus.frontends.rest.atom.calls import Call
from partibus.frontends.rest.atom.envelope import Entry
from partibus.frontends.rest.atom.rule_xml import read_rule, rule_xml
from partibus.namespace.names import RULES, fold_name
from partibus.namespace.namespace import Subscription


async def get_rule(call: Call) -> Response:
    """Show a rule."""
    return _show(call, subscription_of(call).rule(call.resource.rule))


async def put_rule(call: Call) -> Response:
    """Make a rule, or put another in its place."""
    description = await call.description(names.RULE)
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
    return Entry(path, rule.name, names.RULE, rule_xml(rule), rule.created_ms, rule.created_ms)


def _show(call: Call, rule: Rule, status: int = 200) -> Response:
    return call.show(entry_of_rule(subscription_of(call), rule), _tag(rule), status)


def _check_tag(call: Call) -> None:
    rule = subscription_of(call).rule(call.resource.rule)
    call.check_tag(rule.name, _tag(rule))


def _tag(rule: Rule) -> str:
    """Return the tag of a rule, made of all its content: a rule has no version, but it is small."""
    return f'"{blake2b(repr(rule).encode("utf-8", "replace"), digest_size=8).hexdigest()}"'
