"""Retention of entries that leave a sub-queue, and the log of their dispositions (D14).

A *finished* entry keeps its row and its body for cursors that have not passed it; it is in no count, no page, no scan.
The janitor removes it when the lowest cursor has passed it. It also removes entries from the lowest position on when
more is kept than the cursors' bound; a reader that has not got that far learns it from ``complete_from``. It goes over
the store in slices, each with a commit of its own, because memory does not know finished entries.
"""

from collections.abc import Callable, Sequence

from partibus.partition.core.cursors import NOWHERE, Cursors
from partibus.partition.core.events import (
    Cleared,
    CursorSet,
    DispositionsForgotten,
    DispositionsLogged,
    Kept,
    RetainedCounted,
)
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.load_requests import ClearLoad
from partibus.partition.protocol.ports import FINISHED, Disposition, DispositionRow, EntryRow

SLICE_ENTRIES = 4_096
"""Rows without bodies: some milliseconds of reading, beside commits of about as many operations."""
SLICE_ENTRIES_MIN = 128
"""The least entries of a slice that removes entries above the bound, which each commit of receivers exceeds anew. About
as many rows are read as are removed, or a cursor at its bound would cost receivers a part of their rate.
"""


def keep(
    subqueue: Subqueue, entries: list[Entry], disposition: Disposition, step: Step, take_number: Callable[[], int]
) -> list[Entry]:
    """Log the disposition of entries that have left, and keep those that a cursor has not passed; return the others.

    ``take_number`` gives the numbers of the log.
    """
    log(subqueue, entries, disposition, step, take_number)
    cursors = cursors_of(subqueue)
    if disposition is Disposition.LOST:
        return entries  # there is nothing to read
    kept = [entry for entry in entries if entry.pos >= cursors.keep_from]
    if not kept:
        return entries
    step.events.append(Kept(subqueue.kind, kept, disposition))
    count_kept(subqueue, kept, step)
    return [entry for entry in entries if entry.pos < cursors.keep_from] if len(kept) < len(entries) else []


def count_kept(subqueue: Subqueue, kept: list[Entry], step: Step) -> None:
    """Count finished entries, with an event."""
    cursors = cursors_of(subqueue)
    cursors.retained += len(kept)
    cursors.retained_bytes += sum([entry.size_bytes for entry in kept])
    lowest = min([entry.pos for entry in kept])
    cursors.cleared_to = min(cursors.cleared_to, lowest)
    step.events.append(RetainedCounted(subqueue.kind, cursors.retained, cursors.retained_bytes))
    if cursors.retained_bytes > cursors.bound_bytes:
        begin_clearing(subqueue, step)


def log(
    subqueue: Subqueue, entries: Sequence[Entry], disposition: Disposition, step: Step, take_number: Callable[[], int]
) -> None:
    """Write the disposition of entries that have left to the log, if it has a reader."""
    if cursors_of(subqueue).dispositions_from == NOWHERE:
        return
    rows: list[int] = []
    for entry in entries:
        rows += (take_number(), entry.pos, entry.sequence, int(disposition), step.now_ms, entry.delivery_count)
    step.events.append(DispositionsLogged(subqueue.kind, rows))


def begin_clearing(subqueue: Subqueue, step: Step) -> None:
    """Ask the store for entries that no cursor needs, unless such a load is under way."""
    cursors = cursors_of(subqueue)
    cursors.unbegun = False
    if cursors.clearing:
        return
    to_pos = 0
    if not cursors.retained:
        cursors.cleared_to = NOWHERE
    else:
        to_pos = subqueue.end_pos if cursors.excess_bytes > 0 else min(cursors.keep_from, subqueue.end_pos)
    dispositions_from = (
        cursors.dispositions_forgotten_to if cursors.dispositions_forgotten_to < cursors.dispositions_from else None
    )
    if to_pos > cursors.cleared_to or dispositions_from is not None:
        from_pos, cursors.cleared_to = cursors.cleared_to, max(cursors.cleared_to, to_pos)
        cursors.clearing = True
        step.loads.append(ClearLoad(subqueue.kind, from_pos, to_pos, dispositions_from, _slice_entries(cursors)))
    elif cursors.is_idle:
        subqueue.cursors = None


def clear(
    subqueue: Subqueue, load: ClearLoad, found: tuple[list[tuple[EntryRow, int]], list[DispositionRow]], step: Step
) -> None:
    """Remove the rows that the janitor asked for."""
    cursors = cursors_of(subqueue)
    cursors.clearing = False
    rows, dispositions = found
    _clear_entries(subqueue, load, rows, step)
    if load.dispositions_from is not None:
        _forget_dispositions(subqueue, dispositions, step)
    begin_clearing(subqueue, step)


def cursors_of(subqueue: Subqueue) -> Cursors:
    """Return the cursors of a sub-queue that has some."""
    assert subqueue.cursors is not None, "asked of sub-queues with cursors"
    return subqueue.cursors


def _slice_entries(cursors: Cursors) -> int:
    if cursors.excess_bytes <= 0 or cursors.dispositions_forgotten_to < cursors.dispositions_from < NOWHERE:
        return SLICE_ENTRIES
    over = cursors.excess_bytes * cursors.retained // cursors.retained_bytes
    return max(SLICE_ENTRIES_MIN, min(2 * over, SLICE_ENTRIES))


def _clear_entries(subqueue: Subqueue, load: ClearLoad, rows: list[tuple[EntryRow, int]], step: Step) -> None:
    cursors = cursors_of(subqueue)
    positions: list[int] = []
    bodies: list[int] = []
    reached = rows[-1][0].pos + 1 if rows else max(load.from_pos, load.to_pos)
    cut = 0
    for row, size_bytes in rows:
        if row.state < FINISHED:
            continue
        if row.pos >= cursors.keep_from:  # one that a cursor wants: it goes if there is too much
            if cursors.excess_bytes <= 0:
                reached = row.pos
                break
            cut = row.pos + 1
        positions.append(row.pos)
        bodies.append(row.body)
        cursors.retained -= 1
        cursors.retained_bytes -= size_bytes
    cursors.cleared_to = min(cursors.cleared_to, reached)
    if positions:
        step.events.append(Cleared(subqueue.kind, positions, bodies))
        step.events.append(RetainedCounted(subqueue.kind, cursors.retained, cursors.retained_bytes))
    for cursor in cursors.by_name.values():
        if cursor.bound_bytes and cursor.position < cut and cursor.complete_from < cut:
            cursor.complete_from = cut
            step.events.append(CursorSet(subqueue.kind, cursor))


def _forget_dispositions(subqueue: Subqueue, dispositions: list[DispositionRow], step: Step) -> None:
    cursors = cursors_of(subqueue)
    over = [row.number for row in dispositions if row.number < cursors.dispositions_from]
    if over:
        step.events.append(DispositionsForgotten(subqueue.kind, over[0], over[-1]))
    cursors.dispositions_forgotten_to = (
        over[-1] + 1 if len(over) == len(dispositions) and over else cursors.dispositions_from
    )
