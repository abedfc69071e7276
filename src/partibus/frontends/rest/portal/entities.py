"""The queues and topics of a namespace, by name, in pages."""

from collections.abc import Sequence
from typing import Any, Final

from partibus.errors import ArgumentError
from partibus.frontends.rest.answers import answers_of
from partibus.frontends.rest.atom.counts import ask_counts, counts_of
from partibus.frontends.rest.portal.visit import Page, Visit
from partibus.frontends.rest.requests import pay
from partibus.namespace.broker import Broker
from partibus.namespace.entities import EntityKind
from partibus.namespace.entity import Entity
from partibus.namespace.names import fold_name
from partibus.namespace.namespace import Queue, Subscription, Topic
from partibus.routing.entity import Inspection
from partibus.throttling.uses import Operation

ROWS: Final = 50
"""The rows of one page: 800 partitions are asked for their counts."""
_AT_ONCE: Final = 8
"""Entities that are asked together; other work runs between two groups."""
_KINDS: Final = ("", "queue", "topic")


async def show_entities(visit: Visit) -> Page:
    """Show entities whose names contain ``q``, of a ``kind``, by ``page``. Raises ArgumentError."""
    wanted, kind, number = fold_name(visit.asked("q").strip()), visit.asked("kind"), visit.page_number()
    if kind not in _KINDS:
        raise ArgumentError("kind", kind, "queue, topic or empty")
    await pay(visit.broker, Operation.MANAGEMENT)
    found = [
        queue
        for queue in visit.broker.namespace
        if queue.kind is not EntityKind.SUBSCRIPTION
        and wanted in fold_name(queue.name)
        and kind in ("", queue.kind.value)
    ]
    number = min(number, pages_of(found))
    first = (number - 1) * ROWS
    rows = await rows_of(found[first : first + ROWS], visit.broker)
    data = {
        "q": visit.asked("q").strip(),
        "kind": kind,
        "page": number,
        "pages": pages_of(found),
        "count": len(found),
        "entities": rows,
        "done": "Deleted." if visit.asked("done") == "deleted" else "",
    }
    return Page("entities", "Queues and topics", data)


def pages_of(rows: Sequence[Queue]) -> int:
    """Return the number of a list's pages. A later one shows the last: entities may have been deleted."""
    return max(1, -(-len(rows) // ROWS))


async def rows_of(entities: Sequence[Queue], broker: Broker) -> list[dict[str, Any]]:
    """Return the rows of entities in lists; one that is deleted meanwhile is left out."""
    rows = []
    for first in range(0, len(entities), _AT_ONCE):
        some = [broker.entity_of(queue) for queue in entities[first : first + _AT_ONCE] if not queue.deleted]
        inspections = await answers_of(ask_counts(entity.route) for entity in some)
        rows += [row_of(entity, inspection) for entity, inspection in zip(some, inspections, strict=True)]
    return rows


def row_of(entity: Entity, inspection: Inspection) -> dict[str, Any]:
    """Return the values that all pages show of an entity.

    Where partitions are away, the counts are those of the others (row A4). The size is that of all partitions together,
    beside their bound (row P24).
    """
    queue = entity.queue
    counts = counts_of(inspection, forwards=bool(queue.forward_to))
    row: dict[str, Any] = {
        "name": queue.name,
        "kind": queue.kind.value,
        "partitions": len(queue.partitions),
        "partitioned": queue.partitioned,
        "status": queue.description.options.status.value,
        "availability": "Limited" if counts.limited else "Available",
        "active": counts.active,
        "dead_letter": counts.dead_letter,
        "scheduled": counts.scheduled,
        "transfer": counts.transfer + counts.transfer_dead_letter,
        "messages": counts.messages,
        "size_bytes": counts.size_bytes,
        "size_max_bytes": None if isinstance(queue, Subscription) else queue.size_max_bytes,
    }
    if isinstance(queue, Topic):
        row["subscriptions"] = len(queue.subscriptions)
    if isinstance(queue, Subscription):
        row["short_name"] = queue.short_name
        row["rules"] = len(queue.rules)
    return row
