"""The pages of a namespace: the overview (rows A4, R13), and its queues and topics by name.

The overview has the namespace's properties, its usage against its bounds, and the server's health. All numbers are
those of `/metrics`, of all brokers together. Counters begin with each broker's process.
"""

from collections.abc import Mapping, Sequence
from operator import add
from typing import Any, Final

from partibus.errors import ArgumentError
from partibus.frontends.rest.atom.counts import ask_counts, counts_of
from partibus.frontends.rest.metrics import Snapshot
from partibus.frontends.rest.portal.visit import Page, Visit
from partibus.frontends.rest.requests import answers_of, pay
from partibus.namespace.broker import Broker
from partibus.namespace.entities import EntityKind
from partibus.namespace.entity import Entity
from partibus.namespace.names import fold_name
from partibus.namespace.namespace import Queue, Subscription, Topic
from partibus.namespace.requests import FAULTS
from partibus.namespace.tiers import Tier, limits_of
from partibus.routing.entity import Inspection
from partibus.throttling.uses import OPERATIONS, Operation

REFRESH_S = (5, 15, 60)
"""How often the page may be had anew by itself."""
LIMITED_SHOWN_MAX = 50
_ROWS = 256
"""Rows between two rests."""
_SUMS = ("connections", "messages", "bytes", "incoming", "outgoing", "granted", "cpu_seconds", "held_bytes")


async def show_overview(visit: Visit) -> Page:
    """Show the first page."""
    broker = visit.broker
    name = broker.namespace.name
    refresh_s = _refresh_s(visit)
    snapshot = await visit.metrics(name)
    data = await overview(broker, snapshot, is_operator=visit.is_operator)
    data["refresh_s"] = refresh_s
    return Page("overview", name, data)


async def overview(broker: Broker, snapshot: Snapshot, *, is_operator: bool) -> dict[str, Any]:
    """Show the namespace. ``is_operator``: with the server's brokers and stores."""
    namespace = broker.namespace
    options, limits = namespace.record.options, limits_of(namespace.record.options)
    kinds = snapshot.kinds.get(namespace.name, {})
    usage = _usage([of["namespaces"][namespace.name] for of in snapshot.measured.values() if _told(of, namespace.name)])
    trouble = {
        number: store["trouble"] or broker.fault_injections.trouble(store["name"])
        for number, store in enumerate(snapshot.status["stores"])
    }
    partitioned, limited = await _looked_through(broker, snapshot, {number for number, why in trouble.items() if why})
    is_premium = options.tier is Tier.PREMIUM
    data: dict[str, Any] = {
        "namespace": namespace.name,
        "tier": options.tier.value,
        "partitions": options.partition_count if is_premium else None,
        "units": options.units if is_premium else None,
        "units_min": options.units_min if is_premium else None,
        "units_max": options.units_max if is_premium else None,
        "throttling": {"policy": options.credits.policy.value, "credits_per_s": options.credits.credits_per_s},
        "queues": kinds.get("queue", 0),
        "topics": kinds.get("topic", 0),
        "subscriptions": kinds.get("subscription", 0),
        "entities": {"used": kinds.get("queue", 0) + kinds.get("topic", 0), "limit": limits.entities},
        "partitioned_entities": {"used": partitioned, "limit": limits.partitioned_entities},
        "connections": {"used": usage["connections"], "limit": limits.connections},
        "usage": usage,
        "availability": "Limited" if limited else "Available",
        "limited": {"count": len(limited), "names": limited[:LIMITED_SHOWN_MAX]},
        "stores": {"count": len(trouble), "away": sum(1 for why in trouble.values() if why)},
    }
    if is_operator:
        data["server"] = _server(snapshot, trouble)
    return data


def _refresh_s(visit: Visit) -> int:
    text = visit.asked("refresh", "0")
    if text != "0" and text not in map(str, REFRESH_S):
        raise ArgumentError("refresh", text, f"0, or one of {', '.join(map(str, REFRESH_S))} seconds")
    return int(text)


def _told(measured: Mapping[str, Any], name: str) -> bool:
    return name in measured["namespaces"]


def _usage(facts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum over the brokers; loads are those of the busiest broker."""
    usage: dict[str, Any] = {key: sum(of[key] for of in facts) for key in _SUMS}
    for key in ("used", "throttled", "would_throttle"):
        by_operation = _added([of[key] for of in facts], len(OPERATIONS))
        usage[key] = {"total": sum(by_operation), **dict(zip(OPERATIONS, by_operation, strict=True))}
    usage["requests"] = sum(sum(of["requests"]) for of in facts)
    by_fault = _added([failed for of in facts for failed in of["failed"]], len(FAULTS))
    usage["errors"] = dict(zip(FAULTS, by_fault, strict=True))
    usage["cpu_load"] = max((of["cpu_load"] for of in facts), default=0)
    usage["memory_load"] = max((of["memory_load"] for of in facts), default=0)
    usage["overloaded"] = any(of["closed"] for of in facts)
    return usage


def _added(rows: list[list[float]], width: int) -> list[float]:
    total: list[float] = [0] * width
    for row in rows:
        total = list(map(add, total, row))
    return total


async def _looked_through(broker: Broker, snapshot: Snapshot, stores_away: set[int]) -> tuple[int, list[str]]:
    """Return the number of partitioned entities, and the names of those that can't be fully used now.

    For entities without users the stores decide: no routes are made for this.
    """
    partitioned, limited = 0, []
    for count, queue in enumerate(list(broker.namespace)):
        partitioned += queue.partitioned and queue.kind is not EntityKind.SUBSCRIPTION
        entity = broker.in_use(queue)
        if (stores_away and any(place.store_no in stores_away for place in queue.partitions)) or (
            entity is not None and entity.away
        ):
            limited.append(queue.name)
        if count % _ROWS == 0:
            await snapshot.rest()
    return partitioned, limited


def _server(snapshot: Snapshot, trouble: Mapping[int, str | None]) -> dict[str, Any]:
    brokers = []
    for one in snapshot.status["brokers"]:
        measured = snapshot.measured.get(str(one["id"]))
        process = measured["process"] if measured is not None else {}
        brokers.append(
            {
                "id": str(one["id"]),
                "state": one["state"],
                "stores": one["stores"],
                "connections": one["connections"],
                "restarts": one["restarts"],
                "cpu_seconds": process.get("cpu_seconds"),
                "memory_bytes": process.get("resident_bytes"),
            }
        )
    stores = [
        {"name": store["name"], "broker": store["owner"], "available": not trouble[number], "trouble": trouble[number]}
        for number, store in enumerate(snapshot.status["stores"])
    ]
    return {"brokers": brokers, "stores": stores}


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


def pages_of(rows: Sequence[object]) -> int:
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
