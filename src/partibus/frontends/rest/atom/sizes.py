"""Sizes of entities as the service says them (rows P21, P22, P24).

Each of the sixteen partitions of an entity has the size that its creator gave; what is shown is that of all, sixteen
times as much. A client that sends back what it has read means the same size, not sixteen times it: hence what is
sixteen times a size is read as that size. 80 GB could be both, and is read as 5 GB for each partition, as it was shown.
"""

from typing import Any

from partibus.namespace.entities import STANDARD_PARTITION_COUNT
from partibus.namespace.values import Value


def size_shown(size_mb: int, *, partitioned: bool) -> int:
    """What ``MaxSizeInMegabytes`` of an entity is, whose partitions take ``size_mb`` each."""
    return size_mb * STANDARD_PARTITION_COUNT if partitioned else size_mb


def size_read(size: object, value: Value[Any], *, partitioned: bool) -> object:
    """MB of each partition, from what a client says; ``value`` knows the sizes that there are. What is none stays, for
    the property's own check to refuse."""
    if partitioned and isinstance(size, int) and size % STANDARD_PARTITION_COUNT == 0:
        each = size // STANDARD_PARTITION_COUNT
        try:
            value.parse(each)
        except ValueError:
            return size
        return each
    return size
