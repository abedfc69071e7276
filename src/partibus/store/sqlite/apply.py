"""Turns the rows of one commit into statements, inside a transaction that the writer has begun.

Remembered ids are those of messages (`duplicates`), and those of a sink's rows. Ids of a sink are hashes, so each id of
a commit may fall on another page, and the log gets that page. With 25,000 ids in the live batches of a partition an id
costs 8 us to record and 3 us to look up, with 150,000 it is 28 and 6 (in commits of 250 with both cores busy; the
message itself takes 6). Larger commits share pages, and ids that are known to be new in memory are not looked up: 2 to
4 us in commits of 190 and more.
"""

import json
from collections.abc import Iterable, Sequence
from sqlite3 import Connection
from threading import Lock

from partibus.partition.protocol.keys import KIND_BITS, POSITION_BITS, SHARED_BODY, body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import (
    BODY_COLUMNS,
    DISPOSITION_COLUMNS,
    DUPLICATE_COLUMNS,
    ENTRY_COLUMNS,
    SINK_ID_COLUMNS,
    UPDATE_COLUMNS,
    Writes,
    executed_rows,
)
from partibus.store.sqlite.sql import (
    ROWS_MAX,
    execute_keys,
    execute_rows,
    in_list_form,
    padded_keys,
    statement,
    values_form,
)


def find_duplicates(
    connection: Connection, partition_row: int, first_bucket: int, ids: Sequence[bytes]
) -> dict[bytes, tuple[int, bytes]]:
    """Return the ids that a bucket has (`queries.Duplicates`)."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for chunk in padded_keys(ids):
        form = in_list_form("find_duplicates", len(chunk))
        (listed,) = connection.execute(form, (partition_row, first_bucket, *chunk)).fetchone()
        for message_id, accepted_ms, original in json.loads(listed):
            found[bytes.fromhex(message_id)] = (accepted_ms, bytes.fromhex(original))
    return found


def scan_duplicates(
    connection: Connection, partition_row: int, after: tuple[int, bytes], max_ids: int
) -> list[tuple[int, bytes, int]]:
    """Return remembered ids in order (`queries.DuplicatesBehind`)."""
    parameters = (partition_row, *after, max(0, max_ids))
    listed, data = connection.execute(statement("scan_duplicates"), parameters).fetchone()
    rows = []
    end = 0
    for bucket, size, accepted_ms in json.loads(listed):
        rows.append((bucket, data[end : end + size], accepted_ms))
        end += size
    return rows


def forget_duplicates(connection: Connection, partition_row: int, bucket: int, most: int) -> int:
    """Delete the first ``most`` ids of buckets below ``bucket``, in order; return how many were deleted."""
    if most <= 0:
        return 0
    parameters = (partition_row, bucket, most)
    bound = connection.execute(statement("select_duplicate_bound"), parameters).fetchone()
    if bound is None:
        return connection.execute(statement("delete_duplicate_buckets"), (partition_row, bucket)).rowcount
    return connection.execute(statement("delete_duplicates_before"), (partition_row, *bound)).rowcount


def find_sink_ids(connection: Connection, partition_row: int, sink: int, ids: Sequence[bytes]) -> set[bytes]:
    """Return those of ``ids`` that the sink has stored and still remembers (`queries.SinkIds`)."""
    found: set[bytes] = set()
    for chunk in padded_keys(ids):
        form = in_list_form("find_sink_ids", len(chunk))
        (listed,) = connection.execute(form, (partition_row, sink, *chunk)).fetchone()
        found.update(map(bytes.fromhex, json.loads(listed)))
    return found


def count_sink_ids(connection: Connection, partition_row: int, sink: int, batch: int) -> int:
    """Count the ids that a sink has of ``batch`` and earlier batches (`queries.SinkIdCount`)."""
    ((count,),) = connection.execute(statement("count_sink_ids"), (partition_row, sink, batch)).fetchall()
    return int(count)


def add_sink_ids(connection: Connection, partition_row: int, sink: int, batch: int, ids: Sequence[bytes]) -> None:
    """Record ids that no batch of the sink has, in the order of their places in the file."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), ROWS_MAX):
        chunk = ordered[start : start + ROWS_MAX]
        count = len(chunk)
        (form_ids,) = padded_keys(chunk)
        form = values_form("insert_sink_ids", len(form_ids))
        connection.execute(form, (partition_row, sink, batch, *form_ids, count))


def remember_sink_ids(connection: Connection, flat: Sequence[int | bytes]) -> None:
    """Record ids, each with the batch of its last row here, replacing any batch before."""
    columns = [iter(flat)] * SINK_ID_COLUMNS
    sinks: dict[tuple[int, int], dict[bytes, int]] = {}
    for partition_row, sink, row_id, batch in zip(*columns, strict=True):
        sinks.setdefault((partition_row, sink), {})[row_id] = batch
    for place, batches in sinks.items():
        (listed,) = connection.execute(statement("select_sink_batches"), place).fetchone()
        for other in json.loads(listed):
            for chunk in padded_keys([row_id for row_id, batch in batches.items() if batch != other]):
                connection.execute(in_list_form("delete_sink_ids", len(chunk)), (*place, other, *chunk))
        rows = [column for row_id, batch in batches.items() for column in (*place, batch, row_id)]
        execute_rows(connection, "replace_sink_ids", SINK_ID_COLUMNS, rows)


def forget_sink_ids(connection: Connection, partition_row: int, sink: int, batch: int, most: int) -> None:
    """Delete the first ``most`` ids of ``batch`` and earlier batches, in order."""
    if most <= 0:
        return
    bound = connection.execute(statement("select_sink_bound"), (partition_row, sink, batch, most)).fetchone()
    if bound is None:
        connection.execute(statement("delete_sink_ids_to"), (partition_row, sink, batch))
    else:
        connection.execute(statement("delete_sink_ids_before"), (partition_row, sink, *bound))


def remove_sink_ids(connection: Connection, partition_row: int, most: int) -> int:
    """Delete up to ``most`` ids of a partition's sinks; return how many were deleted."""
    bound = connection.execute(statement("select_swept_sink_id"), (partition_row, most)).fetchone()
    if bound is None:
        return connection.execute(statement("delete_all_sink_ids"), (partition_row,)).rowcount
    return connection.execute(statement("delete_swept_sink_ids"), (partition_row, *bound)).rowcount


COUNTER_COLUMNS = 4
COUNT_COLUMNS = 3
LOCK_COLUMNS = 4
MARK_COLUMNS = 3
EXECUTED_COLUMNS = 3
SESSION_COLUMNS = 2
SESSION_LOCK_COLUMNS = 5
SINK_COLUMNS = 3
CURSOR_COLUMNS = 10
SESSION_STATE_COLUMNS = 4

_LISTED_RANGE_MAX = 16
"""The longest range that is deleted key by key in a shared IN list instead of by a statement of its own. In a list a
key costs 0.3 us more; a statement costs 2 us more, plus a hand-over of the interpreter lock.
"""


SWEPT_STATE_BYTES = 1 << 20
"""The most bytes of session states that one slice of a sweep removes: it reads their pages on the way."""

_BUCKET_MAX = (1 << 63) - 1

SMALL_OPERATIONS = 4
"""A commit of so few operations takes no turn: most of its time is the sync."""
TURN_S = 0.05
"""How long a commit waits for its turn. A store that hangs in a statement holds the others up for no longer."""
turn = Lock()
"""Held while the statements of a large commit run, by all stores of this process (docs/adr/0031).

Each statement of a thread waits for the interpreter's lock. Two commits that take turns at every statement both end
later, and a commit that waits gathers more. Syncs need no such lock and run beside each other.
"""


def apply_in_turn(writes: Writes, connection: Connection) -> None:
    """Apply a large commit after the large commits of other stores that came before it."""
    is_held = turn.acquire(timeout=TURN_S)
    try:
        apply_writes(writes, connection)
    finally:
        if is_held:
            turn.release()


def apply_writes(writes: Writes, connection: Connection) -> None:
    """Apply a commit in the order that `Writes` promises. The caller begins and ends the transaction."""
    if writes.counters:
        execute_rows(connection, "replace_partitions", COUNTER_COLUMNS, writes.counters)
    if writes.counts:
        execute_rows(connection, "replace_subqueues", COUNT_COLUMNS, writes.counts)
    if writes.bodies:
        execute_rows(connection, "insert_bodies", BODY_COLUMNS, writes.bodies)
    if writes.entries:
        execute_rows(connection, "insert_entries", ENTRY_COLUMNS, writes.entries)
    if writes.entry_updates:
        execute_rows(connection, "update_entries", UPDATE_COLUMNS, last_updates(writes.entry_updates))
    if writes.session_states:
        _set_session_states(connection, writes.session_states)
    if writes.duplicate_ids:
        execute_rows(connection, "replace_duplicate_ids", DUPLICATE_COLUMNS, writes.duplicate_ids)
    for partition_row, bucket, most in writes.forgotten_duplicates:
        forget_duplicates(connection, partition_row, bucket, most)
    if writes.inbound_marks:
        marks = [column for place, pos in writes.inbound_marks.items() for column in (*place, pos)]
        execute_rows(connection, "replace_inbound_marks", MARK_COLUMNS, marks)
    if writes.forgotten_executed_ms is not None:
        connection.execute(statement("delete_executed"), (writes.forgotten_executed_ms,))
    if writes.executed:
        executed = [column for row in executed_rows(writes) for column in row]
        execute_rows(connection, "insert_executed", EXECUTED_COLUMNS, executed)
    if writes.cursors or writes.retained or writes.dispositions or writes.forgotten_dispositions:
        _apply_readers(connection, writes)
    if writes.new_sink_ids or writes.sink_ids or writes.sink_batches or writes.forgotten_sink_ids:
        _apply_sinks(connection, writes)
    if writes.session_locks:
        _apply_session_locks(connection, writes)
    if writes.deleted_locks:
        execute_keys(connection, "delete_lock_batches", writes.deleted_locks)
    if writes.lock_batches:
        lock_rows: list[int | bytes] = []
        for key, rows in writes.lock_batches.items():
            for row in rows:
                lock_rows += (key, *row)
        execute_rows(connection, "replace_lock_batches", LOCK_COLUMNS, lock_rows)
    if writes.deleted_entries:
        _delete_ranges(connection, "delete_entries", "delete_entry_range", writes.deleted_entries)
    if writes.deleted_bodies:
        _delete_ranges(connection, "delete_bodies", "delete_body_range", writes.deleted_bodies)
    if writes.deleted_shared_bodies:
        execute_keys(connection, "delete_unnamed_bodies", writes.deleted_shared_bodies)
    for partition_row in writes.dropped_partitions:
        _drop_partition(connection, partition_row)


def sets_session_state(writes: Writes) -> bool:
    """Tell whether a commit sets a session's state, which may be as large as a message."""
    return any(state is not None for state, _ in writes.session_states.values())


def _set_session_states(connection: Connection, states: dict[tuple[int, str], tuple[bytes | None, int]]) -> None:
    """Replace session states by deleting and inserting.

    The index of names is not unique, so that it can hold the time as well.
    """
    sessions = [column for session in states for column in session]
    execute_rows(connection, "delete_session_states", SESSION_COLUMNS, sessions)
    rows = [
        column
        for session, (state, updated_ms) in states.items()
        if state is not None
        for column in (*session, updated_ms, state)
    ]
    execute_rows(connection, "insert_session_states", SESSION_STATE_COLUMNS, rows)


def _apply_readers(connection: Connection, writes: Writes) -> None:
    for (subqueue, name), cursor in writes.cursors.items():
        if cursor is None:
            connection.execute(statement("delete_cursor"), (subqueue, name))
    cursors = [column for cursor in writes.cursors.values() if cursor is not None for column in cursor]
    execute_rows(connection, "replace_cursors", CURSOR_COLUMNS, cursors)
    execute_rows(connection, "replace_retained", COUNT_COLUMNS, writes.retained)
    execute_rows(connection, "insert_fates", DISPOSITION_COLUMNS, writes.dispositions)
    for bounds in writes.forgotten_dispositions:
        connection.execute(statement("delete_fate_range"), bounds)


def _apply_sinks(connection: Connection, writes: Writes) -> None:
    for new in writes.new_sink_ids:
        add_sink_ids(connection, *new)
    if writes.sink_ids:
        remember_sink_ids(connection, writes.sink_ids)
    batches = [column for place, batch in writes.sink_batches.items() for column in (*place, batch)]
    execute_rows(connection, "replace_sink_batches", SINK_COLUMNS, batches)
    for forgotten in writes.forgotten_sink_ids:
        forget_sink_ids(connection, *forgotten)


def _apply_session_locks(connection: Connection, writes: Writes) -> None:
    free: dict[int, list[str]] = {}
    for (partition_row, session), lock in writes.session_locks.items():
        if lock is None:
            free.setdefault(partition_row, []).append(session)
    for partition_row, sessions in free.items():
        for chunk in padded_keys(sessions):
            connection.execute(in_list_form("delete_session_locks", len(chunk)), (partition_row, *chunk))
    held = [column for (row, _), lock in writes.session_locks.items() if lock is not None for column in (row, *lock)]
    execute_rows(connection, "replace_session_locks", SESSION_LOCK_COLUMNS, held)


def last_updates(flat: list[int | None]) -> list[int | None]:
    """Reduce updates to one row per entry, the last: UPDATE ... FROM takes any one of several matching rows."""
    keys = flat[::UPDATE_COLUMNS]
    if len(set(keys)) == len(keys):
        return flat
    last = {key: flat[UPDATE_COLUMNS * i : UPDATE_COLUMNS * (i + 1)] for i, key in enumerate(keys)}
    return [value for row in last.values() for value in row]


def _delete_ranges(connection: Connection, by_keys: str, by_range: str, ranges: Iterable[tuple[int, int]]) -> None:
    keys: list[int] = []
    for first, last in ranges:
        if last - first < _LISTED_RANGE_MAX:
            keys.extend(range(first, last + 1))
        else:
            connection.execute(statement(by_range), (first, last))
    if keys:
        execute_keys(connection, by_keys, keys)


def _drop_partition(connection: Connection, partition_row: int) -> None:
    """Remove a partition's own rows at once; note its messages, which may be millions, for `sweep`."""
    first, following = subqueue_key(partition_row, 0), subqueue_key(partition_row + 1, 0)
    connection.execute(statement("delete_partition"), (partition_row,))
    connection.execute(statement("delete_left_off"), (partition_row,))
    connection.execute(statement("delete_subqueue_range"), (first, following - 1))
    connection.execute(statement("delete_lock_range"), (entry_key(first, 0), entry_key(following, 0) - 1))
    connection.execute(statement("delete_inbound_marks"), (partition_row,))
    connection.execute(statement("delete_cursor_range"), (first, following - 1))
    connection.execute(statement("delete_retained_range"), (first, following - 1))
    connection.execute(statement("delete_sinks"), (partition_row,))
    connection.execute(statement("delete_all_session_locks"), (partition_row,))
    connection.execute(statement("insert_dropped_partition"), (partition_row,))


def _remove_entries(connection: Connection, partition_row: int, bounds: tuple[int, int, int]) -> int:
    """Delete the first entries of (first key, last key, most); return their number.

    Also deletes the bodies in other partitions that only they reference: a subscription's messages are its topic's
    bodies.
    """
    (listed,) = connection.execute(statement("select_some_entries"), bounds).fetchone()
    rows: list[tuple[int, int]] = json.loads(listed)
    if rows:
        connection.execute(statement("delete_entry_range"), (rows[0][0], rows[-1][0]))
        elsewhere = [body for _, body in rows if body >> (KIND_BITS + POSITION_BITS) != partition_row]
        execute_keys(connection, "delete_bodies", [body for body in elsewhere if not body & SHARED_BODY])
        execute_keys(connection, "delete_unnamed_bodies", [body for body in elsewhere if body & SHARED_BODY])
    return len(rows)


def remove_partition_rows(partition_row: int, rows: int, connection: Connection) -> bool:
    """Delete up to ``rows`` rows of each table of a dropped partition.

    Returns True when no row is left and the note is removed.
    """
    first, following = subqueue_key(partition_row, 0), subqueue_key(partition_row + 1, 0)
    entries = (entry_key(first, 0), entry_key(following, 0) - 1, rows)
    bodies = (body_key(partition_row, 0), body_key(partition_row + 1, 0) - 1, rows)
    swept = _remove_entries(connection, partition_row, entries)
    swept += connection.execute(statement("delete_some_bodies"), bodies).rowcount
    states = (partition_row, rows, SWEPT_STATE_BYTES)
    swept += connection.execute(statement("delete_some_session_states"), states).rowcount
    swept += forget_duplicates(connection, partition_row, _BUCKET_MAX, rows)
    swept += connection.execute(statement("delete_some_fates"), entries).rowcount
    swept += remove_sink_ids(connection, partition_row, rows)
    if swept == 0:
        connection.execute(statement("delete_dropped_partition"), (partition_row,))
    return swept == 0
