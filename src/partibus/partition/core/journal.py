"""Events -> rows of the next commit (D13)."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import repeat
from operator import attrgetter

from partibus.partition.core.events import (
    Cleared,
    CursorDropped,
    CursorSet,
    DispositionsForgotten,
    DispositionsLogged,
    Enqueued,
    Event,
    IdsForgotten,
    IdsRemembered,
    Kept,
    LockChanged,
    Locked,
    MarkRaised,
    Moved,
    NumbersTaken,
    Published,
    Removed,
    RetainedCounted,
    Rewritten,
    SessionLocked,
    SessionStateSet,
    SessionUnlocked,
    SinkCommitted,
    SinkIdsForgotten,
    SinkIdsKept,
    Unlocked,
    Updated,
    Written,
)
from partibus.partition.protocol.keys import SHARED_BODY, Entry, SubqueueKind, entry_key, first_key, subqueue_key
from partibus.partition.protocol.ports import (
    BODY_COLUMNS,
    DISPOSITION_COLUMNS,
    FINISHED,
    Disposition,
    SessionLockRow,
    Writes,
)

LOCK_SPAN_MAX = 4096
"""Positions that one lock row covers at most: 512 bytes of bitmap. Entries that came back lie anywhere below the rest,
so one delivery batch can need several rows."""
_POS = attrgetter("pos")


def record(partition_row: int, events: Iterable[Event], writes: Writes) -> bool:
    """Add the rows of ``events``; return whether a reply must wait for them, which is not so for locks."""
    waited = False
    for event in events:
        match event:
            case Enqueued():
                _insert(first_key(partition_row, event.kind), event.entries, writes, with_bodies=event.with_bodies)
                waited = True
            case Locked():
                positions = [*map(_POS, event.entries)]
                key = first_key(partition_row, event.kind) | event.lock_id
                writes.lock_batches[key] = lock_rows(event.until_ms, positions)
                writes.operations += len(positions)
            case Removed():
                _remove(first_key(partition_row, event.kind), event.entries, writes)
                waited = True
            case Unlocked():
                key = first_key(partition_row, event.kind) | event.lock_id
                if writes.lock_batches.pop(key, None) is None:  # else no earlier commit has its rows
                    writes.deleted_locks.append(key)
                waited = True
            case SessionLocked():
                row = SessionLockRow(event.session, event.lock_id, event.until_ms, event.holder)
                writes.session_locks[partition_row, event.session] = row
                writes.operations += 1
                waited = waited or event.is_renewed
            case Written():
                _write_behind(first_key(partition_row, SubqueueKind.ACTIVE), event, writes)
            case SessionUnlocked():
                writes.session_locks[partition_row, event.session] = None
            case Kept():
                _finish(first_key(partition_row, event.kind), event.entries, event.disposition, writes)
                waited = True
            case _:
                _record_rare(partition_row, event, writes)
                waited = True
    return waited


def _record_rare(partition_row: int, event: Event, writes: Writes) -> None:
    """Add the rows of rare events, which most messages never cause."""
    match event:
        case Updated():
            first = first_key(partition_row, event.kind)
            for entry in event.entries:
                writes.entry_updates += (
                    first | entry.pos, entry.body, entry.state, entry.delivery_count, entry.due_ms,
                )  # fmt: skip
            writes.operations += len(event.entries)
        case Rewritten():
            for old_body, entry in event.pairs:
                assert entry.data is not None, "a rewritten message has its body"
                writes.bodies += (entry.body, entry.data)
                writes.size_bytes += entry.size_bytes
                writes.replacing_bodies += 1
                _delete_body_range(old_body, old_body, writes)
        case Published():
            writes.bodies += event.bodies
            writes.operations += len(event.bodies) // BODY_COLUMNS
            if not event.are_new:
                writes.replacing_bodies += len(event.bodies) // BODY_COLUMNS
            writes.size_bytes += sum(map(len, event.bodies[1::BODY_COLUMNS]))  # type: ignore[arg-type]
        case LockChanged():
            key = first_key(partition_row, event.kind) | event.lock_id
            writes.deleted_locks.append(key)
            writes.lock_batches[key] = [row for part in event.parts for row in lock_rows(*part)]
        case Moved():
            before = [old for old, _ in event.pairs]
            after = [new for _, new in event.pairs]
            if event.kept:
                _finish(first_key(partition_row, event.kind), before, Disposition.DEAD_LETTERED, writes)
            else:
                _delete(first_key(partition_row, event.kind), before, writes)
            _insert(first_key(partition_row, event.to_kind), after, writes, with_bodies=False)
        case SessionStateSet():
            writes.session_states[partition_row, event.session] = (event.state, event.updated_ms)
            writes.operations += 1
            writes.size_bytes += len(event.state or b"")
        case IdsRemembered():
            bucket, accepted_ms = event.bucket, event.accepted_ms
            for message_id, original in zip(event.ids, event.originals or repeat(None), strict=False):
                writes.duplicate_ids += (partition_row, bucket, message_id, accepted_ms, original)
        case IdsForgotten():
            writes.forgotten_duplicates.append((partition_row, event.bucket, event.most))
        case MarkRaised():
            writes.inbound_marks[partition_row, event.source] = event.pos
        case SinkIdsKept():
            sink, batch = event.sink, event.batch
            if event.are_new:
                writes.new_sink_ids.append((partition_row, sink, batch, event.ids))
            else:
                for row_id in event.ids:
                    writes.sink_ids += (partition_row, sink, row_id, batch)
        case SinkCommitted():
            writes.sink_batches[partition_row, event.sink] = event.batch
        case SinkIdsForgotten():
            writes.forgotten_sink_ids.append((partition_row, event.sink, event.batch, event.most))
        case (
            Cleared()
            | RetainedCounted()
            | CursorSet()
            | CursorDropped()
            | DispositionsLogged()
            | DispositionsForgotten()
        ):
            _record_for_cursors(partition_row, event, writes)
        case NumbersTaken():
            pass  # the counters are in every commit


def _record_for_cursors(
    partition_row: int,
    event: Cleared | RetainedCounted | CursorSet | CursorDropped | DispositionsLogged | DispositionsForgotten,
    writes: Writes,
) -> None:
    subqueue = subqueue_key(partition_row, event.kind)
    match event:
        case Cleared():
            base = entry_key(subqueue, 0)
            writes.deleted_entries += runs([base | pos for pos in event.positions])
            for first, last in runs(sorted(event.bodies)):
                _delete_body_range(first, last, writes)
            writes.operations += len(event.positions)
        case RetainedCounted():
            writes.retained[subqueue] = (event.messages, event.size_bytes)
        case CursorSet():
            writes.cursors[subqueue, event.cursor.name] = event.cursor.row(subqueue)
        case CursorDropped():
            writes.cursors[subqueue, event.name] = None
        case DispositionsLogged():
            rows = event.rows
            for start in range(0, len(rows), DISPOSITION_COLUMNS):
                writes.dispositions += (
                    entry_key(subqueue, rows[start]),
                    *rows[start + 1 : start + DISPOSITION_COLUMNS],
                )
        case DispositionsForgotten():
            writes.forgotten_dispositions.append((entry_key(subqueue, event.first), entry_key(subqueue, event.last)))


def lock_rows(until_ms: int, positions: list[int]) -> list[tuple[int, int, bytes]]:
    """Return the rows (first pos, until ms, bitmap) that cover ``positions``, which ascend."""
    rows = []
    start = 0
    while start < len(positions):
        first = positions[start]
        end = min(bisect_left(positions, first + LOCK_SPAN_MAX, start), len(positions))
        if positions[end - 1] - first == end - 1 - start:  # the usual case: neighbours
            bits = (1 << (end - start)) - 1
        else:
            bits = sum([1 << (pos - first) for pos in positions[start:end]])
        rows.append((first, until_ms, bits.to_bytes((bits.bit_length() + 7) // 8, "little")))
        start = end
    return rows


def locked_positions(first_pos: int, bitmap: bytes) -> list[int]:
    """Return the positions that a lock row covers, ascending."""
    bits = int.from_bytes(bitmap, "little")
    return [first_pos + i for i in range(bits.bit_length()) if bits >> i & 1]


def runs(keys: list[int]) -> list[tuple[int, int]]:
    """Merge ascending keys into (first, last) ranges of neighbours."""
    if not keys:
        return []
    if keys[-1] - keys[0] == len(keys) - 1:  # the usual case: receivers settle in order
        return [(keys[0], keys[-1])]
    ranges = []
    first = last = keys[0]
    for key in keys:
        if key > last + 1:
            ranges.append((first, last))
            first = key
        last = key
    ranges.append((first, last))
    return ranges


def _insert(first: int, entries: list[Entry], writes: Writes, *, with_bodies: bool) -> None:
    """Add entries to the sub-queue whose keys begin at ``first``."""
    rows = writes.entries
    bodies = writes.bodies
    size_bytes = 0
    for entry in entries:
        rows += (
            first | entry.pos, entry.body, entry.sequence, entry.enqueued_ms, entry.state, entry.delivery_count,
            entry.session, entry.due_ms,
        )  # fmt: skip
        if with_bodies:
            assert entry.data is not None, "a new entry has its body"
            bodies += (entry.body, entry.data)
            size_bytes += entry.size_bytes
    writes.operations += len(entries)
    writes.size_bytes += size_bytes


def _write_behind(first: int, event: Written, writes: Writes) -> None:
    _insert(first, event.entries, writes, with_bodies=True)
    # They were acknowledged when there was room: to refuse them now would lose them.
    writes.replacing_bodies += len(event.entries)
    for lock_id, parts in event.locks:
        writes.lock_batches[first | lock_id] = [row for part in parts for row in lock_rows(*part)]


def _finish(first: int, entries: list[Entry], disposition: Disposition, writes: Writes) -> None:
    state = FINISHED + disposition
    rows = writes.entry_updates
    for entry in entries:
        rows += (first | entry.pos, entry.body, state, entry.delivery_count, None)
    writes.operations += len(entries)


def _delete(first: int, entries: list[Entry], writes: Writes) -> None:
    writes.deleted_entries += runs(sorted([first | entry.pos for entry in entries]))
    writes.operations += len(entries)


def _remove(first: int, entries: list[Entry], writes: Writes) -> None:
    """Delete entries with their bodies."""
    if len(entries) == 1:
        (entry,) = entries
        key = first | entry.pos
        writes.deleted_entries.append((key, key))
        writes.operations += 1
        _delete_body_range(entry.body, entry.body, writes)
        return
    _delete(first, entries, writes)
    for first_body, last_body in runs(sorted([entry.body for entry in entries])):
        _delete_body_range(first_body, last_body, writes)


def _delete_body_range(first: int, last: int, writes: Writes) -> None:
    """Neighbours are all shared or none of them is: the flag is far above the numbers."""
    if first & SHARED_BODY:
        writes.deleted_shared_bodies += range(first, last + 1)
    else:
        writes.deleted_bodies.append((first, last))
