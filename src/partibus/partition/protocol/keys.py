"""Keys of rows in a messaging store: one 63-bit integer each, so that the primary key alone finds a row.

```text
 bit 62 ......... 42 | 41 40 | 39 .................. 0
 partition row       | kind  | position, or lock id          entry, lock batch
 partition row       |  0 0  | body number                   body
 partition row       | kind                                  sub-queue (key >> 40)
```

The *partition row* is the integer that the catalog gave to one partition of one entity. It is unique in the namespace
and never reused, so remains of a deleted entity can't be mistaken for those of a new one. Neighbouring positions are
neighbouring rows: enqueues append at the right edge of the partition's range, and finished runs are deleted by range.
"""

from enum import IntEnum

from msgspec import Struct

POSITION_BITS = 40
KIND_BITS = 2
POSITION_MAX = (1 << POSITION_BITS) - 1
PARTITION_ROW_MAX = (1 << (63 - POSITION_BITS - KIND_BITS)) - 1

REWRITTEN_BODY = 1 << (POSITION_BITS - 1)
"""Marks the number of a body that replaces another one, such as that of a dead-lettered message with a reason.

A body that an enqueue stores has the number of its message's sequence counter; this bit keeps both ranges apart.
"""

SHARED_BODY = 1 << (POSITION_BITS - 2)
"""Marks the number of a body that several entries may name: a topic's message in several subscriptions.

The body is deleted with the last of them. The schemas' index of such entries uses the same bit.
"""

NUMBERS_END = SHARED_BODY
"""The exclusive bound of positions, sequence counters and lock ids. Above it are the flags of bodies and the next
sub-queue.
"""
NUMBERS_FULL = NUMBERS_END - (1 << 32)
"""The number from which on a partition takes no messages.

Its messages can still be received, dead-lettered and moved, which takes a few numbers for each message.
"""


class SubqueueKind(IntEnum):
    """The sub-queues of a queue or subscription, as stored in the two kind bits of a key."""

    ACTIVE = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2
    TRANSFER = 3
    """Messages that were sent through this entity to others; no receiver gets them here."""


def subqueue_key(partition_row: int, kind: int) -> int:
    """Return the key of one sub-queue of one partition."""
    return partition_row << KIND_BITS | kind


def entry_key(subqueue: int, pos: int) -> int:
    """Return the key of the entry at ``pos`` of a sub-queue.

    With a lock id in place of the position: the key of that lock batch.
    """
    return subqueue << POSITION_BITS | pos


def first_key(partition_row: int, kind: int) -> int:
    """Return the key that the positions of a sub-queue's entries, and the ids of its locks, are added to."""
    return (partition_row << KIND_BITS | kind) << POSITION_BITS


def body_key(partition_row: int, number: int) -> int:
    """Return the key of a body in a partition."""
    return partition_row << (KIND_BITS + POSITION_BITS) | number


def body_number(body: int) -> int:
    """Return the number in a body's key: the sequence counter of its message, unless the body was rewritten."""
    return body & ((1 << (KIND_BITS + POSITION_BITS)) - 1)


def kind_of(subqueue: int) -> int:
    """Return the kind of a sub-queue from its key."""
    return subqueue & ((1 << KIND_BITS) - 1)


class Entry(Struct, eq=False, gc=False):
    """An entry, one for every message: it is made at half the cost of a class, and garbage collection passes it over.

    Collecting half a million entries would hold the loop for a tenth of a second. An entry is in no cycle.
    """

    pos: int
    body: int
    sequence: int
    enqueued_ms: int
    delivery_count: int
    session: str | None
    due_ms: int | None
    """The row's ``due_ms``: when a scheduled or delayed entry becomes active, or when another one expires."""
    size_bytes: int
    data: bytes | None
    """The stored form of the message; None after it was dropped from memory, until it is read again for a delivery."""
    state: int = 0
    """A value of `partition.protocol.ports.EntryState`."""

    def without_body(self) -> "Entry":
        """Return a copy without the body, to remember while the entry with the body is on its way to the receiver."""
        return Entry(
            self.pos,
            self.body,
            self.sequence,
            self.enqueued_ms,
            self.delivery_count,
            self.session,
            self.due_ms,
            self.size_bytes,
            None,
            self.state,
        )

    def __repr__(self) -> str:
        return f"<entry {self.pos} seq={self.sequence} deliveries={self.delivery_count} {self.size_bytes} bytes>"
