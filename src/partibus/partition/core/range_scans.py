"""Range scans of a sub-queue in the store: due entries, cancellation of scheduled messages, batch deletes.

A sub-queue has one scan at a time, in bounded slices. The rows of a slice are read. Entries that memory knows better
(locked, or granted since) are left out, and the operation is applied to the others. The next slice is read when that is
durable.
"""

from collections.abc import Iterable
from typing import Any

from partibus.partition.core.consuming import SLICE_ENTRIES as CONSUMED_ENTRIES
from partibus.partition.core.consuming import consumed, from_here
from partibus.partition.core.cursor_answers import held_by
from partibus.partition.core.cursors import NOWHERE
from partibus.partition.core.dead_letter import dead_letter_exceeded, exceeds_max_deliveries, expire
from partibus.partition.core.events import Moved, Updated
from partibus.partition.core.forwarding import forwards, to_the_end
from partibus.partition.core.lost_locks import look_for_lost
from partibus.partition.core.publish import publish_due
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.retention import cursors_of
from partibus.partition.core.state import PartitionState, entry_of
from partibus.partition.core.step import Step
from partibus.partition.core.stored_entries import take_in_flight, take_waiting
from partibus.partition.core.subqueue import NEVER, Subqueue
from partibus.partition.protocol.commands import (
    CancelScheduled,
    DelayScheduled,
    Purge,
    PurgeAll,
)
from partibus.partition.protocol.fan_out import Planned
from partibus.partition.protocol.keys import Entry, SubqueueKind, body_number
from partibus.partition.protocol.load_requests import (
    Consume,
    DelaySlice,
    DueScan,
    LostTokens,
    PurgeSlice,
    RangeScan,
    RangeScanLoad,
)
from partibus.partition.protocol.notes import DELETE, PURGE
from partibus.partition.protocol.ports import FINISHED, Disposition, DueRows, EntryRow, EntryState
from partibus.partition.protocol.replies import Done, NotFound, Purged

SLICE_ENTRIES = 512
SLICE_BYTES = 1 << 20
SLICE_COPIES = 20_000
"""The most copies of due messages of a topic in one commit, if each subscription gets one."""


def begin_due_scans(state: PartitionState, now_ms: int, step: Step) -> None:
    """Ask the store for entries whose time has come."""
    for subqueue in state.subqueues.values():
        for entry_state, due_ms in list(subqueue.next_due.items()):
            if due_ms <= now_ms:
                del subqueue.next_due[entry_state]
                if entry_state == EntryState.ACTIVE and forwards(state, subqueue.kind):
                    continue  # being forwarded: they expire at their destination
                if entry_state != EntryState.DEFERRED:  # deferred ones wait until a receiver asks for them
                    add_range_scan(state, subqueue, DueScan(entry_state, now_ms), step)


def cancel_scheduled(state: PartitionState, command: CancelScheduled, now_ms: int, step: Step) -> None:
    """Begin a range scan; its end is the reply."""
    add_range_scan(state, state.subqueues[command.kind], command, step)


def purge(state: PartitionState, command: Purge, now_ms: int, step: Step) -> None:
    """Begin a range scan; its end is the reply."""
    add_range_scan(state, state.subqueues[command.kind], command, step)


def swept(
    state: PartitionState,
    load: RangeScanLoad,
    found: DueRows | list[EntryRow] | list[tuple[EntryRow, int]],
    now_ms: int,
    step: Step,
    planned: list[Planned] | None = None,
) -> None:
    """Handle the rows of a slice. ``planned``: their fan-out, at a topic."""
    subqueue = state.subqueues[load.kind]
    range_scan = load.range_scan
    if subqueue.stale or isinstance(range_scan, Consume):
        is_over = not subqueue.stale and _consumed(state, subqueue, range_scan, found, now_ms, step)
        subqueue.stale = False
        subqueue.range_scan = None
        subqueue.released.clear()
        if not is_over:
            subqueue.range_scans.appendleft(range_scan)
        _begin(state, subqueue, step)
        return
    rows: Any = found.rows if isinstance(found, DueRows) else found
    match range_scan:
        case PurgeSlice():
            _purge_slice(state, subqueue, range_scan, rows, step)
        case DelaySlice():
            _delay_slice(subqueue, range_scan, rows, now_ms, step)
        case CancelScheduled():
            _cancel(state, subqueue, range_scan, _entries_of(rows), step)
        case LostTokens():
            look_for_lost(state, subqueue, range_scan, _entries_of(rows), now_ms, step)
        case Purge():
            _purge(state, subqueue, range_scan, _entries_of(rows), step)
        case _:
            assert isinstance(found, DueRows), "the rows of a scan for due entries"
            _due(state, subqueue, range_scan, found, now_ms, step, planned)
    subqueue.range_scan = None
    subqueue.released.clear()
    _begin(state, subqueue, step)


def _entries_of(rows: Iterable[EntryRow]) -> list[Entry]:
    return [entry_of(row, row.data, len(row.data)) for row in rows]


def _due(
    state: PartitionState,
    subqueue: Subqueue,
    scan: DueScan,
    found: DueRows,
    now_ms: int,
    step: Step,
    planned: list[Planned] | None,
) -> None:
    """Expire active entries, activate scheduled ones, and return those whose delay has ended."""
    if found.next_due_ms is not None:
        subqueue.note_due(scan.state, found.next_due_ms)
    entries = _entries_of(found.rows)
    if scan.state == EntryState.ACTIVE:
        if forwards(state, subqueue.kind):
            return  # they expire at their destination
        in_flight = take_in_flight(state, subqueue, entries, step) if state.options.keeps_send_time else []
        taken = {entry.pos for entry in in_flight}  # without their locks, memory may know nothing of them
        others = [entry for entry in entries if entry.pos not in taken]
        waiting = _not_exceeded(state, subqueue, take_waiting(state, subqueue, others), step)
        expire(state, subqueue.kind, in_flight + waiting, step)
    elif scan.state == EntryState.SCHEDULED and state.options.topic:
        publish_due(state, entries, planned, now_ms, step)
    elif scan.state == EntryState.SCHEDULED:
        _activate(state, subqueue, entries, now_ms, step)
    elif forwards(state, subqueue.kind):
        to_the_end(state, subqueue, entries, step)
    else:
        _return(state, subqueue, _not_passed(state, subqueue, entries, step), step)


def add_range_scan(state: PartitionState, subqueue: Subqueue, range_scan: RangeScan, step: Step) -> None:
    """Queue a scan behind the earlier ones."""
    subqueue.range_scans.append(range_scan)
    _begin(state, subqueue, step)


def _begin(state: PartitionState, subqueue: Subqueue, step: Step) -> None:
    if subqueue.range_scan is not None:
        return
    while subqueue.range_scans and isinstance(subqueue.range_scans[0], Purge) and subqueue.is_read_alone:
        step.replies.append(held_by(cursors_of(subqueue), subqueue.range_scans.popleft().request))  # type: ignore[union-attr]
    if not subqueue.range_scans:
        return
    range_scan = subqueue.range_scan = subqueue.range_scans.popleft()
    if isinstance(range_scan, Consume):
        from_here(subqueue, range_scan)
        step.loads.append(RangeScanLoad(subqueue.kind, range_scan, CONSUMED_ENTRIES, 0))
        return
    if isinstance(range_scan, PurgeSlice):
        range_scan.to_pos = range_scan.to_pos or state.next_sequence
        subqueue.was_claimed = set(subqueue.claimed)
    count = SLICE_ENTRIES
    size_bytes = SLICE_BYTES
    if isinstance(range_scan, Purge):
        count = range_scan.count
    elif isinstance(range_scan, DueScan) and state.subscriptions is not None:
        count = max(1, min(count, SLICE_COPIES // max(1, len(state.subscriptions.sizes))))
    if not isinstance(range_scan, CancelScheduled | LostTokens | PurgeSlice | DelaySlice):
        # Held entries are read and left out: the slice has to be larger by their size, or it might never get past them.
        held_count, held_bytes = _held(state, subqueue)
        count += held_count
        size_bytes += held_bytes
    step.loads.append(RangeScanLoad(subqueue.kind, range_scan, count, size_bytes))


def _held(state: PartitionState, subqueue: Subqueue) -> tuple[int, int]:
    """Return the entries that are locked or reserved, and their bytes."""
    ready_lists: list[ReadyList] = [subqueue]
    if state.sessions is not None:
        ready_lists += [session.ready_list for session in state.sessions.held.values()]
    count = size_bytes = 0
    for ready_list in ready_lists:
        for table in (ready_list.locks, ready_list.reservations):
            for batch in table:
                count += len(batch.entries)
                size_bytes += sum([entry.size_bytes for entry in batch.entries.values()])
    return count + len(subqueue.pending_dead_letters), size_bytes + sum(
        entry.size_bytes for entry in subqueue.pending_dead_letters.values()
    )


def _not_exceeded(state: PartitionState, subqueue: Subqueue, entries: list[Entry], step: Step) -> list[Entry]:
    """Dead-letter entries that had exceeded the delivery count when their partition was lost; return the others."""
    if state.options.dead_letter_at_receive:
        return entries
    exceeded = [
        entry for entry in entries if entry.delivery_count and exceeds_max_deliveries(state, subqueue.kind, entry)
    ]
    if not exceeded:
        return entries
    dead_letter_exceeded(state, subqueue.kind, exceeded, step)
    gone = {entry.pos for entry in exceeded}
    return [entry for entry in entries if entry.pos not in gone]


def _cancel(
    state: PartitionState, subqueue: Subqueue, range_scan: CancelScheduled, entries: list[Entry], step: Step
) -> None:
    scheduled = [entry for entry in entries if entry.state == EntryState.SCHEDULED]
    missing = set(range_scan.sequences).difference(entry.sequence for entry in scheduled)
    if missing:
        step.replies.append(NotFound(range_scan.request, sorted(missing)))
        return
    step.notes.append((DELETE, subqueue.kind, scheduled, None))
    state.remove(subqueue.kind, scheduled, None, step)
    step.replies.append(Done(range_scan.request))


def _consumed(
    state: PartitionState, subqueue: Subqueue, range_scan: RangeScan, rows: Any, now_ms: int, step: Step
) -> bool:
    assert isinstance(range_scan, Consume), "asked of no other"
    return consumed(state, subqueue, range_scan, rows, now_ms, step)


def _purge(state: PartitionState, subqueue: Subqueue, range_scan: Purge, entries: list[Entry], step: Step) -> None:
    old = [entry for entry in entries if entry.enqueued_ms < range_scan.enqueued_before_ms]
    removed = _not_exceeded(state, subqueue, take_waiting(state, subqueue, old, range_scan.count), step)
    step.notes.append((PURGE, subqueue.kind, removed, None))
    state.remove(subqueue.kind, removed, Disposition.PURGED, step)
    step.replies.append(Purged(range_scan.request, len(removed)))


def purge_all(state: PartitionState, command: PurgeAll, now_ms: int, step: Step) -> None:
    """Remove every message that was sent by now in slices; the reply leaves after the last one."""
    subqueue = state.subqueues[command.kind]
    if command.kind == SubqueueKind.ACTIVE and state.duplicates is not None:
        state.duplicates.forget_all(now_ms)
        if not (state.duplicates.is_known or state.duplicates.scanning):
            state.duplicates.begin_scan(step, state.options.limits.scan_ids)
    add_range_scan(state, subqueue, PurgeSlice(command, state.next_sequence), step)


def _purge_slice(
    state: PartitionState, subqueue: Subqueue, range_scan: PurgeSlice, rows: list[tuple[EntryRow, int]], step: Step
) -> None:
    sent_before = range_scan.sent_before
    found = [
        entry_of(row, None, size_bytes)
        for row, size_bytes in rows
        # An activated message has a later number than its body, and a rewritten body has a number out of order.
        if row.state < FINISHED and min(row.sequence, body_number(row.body)) < sent_before
    ]
    locked = subqueue.locks.holders([entry.pos for entry in found])
    removed: list[Entry] = []
    active: list[Entry] = []
    unsure: list[int] = []
    for entry in found:
        if entry.pos in locked:
            batch = locked[entry.pos]
            removed.append(batch.entries[entry.pos])
            state.unlock(subqueue, batch, [entry.pos], step, still_covered=False)
        elif entry.session in subqueue.released:
            unsure.append(entry.pos)
        elif entry.state == EntryState.ACTIVE:
            active.append(entry)
        elif entry.state == EntryState.DEFERRED and entry.sequence in subqueue.was_claimed:
            if entry.sequence not in subqueue.claimed:  # else it stays: the holder of its session has it, or a load
                unsure.append(entry.pos)
        else:
            removed.append(entry)
    removed += take_waiting(state, subqueue, active)
    step.notes.append((PURGE, subqueue.kind, removed, None))
    state.remove(subqueue.kind, removed, Disposition.PURGED, step)
    if rows:
        from_pos = unsure[0] if unsure else rows[-1][0].pos + 1  # those rows are read again
        subqueue.range_scans.appendleft(PurgeSlice(range_scan.command, sent_before, from_pos, range_scan.to_pos))
    else:
        step.replies.append(Done(range_scan.request))


def delay_scheduled(state: PartitionState, command: DelayScheduled, now_ms: int, step: Step) -> None:
    """Set the times of delayed messages anew in slices; the reply leaves when those that are due are active."""
    subqueue = state.subqueues[command.kind]
    if subqueue.waits_for(EntryState.SCHEDULED) and command.delay_ms != command.former_ms:
        add_range_scan(state, subqueue, DelaySlice(command, 0, state.next_sequence), step)
    else:
        step.replies.append(Done(command.request))


def _delay_slice(
    subqueue: Subqueue, range_scan: DelaySlice, rows: list[tuple[EntryRow, int]], now_ms: int, step: Step
) -> None:
    command, to_pos = range_scan.command, range_scan.to_pos
    changed: list[Entry] = []
    for row, size_bytes in rows:
        due_ms = row.enqueued_ms + command.delay_ms
        if row.state == EntryState.SCHEDULED and row.due_ms == row.enqueued_ms + command.former_ms:
            entry = entry_of(row, None, size_bytes)
            entry.due_ms = due_ms
            subqueue.note_due(EntryState.SCHEDULED, due_ms)
            changed.append(entry)
    if changed:
        step.events.append(Updated(subqueue.kind, changed))
    if rows:
        subqueue.range_scans.appendleft(DelaySlice(command, rows[-1][0].pos + 1, to_pos))
    elif subqueue.next_due.get(EntryState.SCHEDULED, NEVER) <= now_ms:
        del subqueue.next_due[EntryState.SCHEDULED]
        subqueue.range_scans.extendleft((DelaySlice(command, to_pos, to_pos), DueScan(EntryState.SCHEDULED, now_ms)))
    else:
        step.replies.append(Done(command.request))


def _activate(state: PartitionState, subqueue: Subqueue, entries: list[Entry], now_ms: int, step: Step) -> None:
    """Scheduled entries become new ones at the end, with new sequence counters; their bodies stay where they are.

    At a queue of SQS they keep the time of the send, from which their retention runs.
    """
    if not entries:
        return
    state.activated_ms = now_ms
    state.leave(subqueue.kind, entries)
    pairs = []
    for old in entries:
        number = state.next_sequence
        state.next_sequence += 1
        since_ms = old.enqueued_ms if state.options.keeps_send_time else now_ms
        new = Entry(number, old.body, number, since_ms, 0, old.session, None, old.size_bytes, old.data)
        state.become_active(subqueue.kind, new)
        if new.due_ms is not None:
            subqueue.note_due(EntryState.ACTIVE, new.due_ms)
        pairs.append((old, new))
    step.events.append(Moved(subqueue.kind, subqueue.kind, pairs))
    active = [new for _, new in pairs]
    state.arrive(subqueue.kind, active, sum([entry.size_bytes for entry in active]), step)


def _not_passed(state: PartitionState, subqueue: Subqueue, entries: list[Entry], step: Step) -> list[Entry]:
    """Return the entries that may go back to their place.

    The others would go unread past a cursor that completes, so they get a place at the end (`exclusive`).
    """
    cursors = subqueue.cursors
    if cursors is None:
        return entries
    passed_to = NOWHERE if cursors.exclusive is not None else cursors.passed_to
    to_the_end(state, subqueue, [entry for entry in entries if entry.pos < passed_to], step)
    return [entry for entry in entries if entry.pos >= passed_to]


def _return(state: PartitionState, subqueue: Subqueue, entries: list[Entry], step: Step) -> None:
    """Delayed entries go back to their place."""
    if not entries:
        return
    ready_max = state.options.limits.window_entries
    for entry in entries:
        state.become_active(subqueue.kind, entry)
        if entry.due_ms is not None:
            subqueue.note_due(EntryState.ACTIVE, entry.due_ms)
        if entry.pos >= subqueue.paged_up_to:
            # One behind the tail was made ready past the backlog of noisy tenants, and comes with no page.
            if not subqueue.loading_page and entry.pos < subqueue.tail_from:
                subqueue.edited = True
                subqueue.above.discard(entry.pos)  # it was, if it was found under lock after a restart
                continue  # a page will bring it
            subqueue.above.add(entry.pos)
        if len(subqueue.ready) >= ready_max:
            entry.data = None
        subqueue.ready.requeue(entry)
    step.events.append(Updated(subqueue.kind, entries))
    step.change(subqueue)
