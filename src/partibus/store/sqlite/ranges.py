"""Serves the loads of whole-partition readers: frames of many messages, finished entries, dispositions.

Nearly all waiting entries are consecutive and alike, and are read as runs (`runs`). A frame of other entries comes from
one statement, as one row: the narrow columns of all entries in few characters (`listed`), and their messages in one
blob. For 200-byte messages that takes 1.2 us each, of which Python takes 0.1 with the interpreter lock held. With the
narrow columns in hex, as for entries that differ from the first one of their frame, it takes 1.5 us, plus 0.3 for the
lookup.

Alternatives, measured per entry:

- walking through the two tables without building a result: 0.2 us
- fetching rows one by one and packing them: 2.2, with a hand-over of the interpreter lock at each
- JSON arrays, one per column: 1.3, half of it in Python
- a pass for the lengths before, for an exact bound on the bytes: 0.3 more, and four hand-overs a frame instead of two

So the lengths are guessed, and measured where the guess is bad.
"""

import json
from sqlite3 import Connection
from typing import NamedTuple

from partibus.partition.protocol.keys import POSITION_BITS, POSITION_MAX, entry_key
from partibus.partition.protocol.ports import FINISHED, DispositionRow, EntryRow, RangeFrame
from partibus.store.frames import PackedRows
from partibus.store.sqlite.reader import SEARCHED_MAX, key_range, keys_behind, one_view
from partibus.store.sqlite.runs import RUN, SIZE_MAX, Alike, Run, Usual, rows_listed
from partibus.store.sqlite.sql import statement

_PROBED = 64
"""The entries whose sizes determine how many to request next."""

_STATE_END = 1 << 8

_BYTES_MAX = 1 << 29
"""The most bytes of messages in a frame: SQLite makes no value of more than a gigabyte."""


def read_range(
    connection: Connection,
    subqueue: int,
    from_pos: int,
    to_pos: int,
    max_entries: int,
    max_bytes: int,
    finished: bool,
) -> RangeFrame:
    """Load readable entries, packed (`queries.Range`). One transaction sees at most `SEARCHED_MAX` positions."""
    keys = key_range(subqueue, from_pos, to_pos - 1)
    if keys is not None and max_entries <= 0:
        return PackedRows().frame(b"", from_pos)
    states = _STATE_END if finished else FINISHED
    while keys is not None:
        first, end = keys
        last = min(first + SEARCHED_MAX, end, first | RUN - 1)
        bounds = (first, last, states, max_entries, min(max_bytes, _BYTES_MAX))
        found = _run(connection, *bounds) or _guessed(connection, *bounds) or _measured(connection, *bounds)
        following = keys_behind(connection, last, end) if found.is_all else keys
        if found.rows:
            next_pos = to_pos if following is None else found.rows.last_pos + 1
            return found.rows.frame(found.messages, next_pos)
        keys = following
    return PackedRows().frame(b"", to_pos)


class _Found(NamedTuple):
    """The entries found in a stretch of positions."""

    rows: PackedRows | Run
    messages: bytes | memoryview
    is_all: bool
    """Whether the stretch has no further entries."""


def _run(connection: Connection, first: int, last: int, states: int, max_entries: int, max_bytes: int) -> _Found | None:
    """Read consecutive entries that are alike in two statements; return None if they are not.

    The entries may change between count and read. If one leaves, the read misses it and this returns None. Another
    state or delivery count is answered as it was when it was counted: time and number do not change. A message changes
    when it is abandoned with other properties; the later form is returned, as if it had been read a moment later.
    """
    found = connection.execute(statement("select_alike"), (first, last, states, max_bytes, max_entries)).fetchone()
    if found is None:
        return _Found(PackedRows(), b"", is_all=True)
    alike = Alike._make(found)
    if not alike.is_run:
        return None
    # A blob with some much larger messages would have no bound.
    largest = min(SIZE_MAX, 8 * max_bytes // alike.positions)
    bounds = (alike.first_key, alike.last_key, largest)
    listed, messages = connection.execute(statement("select_run"), bounds).fetchone()
    if listed is None:
        return None
    rows = Run(alike, listed)
    is_all = alike.last_key == last
    is_small = not is_all and alike.positions < max_entries and 4 * len(messages) < max_bytes
    if is_small or len(rows) != alike.positions:
        return None
    if len(messages) > max_bytes:
        messages = memoryview(messages)[: rows.cut(max_bytes)]
        is_all = is_all and len(rows) == alike.positions
    return _Found(rows, messages, is_all)


def _guessed(
    connection: Connection, first: int, last: int, states: int, max_entries: int, max_bytes: int
) -> _Found | None:
    """Read messages about as large as the sub-queue's others in one statement; return None if they are not."""
    usual = connection.execute(statement("select_usual"), (first, last, states)).fetchone()
    if usual is None:
        return _Found(PackedRows(), b"", is_all=True)
    wanted, listed, others, messages = connection.execute(
        statement("select_frame"), (first, last, states, max_entries, max_bytes, *usual)
    ).fetchone()
    if listed is None:
        return _Found(PackedRows(), b"", is_all=True)
    rows = PackedRows(rows_listed(first & POSITION_MAX, Usual._make(usual), listed, others))
    size_bytes = rows.size_bytes
    is_all = len(rows) < wanted
    is_small = not is_all and wanted < max_entries and 4 * size_bytes < max_bytes
    if is_small or size_bytes != len(messages or b""):
        return None
    if size_bytes > max_bytes:
        cut = rows.first(max_bytes)
        return _Found(cut, memoryview(messages)[: cut.size_bytes], is_all and len(cut) == len(rows))
    return _Found(rows, messages, is_all)


def _measured(connection: Connection, first: int, last: int, states: int, max_entries: int, max_bytes: int) -> _Found:
    """Read the narrow columns first, since they give the sizes of the messages."""
    with one_view(connection):
        rows, is_all = _rows(connection, first, last, states, max_entries, max_bytes)
        if not rows:
            return _Found(rows, b"", is_all)
        bounds = (first, entry_key(first >> POSITION_BITS, rows.last_pos), states)
        (messages,) = connection.execute(statement("select_range_bodies"), bounds).fetchone()
    return _Found(rows, messages, is_all)


def _rows(
    connection: Connection, first: int, last: int, states: int, max_entries: int, max_bytes: int
) -> tuple[PackedRows, bool]:
    """Return the narrow columns of the first entries within the bounds, and whether these are all."""
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
    """Load entries in any state, finished ones too, without their data but with its length."""
    keys = key_range(subqueue, from_pos, to_pos - 1)
    if keys is None:
        return []
    (listed,) = connection.execute(statement("scan_entries"), (*keys, max(0, max_entries))).fetchone()
    return [(EntryRow._make((key & POSITION_MAX, *columns, b"")), size) for key, *columns, size in json.loads(listed)]


def read_dispositions(connection: Connection, subqueue: int, from_number: int, max_rows: int) -> list[DispositionRow]:
    """Load lines of the disposition log with ``number >= from_number``, in order."""
    keys = key_range(subqueue, from_number, POSITION_MAX)
    if keys is None:
        return []
    (listed,) = connection.execute(statement("select_fates"), (*keys, max(0, max_rows))).fetchone()
    return [DispositionRow._make(columns) for columns in json.loads(listed)]
