"""The commands that open, advance and close cursors, and read ranges for them (D14)."""

from partibus.partition.core.cursor_answers import end_of, find, held_by, moved, opened, why_lost
from partibus.partition.core.cursors import CURSORS_MAX, Cursor, Cursors
from partibus.partition.core.events import CursorDropped, CursorSet
from partibus.partition.core.exclusive import is_going_on, let_go, locked, pause, take
from partibus.partition.core.forwarding import forwards
from partibus.partition.core.range_scans import add_range_scan
from partibus.partition.core.retention import begin_clearing, cursors_of
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.protocol.commands import (
    EARLIEST,
    LATEST,
    AdvanceCursor,
    CloseCursor,
    OpenCursor,
    ReadDispositions,
    ReadRange,
)
from partibus.partition.protocol.load_requests import Consume, DispositionsLoad, RangeLoad
from partibus.partition.protocol.ports import DispositionRow, RangeFrame
from partibus.partition.protocol.replies import CursorLost, CursorRefused, DispositionsRead, Done, RangeRead


def open_cursor(state: PartitionState, command: OpenCursor, now_ms: int, step: Step) -> None:
    """Make it or find it; lease the sub-queue to it, or renew the lease."""
    subqueue = state.subqueues[command.kind]
    cursors = subqueue.cursors
    alone = cursors.exclusive if cursors is not None else None
    if command.epoch:
        cursor = find(subqueue, command.name)
        if cursor is None or cursor is not alone or cursor.epoch != command.epoch:
            step.replies.append(CursorLost(command.request, why_lost(cursor, command.name, command.epoch)))
            return
        cursor.until_ms = now_ms + command.lease_ms
    elif command.lease_ms and cursors is not None and alone is not None and alone.name != command.name:
        step.replies.append(held_by(cursors, command.request))
        return
    elif cursors is not None and command.name not in cursors.by_name and len(cursors.by_name) >= CURSORS_MAX:
        step.replies.append(CursorRefused(command.request, forwards=False))
        return
    elif command.lease_ms and alone is None and forwards(state, subqueue.kind):
        step.replies.append(CursorRefused(command.request, forwards=True))
        return
    elif command.lease_ms and alone is None and _must_wait(state, subqueue, command):
        pause(state, subqueue, command, now_ms, step)
        return
    known = find(subqueue, command.name)
    cursor = known or _make(state, subqueue, command, now_ms)
    _follow(state, cursor, command)
    if command.lease_ms and not command.epoch:
        take(state, subqueue, cursor, now_ms + command.lease_ms, now_ms, step)
    cursors_of(subqueue).refresh()
    step.events.append(CursorSet(subqueue.kind, cursor))
    step.replies.append(opened(state, command.request, subqueue, cursor, made=known is None))
    begin_clearing(subqueue, step)


def advance_cursor(state: PartitionState, command: AdvanceCursor, now_ms: int, step: Step) -> None:
    """Raise a cursor's positions. An exclusive cursor completes the passed entries first."""
    subqueue = state.subqueues[command.kind]
    cursor = find(subqueue, command.name)
    if cursor is None or not _may(cursor, command.epoch):
        step.replies.append(CursorLost(command.request, why_lost(cursor, command.name, command.epoch)))
        return
    disposition_position = min(command.disposition_position, state.next_number)
    if 0 <= cursor.disposition_position < disposition_position:
        cursor.disposition_position = disposition_position
        moved(subqueue, cursor, now_ms, step)
    if command.only:
        if cursor.until_ms:
            add_range_scan(state, subqueue, Consume(command, command.only[0], command.only[-1] + 1), step)
        else:
            step.replies.append(CursorLost(command.request, f"cursor {command.name!r} does not read exclusively"))
        return
    to_pos = min(command.position, end_of(state, subqueue))
    if to_pos > cursor.position and cursor.until_ms:
        add_range_scan(state, subqueue, Consume(command, cursor.position, to_pos), step)
        return
    if to_pos > cursor.position:
        cursor.position = to_pos
        moved(subqueue, cursor, now_ms, step)
    step.replies.append(opened(state, command.request, subqueue, cursor))
    begin_clearing(subqueue, step)


def close_cursor(state: PartitionState, command: CloseCursor, now_ms: int, step: Step) -> None:
    """End its lease, or all of it."""
    subqueue = state.subqueues[command.kind]
    cursor = find(subqueue, command.name)
    if cursor is None:
        step.replies.append(Done(command.request))
        return
    by_force = command.drop and not command.epoch
    if cursor.until_ms and cursor.epoch != command.epoch and not by_force:
        step.replies.append(CursorLost(command.request, why_lost(cursor, command.name, command.epoch)))
        return
    if cursor.until_ms:
        let_go(state, subqueue, step)
    if command.drop:
        cursors = cursors_of(subqueue)
        del cursors.by_name[command.name]
        cursors.refresh()
        step.events.append(CursorDropped(subqueue.kind, command.name))
    step.replies.append(Done(command.request))
    begin_clearing(subqueue, step)


def read_range(state: PartitionState, command: ReadRange, now_ms: int, step: Step) -> None:
    """Ask the store for a range. Entries that arrive during the read are above its end."""
    subqueue = state.subqueues[command.kind]
    if command.cursor is not None and find(subqueue, command.cursor) is None:
        step.replies.append(CursorLost(command.request, why_lost(None, command.cursor, 0)))
        return
    step.loads.append(RangeLoad(subqueue.kind, command, min(command.to_pos, end_of(state, subqueue))))


def range_loaded(state: PartitionState, load: RangeLoad, frame: RangeFrame, step: Step) -> None:
    """Reply to a range read, now that its entries were loaded."""
    command = load.command
    complete_from = 0
    if command.cursor is not None:
        cursor = find(state.subqueues[command.kind], command.cursor)
        if cursor is None:
            step.replies.append(CursorLost(command.request, why_lost(None, command.cursor, 0)))
            return
        complete_from = cursor.complete_from
    step.replies.append(RangeRead(command.request, frame.count, frame.next_pos, frame.data, complete_from))


def read_dispositions(state: PartitionState, command: ReadDispositions, now_ms: int, step: Step) -> None:
    """Read the log of dispositions for a cursor; without one, the log may be cut anywhere."""
    cursor = find(state.subqueues[command.kind], command.cursor)
    if cursor is None or cursor.disposition_position < 0:
        why = why_lost(None, command.cursor, 0)
        if cursor is not None:
            why = f"cursor {command.cursor!r} does not read fates: open it with them, and they are logged from then on"
        step.replies.append(CursorLost(command.request, why))
        return
    step.loads.append(DispositionsLoad(command))


def dispositions_loaded(command: ReadDispositions, rows: list[DispositionRow], step: Step) -> None:
    """Reply with the rows as they are."""
    step.replies.append(DispositionsRead(command.request, rows))


def _must_wait(state: PartitionState, subqueue: Subqueue, command: OpenCursor) -> bool:
    """Something is in hands that it can't be, or is not to be, taken out of."""
    if subqueue.pending_dead_letters or is_going_on(subqueue):
        return True
    return not command.revoke and locked(state, subqueue)[0] > 0


def _make(state: PartitionState, subqueue: Subqueue, command: OpenCursor, now_ms: int) -> Cursor:
    end_pos = end_of(state, subqueue)
    position = end_pos if command.start == LATEST else max(EARLIEST, min(command.start, end_pos))
    cursor = Cursor(command.name, position, now_ms)
    if subqueue.cursors is None:
        subqueue.cursors = Cursors()
    subqueue.cursors.by_name[command.name] = cursor
    return cursor


def _follow(state: PartitionState, cursor: Cursor, command: OpenCursor) -> None:
    """Apply the options that a reader may change each time it opens its cursor."""
    cursor.bound_bytes = command.bound_bytes
    if command.dispositions and cursor.disposition_position < 0:
        cursor.disposition_position = state.next_number


def _may(cursor: Cursor, epoch: int) -> bool:
    """Tell whether an epoch gives access: it must be that of the current lease."""
    return epoch == cursor.epoch if cursor.until_ms else not epoch
