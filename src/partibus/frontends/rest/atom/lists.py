"""Pages of queues, topics, subscriptions and rules, in order of name."""

from collections.abc import Sequence
from typing import TypeVar

from starlette.responses import Response

from partibus.frontends.rest.answers import answers_of
from partibus.frontends.rest.atom.calls import Call
from partibus.frontends.rest.atom.counts import ask_counts
from partibus.frontends.rest.atom.entities import entry_of
from partibus.frontends.rest.atom.envelope import Page
from partibus.frontends.rest.atom.rules import entry_of_rule, subscription_of
from partibus.namespace.names import RULES, SUBSCRIPTIONS
from partibus.namespace.namespace import Queue

T = TypeVar("T")


async def list_all(call: Call) -> Response:
    """Show queues and then topics, for the address of the namespace itself."""
    namespace = call.broker.namespace
    return await _show_entities(call, "Entities", "", [*namespace.queues, *namespace.topics])


async def list_queues(call: Call) -> Response:
    """Show the queues."""
    return await _show_entities(call, "Queues", "$Resources/Queues", call.broker.namespace.queues)


async def list_topics(call: Call) -> Response:
    """Show the topics."""
    return await _show_entities(call, "Topics", "$Resources/Topics", call.broker.namespace.topics)


async def list_subscriptions(call: Call) -> Response:
    """EntityNotFound when there is no such topic."""
    topic = call.broker.namespace.topic(call.resource.entity)
    return await _show_entities(call, SUBSCRIPTIONS, f"{topic.name}/{SUBSCRIPTIONS}", topic.subscriptions)


async def list_rules(call: Call) -> Response:
    """EntityNotFound when there is no such subscription."""
    subscription = subscription_of(call)
    shown, page = _cut(call, subscription.rules)
    entries = [entry_of_rule(subscription, rule) for rule in shown]
    return call.show_page(RULES, f"{subscription.name}/{RULES}", entries, page)


async def _show_entities(call: Call, title: str, path: str, queues: Sequence[Queue]) -> Response:
    shown, page = _cut(call, queues)
    entities = [call.broker.entity(queue.name) for queue in shown]
    inspections = await answers_of(ask_counts(entity.route) for entity in entities)
    entries = [entry_of(call, entity, inspection) for entity, inspection in zip(entities, inspections, strict=True)]
    return call.show_page(title, path, entries, page)


def _cut(call: Call, everything: Sequence[T]) -> tuple[Sequence[T], Page]:
    skip, top = call.page()
    return everything[skip : skip + top], Page(skip, top, skip + top < len(everything))
