"""The mapping from key to slot to partition (D7).

```text
 slot      = top 14 bits of BLAKE2b-64(UTF-8 of the key)          0 .. 16383
 partition = slot * partitions >> 14                              partition p owns one contiguous run of slots
```

Runs are contiguous, so that splitting a partition splits its run and moves no other slot. The mapping is frozen
(vectors in the tests): stored messages were placed by it, and a key's order lives in one partition.

A key may hold lone surrogates, which JSON can express. They are hashed unchanged, so that the function is total.
"""

from collections.abc import Iterable
from hashlib import blake2b

SLOT_BITS = 14
SLOT_COUNT = 1 << SLOT_BITS

_DIGEST_BYTES = 8
_SPARE_BITS = 16 - SLOT_BITS


def slot_for_key(key: str) -> int:
    """Return the slot of a partition key, 0 .. `SLOT_COUNT` - 1."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return (digest[0] << 8 | digest[1]) >> _SPARE_BITS


def partition_for_slot(slot: int, partition_count: int) -> int:
    """Return the partition that owns a slot, 0 .. ``partition_count`` - 1."""
    return slot * partition_count >> SLOT_BITS


def partition_for_key(key: str, partition_count: int) -> int:
    """Return the partition of a key among ``partition_count`` (1 .. `SLOT_COUNT`).

    Equal keys have equal partitions (K1).
    """
    return slot_for_key(key) * partition_count >> SLOT_BITS


def partitions_for_keys(keys: Iterable[str], partition_count: int) -> list[int]:
    """Return the partitions of a batch of keys in order; each distinct key is hashed once."""
    known: dict[str, int] = {}
    partitions: list[int] = []
    for key in keys:
        partition = known.get(key)
        if partition is None:
            partition = known[key] = slot_for_key(key) * partition_count >> SLOT_BITS
        partitions.append(partition)
    return partitions
