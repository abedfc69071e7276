"""Serves the loads of the port from one connection.

A result of many rows comes as one: a JSON array of the narrow columns and one blob of all messages, split here.
Stepping row by row would hand over the interpreter lock at each (see `sql`). The columns are JSON and not a list with
separators, since a session is any text, NUL included; the blob is not JSON, since a message is any bytes.

The blob leaves large messages out: joining them copies each three times, which costs more than a hand-over.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from sqlite3 import Connection
from typing import Any

import msgspec

from partibus.partition.protocol.keys import POSITION_BITS, POSITION_MAX, SubqueueKind, entry_key, kind_of, subqueue_key
from partibus.partition.protocol.ports import (
    CursorRow,
    DueRows,
    EntryRow,
    LockBatchRow,
    SessionLockRow,
    Snapshot,
    SubqueueCounts,
    executed_requests,
    unwritten_partition,
)
from partibus.store.sqlite.owner import read_generations, read_left_off
from partibus.store.sqlite.sql import in_list_form, padded_keys, statement

SEARCHED_MAX = 16_384
"""Positions that one statement searches for active entries: some 3 ms. This keeps read transactions far below the 50 ms
of D13 when a million scheduled or deferred entries precede the first active one.
"""

LARGE_BYTES = 16_384
"""A message of more bytes is read by a statement of its own. The statements have this number, too."""

_DENSE_MIN = 64
"""The fewest positions that are worth a guess of the entries of a page."""

_STRETCHES_MAX = 8
"""The most stretches in one transaction."""

_columns = msgspec.json.Decoder(list[list[Any]]).decode
"""A function that reads the narrow columns of many rows, in half the time of `json.loads`."""

_INTEGER_MAX = (1 << 63) - 1
"""The largest integer that SQLite takes; a client may ask for any sequence number."""


def read_page(
    connection: Connection, subqueue: int, from_pos: int, max_entries: int, max_bytes: int, session: str | None = None
) -> list[EntryRow]:
    """Load active entries from a position on (`queries.Page`)."""
    keys = key_range(subqueue, from_pos, POSITION_MAX)
    if session is not None:
        if keys is None:
            return []
        parameters = (subqueue, session, keys[0], max(0, max_entries), max_bytes)
        return _entry_rows(connection, statement("select_session_page"), parameters)
    if keys is None or max_entries <= 0:
        return []
    messages, size_bytes = connection.execute(statement("select_count"), (subqueue,)).fetchone() or (0, 0)
    fitting = max_bytes * messages // max(1, size_bytes)
    are_large = size_bytes > LARGE_BYTES * messages
    if not are_large and (rows := _dense_page(connection, *keys, min(max_entries, messages), fitting, max_bytes)):
        return rows
    while keys is not None:
        first, end = keys
        last = min(first + SEARCHED_MAX, end)
        if are_large:
            rows = _large_rows(connection, first, last, min(max_entries, max(1, fitting)), max_bytes)
        else:
            rows = _entry_rows(connection, statement("select_page"), (first, last, max_entries, max_bytes))
        if rows:
            return rows
        keys = keys_behind(connection, last, end)
    return []


def _large_rows(connection: Connection, first: int, last: int, max_entries: int, max_bytes: int) -> list[EntryRow]:
    """Load active entries whose messages are large on average, row by row: only those that fit are visited.

    The sum of `select_page` needs the size of a thousand messages, which lie on pages of their own, for a page of
    sixteen.
    """
    rows: list[EntryRow] = []
    with closing(connection.execute(statement("select_large_page"), (first, last, max_entries))) as found:
        for key, *columns, message in found:
            max_bytes -= len(message)
            if max_bytes < 0 and rows:
                break
            rows.append(EntryRow._make((key & POSITION_MAX, *columns, message)))
    return rows


def _dense_page(
    connection: Connection, first: int, end: int, max_entries: int, fitting: int, max_bytes: int
) -> list[EntryRow]:
    """Load the entries of as many positions as are likely to fill a page; none if few of them are active.

    ``fitting``: the number of messages of the average size that ``max_bytes`` has room for. Receivers that settle in
    order leave no gaps between the entries that wait. Without a limit and a sum in the statement, SQLite visits each
    row once and copies no message on the way: 2.3 us a message of 1 KB instead of 4.3.
    """
    positions = min(max_entries, fitting + fitting // 8, end - first + 1)
    if positions < _DENSE_MIN:
        return []
    # Some messages may be much larger than the others, and the blob has to stay within a bound.
    large_bytes = min(LARGE_BYTES, 4 * max_bytes // positions)
    parameters = (first, first + positions - 1, large_bytes)
    rows = _entry_rows(
        connection, statement("select_dense_page"), parameters, large_bytes=large_bytes, max_bytes=max_bytes
    )
    total = sum([len(row.data) for row in rows])
    return rows if 4 * len(rows) >= positions or 2 * total >= max_bytes else []


def browse(
    connection: Connection, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int
) -> list[EntryRow]:
    """Load entries in any state with ``from_pos <= pos < to_pos``.

    Millions of finished entries may stand before and between them, so the search goes by stretches, several in a
    transaction, until it finds an entry.
    """
    rows: list[EntryRow] = []
    keys = key_range(subqueue, from_pos, to_pos - 1) if max_entries > 0 else None
    while keys is not None and not rows:
        with one_view(connection):
            rows, keys = _stretches(connection, *keys, max_entries, max_bytes)
    return rows


def _stretches(
    connection: Connection, first: int, end: int, max_entries: int, max_bytes: int
) -> tuple[list[EntryRow], tuple[int, int] | None]:
    """Return the entries of a few stretches, and where the next stretch begins, if any."""
    rows: list[EntryRow] = []
    for _ in range(_STRETCHES_MAX):
        last = min(first + SEARCHED_MAX, end)
        bounds = (first, last, max_entries - len(rows), max_bytes)
        page = _entry_rows(connection, statement("browse_entries"), bounds)
        if rows and page and len(page[0].data) > max_bytes:
            break
        rows += page
        max_bytes -= sum(len(row.data) for row in page)
        if len(rows) == max_entries:
            break
        following: tuple[int, int] | None
        if page and (page_end := entry_key(first >> POSITION_BITS, page[-1].pos)) < last:
            following = (page_end + 1, end)
        else:
            following = keys_behind(connection, last, end)
        if following is None:
            return rows, None
        first, _ = following
    return rows, (first, end)


def read_from_sequence(
    connection: Connection,
    subqueue: int,
    from_sequence: int,
    max_entries: int,
    max_bytes: int,
    session: str | None = None,
) -> list[EntryRow]:
    """Load entries in any state by sequence number; in the active sub-queue that is the position."""
    first = min(max(0, from_sequence), _INTEGER_MAX)
    bounds = (max(0, max_entries), max_bytes)
    if kind_of(subqueue) != SubqueueKind.ACTIVE:
        if session is None:
            return _entry_rows(connection, statement("peek_by_sequence"), (subqueue, first, *bounds))
        return _entry_rows(connection, statement("peek_session_by_sequence"), (subqueue, session, first, *bounds))
    if session is None:
        return browse(connection, subqueue, first, POSITION_MAX + 1, max_entries, max_bytes)
    if first > POSITION_MAX:
        return []
    return _entry_rows(connection, statement("peek_session"), (subqueue, session, entry_key(subqueue, first), *bounds))


def read_due(
    connection: Connection, subqueue: int, state: int, until_ms: int, max_entries: int, max_bytes: int
) -> DueRows:
    """Load entries that are due (`queries.Due`)."""
    parameters = (subqueue, state, min(until_ms, _INTEGER_MAX), max(0, max_entries), max_bytes)
    with one_view(connection):
        rows = _entry_rows(connection, statement("select_due"), parameters)
        last = (rows[-1].due_ms, entry_key(subqueue, rows[-1].pos)) if rows else (-_INTEGER_MAX, 0)
        ((next_due_ms,),) = connection.execute(statement("select_next_due"), (subqueue, state, *last)).fetchall()
    return DueRows(rows, next_due_ms)


def count_due(connection: Connection, subqueue: int, state: int) -> int:
    """Count the entries in ``state`` that have a due time (`queries.DueCount`)."""
    ((count,),) = connection.execute(statement("count_due"), (subqueue, state)).fetchall()
    return int(count)


def read_filled(connection: Connection, most: int) -> dict[int, tuple[int, int]]:
    """Return the sub-queues that hold messages (`queries.Counts`)."""
    keys, messages, sizes = map(json.loads, connection.execute(statement("select_filled"), (most,)).fetchone())
    return dict(zip(keys, zip(messages, sizes, strict=True), strict=True))


def read_executed(connection: Connection, asker: str) -> dict[int, int]:
    """Return requests that were answered (`queries.Executed`)."""
    return executed_requests(part for (part,) in connection.execute(statement("select_executed"), (asker,)).fetchall())


def read_timed_subqueues(connection: Connection) -> dict[int, int]:
    """Return when the first entry falls due, by key of the sub-queue."""
    (listed,) = connection.execute(statement("select_timed_subqueues")).fetchone()
    found: dict[int, int] = {}
    for subqueue, due_ms in json.loads(listed):
        found[subqueue] = min(due_ms, found.get(subqueue, due_ms))
    return found


def read_cursor_partitions(connection: Connection, most: int) -> list[int]:
    """Return the rows of partitions that have cursors."""
    (listed,) = connection.execute(statement("select_cursor_partitions"), (most,)).fetchone()
    rows: list[int] = json.loads(listed)
    return rows


def read_sequences(connection: Connection, subqueue: int, sequences: Sequence[int]) -> list[EntryRow]:
    """Load entries by sequence number (`queries.BySequence`)."""
    rows: list[EntryRow] = []
    is_active = kind_of(subqueue) == SubqueueKind.ACTIVE
    largest = POSITION_MAX if is_active else _INTEGER_MAX
    for chunk in padded_keys([sequence for sequence in set(sequences) if 0 <= sequence <= largest]):
        if is_active:
            keys = [entry_key(subqueue, pos) for pos in chunk]
            rows += _entry_rows(connection, in_list_form("select_by_keys", len(keys)), keys)
        else:
            rows += _entry_rows(connection, in_list_form("select_by_sequences", len(chunk)), [subqueue, *chunk])
    return rows


def read_bodies(connection: Connection, keys: Sequence[int]) -> list[bytes | None]:
    """Load messages in the order of ``keys``."""
    found: dict[int, bytes | None] = {}
    for chunk in padded_keys(keys):
        listed, data = connection.execute(in_list_form("select_bodies", len(chunk)), chunk).fetchone()
        end = 0
        for key, size in json.loads(listed):
            if size > LARGE_BYTES:
                found[key] = _large_body(connection, key)
                continue
            found[key] = data[end : end + size]
            end += size
    return [found.get(key) for key in keys]


def _large_body(connection: Connection, key: int) -> bytes | None:
    """Load one message; None if there is none."""
    row: tuple[bytes] | None = connection.execute(statement("select_body"), (key,)).fetchone()
    return None if row is None else row[0]


def read_partition(connection: Connection, partition_row: int) -> Snapshot | None:
    """Load the durable state of a partition."""
    with one_view(connection):
        return _snapshot(connection, partition_row)


def read_sizes(connection: Connection, partition_rows: Sequence[int]) -> dict[int, int]:
    """Return the stored bytes of partitions by partition row (`queries.Sizes`)."""
    sizes: dict[int, int] = {}
    for chunk in padded_keys(partition_rows):
        (listed,) = connection.execute(in_list_form("select_sizes", len(chunk)), chunk).fetchone()
        sizes.update(json.loads(listed))
    return sizes


@contextmanager
def one_view(connection: Connection) -> Iterator[None]:
    """Run the statements of the context in one read transaction, so that all see the same commit."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def _snapshot(connection: Connection, partition_row: int) -> Snapshot | None:
    partition = connection.execute(statement("select_partition"), (partition_row,)).fetchone()
    generations = read_generations(connection)
    if partition is None:
        return unwritten_partition(generations)
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
    (listed,) = connection.execute(statement("select_first_due"), (first,)).fetchone()
    next_due = {(subqueue, state): due_ms for subqueue, state, due_ms in json.loads(listed)}
    next_sequence, next_number, session_state_bytes = partition
    locked_entries = [locked[key] for key in sorted(locked)]
    marks = dict(connection.execute(statement("select_inbound_marks"), (partition_row,)).fetchall())
    (cursors,) = connection.execute(statement("select_cursors"), (first, last)).fetchone()
    retained = connection.execute(statement("select_retained"), (first, last)).fetchall()
    sinks = connection.execute(statement("select_sinks"), (partition_row,)).fetchall()
    (session_locks,) = connection.execute(statement("select_session_locks"), (partition_row,)).fetchone()
    return Snapshot(
        next_sequence,
        next_number,
        session_state_bytes,
        counts,
        batches,
        locked_entries,
        next_due,
        marks,
        cursors=tuple(map(CursorRow._make, json.loads(cursors))),
        retained={key: SubqueueCounts(messages, size_bytes) for key, messages, size_bytes in retained},
        sinks=dict(sinks),
        session_locks=tuple(map(SessionLockRow._make, json.loads(session_locks))),
        left_off=read_left_off(connection, generations, partition_row),
    )


def _locked_entries(connection: Connection, batch: LockBatchRow) -> Iterator[tuple[int, tuple[int, EntryRow, int]]]:
    first = entry_key(batch.subqueue, batch.first_pos)
    last = min(first + 8 * len(batch.bitmap) - 1, entry_key(batch.subqueue, POSITION_MAX))
    covered = int.from_bytes(batch.bitmap, "little")
    (listed,) = connection.execute(statement("select_entries"), (first, last)).fetchone()
    for key, *columns, size in json.loads(listed):
        if covered >> (key - first) & 1:
            yield key, (batch.subqueue, EntryRow._make((key & POSITION_MAX, *columns, b"")), size)


def key_range(subqueue: int, first_pos: int, last_pos: int) -> tuple[int, int] | None:
    """Return the keys of the existing positions in a requested range; None if there are none."""
    first, last = max(0, first_pos), min(last_pos, POSITION_MAX)
    return None if first > last else (entry_key(subqueue, first), entry_key(subqueue, last))


def keys_behind(connection: Connection, last: int, end: int) -> tuple[int, int] | None:
    """Return the range in which a search continues after a stretch.

    It begins at the next entry in any state; None at the end of the range.
    """
    following = last < end and connection.execute(statement("select_next_key"), (last + 1, end)).fetchone()
    return (following[0], end) if following else None


def _entry_rows(
    connection: Connection,
    sql: str,
    parameters: Sequence[int | str],
    *,
    large_bytes: int = LARGE_BYTES,
    max_bytes: int | None = None,
) -> list[EntryRow]:
    """Load entries with their messages, of which the blob leaves those above ``large_bytes`` out.

    ``max_bytes`` cuts the entries where the statement does not: the first one always stays.
    """
    rows = _found_rows(connection, sql, parameters, large_bytes, max_bytes)
    if rows is None:  # a commit has just deleted a large message: all of one commit, then
        with one_view(connection):
            rows = _found_rows(connection, sql, parameters, large_bytes, max_bytes)
        assert rows is not None, "every entry has a body"
    return rows


def _found_rows(
    connection: Connection, sql: str, parameters: Sequence[int | str], large_bytes: int, max_bytes: int | None
) -> list[EntryRow] | None:
    """Load entries with their messages; None if a large message was deleted after its entry was read."""
    listed, data = connection.execute(sql, parameters).fetchone()
    rows: list[EntryRow] = []
    end = total = 0
    for key, *columns, size in _columns(listed):
        total += size
        if max_bytes is not None and total > max_bytes and rows:
            break
        message: bytes | None
        if size > large_bytes:
            message = _large_body(connection, columns[0])
            if message is None:
                return None
        else:
            message = data[end : end + size]
            end += size
        rows.append(EntryRow._make((key & POSITION_MAX, *columns, message)))
    return rows
