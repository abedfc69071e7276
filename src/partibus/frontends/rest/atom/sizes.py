"""Sizes of entities as the service says them (rows P21, P22, P24).

Each partition of an entity has the size that its creator gave; what is shown is that of all, sixteen times as much
where there are sixteen. A client that sends back what it has read means the same size, not sixteen times it: hence what
is no size for a partition, and is one for all of them, is read as that.
"""

from collections.abc import Container

from partibus.namespace.tiers import ENTITY_SIZES_MB


def size_shown(size_mb: int, partitions: int) -> int:
    """What ``MaxSizeInMegabytes`` of an entity is, whose partitions take ``size_mb`` each."""
    return size_mb * partitions


def size_read(size: object, partitions: int, allowed: Container[int], now_mb: int | None = None) -> object:
    """MB of each partition, from what a client says. ``allowed``: what each may have; ``now_mb``: what each has, of an
    entity that exists. What can't be meant stays, for the property's own check to refuse."""
    if not isinstance(size, int) or partitions == 1:
        return size
    if now_mb is not None and size == now_mb * partitions:
        return now_mb
    if size not in allowed and size % partitions == 0 and size // partitions in ENTITY_SIZES_MB:
        return size // partitions
    return size
