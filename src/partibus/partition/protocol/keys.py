"""How rows of a messaging store are keyed: one 63-bit integer each, so that a row is found by its primary key alone.

```text
 bit 62 ......... 42 | 41 40 | 39 .................. 0
 partition row       | kind  | position, or lock id          entry, lock batch
 partition row       |  0 0  | body number                   body
 partition row       | kind                                  sub-queue (key >> 40)
```

*Partition row* is the integer that the catalog gave to one partition of one entity: unique in the namespace and never
used again, so what is left of a deleted entity can't be mistaken for a new one's. Neighbouring positions are
neighbouring rows: enqueues append at the right edge of the partition's range and a finished run is one range delete.
"""

from enum import IntEnum

POSITION_BITS = 40
KIND_BITS = 2
POSITION_MAX = (1 << POSITION_BITS) - 1
PARTITION_ROW_MAX = (1 << (63 - POSITION_BITS - KIND_BITS)) - 1

REWRITTEN_BODY = 1 << (POSITION_BITS - 1)
"""Set in the number of a body that replaces another one (a dead-lettered message with a reason, say). A body that came
in with an enqueue has the number of its message's sequence counter; this bit keeps the two ranges apart."""

SHARED_BODY = 1 << (POSITION_BITS - 2)
"""Set in the number of a body that several entries may name: a topic's message, in several subscriptions. It goes with
the last of them; the schemas' index of such entries says the same bit."""

NUMBERS_END = SHARED_BODY
"""Positions, sequence counters and lock ids stay below: above are the flags of bodies and the next sub-queue."""
NUMBERS_FULL = NUMBERS_END - (1 << 32)
"""From this number on a partition takes no messages. What it has can be received, dead-lettered and moved: that takes
numbers as well, a few for each message."""


class SubqueueKind(IntEnum):
    """The sub-queues of a queue or subscription, as stored in the two kind bits of a key."""

    ACTIVE = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2
    TRANSFER = 3
    """Messages that were sent through this entity to others: nobody receives them here."""


def subqueue_key(partition_row: int, kind: int) -> int:
    """Key of one sub-queue of one partition."""
    return partition_row << KIND_BITS | kind


def entry_key(subqueue: int, pos: int) -> int:
    """Key of the entry at ``pos`` of a sub-queue; also of a lock batch, with the lock id in place of the position."""
    return subqueue << POSITION_BITS | pos


def body_key(partition_row: int, number: int) -> int:
    """Key of a body in a partition."""
    return partition_row << (KIND_BITS + POSITION_BITS) | number


def kind_of(subqueue: int) -> int:
    """The kind of a sub-queue, from its key."""
    return subqueue & ((1 << KIND_BITS) - 1)
