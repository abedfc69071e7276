"""Sizes of entities in the service's form (rows P21, P22, P24).

Each partition of an entity has the size that its creator gave. The shown size is that of all, sixteen times as much
with sixteen partitions. A client that sends back the shown size means the same one. So a value that is no size for a
partition, and is one for all of them, is read as that.
"""

from collections.abc import Container

from partibus.namespace.tiers import ENTITY_SIZES_MB


def size_shown(size_mb: int, partitions: int) -> int:
    """Return the ``MaxSizeInMegabytes`` of an entity whose partitions take ``size_mb`` each."""
    return size_mb * partitions


def size_read(size: object, partitions: int, allowed: Container[int], now_mb: int | None = None) -> object:
    """Return the MB of each partition, from a client's value.

    ``allowed``: the sizes of a partition; ``now_mb``: its size in an existing entity. An invalid value stays, for the
    property's own check to refuse.
    """
    if not isinstance(size, int) or partitions == 1:
        return size
    if now_mb is not None and size == now_mb * partitions:
        return now_mb
    if size not in allowed and size % partitions == 0 and size // partitions in ENTITY_SIZES_MB:
        return size // partitions
    return size
