"""The assignment of stores to brokers: a pure function, so that every supervisor decides alike (D1, D19)."""

from collections.abc import Iterable, Mapping


def assign(store_count: int, brokers: Iterable[str], owners: Mapping[int, str]) -> dict[int, str]:
    """Return the wanted owner of each store (by number) among ``brokers``, given the present ``owners``.

    Even: no broker gets two stores more than another. Few moves: as many stores stay where they are as evenness allows,
    so the loss of a broker moves its own stores only. Deterministic. Without brokers no store has an owner.
    """
    kept: dict[str, list[int]] = {broker: [] for broker in sorted(brokers)}
    if not kept:
        return {}
    homeless = []
    for store_no in range(store_count):
        owner = owners.get(store_no)
        if owner in kept:
            kept[owner].append(store_no)
        else:
            homeless.append(store_no)
    share, remainder = divmod(store_count, len(kept))
    # The stores that do not divide evenly stay with the brokers that have most: that moves the fewest.
    richest_first = sorted(kept, key=lambda broker: (-len(kept[broker]), broker))
    quota = {broker: share + (rank < remainder) for rank, broker in enumerate(richest_first)}
    for broker, stores in kept.items():
        homeless += stores[quota[broker] :]
        del stores[quota[broker] :]
    homeless.sort()
    # Stores are dealt one by one, so that neighbours (mostly the partitions of one entity) go to different brokers.
    while homeless:
        for broker, stores in kept.items():
            if homeless and len(stores) < quota[broker]:
                stores.append(homeless.pop(0))
    return {store_no: broker for broker, stores in kept.items() for store_no in stores}
