"""Which store gets which partition of a new entity (D1).

Partitions are dealt round robin and each entity goes on where the last one stopped, so that many plain entities fill
all stores alike. A whole number of rounds would start every entity at the same store: then the start moves on by one.
"""

from typing import NamedTuple


class Placement(NamedTuple):
    """Where one partition of an entity lives."""

    partition_no: int
    store_no: int
    partition_row: int
    """Keys the partition's rows in its store; unique in the namespace, never given out again."""


def deal(partition_count: int, store_count: int, first_store_no: int, first_row: int) -> tuple[Placement, ...]:
    """Placements of a new entity. Each partition has a store of its own: ``partition_count`` <= ``store_count``."""
    assert partition_count <= store_count
    return tuple(Placement(n, (first_store_no + n) % store_count, first_row + n) for n in range(partition_count))


def next_first_store_no(partition_count: int, store_count: int, first_store_no: int) -> int:
    """Where the entity after that starts."""
    step = partition_count if partition_count % store_count else 1
    return (first_store_no + step) % store_count
