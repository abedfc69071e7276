"""Completion of the messages that an exclusive cursor passes (D14).

It is a range scan over the store, because memory does not know the entries of a sub-queue with an exclusive reader.

Every active entry from the cursor's position up to the new one is completed: it was readable when the lease was
granted, or came later, and entries that were away meanwhile have got a place at the end. The cursor moves with each
slice. So a scan that is cut short by a crash or by the end of the lease has done a part of it, and a repeated command
does the rest.
"""

from partibus.partition.core.cursor_answers import find, moved, opened, why_lost
from partibus.partition.core.retention import begin_clearing
from partibus.partition.core.state import PartitionState, entry_of
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.protocol.load_requests import Consume
from partibus.partition.protocol.notes import COMPLETE
from partibus.partition.protocol.ports import Disposition, EntryRow, EntryState
from partibus.partition.protocol.replies import CursorLost

SLICE_ENTRIES = 4_096
"""Rows without bodies; each slice is a commit."""


def consumed(
    state: PartitionState,
    subqueue: Subqueue,
    range_scan: Consume,
    rows: list[tuple[EntryRow, int]],
    now_ms: int,
    step: Step,
) -> bool:
    """Complete the entries of a slice; return True when the scan has ended."""
    command = range_scan.command
    cursor = find(subqueue, command.name)
    if cursor is None or not cursor.until_ms or cursor.epoch != command.epoch:
        step.replies.append(CursorLost(command.request, why_lost(cursor, command.name, command.epoch)))
        return True
    # The cursor moves first, or the completed entries would be kept for it.
    reached = rows[-1][0].pos + 1 if rows else range_scan.to_pos
    if command.only:
        chosen = set(command.only)
        rows = [row for row in rows if row[0].pos in chosen]
        range_scan.from_pos = reached
    elif reached > cursor.position:
        cursor.position = reached
        moved(subqueue, cursor, now_ms, step)
    entries = [entry_of(row, None, size_bytes) for row, size_bytes in rows if row.state == EntryState.ACTIVE]
    if state.sessions is not None:
        for entry in entries:
            state.sessions.note_changed(entry.session or "")
    state.tally.completed += len(entries)
    if entries:
        step.notes.append((COMPLETE, subqueue.kind, entries, None))
    state.remove(subqueue.kind, entries, Disposition.CONSUMED, step)
    if reached < range_scan.to_pos:
        return False
    step.replies.append(opened(state, command.request, subqueue, cursor))
    begin_clearing(subqueue, step)
    return True


def from_here(subqueue: Subqueue, range_scan: Consume) -> None:
    """Begin at the cursor's present position: earlier scans may have moved it."""
    cursor = find(subqueue, range_scan.command.name)
    if cursor is not None and not range_scan.command.only:
        range_scan.from_pos = cursor.position
