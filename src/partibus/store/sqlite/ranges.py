"""Answers the loads of those who read whole partitions: frames of many messages, entries that have left, fates.

A frame is made of two kinds of single rows: the narrow columns of some entries in hex, and the messages of all of them
in one blob. MEASURED
"""

import json
from sqlite3 import Connection

from partibus.partition.keys import POSITION_MAX, entry_key
from partibus.partition.ports import FINISHED, EntryRow, FateRow, RangeFrame
from partibus.store.frames import PackedRows
from partibus.store.sqlite.reader import SEARCHED_MAX, key_range, keys_behind, one_view
from partibus.store.sqlite.sql import statement

_PROBED = 64
"""Entries whose sizes say how many to ask for next."""

_STATE_END = 1 << 8


def read_range(
    connection: Connection,
    subqueue: int,
    from_pos: int,
    to_pos: int,
    max_entries: int,
    max_bytes: int,
    *,
    finished: bool,
) -> RangeFrame:
    """See `partibus.partition.ports.Store.read_range`. Looks at `SEARCHED_MAX` positions in one transaction."""
    keys = key_range(subqueue, from_pos, to_pos - 1)
    if keys is not None and max_entries <= 0:
        return PackedRows().frame(b"", from_pos)
    states = _STATE_END if finished else FINISHED
    while keys is not None:
        first, end = keys
        last = min(first + SEARCHED_MAX, end)
        with one_view(connection):
            rows, is_all = _rows(connection, first, last, states, max_entries, max_bytes)
            if rows:
                bounds = (first, entry_key(subqueue, rows.last_pos), states)
                (messages,) = connection.execute(statement("select_range_bodies"), bounds).fetchone()
                is_end = is_all and keys_behind(connection, last, end) is None
                return rows.frame(messages, to_pos if is_end else rows.last_pos + 1)
        keys = keys_behind(connection, last, end)
    return PackedRows().frame(b"", to_pos)


def _rows(
    connection: Connection, first: int, last: int, states: int, max_entries: int, max_bytes: int
) -> tuple[PackedRows, bool]:
    """Narrow columns of the first entries within the bounds, and whether these are all."""
    rows = PackedRows()
    wanted = min(_PROBED, max_entries)
    while True:
        (listed,) = connection.execute(statement("select_range"), (first, last, states, wanted)).fetchone()
        before = len(rows)
        if listed is not None:
            rows.append(bytes.fromhex(listed))
        is_all = len(rows) - before < wanted
        size_bytes = rows.size_bytes
        if size_bytes > max_bytes:
            cut = rows.first(max_bytes)
            return cut, is_all and len(cut) == len(rows)
        wanted = min(max_entries - len(rows), (max_bytes - size_bytes) * len(rows) // max(1, size_bytes))
        if is_all or wanted <= 0 or 2 * size_bytes > max_bytes:
            return rows, is_all
        first = (first & ~POSITION_MAX) + rows.last_pos + 1


def scan(
    connection: Connection, subqueue: int, from_pos: int, to_pos: int, max_entries: int
) -> list[tuple[EntryRow, int]]:
    """See `partibus.partition.ports.Store.scan`."""
    keys = key_range(subqueue, from_pos, to_pos - 1)
    if keys is None:
        return []
    (listed,) = connection.execute(statement("scan_entries"), (*keys, max(0, max_entries))).fetchone()
    return [(EntryRow._make((key & POSITION_MAX, *columns, b"")), size) for key, *columns, size in json.loads(listed)]


def read_fates(connection: Connection, subqueue: int, from_number: int, max_rows: int) -> list[FateRow]:
    """See `partibus.partition.ports.Store.load_fates`."""
    keys = key_range(subqueue, from_number, POSITION_MAX)
    if keys is None:
        return []
    (listed,) = connection.execute(statement("select_fates"), (*keys, max(0, max_rows))).fetchone()
    return [FateRow._make(columns) for columns in json.loads(listed)]
