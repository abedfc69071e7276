"""The handlers of loads' results."""

from typing import Any

from partibus.partition.core.cursor_commands import dispositions_loaded, range_loaded
from partibus.partition.core.dead_letter import dead_letter_pending
from partibus.partition.core.deferred import deferred_loaded
from partibus.partition.core.enqueue import duplicates_found, duplicates_scanned, screen, sink_ids_found, sinks_of
from partibus.partition.core.loads import inspected
from partibus.partition.core.move_commands import groups_found
from partibus.partition.core.range_scans import swept
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.retention import clear
from partibus.partition.core.session_locks import scanned, state_loaded
from partibus.partition.core.session_resume import resumed
from partibus.partition.core.settlement import settle, take_bodies, transact
from partibus.partition.core.state import PartitionState, entry_of
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import Settle, Transact
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.load_requests import (
    BodyLoad,
    ClearLoad,
    DeferredLoad,
    DispositionsLoad,
    DuplicateLoad,
    DuplicateScan,
    GroupsLoad,
    Loaded,
    PageLoad,
    QuietLoad,
    RangeLoad,
    RangeScanLoad,
    ScheduledCount,
    SessionListLoad,
    SessionResume,
    SessionScan,
    SessionStateLoad,
    SinkCount,
    SinkLoad,
    SlotScan,
)
from partibus.partition.protocol.ports import Disposition, EntryRow
from partibus.partition.protocol.replies import Rows, Sessions, SlotsScanned


def loaded(state: PartitionState, command: Loaded, now_ms: int, step: Step) -> None:
    """Take the result of a load into memory, or answer the asker."""
    load = command.load
    found: Any = command.found
    match load:
        case PageLoad():
            _page_loaded(state, load, found, step)
        case QuietLoad():
            _quiet_loaded(state, load, found, step)
        case BodyLoad():
            _bodies_loaded(state, load, found, now_ms, step)
        case RangeScanLoad():
            swept(state, load, found, now_ms, step, command.planned)
        case DeferredLoad():
            deferred_loaded(state, load.command, found, now_ms, step)
        case ScheduledCount():
            step.replies.append(inspected(state, load.command, found, now_ms))
        case SessionScan():
            scanned(state, found)
        case SessionStateLoad():
            state_loaded(state, load, found, now_ms, step)
        case SessionResume():
            resumed(state, load, found, now_ms, step)
        case GroupsLoad():
            groups_found(state, load, found, now_ms, step)
        case SlotScan():
            step.replies.append(SlotsScanned(load.command.request, *found))
        case SessionListLoad():
            step.replies.append(Sessions(load.command.request, found))
        case DuplicateLoad():
            duplicates_found(state, load, found)
        case DuplicateScan():
            duplicates_scanned(state, found, now_ms, step)
        case SinkLoad():
            stored, count = found
            sink_ids_found(state, load, stored, count, now_ms, step)
        case SinkCount():
            sinks_of(state).counted(load, found, now_ms)
        case RangeLoad():
            range_loaded(state, load, found, step)
        case DispositionsLoad():
            dispositions_loaded(load.command, found, step)
        case ClearLoad():
            clear(state.subqueues[load.kind], load, found, step)
        case _:
            step.replies.append(Rows(load.request, found))


def _ready_list(state: PartitionState, load: PageLoad | BodyLoad) -> ReadyList | None:
    """Return the ready list that asked; None when its session has been released since."""
    if not load.holder or load.kind != SubqueueKind.ACTIVE:
        return state.subqueues[load.kind]
    session = state.sessions.by_lock.get(load.holder) if state.sessions is not None else None
    return None if session is None else session.ready_list


def _quiet_loaded(
    state: PartitionState, load: QuietLoad, found: tuple[list[EntryRow], str | None, bool], step: Step
) -> None:
    ready_list = state.subqueues[load.kind]
    if ready_list.loading_quiet != load.number:
        return
    ready_list.loading_quiet = 0
    rows, ready_list.quiet_after, has_more = found
    taken = ready_list.take_quiet(entry_of(row, row.data, len(row.data)) for row in rows)
    ready_list.has_more_quiet = ready_list.has_more_quiet or (has_more and taken > 0)
    if ready_list.quiet_after is None:
        if not ready_list.has_more_quiet:
            ready_list.gap_checked = load.version
        ready_list.has_more_quiet = False
    step.change(ready_list)


def _page_loaded(state: PartitionState, load: PageLoad, found: tuple[list[EntryRow], bool], step: Step) -> None:
    if load.edited and load.session is not None and state.sessions is not None:
        state.sessions.end_drain(load.holder)
    ready_list = _ready_list(state, load)
    if ready_list is None:
        return
    ready_list.loading_page = False
    if ready_list.page_stale:
        ready_list.page_stale = False
        step.change(ready_list)
        return
    rows, is_last = found
    up_to = rows[-1].pos + 1 if rows else load.end_pos
    if is_last:
        up_to = max(up_to, load.end_pos)
    if state.express is not None and up_to > load.end_pos:
        # Rows behind the end arrived since, and entries that only memory has may lie before them (D18).
        rows = [row for row in rows if row.pos < load.end_pos]
        up_to = load.end_pos
    entries = [entry_of(row, row.data, len(row.data)) for row in rows]
    ready_list.page_in(entries, up_to)
    step.change(ready_list)


def _bodies_loaded(state: PartitionState, load: BodyLoad, bodies: list[bytes | None], now_ms: int, step: Step) -> None:
    found = {pos: data for pos, data in zip(load.positions, bodies, strict=True) if data is not None}
    if load.then is not None:
        take_bodies(state, load, found, now_ms, step)
        if isinstance(load.then, Settle):
            settle(state, load.then, now_ms, step)
        else:
            _transact(state, load.then, now_ms, step)
        return
    ready_list = _ready_list(state, load)
    if ready_list is None:
        return
    ready_list.loading_bodies = False
    if ready_list.bodies_stale:
        ready_list.bodies_stale = False
        step.change(ready_list)
        return
    for entry in ready_list.ready.bodyless(len(ready_list.ready)):
        if entry.pos in found:
            ready_list.ready.attach_body(entry, found[entry.pos])
    gone = set(load.positions).difference(found)
    lost = ready_list.ready.remove(gone) if gone else []  # the store has lost these bodies: see `take_bodies`
    if load.holder == 0:
        pending_dead_letters = state.subqueues[load.kind].pending_dead_letters
        for pos, entry in list(pending_dead_letters.items()):
            if entry.data is None:
                entry.data = found.get(pos)
            if pos in gone:
                lost.append(pending_dead_letters.pop(pos))
        dead_letter_pending(state, load.kind, list(pending_dead_letters.values()), step)
    state.remove(load.kind, lost, Disposition.LOST, step)
    step.change(ready_list)


def _transact(state: PartitionState, command: Transact, now_ms: int, step: Step) -> None:
    """Continue a transaction. Its messages were screened for duplicates, and others have been sent since."""
    if state.duplicates is None:
        transact(state, command, now_ms, step)
    else:
        screen(state, command, now_ms, step)
