"""Many messages or message ids in a plain queue, fast: written into its store while the broker is down.

The bench then measures the broker's work on them. Receiving them shows that the rows are those that the broker itself
would have written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from msgspec.structs import replace

from partibus.amqp.section_encoding import encode_data, encode_properties
from partibus.message import pack
from partibus.namespace.catalog import Catalog
from partibus.namespace.namespace_options import DEFAULT_NAME
from partibus.partition.core.duplicates import BUCKET_IDS, GENERATIONS_PER_WINDOW, ID_BYTES
from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import SubqueueKind, body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import EntryState, Writes
from partibus.store.sqlite import Owner, SQLiteStore
from partibus.store.sqlite.directory import STORES_DEFAULT, store_id

_RUN = 10_000
"""Rows per commit: the rate no longer rises with more."""
_ENTITIES_MAX = 100_000
_PAYLOAD = b"x" * 1024


@contextmanager
def store_of(data: Path, queue: str) -> Iterator[tuple[SQLiteStore, int]]:
    """The store and the partition row of a plain queue, in the data directory of a broker that is down."""
    catalog = Catalog(data, STORES_DEFAULT)
    try:
        (placement,) = catalog.get(queue).placements
    finally:
        catalog.close()
    name = store_id(placement.store_no)
    store = SQLiteStore.open(data / "stores" / f"{name}.db", store_id=name, owner=Owner("bench", f"{time.time_ns()}"))
    try:
        yield store, placement.partition_row
    finally:
        store.close()


def fill_messages(
    data: Path,
    queue: str,
    count: int,
    *,
    state: EntryState = EntryState.ACTIVE,
    session: Callable[[int], str] | None = None,
    due_ms: Callable[[int], int] | None = None,
) -> None:
    """``count`` messages of 1 KB in a queue that never had one; their sequence counters are 1, 2, ... ``session`` and
    ``due_ms`` (ms since 1970) say it for the nth of them, from 0."""
    now_ms = int(time.time() * 1000)
    with store_of(data, queue) as (store, row):
        assert store.read(q.Partition(row)) is None, "a queue that nobody has used"
        subqueue = subqueue_key(row, SubqueueKind.ACTIVE)
        size_bytes = 0
        for first in range(0, count, _RUN):
            writes = Writes()
            end = min(first + _RUN, count)
            for number in range(first, end):
                name = None if session is None else session(number)
                message = pack(durable=True, properties=encode_properties(group_id=name), rest=encode_data(_PAYLOAD))
                due = None if due_ms is None else due_ms(number)
                sequence = number + 1
                body = body_key(row, sequence)
                writes.bodies += (body, message)
                writes.entries += (entry_key(subqueue, sequence), body, sequence, now_ms, state, 0, name, due)
                size_bytes += len(message)
            writes.counters[row] = (end + 1, 1, 0)
            writes.counts[subqueue] = (end, size_bytes)
            store.commit(writes)


def fill_catalog(data: Path, create: Callable[[Catalog], None]) -> None:
    """Entities in one change, in the data directory of a broker that is down; more than a namespace may have made,
    unless it is told to."""
    limits = {"entities": _ENTITIES_MAX, "partitioned_entities": _ENTITIES_MAX}
    catalog = Catalog(data, STORES_DEFAULT)
    try:
        with catalog.together():
            catalog.update_namespace(DEFAULT_NAME, lambda old: replace(old, limits=limits), int(time.time() * 1000))
            create(catalog)
    finally:
        catalog.close()


def fill_ids(data: Path, queue: str, count: int, window_ms: int) -> None:
    """``count`` message ids, accepted in equal distances in the latest half of the window."""
    now_ms = int(time.time() * 1000)
    step_ms = window_ms / 2 / count
    rows = []
    bucket = in_bucket = 0
    for number in range(count):
        accepted_ms = now_ms - int((count - number) * step_ms)
        if accepted_ms - bucket >= window_ms // GENERATIONS_PER_WINDOW or in_bucket >= BUCKET_IDS:
            bucket, in_bucket = max(accepted_ms, bucket + 1), 0
        in_bucket += 1
        digest = blake2b(number.to_bytes(8), digest_size=ID_BYTES).digest()
        rows.append((bucket, digest, accepted_ms))
    rows.sort()
    with store_of(data, queue) as (store, row):
        for first in range(0, count, _RUN):
            writes = Writes()
            for bucket, message_id, accepted_ms in rows[first : first + _RUN]:
                writes.duplicate_ids += (row, bucket, message_id, accepted_ms, None)
            writes.counters[row] = (1, 1, 0)
            writes.counts[subqueue_key(row, SubqueueKind.ACTIVE)] = (0, 0)
            store.commit(writes)
