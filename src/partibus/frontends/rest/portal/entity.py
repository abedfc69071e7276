"""One queue, topic or subscription: its properties, its messages, and their partitions."""

from typing import Any, Final

from partibus.filters.model import CorrelationFilter, FalseFilter, Filter, Rule, TrueFilter
from partibus.frontends.rest.answers import answer_of
from partibus.frontends.rest.atom.counts import ask_counts
from partibus.frontends.rest.portal.advice import look
from partibus.frontends.rest.portal.entities import ROWS, pages_of, row_of, rows_of
from partibus.frontends.rest.portal.fields import LABELS, property_text
from partibus.frontends.rest.portal.visit import MovedOn, Page, Visit, address
from partibus.frontends.rest.requests import pay
from partibus.namespace.entity import Entity
from partibus.namespace.namespace import Queue, Subscription, Topic
from partibus.namespace.properties import EXPRESS_BOUND, properties_of
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Inspected
from partibus.routing.entity import Inspection
from partibus.throttling.uses import Operation

DONE: Final = {"created": "Created.", "changed": "Changed."}
"""The notices that a page shows once, after a form."""
MOVES: Final = 20
"""Moves of slots that a page shows, the unfinished ones first."""
_CORRELATION: Final = (
    *(("CorrelationId", "correlation_id"), ("MessageId", "message_id"), ("To", "to"), ("ReplyTo", "reply_to")),
    *(("Label", "label"), ("SessionId", "session_id"), ("ReplyToSessionId", "reply_to_session_id")),
    ("ContentType", "content_type"),
)


async def show_entity(visit: Visit) -> Page | MovedOn:
    """Show an entity. ``path``: its name, or the path of a subscription. ``watch``: an earlier look (`look`).

    Raises EntityNotFound.
    """
    entity = visit.broker.entity(visit.asked("path"))
    number = visit.page_number()
    await pay(visit.broker, Operation.MANAGEMENT)
    inspection = await answer_of(ask_counts(entity.route))
    queue = entity.queue
    data = describe(entity, inspection)
    data["settings"] = None
    if visit.asked("watch"):
        watch, data["settings"] = await look(visit, entity, data["active"])
        if data["settings"] is None:
            return MovedOn(address("entity", path=entity.queue.name, watch=watch))
    data["done"] = DONE.get(visit.asked("done"), "")
    if isinstance(queue, Topic):
        subscriptions = queue.subscriptions
        number = min(number, pages_of(subscriptions))
        first = (number - 1) * ROWS
        shown = subscriptions[first : first + ROWS]
        data["subscription_rows"] = await rows_of(shown, visit.broker)
        data["page"], data["pages"] = number, pages_of(subscriptions)
    return Page("entity", queue.short_name if isinstance(queue, Subscription) else queue.name, data)


def describe(entity: Entity, inspection: Inspection) -> dict[str, Any]:
    """Describe an entity: all but the subscriptions of a topic."""
    queue = entity.queue
    data = row_of(entity, inspection)
    data |= {
        "created_ms": queue.created_ms,
        "updated_ms": queue.updated_ms,
        "express_bound_ms": queue.express_ms or None,
        "properties": _properties(queue),
        "partition_size_max_bytes": queue.partition_size_max_bytes,
        "partition_rows": [
            _partition(partition.partition_id, inspection, index)
            for index, partition in enumerate(entity.route.partitions)
        ],
    }
    moves = [(move, None) for move in queue.slots.moves] + [(past, past.ended_ms) for past in queue.slots.history[::-1]]
    data["slot_moves"] = [
        {
            "source": move.source,
            "target": move.target,
            "slots": move.slots,
            "began_ms": move.began_ms,
            "ended_ms": ended_ms,
            "why": move.why,
        }
        for move, ended_ms in moves[:MOVES]
    ]
    counts = entity.route.slots.counts()
    data["slot_counts"] = counts if queue.slots.version else []
    if isinstance(queue, Subscription):
        data["topic"] = queue.topic.name
        data["rule_rows"] = [rule_of(rule) for rule in queue.rules]
    return data


def rule_of(rule: Rule) -> dict[str, str]:
    """Return a rule for display."""
    return {
        "name": rule.name,
        "kind": type(rule.filter).__name__.removesuffix("Filter"),
        "filter": filter_text(rule.filter),
        "action": "" if rule.action is None else rule.action.expression,
    }


def filter_text(chosen: Filter) -> str:
    """Return a filter for display; of an SQL filter the text itself."""
    if isinstance(chosen, TrueFilter):
        return "every message"
    if isinstance(chosen, FalseFilter):
        return "no message"
    if isinstance(chosen, CorrelationFilter):
        named = [(name, getattr(chosen, field)) for name, field in _CORRELATION]
        terms = [f"{name} = {value!r}" for name, value in [*named, *chosen.properties.items()] if value is not None]
        return " and ".join(terms) or "every message"
    return chosen.expression


def _properties(queue: Queue) -> list[dict[str, str]]:
    values = properties_of(queue.kind, queue.description.options)
    if not queue.express_ms:
        values.pop(EXPRESS_BOUND, None)
    return [
        {
            "name": name,
            "label": LABELS[name].label,
            "value": str(value).lower() if isinstance(value, bool) else str(value),
            "text": property_text(name, value, len(queue.partitions)),
        }
        for name, value in values.items()
    ]


def _partition(partition_id: int, inspection: Inspection, index: int) -> dict[str, Any]:
    row: dict[str, Any] = {"partition": partition_id, "available": index in inspection.found}
    if index not in inspection.found:
        return row | {"trouble": inspection.failed[index].message}
    found = inspection.found[index]
    return row | {
        "active": max(0, _messages(found, SubqueueKind.ACTIVE) - found.scheduled),
        "dead_letter": _messages(found, SubqueueKind.DEAD_LETTER),
        "scheduled": found.scheduled,
        "locked": sum(subqueue.locked for subqueue in found.subqueues.values()),
        "size_bytes": sum(subqueue.size_bytes for subqueue in found.subqueues.values()) + found.subscriptions_bytes,
    }


def _messages(found: Inspected, kind: SubqueueKind) -> int:
    subqueue = found.subqueues.get(kind)
    return 0 if subqueue is None else subqueue.messages
