"""Converts the rows of one commit to parameters of ``apply_writes``: flat arrays of numbers, and one blob per table.

A blob holds the bytes of all rows, concatenated. Each row's numbers include where its part begins (from 1, as SQL
counts) and how long it is.

Integers for PostgreSQL, always as 64 bits, so that a statement has one form and one plan for all values.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper

from partibus.partition.protocol.ports import (
    DUPLICATE_COLUMNS,
    ENTRY_COLUMNS,
    SINK_ID_COLUMNS,
    UPDATE_COLUMNS,
    Writes,
    executed_rows,
)

_BIGINT = 20
_BIGINT_ARRAY = 1016
_EMPTY = struct.pack(">iii", 0, 0, _BIGINT)


class Bigints:
    """A parameter of type ``bigint[]``, without NULLs."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers


class _BigintsDumper(Dumper):
    """A dumper of the array's binary form: a header, then (length, number) each.

    One call makes it, instead of one call per number.
    """

    format = Format.BINARY
    oid = _BIGINT_ARRAY

    def dump(self, obj: Bigints) -> Buffer:
        numbers = obj.numbers
        count = len(numbers)
        if count == 0:
            return _EMPTY
        flat = [8] * (2 * count)
        flat[1::2] = numbers
        return struct.pack(f">iiiii{'iq' * count}", 1, 0, _BIGINT, count, 1, *flat)


def adapt(connection: psycopg.Connection) -> None:
    """Register the dumper on a connection."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(Bigints, _BigintsDumper)


NO_TIME = -(1 << 63)
"""The number that stands for "never due"."""

_NUMBERS = 7
"""The columns of an entry except the session."""

_NOTHING = Bigints(())


class _Blob:
    """A buffer of bytes that returns where each appended part lies."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, part: bytes) -> tuple[int, int]:
        """Append a part; return (first byte, length)."""
        first = self.size + 1
        self.parts.append(part)
        self.size += len(part)
        return first, len(part)

    def joined(self) -> bytes:
        return b"".join(self.parts)


def commit_parameters(writes: Writes) -> dict[str, Any]:
    """Return the parameters of a commit by their names in ``statements/apply_writes.sql``, without the owner's.

    Raises ValueError or TypeError for a value that is no text or number; a number of more than 64 bits fails when it is
    sent.
    """
    bodies, body_data = _bodies(writes.bodies)
    entry_sessions, session_data = _entry_sessions(writes.entries)
    states, state_data = _states(writes)
    ids, id_data = _ids(writes.duplicate_ids)
    locks, lock_data = _locks(writes)
    answered, answered_data = _answered(writes)
    forgotten_ms = writes.forgotten_executed_ms
    cursors, gone_cursors, cursor_data = _cursors(writes)
    sink_ids, sink_id_data = _sink_ids(writes)
    session_locks, session_lock_data = _session_locks(writes)
    return {
        "now_ms": writes.now_ms,
        "partitions": _flat((row, *counters) for row, counters in writes.counters.items()),
        "subqueues": _flat((key, *counts) for key, counts in writes.counts.items()),
        "bodies": bodies,
        "body_data": body_data,
        "entries": _entries(writes.entries),
        "entry_sessions": entry_sessions,
        "entry_session_data": session_data,
        "updates": _updates(writes.entry_updates),
        "states": states,
        "state_data": state_data,
        "ids": ids,
        "id_data": id_data,
        "forgotten": _flat((row, bucket, max(0, most)) for row, bucket, most in writes.forgotten_duplicates),
        "marks": _flat((*place, pos) for place, pos in writes.inbound_marks.items()),
        "answered": answered,
        "answered_data": answered_data,
        "forgotten_before": NO_TIME if forgotten_ms is None else forgotten_ms,
        "cursors": cursors,
        "gone_cursors": gone_cursors,
        "cursor_data": cursor_data,
        "kept": _flat((key, *counts) for key, counts in writes.retained.items()),
        "fates": Bigints(writes.dispositions),
        "gone_fates": _flat(writes.forgotten_dispositions),
        "sink_ids": sink_ids,
        "sink_id_data": sink_id_data,
        "sink_batches": _flat((*place, batch) for place, batch in writes.sink_batches.items()),
        "gone_sink_ids": _flat((*place, max(0, most)) for *place, most in writes.forgotten_sink_ids),
        "session_locks": session_locks,
        "session_lock_data": session_lock_data,
        "unlocked": Bigints(writes.deleted_locks),
        "locks": locks,
        "lock_data": lock_data,
        "gone_entries": _flat(writes.deleted_entries),
        "gone_bodies": _flat(writes.deleted_bodies),
        "gone_shared_bodies": Bigints(writes.deleted_shared_bodies),
        "dropped": Bigints(writes.dropped_partitions),
    }


def _flat(rows: Iterable[Iterable[int]]) -> Bigints:
    return Bigints([value for row in rows for value in row])


def _bodies(flat: list[Any]) -> tuple[Bigints, bytes]:
    data = flat[1::2]
    sizes = list(map(len, data))
    numbers = [0] * (3 * len(data))
    numbers[0::3] = flat[0::2]
    numbers[1::3] = list(accumulate(sizes[:-1], initial=1)) if sizes else []
    numbers[2::3] = sizes
    return Bigints(numbers), b"".join(data)


def _entries(flat: list[Any]) -> Bigints:
    numbers = [0] * (len(flat) // ENTRY_COLUMNS * _NUMBERS)
    for column in range(6):
        numbers[column::_NUMBERS] = flat[column::ENTRY_COLUMNS]
    numbers[6::_NUMBERS] = [NO_TIME if due_ms is None else due_ms for due_ms in flat[7::ENTRY_COLUMNS]]
    return Bigints(numbers)


def _entry_sessions(flat: list[Any]) -> tuple[Bigints, bytes]:
    sessions = flat[6::ENTRY_COLUMNS]
    if not any(session is not None for session in sessions):
        return _NOTHING, b""
    blob = _Blob()
    places = [(0, 0) if session is None else blob.add(session.encode()) for session in sessions]
    return _flat(places), blob.joined()


def _updates(flat: list[int | None]) -> Bigints:
    """Reduce updates to one row per entry, the last: UPDATE ... FROM takes any one of several matching rows."""
    last: dict[int | None, list[int]] = {}
    for at in range(0, len(flat), UPDATE_COLUMNS):
        last[flat[at]] = [NO_TIME if value is None else value for value in flat[at : at + UPDATE_COLUMNS]]
    return _flat(last.values())


def _states(writes: Writes) -> tuple[Bigints, bytes]:
    blob = _Blob()
    numbers: list[int] = []
    for (row, session), (state, updated_ms) in writes.session_states.items():
        place = (0, 0)
        name = blob.add(session.encode())
        if state is not None:
            place = blob.add(state)
        numbers += (row, *name, *place, updated_ms)
    return Bigints(numbers), blob.joined()


def _ids(flat: list[Any]) -> tuple[Bigints, bytes]:
    """Reduce ids to one row each, with the last time."""
    columns = [iter(flat)] * DUPLICATE_COLUMNS
    last = {(row, bucket, item): (when_ms, note) for row, bucket, item, when_ms, note in zip(*columns, strict=True)}
    blob = _Blob()
    rows = [
        (row, bucket, *blob.add(message_id), when_ms, *(blob.add(original) if original else (0, 0)))
        for (row, bucket, message_id), (when_ms, original) in last.items()
    ]
    return _flat(rows), blob.joined()


def _answered(writes: Writes) -> tuple[Bigints, bytes]:
    if not writes.executed:
        return _NOTHING, b""
    blob = _Blob()
    rows = [(*blob.add(asker.encode()), at_ms, *blob.add(part)) for asker, at_ms, part in executed_rows(writes)]
    return _flat(rows), blob.joined()


def _cursors(writes: Writes) -> tuple[Bigints, Bigints, bytes]:
    """Return the written cursors, the removed cursors, and the names of both."""
    if not writes.cursors:
        return _NOTHING, _NOTHING, b""
    blob = _Blob()
    written: list[int] = []
    gone: list[int] = []
    for (subqueue, name), cursor in writes.cursors.items():
        place = blob.add(name.encode())
        if cursor is None:
            gone += (subqueue, *place)
        else:
            written += (subqueue, *place, *cursor[2:])
    return Bigints(written), Bigints(gone), blob.joined()


def _sink_ids(writes: Writes) -> tuple[Bigints, bytes]:
    """Reduce ids to one row each, with the last batch."""
    if not writes.sink_ids and not writes.new_sink_ids:
        return _NOTHING, b""
    last = {(row, sink, row_id): batch for row, sink, batch, ids in writes.new_sink_ids for row_id in ids}
    columns: list[Any] = [iter(writes.sink_ids)] * SINK_ID_COLUMNS
    last |= {(row, sink, row_id): batch for row, sink, row_id, batch in zip(*columns, strict=True)}
    blob = _Blob()
    rows = [(row, sink, *blob.add(row_id), batch) for (row, sink, row_id), batch in last.items()]
    return _flat(rows), blob.joined()


def _session_locks(writes: Writes) -> tuple[Bigints, bytes]:
    if not writes.session_locks:
        return _NOTHING, b""
    blob = _Blob()
    numbers: list[int] = []
    for (row, session), lock in writes.session_locks.items():
        name = blob.add(session.encode())
        if lock is None:
            numbers += (row, *name, 0, 0, 0, 0)
        else:
            numbers += (row, *name, lock.lock_id, lock.until_ms, *blob.add(lock.holder.encode()))
    return Bigints(numbers), blob.joined()


def _locks(writes: Writes) -> tuple[Bigints, bytes]:
    """Reduce locks to one row per lock key and first position, the last."""
    last = {
        (key, first_pos): (until_ms, bitmap)
        for key, rows in writes.lock_batches.items()
        for first_pos, until_ms, bitmap in rows
    }
    blob = _Blob()
    rows = [(key, first_pos, until_ms, *blob.add(bitmap)) for (key, first_pos), (until_ms, bitmap) in last.items()]
    return _flat(rows), blob.joined()
