"""The report of a broker on one of its stores, also on one that has no other brokers."""

from typing import Any

from partibus.partition.runtime.store_runtime import StoreRuntime


def facts_of(runtime: StoreRuntime) -> dict[str, Any]:
    """Return the facts for health and status.

    They are the store's failure, its number of owners so far, its last commit, and the places of that.
    """
    store = runtime.store
    return {
        "trouble": runtime.trouble,
        "epoch": getattr(store, "epoch", None),
        "last_commit": getattr(store, "last_commit", None),
        "durability": None if store is None else store.durability,
    }
