"""Which store gets which partition of a new entity (D1).

Partitions are dealt round robin and each entity goes on where the last one stopped, so that many plain entities fill
all stores alike. A whole number of rounds would start every entity at the same store: then the start moves on by one.
"""

from collections.abc import Container
from typing import NamedTuple


class Placement(NamedTuple):
    """Where one partition of an entity lives."""

    partition_no: int
    store_no: int
    partition_row: int
    """Keys the partition's rows in its store; unique in the namespace, never given out again."""


def deal(
    partition_count: int, store_count: int, first_store_no: int, first_row: int, away: Container[int] = ()
) -> tuple[Placement, ...]:
    """Placements of a new entity, none of them in a store that is ``away``. Each partition has a store of its own, so
    there must be as many stores that are not."""
    in_turn = ((first_store_no + n) % store_count for n in range(store_count))
    stores = [store_no for store_no in in_turn if store_no not in away]
    assert partition_count <= len(stores)
    return tuple(Placement(n, stores[n], first_row + n) for n in range(partition_count))


def next_first_store_no(partition_count: int, store_count: int, first_store_no: int) -> int:
    """Where the entity after that starts."""
    step = partition_count if partition_count % store_count else 1
    return (first_store_no + step) % store_count
