"""The status of brokers and their stores, for health, metrics and the portal."""

from collections.abc import Iterable, Mapping
from typing import Any

from partibus.partition.runtime.store_runtime import StoreRuntime

NO_OWNER = "no broker has it at the moment"


def facts_of(runtime: StoreRuntime) -> dict[str, Any]:
    """Return the facts of a store that its owner reports.

    They are the store's failure, its number of owners so far, its last commit, and the places of that.
    """
    store = runtime.store
    return {
        "trouble": runtime.trouble,
        "epoch": getattr(store, "epoch", None),
        "last_commit": getattr(store, "last_commit", None),
        "durability": None if store is None else store.durability,
    }


def broker_status(broker: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a broker from its facts, the statuses of its ``stores`` among them.

    A missing fact has the value of a broker that is away.
    """
    away: dict[str, Any] = {
        "pid": None,
        "incarnation": None,
        "state": "away",
        "stores": (),
        "connections": 0,
        "namespaces": {},
        "restarts": 0,
        "lag_ms": None,
    }
    status = {"id": broker} | {name: facts.get(name, default) for name, default in away.items()}
    return status | {"stores": len(status["stores"])}


def stores_status(names: Iterable[str], reports: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the status of every store, from the reports of the brokers."""
    stores: dict[str, dict[str, Any]] = {name: {"name": name, "owner": None, "trouble": NO_OWNER} for name in names}
    for broker, report in reports.items():
        for name, facts in report["stores"].items():
            stores[name] = {"name": name, "owner": broker, **facts}
    return list(stores.values())
