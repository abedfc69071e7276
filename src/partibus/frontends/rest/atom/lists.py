"""Pages of queues, topics, subscriptions and rules, in order of name; and ``GET /$namespaceinfo``."""

from collections.abc import Sequence
from typing import TypeVar

from starlette.responses import Response

from partibus.frontends.rest.atom import xml
from partibus.frontends.rest.atom.calls import Call
from partibus.frontends.rest.atom.counts import ask_counts
from partibus.frontends.rest.atom.entities import entry_of
from partibus.frontends.rest.atom.envelope import Entry, Page, namespace_name
from partibus.frontends.rest.atom.rules import entry_of_rule, subscription_of
from partibus.frontends.rest.atom.values import date_text
from partibus.frontends.rest.atom.xml import text_element
from partibus.frontends.rest.requests import answers_of, others_first
from partibus.namespace.names import RULES, SUBSCRIPTIONS
from partibus.namespace.namespace import Queue
from partibus.namespace.tiers import Tier

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
    """List a topic's subscriptions. Raises EntityNotFound."""
    topic = call.broker.namespace.topic(call.resource.entity)
    return await _show_entities(call, SUBSCRIPTIONS, f"{topic.name}/{SUBSCRIPTIONS}", topic.subscriptions)


async def list_rules(call: Call) -> Response:
    """List a subscription's rules. Raises EntityNotFound."""
    subscription = subscription_of(call)
    shown, page = _cut(call, subscription.rules)
    entries = []
    for rule in shown:
        entries.append(entry_of_rule(subscription, rule))
        await others_first()  # a rule of 1,200 properties takes 13 ms
    return call.show_page(RULES, f"{subscription.name}/{RULES}", entries, page)


async def _show_entities(call: Call, title: str, path: str, queues: Sequence[Queue]) -> Response:
    shown, page = _cut(call, queues)
    entities = [call.broker.entity(queue.name) for queue in shown]
    inspections = await answers_of(ask_counts(entity.route) for entity in entities)
    entries = [entry_of(call, entity, inspection) for entity, inspection in zip(entities, inspections, strict=True)]
    return call.show_page(title, path, entries, page)


def _cut(call: Call, everything: Sequence[T]) -> tuple[Sequence[T], Page]:
    skip, top = call.page()
    return everything[skip : skip + top], Page(skip, top, 0 < top < len(everything) - skip)


async def get_namespace_info(call: Call) -> Response:
    """Show the properties of the namespace.

    The default one has the name that the client uses. Until it is changed its time of creation is not stored: it is as
    old as its oldest entity.
    """
    namespace = call.broker.namespace
    record = namespace.record
    name = namespace_name(call.base) if call.broker.is_default else record.name
    created_ms, modified_ms = record.created_ms, record.updated_ms
    if not created_ms:
        created_ms = min((queue.created_ms for queue in namespace), default=call.broker.clock.now_ms())
        modified_ms = max((queue.updated_ms for queue in namespace), default=created_ms)
    options = record.options
    units = text_element("MessagingUnits", str(options.units)) if options.tier is Tier.PREMIUM else ""
    content = (
        text_element("Alias", "")
        + text_element("CreatedTime", date_text(created_ms))
        + text_element("MessagingSKU", options.tier.value.capitalize())
        + units
        + text_element("ModifiedTime", date_text(modified_ms))
        + text_element("Name", name)
        + text_element("NamespaceType", "Messaging")
    )
    entry = Entry("$namespaceinfo", name, xml.NAMESPACE_INFO, content, created_ms, modified_ms)
    return call.show(entry, f'"{modified_ms}"')
