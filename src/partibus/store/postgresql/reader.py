"""Serves the loads of the port: one round trip each, rows in PostgreSQL's binary form."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.generations import Generation, LeftOff, left_off
from partibus.partition.protocol.keys import (
    KIND_BITS,
    POSITION_BITS,
    POSITION_MAX,
    SubqueueKind,
    body_key,
    entry_key,
    kind_of,
)
from partibus.partition.protocol.ports import (
    FINISHED,
    CursorRow,
    DispositionRow,
    DueRows,
    EntryRow,
    LockBatchRow,
    Query,
    RangeFrame,
    SessionLockRow,
    Snapshot,
    SubqueueCounts,
    executed_requests,
    unwritten_partition,
)
from partibus.store.frames import PackedRows
from partibus.store.postgresql.connection import Connection
from partibus.store.postgresql.rows import Bigints
from partibus.store.postgresql.sql import page_statement, statement

_BIGINT_MAX = (1 << 63) - 1

_STATE_END = 1 << 8

Parameters = dict[str, Any]


def load_page(
    connection: Connection, subqueue: int, from_pos: int, max_entries: int, max_bytes: int, session: str | None
) -> list[EntryRow]:
    """Load the first active entries with ``pos >= from_pos``, within both bounds."""
    keys = _key_range(subqueue, from_pos, POSITION_MAX)
    if keys is None:
        return []
    bounds = _bounds(max_entries, max_bytes)
    if session is None:
        return _page(connection, "page", keys | bounds)
    return _page(connection, "page_of_session", _of_session(subqueue, session) | bounds | {"first": keys["first"]})


def browse(
    connection: Connection, subqueue: int, from_pos: int, to_pos: int, max_entries: int, max_bytes: int
) -> list[EntryRow]:
    """Load entries in any state with ``from_pos <= pos < to_pos``, in order of position."""
    keys = _key_range(subqueue, from_pos, to_pos - 1)
    return [] if keys is None else _page(connection, "browse", keys | _bounds(max_entries, max_bytes))


def peek(
    connection: Connection, subqueue: int, from_sequence: int, max_entries: int, max_bytes: int, session: str | None
) -> list[EntryRow]:
    """Load entries by sequence (`queries.Peek`); in the active sub-queue the sequence number is the position."""
    first = min(max(0, from_sequence), _BIGINT_MAX)
    bounds = _bounds(max_entries, max_bytes)
    if kind_of(subqueue) != SubqueueKind.ACTIVE:
        if session is None:
            return _page(connection, "peek_by_sequence", bounds | {"subqueue": subqueue, "first": first})
        return _page(
            connection, "peek_of_session_by_sequence", _of_session(subqueue, session) | bounds | {"first": first}
        )
    if session is None:
        return browse(connection, subqueue, first, POSITION_MAX + 1, max_entries, max_bytes)
    if first > POSITION_MAX:
        return []
    key = entry_key(subqueue, first)
    return _page(connection, "peek_of_session", _of_session(subqueue, session) | bounds | {"first": key})


def load_due(
    connection: Connection, subqueue: int, state: int, until_ms: int, max_entries: int, max_bytes: int
) -> DueRows:
    """Load the entries in ``state`` that are due at ``until_ms`` or before, the earliest first."""
    of_state = {"subqueue": subqueue, "state": state}
    until_ms = max(min(until_ms, _BIGINT_MAX), -_BIGINT_MAX)
    with connection.transaction():
        connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        rows = _page(connection, "due", of_state | {"until_ms": until_ms} | _bounds(max_entries, max_bytes))
        behind = {"after_ms": -_BIGINT_MAX, "after_key": 0}
        if rows:
            behind = {"after_ms": rows[-1].due_ms or 0, "after_key": entry_key(subqueue, rows[-1].pos)}
        following = _rows(connection, statement("next_due"), of_state | behind)
    return DueRows(rows, following[0][0] if following else None)


def count_due(connection: Connection, subqueue: int, state: int) -> int:
    """Count the entries in ``state`` that have a due time (`queries.DueCount`)."""
    ((count,),) = _rows(connection, statement("count_due"), {"subqueue": subqueue, "state": state})
    return int(count)


def load_filled(connection: Connection, most: int) -> dict[int, SubqueueCounts]:
    """Return the messages and bytes of the first ``most`` sub-queues that hold any, by key."""
    rows = _rows(connection, statement("filled"), {"most": most})
    return {key: SubqueueCounts(messages, size_bytes) for key, messages, size_bytes in rows}


def load_executed(connection: Connection, asker: str) -> dict[int, int]:
    """Return the answered requests of one run of a broker, with the known outcome of each."""
    rows = _rows(connection, statement("executed"), {"asker": asker.encode()})
    return executed_requests(bytes(part) for (part,) in rows)


def timed_subqueues(connection: Connection) -> dict[int, int]:
    """Return when the first entry falls due, by key of the sub-queue."""
    return dict(_rows(connection, statement("timed_subqueues"), {}))


def cursor_partitions(connection: Connection, most: int) -> list[int]:
    """Return the rows of the first ``most`` partitions that have cursors, in order."""
    return [row for (row,) in _rows(connection, statement("cursor_partitions"), {"most": most})]


def load_sequences(connection: Connection, subqueue: int, sequences: Sequence[int]) -> list[EntryRow]:
    """Load the entries with these sequence counters, in any state and any order."""
    is_active = kind_of(subqueue) == SubqueueKind.ACTIVE
    largest = POSITION_MAX if is_active else _BIGINT_MAX
    wanted = [sequence for sequence in set(sequences) if 0 <= sequence <= largest]
    if is_active:
        keys = Bigints([entry_key(subqueue, pos) for pos in wanted])
        return _entry_rows(_rows(connection, statement("by_keys"), {"keys": keys}))
    parameters = {"subqueue": subqueue, "sequences": Bigints(wanted)}
    return _entry_rows(_rows(connection, statement("by_sequences"), parameters))


def load_bodies(connection: Connection, keys: Sequence[int]) -> list[bytes | None]:
    """Load stored messages in the order of ``keys``; None where a body was removed."""
    found = dict(_rows(connection, statement("bodies"), {"keys": Bigints(keys)}))
    return [found.get(key) for key in keys]


def load_partition(connection: Connection, partition_row: int) -> Snapshot | None:
    """Load the state of a partition (`queries.Partition`); all statements see the same commit."""
    keys = {"first": body_key(partition_row, 0), "last": body_key(partition_row + 1, 0) - 1}
    with connection.pipeline(), connection.transaction():
        connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        found = [
            connection.cursor(binary=True).execute(statement(name), parameters, prepare=True)
            for name, parameters in (
                ("partition", {"partition_row": partition_row}),
                ("counts", keys),
                ("lock_batches", keys),
                ("locked_entries", keys),
                ("first_due", keys),
                ("inbound_marks", {"partition_row": partition_row}),
                ("cursors", keys),
                ("retained", keys),
                ("sinks", {"partition_row": partition_row}),
                ("session_locks", {"partition_row": partition_row}),
                ("generations", {}),
                ("left_off", {"partition_row": partition_row}),
            )
        ]
        partition, counts, batches, locked, first_due, marks, *others = [cursor.fetchall() for cursor in found]
    cursors, retained, sinks, session_locks, generations, passed = others
    known = tuple(map(Generation._make, generations))
    if not partition:
        return unwritten_partition(known)
    next_sequence, next_number, session_state_bytes = partition[0]
    return Snapshot(
        next_sequence,
        next_number,
        session_state_bytes,
        {key: SubqueueCounts(messages, size_bytes) for key, messages, size_bytes in counts},
        [LockBatchRow(key >> POSITION_BITS, key & POSITION_MAX, *columns) for key, *columns in batches],
        [_locked_entry(row) for row in locked],
        {(subqueue, state): due_ms for subqueue, state, due_ms in first_due},
        dict(marks),
        cursors=tuple(CursorRow(subqueue, name.decode(), *columns) for subqueue, name, *columns in cursors),
        retained={key: SubqueueCounts(messages, size_bytes) for key, messages, size_bytes in retained},
        sinks=dict(sinks),
        session_locks=tuple(
            SessionLockRow(session.decode(), lock_id, until_ms, holder.decode())
            for session, lock_id, until_ms, holder in session_locks
        ),
        left_off=left_off(known, list(map(LeftOff._make, passed))),
    )


def load_sizes(connection: Connection, partition_rows: Sequence[int]) -> dict[int, int]:
    """Return the stored bytes of partitions by partition row (`queries.Sizes`)."""
    return dict(_rows(connection, statement("sizes"), {"rows": Bigints(partition_rows)}))


def scan_sessions(
    connection: Connection, subqueue: int, after: str | None, max_sessions: int, state: int = 0
) -> list[str]:
    """Return sessions that have entries in a state, after ``after``, in order of their UTF-8 bytes."""
    # The text directly after a name is the name with a NUL.
    start = b"" if after is None else after.encode() + b"\x00"
    parameters = {"subqueue": subqueue, "start": start, "most": max(0, max_sessions), "state": state}
    return _names(_rows(connection, statement("scan_sessions"), parameters))


def absent_sessions(connection: Connection, subqueue: int, sessions: Sequence[str]) -> list[str]:
    """Return the sessions without entries (`queries.AbsentSessions`)."""
    parameters = {"subqueue": subqueue, "sessions": [session.encode() for session in sessions]}
    present = {place for (place,) in _rows(connection, statement("find_sessions"), parameters)} if sessions else ()
    return [session for place, session in enumerate(sessions, 1) if place not in present]


def list_sessions(
    connection: Connection, subqueue: int, skip: int, top: int, updated_after_ms: int | None, after: str | None
) -> list[str]:
    """List ``top`` sessions after the first ``skip``, in order of their UTF-8 bytes."""
    parameters: Parameters = {
        "partition_row": subqueue >> KIND_BITS,
        "skip": min(max(0, skip), _BIGINT_MAX),
        "most": min(max(0, top), _BIGINT_MAX),
    }
    if updated_after_ms is None:
        start = b"" if after is None else after.encode() + b"\0"
        parameters |= {"subqueue": subqueue, "start": start}
        return _names(_rows(connection, statement("list_sessions"), parameters))
    return _names(_rows(connection, statement("list_updated_sessions"), parameters | {"after_ms": updated_after_ms}))


def session_state(connection: Connection, partition_row: int, session: str) -> bytes | None:
    """Load the state of a session; None if it has none (`queries.SessionState`)."""
    parameters = {"partition_row": partition_row, "session": session.encode()}
    rows = _rows(connection, statement("session_state"), parameters)
    return rows[0][0] if rows else None


def find_duplicates(
    connection: Connection, partition_row: int, first_bucket: int, ids: Sequence[bytes]
) -> dict[bytes, tuple[int, bytes]]:
    """Return which of ``ids`` are in ``first_bucket`` or later (`queries.Duplicates`)."""
    if not ids:
        return {}
    parameters = {"partition_row": partition_row, "first_bucket": first_bucket, "ids": list(ids)}
    rows = _rows(connection, statement("find_duplicates"), parameters)
    return {message_id: (accepted_ms, original or b"") for message_id, accepted_ms, original in rows}


def scan_duplicates(
    connection: Connection, partition_row: int, after: tuple[int, bytes], max_ids: int
) -> list[tuple[int, bytes, int]]:
    """Return (bucket, id, accepted ms) in order, after the given bucket and id."""
    bucket, message_id = after
    parameters = {"partition_row": partition_row, "bucket": bucket, "id": message_id, "most": max(0, max_ids)}
    return _rows(connection, statement("scan_duplicates"), parameters)


def read_range(
    connection: Connection,
    subqueue: int,
    from_pos: int,
    to_pos: int,
    max_entries: int,
    max_bytes: int,
    finished: bool,
) -> RangeFrame:
    """Load readable entries with ``from_pos <= pos < to_pos``, packed, in order of position."""
    keys = _key_range(subqueue, from_pos, to_pos - 1)
    if keys is None:
        return PackedRows().frame(b"", to_pos)
    bounds = _bounds(max_entries, max_bytes) | {"states": _STATE_END if finished else FINISHED}
    ((is_all, columns, messages),) = _rows(connection, statement("range"), keys | bounds)
    if columns is None:
        return PackedRows().frame(b"", to_pos if max_entries > 0 else from_pos)
    rows = PackedRows(columns)
    return rows.frame(messages, to_pos if is_all else rows.last_pos + 1)


def scan(
    connection: Connection, subqueue: int, from_pos: int, to_pos: int, max_entries: int
) -> list[tuple[EntryRow, int]]:
    """Load entries in any state, finished ones too, without their data but with its length."""
    keys = _key_range(subqueue, from_pos, to_pos - 1)
    if keys is None:
        return []
    rows = _rows(connection, statement("scan"), keys | {"most": max(0, max_entries)})
    entries = _entry_rows([(*columns, b"") for *columns, _ in rows])
    return [(entry, row[-1]) for entry, row in zip(entries, rows, strict=True)]


def load_dispositions(connection: Connection, subqueue: int, from_number: int, max_rows: int) -> list[DispositionRow]:
    """Load lines of the disposition log with ``number >= from_number``, in order."""
    keys = _key_range(subqueue, from_number, POSITION_MAX)
    if keys is None:
        return []
    return [
        DispositionRow._make(row) for row in _rows(connection, statement("fates"), keys | {"most": max(0, max_rows)})
    ]


def find_sink_ids(connection: Connection, partition_row: int, sink: int, ids: Sequence[bytes]) -> set[bytes]:
    """Return those of ``ids`` that the sink has stored and still remembers (`queries.SinkIds`)."""
    if not ids:
        return set()
    parameters = {"partition_row": partition_row, "sink": sink, "ids": list(ids)}
    return {row_id for (row_id,) in _rows(connection, statement("find_sink_ids"), parameters)}


def count_sink_ids(connection: Connection, partition_row: int, sink: int, batch: int) -> int:
    """Count the ids that a sink has of ``batch`` and earlier batches (`queries.SinkIdCount`)."""
    parameters = {"partition_row": partition_row, "sink": sink, "batch": batch}
    ((count,),) = _rows(connection, statement("count_sink_ids"), parameters)
    return int(count)


def _key_range(subqueue: int, first_pos: int, last_pos: int) -> Parameters | None:
    """Return the keys of the existing positions in a requested range; None if there are none."""
    first, last = max(0, first_pos), min(last_pos, POSITION_MAX)
    return None if first > last else {"first": entry_key(subqueue, first), "last": entry_key(subqueue, last)}


def _bounds(max_entries: int, max_bytes: int) -> Parameters:
    return {"max_entries": max(0, max_entries), "max_bytes": max_bytes}


def _of_session(subqueue: int, session: str) -> Parameters:
    return {"subqueue": subqueue, "session": session.encode()}


def _rows(connection: Connection, query: bytes, parameters: Parameters) -> list[Any]:
    return connection.cursor(binary=True).execute(query, parameters, prepare=True).fetchall()


def _page(connection: Connection, name: str, parameters: Parameters) -> list[EntryRow]:
    return _entry_rows(_rows(connection, page_statement(name), parameters))


def _entry_rows(rows: list[Any]) -> list[EntryRow]:
    """Return entry rows; the session's name (column 6) comes as bytes."""
    return [EntryRow._make(row if row[6] is None else (*row[:6], row[6].decode(), *row[7:])) for row in rows]


def _locked_entry(row: tuple[Any, ...]) -> tuple[int, EntryRow, int]:
    key, *columns, size = row
    (entry,) = _entry_rows([(key & POSITION_MAX, *columns, b"")])
    return key >> POSITION_BITS, entry, size


def _names(rows: list[Any]) -> list[str]:
    return [name.decode() for (name,) in rows]


READS: Mapping[type[Query[Any]], Callable[..., Any]] = {
    q.Partition: load_partition,
    q.Sizes: load_sizes,
    q.Counts: load_filled,
    q.TimedSubqueues: timed_subqueues,
    q.CursorPartitions: cursor_partitions,
    q.Page: load_page,
    q.Due: load_due,
    q.DueCount: count_due,
    q.BySequence: load_sequences,
    q.SessionsBehind: scan_sessions,
    q.AbsentSessions: absent_sessions,
    q.SessionList: list_sessions,
    q.SessionState: session_state,
    q.Duplicates: find_duplicates,
    q.DuplicatesBehind: scan_duplicates,
    q.Executed: load_executed,
    q.Bodies: load_bodies,
    q.Peek: peek,
    q.Browse: browse,
    q.Range: read_range,
    q.Scan: scan,
    q.Dispositions: load_dispositions,
    q.SinkIds: find_sink_ids,
    q.SinkIdCount: count_sink_ids,
}
"""The function that answers each query, called with a connection and the query's fields."""
