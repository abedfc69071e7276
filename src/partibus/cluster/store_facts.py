"""What a broker says of a store that it has, also one that shares its stores with nobody."""

from typing import Any

from partibus.partition.runtime.store_runtime import StoreRuntime


def facts_of(runtime: StoreRuntime) -> dict[str, Any]:
    """What health and status say of a store: why it can't be used, how often it was taken over, its last commit, and
    where that is."""
    store = runtime.store
    return {
        "trouble": runtime.trouble,
        "epoch": getattr(store, "epoch", None),
        "last_commit": getattr(store, "last_commit", None),
        "durability": None if store is None else store.durability,
    }
