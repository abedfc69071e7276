"""The overview of a namespace: its properties, its usage against its bounds, and the server's health (rows A4, R13).

All numbers are those of `/metrics`, of all brokers together. Counters begin with each broker's process.
"""

from collections.abc import Mapping
from operator import add
from typing import Any

from partibus.errors import ArgumentError
from partibus.frontends.rest.metrics import Snapshot
from partibus.frontends.rest.portal.visit import Page, Visit
from partibus.namespace.broker import Broker
from partibus.namespace.entities import EntityKind
from partibus.namespace.requests import FAULTS
from partibus.namespace.tiers import Tier, limits_of
from partibus.throttling.uses import OPERATIONS

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
