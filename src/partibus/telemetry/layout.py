"""The format between a broker and its writer: chunks of records, packed (little-endian).

```text
 chunk    length (4 bytes), records
 name     type, row, length of JSON, JSON {entity, partition, store}           before the first record of that row
 batch    type, operation, kind, outcome, runtime, row, messages, length of keys, now ms, taken at us, commit
          columns of 8 bytes each: positions, sizes
            [enqueued ms, delivery counts: not of a send] [sequences: not of the active sub-queue, which has no others]
          keys, as far as they are at hand (of sends, and of sessions' messages): texts with NUL in between, empty for
            none; nothing when all have none
 commit   type, runtime, row, commit, now ms, durable at us, took us, operations, bytes
 use      type, length of JSON, JSON {when in ms, [[namespace, entity, client, asked for, requests, units, rules], ...]}
 move     type, length of JSON, JSON [when in ms, namespace, entity, source, target, slots, partitions, step, took ms,
          why, version of the slots]
 failed   type, runtime: batches of that runtime that wait for a commit will never be durable
```

A batch waits at the writer for the commit that makes it durable, so the broker keeps nothing.
"""

from struct import Struct
from typing import Final

NAME: Final = 1
BATCH: Final = 2
COMMIT: Final = 3
FAILED: Final = 4
USE: Final = 5
MOVE: Final = 6

LENGTH: Final = Struct("<I")
NAME_HEAD: Final = Struct("<BIH")
BATCH_HEAD: Final = Struct("<BBBBIIIIqqq")
COMMIT_HEAD: Final = Struct("<BIIqqqqqq")
FAILED_HEAD: Final = Struct("<BI")
USE_HEAD: Final = Struct("<BI")
MOVE_HEAD: Final = Struct("<BI")
REPORT: Final = Struct("<qq")
"""The writer's report: rows that are in files, and rows that could not be written, both since it began."""

NO_POSITION: Final = -1
"""The position of a refused message, which got none."""
NOT_DURABLE: Final = 0
"""A value in place of a commit: nothing has to become durable."""

COLUMN_BYTES: Final = 8
SEND_COLUMNS: Final = 2
OTHER_COLUMNS: Final = 4


def columns_of(operation: int, kind: int, send: int) -> int:
    """Return the number of columns of a batch. ``send`` is the number of that operation."""
    return (SEND_COLUMNS if operation == send else OTHER_COLUMNS) + (kind != 0)
