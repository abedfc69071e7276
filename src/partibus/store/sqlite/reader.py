"""Answers the loads of the port from one connection.

A result of many rows comes as one: a JSON array of the narrow columns and one blob of all messages, cut apart here.
Stepping row by row would hand over the interpreter lock at each (see `sql`). JSON and not a list with separators,
since a session is any text, NUL included; the blob is not JSON, since a message is any bytes.
"""

import json
from collections.abc import Iterator, Sequence
from sqlite3 import Connection

from partibus.partition.keys import POSITION_BITS, POSITION_MAX, SubqueueKind, entry_key, kind_of, subqueue_key
from partibus.partition.ports import EntryRow, LockBatchRow, Snapshot, SubqueueCounts
from partibus.store.sqlite.sql import in_list_form, padded_keys, statement

_SEARCHED_MAX = 16_384
"""Positions that one statement searches for active entries: some 3 ms, which keeps read transactions far below the 50
ms of D13 when a million scheduled or deferred entries stand before the first active one."""

_INTEGER_MAX = (1 << 63) - 1
"""Largest integer that SQLite takes; a client may ask for any sequence number."""


def read_page(connection: Connection, subqueue: int, from_pos: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
    """Active entries from a position on; see `partibus.partition.ports.Store.load_page`."""
    keys = _key_range(subqueue, from_pos, POSITION_MAX)
    while keys is not None and max_entries > 0:
        first, end = keys
        last = min(first + _SEARCHED_MAX, end)
        rows = _entry_rows(connection, "select_page", (first, last, max_entries, max_bytes))
        if rows:
            return rows
        following = connection.execute(statement("select_next_key"), (last + 1, end)).fetchall()
        keys = (following[0][0], end) if following else None
    return []


def read_range(
    connection: Connection, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int
) -> list[EntryRow]:
    """Entries in any state with ``from_pos <= pos < to_pos``."""
    keys = _key_range(subqueue, from_pos, to_pos - 1)
    if keys is None:
        return []
    return _entry_rows(connection, "browse_entries", (*keys, max(0, max_entries), max_bytes))


def read_from_sequence(
    connection: Connection, subqueue: int, from_sequence: int, max_entries: int, max_bytes: int
) -> list[EntryRow]:
    """Entries in any state by sequence number; in the active sub-queue that is the position."""
    if kind_of(subqueue) == SubqueueKind.ACTIVE:
        return read_range(connection, subqueue, from_sequence, POSITION_MAX + 1, max_entries, max_bytes)
    first = min(max(0, from_sequence), _INTEGER_MAX)
    return _entry_rows(connection, "peek_by_sequence", (subqueue, first, max(0, max_entries), max_bytes))


def read_bodies(connection: Connection, keys: Sequence[int]) -> list[bytes | None]:
    """Messages in the order of ``keys``."""
    found: dict[int, bytes] = {}
    for chunk in padded_keys(keys):
        listed, data = connection.execute(in_list_form("select_bodies", len(chunk)), chunk).fetchone()
        end = 0
        for key, size in json.loads(listed):
            found[key] = data[end : end + size]
            end += size
    return [found.get(key) for key in keys]


def read_partition(connection: Connection, partition_row: int) -> Snapshot | None:
    """Durable state of a partition, in one read transaction."""
    connection.execute("BEGIN")
    try:
        return _snapshot(connection, partition_row)
    finally:
        connection.execute("ROLLBACK")


def _snapshot(connection: Connection, partition_row: int) -> Snapshot | None:
    partition = connection.execute(statement("select_partition"), (partition_row,)).fetchone()
    if partition is None:
        return None
    next_sequence, next_number = partition
    first, last = subqueue_key(partition_row, 0), subqueue_key(partition_row + 1, 0) - 1
    counts = {
        key: SubqueueCounts(messages, size_bytes)
        for key, messages, size_bytes in connection.execute(statement("select_counts"), (first, last))
    }
    batches = [
        LockBatchRow(key >> POSITION_BITS, key & POSITION_MAX, *columns)
        for key, *columns in connection.execute(
            statement("select_lock_batches"), (entry_key(first, 0), entry_key(last, POSITION_MAX))
        )
    ]
    locked: dict[int, tuple[int, EntryRow, int]] = {}
    for batch in batches:
        locked.update(_locked_entries(connection, batch))
    return Snapshot(next_sequence, next_number, counts, batches, [locked[key] for key in sorted(locked)])


def _locked_entries(connection: Connection, batch: LockBatchRow) -> Iterator[tuple[int, tuple[int, EntryRow, int]]]:
    first = entry_key(batch.subqueue, batch.first_pos)
    last = min(first + 8 * len(batch.bitmap) - 1, entry_key(batch.subqueue, POSITION_MAX))
    covered = int.from_bytes(batch.bitmap, "little")
    (listed,) = connection.execute(statement("select_entries"), (first, last)).fetchone()
    for key, *columns, size in json.loads(listed):
        if covered >> (key - first) & 1:
            yield key, (batch.subqueue, EntryRow._make((key & POSITION_MAX, *columns, b"")), size)


def _key_range(subqueue: int, first_pos: int, last_pos: int) -> tuple[int, int] | None:
    """Keys of the positions that exist between two that anybody may have asked for; None when there are none."""
    first, last = max(0, first_pos), min(last_pos, POSITION_MAX)
    return None if first > last else (entry_key(subqueue, first), entry_key(subqueue, last))


def _entry_rows(connection: Connection, name: str, parameters: tuple[int, ...]) -> list[EntryRow]:
    listed, data = connection.execute(statement(name), parameters).fetchone()
    rows = []
    end = 0
    for key, *columns, size in json.loads(listed):
        rows.append(EntryRow._make((key & POSITION_MAX, *columns, data[end : end + size])))
        end += size
    return rows
