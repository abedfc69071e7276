"""The placement of a new entity's partitions in stores (D1).

Partitions are placed round robin, and each entity begins where the last one ended, so that many plain entities fill all
stores alike. A whole number of rounds would begin every entity at the same store; then the start moves on by one.
"""

from collections.abc import Container
from typing import NamedTuple


class Placement(NamedTuple):
    """The place of one partition of an entity."""

    partition_no: int
    store_no: int
    partition_row: int
    """The key of the partition's rows in its store; unique in the namespace, never reused."""


def deal(
    partition_count: int, store_count: int, first_store_no: int, first_row: int, away: Container[int] = ()
) -> tuple[Placement, ...]:
    """Place the partitions of a new entity in stores that are not ``away``.

    Each partition has a store of its own, so at least as many stores must be there.
    """
    in_turn = ((first_store_no + n) % store_count for n in range(store_count))
    stores = [store_no for store_no in in_turn if store_no not in away]
    assert partition_count <= len(stores)
    return tuple(Placement(n, stores[n], first_row + n) for n in range(partition_count))


def next_first_store_no(partition_count: int, store_count: int, first_store_no: int) -> int:
    """Return the first store of the next entity."""
    step = partition_count if partition_count % store_count else 1
    return (first_store_no + step) % store_count
