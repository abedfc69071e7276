"""A store in the fewest words: dicts and full scans, to hold against the real ones. Shares no code with them."""

from typing import Any

from partibus.partition.protocol.ports import (
    CursorRow,
    DispositionRow,
    DueRows,
    EntryRow,
    LockBatchRow,
    SessionLockRow,
    Snapshot,
    SubqueueCounts,
    Writes,
)


def _rows(flat: list[Any], columns: int) -> list[list[Any]]:
    return [flat[at : at + columns] for at in range(0, len(flat), columns)]


class Model:
    """Rows by key. A commit that inserts what exists raises `KeyError` and leaves the model spoilt: copy it first."""

    def __init__(self) -> None:
        self.partitions: dict[int, tuple[int, int, int]] = {}
        self.counts: dict[int, tuple[int, int]] = {}
        self.bodies: dict[int, bytes] = {}
        self.entries: dict[int, list[Any]] = {}
        self.locks: dict[tuple[int, int], tuple[int, bytes]] = {}
        self.states: dict[tuple[int, str], tuple[bytes, int]] = {}
        self.ids: dict[tuple[int, int, bytes], int] = {}
        self.marks: dict[tuple[int, int], int] = {}
        self.cursors: dict[tuple[int, str], CursorRow] = {}
        self.retained: dict[int, tuple[int, int]] = {}
        self.dispositions: dict[int, list[int]] = {}
        self.sink_ids: dict[tuple[int, int, bytes], int] = {}
        self.sinks: dict[tuple[int, int], int] = {}
        self.session_locks: dict[tuple[int, str], SessionLockRow] = {}

    def commit(self, writes: Writes) -> None:
        """Commit rows in the order of the attributes of `Writes`."""
        self.partitions |= writes.counters
        self.counts |= writes.counts
        for key, data in _rows(writes.bodies, 2):
            if key in self.bodies:
                raise KeyError(key)
            self.bodies[key] = data
        for key, *columns in _rows(writes.entries, 8):
            if key in self.entries:
                raise KeyError(key)
            self.entries[key] = columns
        for key, body, entry_state, delivery_count, due_ms in _rows(writes.entry_updates, 5):
            if key in self.entries:
                self.entries[key][0] = body
                self.entries[key][3:5] = [entry_state, delivery_count]
                self.entries[key][6] = due_ms
        for session, (state, updated_ms) in writes.session_states.items():
            self.states.pop(session, None)
            if state is not None:
                self.states[session] = (state, updated_ms)
        for row, bucket, message_id, accepted_ms, _ in _rows(writes.duplicate_ids, 5):
            self.ids[row, bucket, message_id] = accepted_ms
        for row, bucket, most in writes.forgotten_duplicates:
            for key in sorted(key for key in self.ids if key[0] == row and key[1] < bucket)[:most]:
                del self.ids[key]
        self.marks |= writes.inbound_marks
        self._set(self.cursors, writes.cursors)
        self.retained |= writes.retained
        for key, *line in _rows(writes.dispositions, 6):
            if key in self.dispositions:
                raise KeyError(key)
            self.dispositions[key] = line
        self._delete(self.dispositions, writes.forgotten_dispositions)
        for row, sink, row_id, batch in _rows(writes.sink_ids, 4):
            self.sink_ids[row, sink, row_id] = batch
        self.sinks |= writes.sink_batches
        for row, sink, last, most in writes.forgotten_sink_ids:
            old = [(batch, key) for key, batch in self.sink_ids.items() if key[:2] == (row, sink) and batch <= last]
            for _, sink_id in sorted(old)[:most]:
                del self.sink_ids[sink_id]
        self._set(self.session_locks, writes.session_locks)
        self.locks = {key: row for key, row in self.locks.items() if key[0] not in writes.deleted_locks}
        for lock_key, rows in writes.lock_batches.items():
            for first_pos, until_ms, bitmap in rows:
                self.locks[lock_key, first_pos] = (until_ms, bitmap)
        self._delete(self.entries, writes.deleted_entries)
        self._delete(self.bodies, writes.deleted_bodies)
        self._delete_unnamed(writes.deleted_shared_bodies)
        for row in writes.dropped_partitions:
            whole = [(row << 42, (row + 1 << 42) - 1)]
            self.partitions.pop(row, None)
            self._delete(self.counts, [(row << 2, (row << 2) + 3)])
            elsewhere = [columns[0] for key, columns in self.entries.items() if key >> 42 == row]
            self._delete(self.entries, whole)
            self._delete(self.bodies, [(key, key) for key in elsewhere if not key >> 38 & 1])
            self._delete_unnamed([key for key in elsewhere if key >> 38 & 1])
            self._delete(self.bodies, whole)
            self.locks = {key: lock for key, lock in self.locks.items() if key[0] >> 42 != row}
            self.states = {key: state for key, state in self.states.items() if key[0] != row}
            self.marks = {key: pos for key, pos in self.marks.items() if key[0] != row}
            self.ids = {key: accepted_ms for key, accepted_ms in self.ids.items() if key[0] != row}
            self.cursors = {key: cursor for key, cursor in self.cursors.items() if key[0] >> 2 != row}
            self._delete(self.retained, [(row << 2, (row << 2) + 3)])
            self._delete(self.dispositions, whole)
            self.sink_ids = {key: batch for key, batch in self.sink_ids.items() if key[0] != row}
            self.sinks = {key: batch for key, batch in self.sinks.items() if key[0] != row}
            self.session_locks = {key: lock for key, lock in self.session_locks.items() if key[0] != row}

    @staticmethod
    def _set(rows: dict[Any, Any], changes: dict[Any, Any]) -> None:
        for key, row in changes.items():
            rows.pop(key, None)
            if row is not None:
                rows[key] = row

    @staticmethod
    def _delete(rows: dict[int, Any], ranges: list[tuple[int, int]]) -> None:
        for first, last in ranges:
            for key in [key for key in rows if first <= key <= last]:
                del rows[key]

    def _delete_unnamed(self, keys: list[int]) -> None:
        named = {columns[0] for columns in self.entries.values()}
        self._delete(self.bodies, [(key, key) for key in keys if key not in named])

    def rows(self, subqueue: int) -> list[EntryRow]:
        """All entries of a sub-queue that have a body and have not left, by position."""
        return [row for row in self.readable(subqueue) if row.state < 16]

    def scanned(self, subqueue: int) -> list[tuple[EntryRow, int]]:
        """All entries of a sub-queue, with the length of their bodies."""
        return [
            (EntryRow._make([key % (1 << 40), *columns, b""]), len(self.bodies.get(columns[0], b"")))
            for key, columns in sorted(self.entries.items())
            if key >> 40 == subqueue
        ]

    def log(self, subqueue: int) -> list[DispositionRow]:
        """All lines of a log of fates."""
        return [
            DispositionRow._make([key % (1 << 40), *columns])
            for key, columns in sorted(self.dispositions.items())
            if key >> 40 == subqueue
        ]

    def readable(self, subqueue: int) -> list[EntryRow]:
        """All entries of a sub-queue that have a body, by position."""
        return [
            EntryRow._make([key % (1 << 40), *columns, self.bodies[columns[0]]])
            for key, columns in sorted(self.entries.items())
            if key >> 40 == subqueue and columns[0] in self.bodies
        ]

    def snapshot(self, row: int) -> Snapshot | None:
        """Return the expected answer to `queries.Partition`."""
        if row not in self.partitions:
            return None
        locks = sorted((key, lock) for key, lock in self.locks.items() if key[0] >> 42 == row)
        batches = [
            LockBatchRow(lock_key >> 40, lock_key % (1 << 40), first_pos, until_ms, bitmap)
            for (lock_key, first_pos), (until_ms, bitmap) in locks
        ]
        locked = [
            (subqueue, entry._replace(data=b""), len(entry.data))
            for subqueue in range(row << 2, (row << 2) + 4)
            for entry in self.rows(subqueue)
            if any(
                batch.subqueue == subqueue
                and int.from_bytes(batch.bitmap, "little") << batch.first_pos >> entry.pos & 1
                for batch in batches
            )
        ]
        counts = {key: SubqueueCounts(*pair) for key, pair in self.counts.items() if key >> 2 == row}
        next_due = {
            (subqueue, state): due[0].due_ms
            for subqueue in range(row << 2, (row << 2) + 4)
            for state in range(4)
            if (due := self.due(subqueue, state)) and due[0].due_ms is not None
        }
        marks = {source: pos for (partition, source), pos in self.marks.items() if partition == row}
        return Snapshot(
            *self.partitions[row],
            counts,
            batches,
            locked,
            next_due,
            marks,
            cursors=tuple(
                self.cursors[key]
                for key in sorted(self.cursors, key=lambda key: (key[0], key[1].encode()))
                if key[0] >> 2 == row
            ),
            retained={key: SubqueueCounts(*pair) for key, pair in self.retained.items() if key >> 2 == row},
            sinks={sink: batch for (partition, sink), batch in self.sinks.items() if partition == row},
            session_locks=tuple(
                self.session_locks[key]
                for key in sorted(self.session_locks, key=lambda key: key[1].encode())
                if key[0] == row
            ),
        )

    def sizes(self) -> dict[int, int]:
        """Return the expected answer to `queries.Sizes` for all partitions."""
        return {
            row: counters[2] + sum(pair[1] for key, pair in self.counts.items() if key >> 2 == row)
            for row, counters in self.partitions.items()
        }

    def filled(self) -> dict[int, SubqueueCounts]:
        """Return the expected answer to `queries.Counts` within its bound."""
        return {key: SubqueueCounts(*pair) for key, pair in self.counts.items() if pair[0]}

    def due(self, subqueue: int, state: int) -> list[EntryRow]:
        """All that are ever due, in that order."""
        waiting = [row for row in self.rows(subqueue) if row.state == state and row.due_ms is not None]
        return sorted(waiting, key=lambda row: (row.due_ms, row.pos))

    def due_rows(self, subqueue: int, state: int, until_ms: int, most: int) -> DueRows:
        """Return the expected due rows, when ``most`` rows are within the bounds."""
        waiting = self.due(subqueue, state)
        rows = [row for row in waiting if row.due_ms is not None and row.due_ms <= until_ms][:most]
        left = waiting[len(rows) :]
        return DueRows(rows, left[0].due_ms if left else None)

    def sessions(self, subqueue: int) -> set[str]:
        """Return the partitions with active entries, with or without a body."""
        return {
            columns[5]
            for key, columns in self.entries.items()
            if key >> 40 == subqueue and columns[3] == 0 and columns[5] is not None
        }

    def updated(self, row: int, after_ms: int) -> set[str]:
        """Sessions whose state was set after a time."""
        return {session for (owner, session), (_, ms) in self.states.items() if owner == row and ms > after_ms}

    def accepted(self, row: int, first_bucket: int, ids: list[bytes]) -> dict[bytes, int]:
        """Return the expected answer to `queries.Duplicates`."""
        found: dict[bytes, int] = {}
        for (owner, bucket, message_id), accepted_ms in self.ids.items():
            if owner == row and bucket >= first_bucket and message_id in ids:
                found[message_id] = max(accepted_ms, found.get(message_id, 0))
        return found
