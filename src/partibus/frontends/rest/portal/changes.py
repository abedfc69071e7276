"""The forms that create, change and delete entities, by the same steps as the admin API.

A refused form is shown again with the typed values, and the error beside its field; nothing has changed then. An
accepted one is answered when every broker has applied the change, with the address of the page that shows the result,
so that a reload repeats nothing.
"""

from collections.abc import Callable
from typing import Any

from partibus.errors import EntityChanged, EntityExists, InvalidOperation, PartibusError
from partibus.frontends.rest.atom.counts import ask_counts
from partibus.frontends.rest.atom.entities import check_all_there
from partibus.frontends.rest.atom.envelope import status_of
from partibus.frontends.rest.portal.fields import (
    LABELS,
    NAME,
    Field,
    as_plain,
    blame,
    change_fields,
    filled_in,
    mark_differing,
    new_fields,
    property_text,
    typed_properties,
)
from partibus.frontends.rest.portal.overview import row_of, rows_of
from partibus.frontends.rest.portal.visit import Answer, MovedOn, Page, Visit, address
from partibus.frontends.rest.requests import answer_of, pay
from partibus.namespace.entities import EntityKind
from partibus.namespace.entity import Entity
from partibus.namespace.namespace import Subscription, Topic
from partibus.namespace.properties import PROPERTIES, properties_of
from partibus.namespace.tiers import Feature, check_has
from partibus.throttling.uses import Operation

_SEEN = "seen"
"""A hidden field: which state of the entity the form was made from."""


async def create(visit: Visit) -> Answer:
    """Create an entity. ``kind``: queue, topic or subscription; ``topic``: of the subscription.

    Raises `EntityNotFound` for the topic, `InvalidOperation` for an unknown kind.
    """
    visit.check_manage()
    broker, kind = visit.broker, _kind(visit.asked("kind", EntityKind.QUEUE.value))
    options = broker.namespace.record.options
    if kind is not EntityKind.QUEUE:
        check_has(options.tier, Feature.TOPICS)
    topic = broker.namespace.topic(visit.asked("topic")).name if kind is EntityKind.SUBSCRIPTION else ""
    fields = new_fields(options, kind)
    data: dict[str, Any] = {"kind": kind.value, "topic": topic, "path": ""}
    title = f"New {kind.value}" + (f" of {topic}" if topic else "")
    if not visit.is_post:
        return _form(title, data, fields)

    def make() -> Entity:
        name, properties = visit.form.get(NAME, "").strip(), typed_properties(kind, fields)
        if kind is EntityKind.SUBSCRIPTION:
            return broker.create_subscription(topic, name, properties)
        return (broker.create_queue if kind is EntityKind.QUEUE else broker.create_topic)(name, properties)

    return await _carried_out(visit, title, data, fields, make, "created")


async def change(visit: Visit) -> Answer:
    """Change the entity at ``path``. Raises EntityNotFound."""
    visit.check_manage()
    broker = visit.broker
    entity = broker.entity(visit.asked("path"))
    queue = entity.queue
    options = queue.description.options
    fields = change_fields(broker.namespace.record.options, queue.kind, options, len(queue.partitions))
    values = properties_of(queue.kind, options)
    fixed = [
        {"label": LABELS[prop.name].label, "text": property_text(prop.name, values[prop.name], len(queue.partitions))}
        for prop in PROPERTIES[queue.kind]
        if not prop.mutable
    ]
    data: dict[str, Any] = {"kind": queue.kind.value, "path": queue.name, "fixed": fixed, _SEEN: queue.updated_ms}
    title = f"Change {queue.name}"
    if not visit.is_post:
        return _form(title, data, fields)

    def update() -> Entity:
        seen = visit.form.get(_SEEN, "")
        if seen != str(queue.updated_ms):
            raise EntityChanged(queue.name)
        check_all_there(entity, "changed")
        typed = typed_properties(queue.kind, fields)
        changed = {name: value for name, value in typed.items() if value != before[name]}
        return broker.update(queue.name, changed, kind=queue.kind, updated_ms=queue.updated_ms)

    before = typed_properties(queue.kind, fields)
    return await _carried_out(visit, title, data, fields, update, "changed")


async def delete(visit: Visit) -> Answer:
    """Delete the entity at ``path``, after a question that names what goes with it. Raises EntityNotFound."""
    visit.check_manage()
    broker = visit.broker
    await pay(broker, Operation.MANAGEMENT)
    entity = broker.entity(visit.asked("path"))
    queue = entity.queue
    if visit.is_post:
        if visit.form.get(_SEEN, "") != str(queue.entity_id):
            raise EntityChanged(queue.name)
        check_all_there(entity, "deleted")
        broker.delete(queue.name, kind=queue.kind)
        await visit.followed()
        if isinstance(queue, Subscription):
            return MovedOn(address("entity", path=queue.topic.name))
        return MovedOn(address("entities", done="deleted"))
    subscriptions = queue.subscriptions if isinstance(queue, Topic) else []
    rows = [row_of(entity, await answer_of(ask_counts(entity.route)))]
    rows += await rows_of(subscriptions, broker)
    data = rows[0] | {
        "messages": sum(row["messages"] for row in rows),
        "subscriptions": len(subscriptions),
        _SEEN: queue.entity_id,
        "forwarded_from": [one.name for one in broker.namespace if queue.name in one.description.options.forwards],
    }
    return Page("delete", f"Delete {queue.name}", data)


async def _carried_out(
    visit: Visit, title: str, data: dict[str, Any], fields: list[Field], do: Callable[[], Entity], done: str
) -> Answer:
    """Carry a form out, or show it again.

    If a form was refused because the entity has changed, its user must see the changes before sending it again.
    """
    now = {field.name: field.value for field in fields}
    filled_in(fields, visit.form)
    try:
        await pay(visit.broker, Operation.MANAGEMENT)
        entity = do()
    except PartibusError as error:
        text = blame(fields, error)
        if isinstance(error, EntityChanged):
            mark_differing(fields, now)
            text += " Fields that differ from what it is now say so: sent again, this form sets what stands in them."
        page = _form(title, data, fields, text)
        page.status = 409 if isinstance(error, EntityExists | EntityChanged) else status_of(error)[0]
        return page
    await visit.followed()
    return MovedOn(address("entity", path=entity.queue.name, done=done))


def _form(title: str, data: dict[str, Any], fields: list[Field], error: str = "") -> Page:
    return Page("form", title, data | {"fields": as_plain(fields), "error": error})


def _kind(text: str) -> EntityKind:
    try:
        return EntityKind(text)
    except ValueError:
        raise InvalidOperation(
            f"There is no kind of entity '{text[:40]}'. Make a queue, a topic or a subscription."
        ) from None
