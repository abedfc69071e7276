"""Range scans of a sub-queue in the store: due entries, cancellation of scheduled messages, batch deletes.

A sub-queue has one scan at a time, in bounded slices. The rows of a slice are read. Entries that memory knows better
(locked, or granted since) are left out, and the operation is applied to the others. The next slice is read when that is
durable.
"""

from collections.abc import Collection, Iterable
from typing import Any

from partibus.partition.core.consuming import SLICE_ENTRIES as CONSUMED_ENTRIES
from partibus.partition.core.consuming import consumed, from_here
from partibus.partition.core.cursor_answers import held_by
from partibus.partition.core.cursors import NOWHERE
from partibus.partition.core.dead_letter import dead_letter_exceeded, exceeds_max_deliveries, expire, requeue
from partibus.partition.core.events import LockChanged, Locked, Moved, Updated
from partibus.partition.core.forwarding import forwards, to_the_end
from partibus.partition.core.lock_table import LockBatch, LockTable
from partibus.partition.core.publish import publish_due
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.retention import cursors_of
from partibus.partition.core.state import PartitionState, entry_of
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import NEVER, Subqueue
from partibus.partition.protocol.commands import (
    CancelScheduled,
    ChangeLocks,
    DelayScheduled,
    Purge,
    PurgeAll,
    Settle,
)
from partibus.partition.protocol.fan_out import Planned
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.load_requests import (
    Consume,
    DelaySlice,
    DueScan,
    LostTokens,
    PurgeSlice,
    RangeScan,
    RangeScanLoad,
)
from partibus.partition.protocol.notes import ABANDON, COMPLETE, DELETE, PURGE, RENEW
from partibus.partition.protocol.ports import FINISHED, Disposition, DueRows, EntryRow, EntryState
from partibus.partition.protocol.replies import Done, NotFound, Purged, Settled

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
            _look_for_lost(state, subqueue, range_scan, _entries_of(rows), now_ms, step)
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
        in_flight = _take_in_flight(state, subqueue, entries, step) if state.options.keeps_send_time else []
        waiting = _not_exceeded(state, subqueue, _take_waiting(state, subqueue, entries), step)
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


def _take_in_flight(state: PartitionState, subqueue: Subqueue, entries: list[Entry], step: Step) -> list[Entry]:
    """Take locked messages out of their locks: retention of SQS ends them, too. Those of a session's holder stay."""
    taken: list[Entry] = []
    rows = {entry.pos: entry for entry in entries}
    for pos, batch in _holders(subqueue.locks, rows).items():
        entry = batch.entries[pos]
        state.unlock(subqueue, batch, [pos], step, still_covered=False)
        if entry.data is None and entry.body == rows[pos].body:
            entry.data = rows[pos].data  # memory has let it go
        taken.append(entry)
    return taken


def _take_waiting(
    state: PartitionState, subqueue: Subqueue, entries: list[Entry], most: int | None = None
) -> list[Entry]:
    """Remove entries without a holder from their ready lists, the first ``most`` of each list."""
    taken: list[Entry] = []
    free: list[Entry] = []
    ready_lists: dict[ReadyList, list[Entry]] = {}
    for entry in entries:
        if entry.pos in subqueue.pending_dead_letters:
            continue
        if entry.session in subqueue.released:
            if entry.due_ms is not None:
                subqueue.note_due(EntryState.ACTIVE, entry.due_ms)
            continue
        ready_list = state.ready_list_of(subqueue.kind, entry.session)
        if ready_list is None:
            if state.sessions is None or not state.sessions.is_in_flight(entry.session, entry.pos):
                free.append(entry)
        else:
            ready_lists.setdefault(ready_list, []).append(entry)
    rows = {entry.pos: entry for entry in entries}
    for ready_list, of_ready_list in ready_lists.items():
        taken += ready_list.take_out(ready_list.waiting(of_ready_list)[: None if most is None else most - len(taken)])
    taken += free[: None if most is None else most - len(taken)]
    if state.sessions is not None:
        for entry in taken:
            state.sessions.note_changed(entry.session or "")
    stale: list[Entry] = []
    for entry in taken:
        if entry.data is None and entry.body == rows[entry.pos].body:
            entry.data = rows[entry.pos].data  # memory has let it go
        elif entry.data is None:
            stale.append(entry)
    for entry in stale:  # rewritten since the row was read
        taken.remove(entry)
        ready_list = state.ready_list_of(subqueue.kind, entry.session)
        assert ready_list is not None, "memory knew it"
        ready_list.ready.requeue(entry)
        if entry.due_ms is not None:
            subqueue.note_due(EntryState.ACTIVE, entry.due_ms)
    return taken


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
    return [entry for entry in entries if entry not in exceeded]


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
    removed = _not_exceeded(state, subqueue, _take_waiting(state, subqueue, old, range_scan.count), step)
    step.notes.append((PURGE, subqueue.kind, removed, None))
    state.remove(subqueue.kind, removed, Disposition.PURGED, step)
    step.replies.append(Purged(range_scan.request, len(removed)))


def _look_for_lost(
    state: PartitionState, subqueue: Subqueue, range_scan: LostTokens, rows: list[Entry], now_ms: int, step: Step
) -> None:
    """Answer a command with tokens that had no lock, by what the store has of their messages."""
    command = range_scan.command
    stored = {entry.pos: entry for entry in rows if entry.state in (EntryState.ACTIVE, EntryState.DELAYED)}
    if isinstance(command, ChangeLocks):
        lost, gone = _change_lost(state, subqueue, command, range_scan.lost, stored, now_ms, step)
    else:
        lost, gone = _settle_lost(state, subqueue, command, range_scan.lost, stored, step)
    step.replies.append(Settled(command.request, lost, gone))


def _settle_lost(
    state: PartitionState,
    subqueue: Subqueue,
    command: Settle,
    tokens: list[int],
    stored: dict[int, Entry],
    step: Step,
) -> tuple[list[int], list[int]]:
    """Complete the messages that exist, or report those that do not: indexes of lost tokens, and of gone messages."""
    locked = _holders(subqueue.locks, stored)
    lost: list[int] = []
    gone: list[int] = []
    completed: list[Entry] = []
    done: set[int] = set()
    for index in tokens:
        pos = command.tokens[index][1]
        batch = locked.get(pos)
        if pos in done:
            continue
        if batch is not None:
            if command.late:
                completed.append(batch.entries[pos])
                state.unlock(subqueue, batch, [pos], step, still_covered=False)
                done.add(pos)
            else:
                lost.append(index)
        elif pos in stored and command.late and (taken := _take_free(state, subqueue, stored[pos])):
            completed += taken
            done.add(pos)
        elif pos in stored and not command.late and is_waiting(state, subqueue, stored[pos]):
            lost.append(index)
        else:
            lost.append(index)
            gone.append(index)
    if completed:
        step.notes.append((COMPLETE, subqueue.kind, completed, None))
        state.tally.completed += len(completed)
        state.remove(subqueue.kind, completed, Disposition.COMPLETED, step)
    return lost, gone


def _change_lost(
    state: PartitionState,
    subqueue: Subqueue,
    command: ChangeLocks,
    tokens: list[int],
    stored: dict[int, Entry],
    now_ms: int,
    step: Step,
) -> tuple[list[int], list[int]]:
    """Lock messages again, or report them: indexes of lost tokens, and of gone messages.

    A late change of a message that was received again sets the end of its present lock, as the service does.
    """
    locked = _holders(subqueue.locks, stored)
    lost: list[int] = []
    gone: list[int] = []
    for index in tokens:
        pos = command.tokens[index][1]
        if pos in locked and command.late:
            batch, lock_ms = locked[pos], command.lock_ms[index]
            entries = [batch.entries[pos]]
            if lock_ms > 0:
                subqueue.locks.renew(batch, [pos], now_ms + lock_ms)
                step.notes.append((RENEW, subqueue.kind, entries, None))
                step.events.append(LockChanged(subqueue.kind, batch.lock_id, batch.parts()))
            else:
                del locked[pos]
                state.tally.abandoned += 1
                step.notes.append((ABANDON, subqueue.kind, entries, None))
                state.unlock(subqueue, batch, [pos], step, still_covered=True)
                requeue(state, subqueue.kind, entries, now_ms, step, counted=True)
        elif pos in locked:
            lost.append(index)
        elif pos not in stored:
            lost.append(index)
            gone.append(index)
        elif not command.late or command.lock_ms[index] <= 0:
            is_there = is_waiting(state, subqueue, stored[pos]) or pos in _holders(subqueue.reservations, stored)
            lost.append(index)
            if not is_there:
                gone.append(index)
        elif taken := _take_free(state, subqueue, stored[pos]):
            _lock_again(state, subqueue, taken, now_ms + command.lock_ms[index], step)
            locked.update(_holders(subqueue.locks, stored))
        else:
            lost.append(index)
            gone.append(index)
    return lost, gone


def _holders(table: LockTable, wanted: Collection[int]) -> dict[int, LockBatch]:
    """Return the batches that hold some of the wanted positions, by position."""
    return {pos: batch for batch in table for pos in batch.entries if pos in wanted} if wanted else {}


def _take_free(state: PartitionState, subqueue: Subqueue, entry: Entry) -> list[Entry]:
    """Take a message that waits, or that is reserved for a front end and not locked yet."""
    batch = _holders(subqueue.reservations, (entry.pos,)).get(entry.pos)
    if batch is None:
        return _take_waiting(state, subqueue, [entry])
    reserved = batch.entries[entry.pos]
    subqueue.reservations.unlock(batch.lock_id, [entry.pos])
    return [reserved]


def _lock_again(state: PartitionState, subqueue: Subqueue, entries: list[Entry], until_ms: int, step: Step) -> None:
    """Lock messages whose last receive goes on, so that it counts once."""
    for entry in entries:
        entry.delivery_count = max(0, entry.delivery_count - 1)
        entry.state = EntryState.ACTIVE
        if entry.pos >= subqueue.paged_up_to:
            subqueue.above.add(entry.pos)  # pages skip it
    step.events.append(Updated(subqueue.kind, entries))
    lock_id = state.take_number()
    subqueue.locks.add(LockBatch(lock_id, until_ms, entries))
    if state.fairness is not None:
        state.fairness.hand_out(entries)
    step.events.append(Locked(subqueue.kind, lock_id, until_ms, entries))


def is_waiting(state: PartitionState, subqueue: Subqueue, entry: Entry) -> bool:
    """Tell whether an entry that was read still waits, by what memory knows."""
    ready_list = state.ready_list_of(subqueue.kind, entry.session)
    return ready_list is None or bool(ready_list.waiting([entry]))


def purge_all(state: PartitionState, command: PurgeAll, now_ms: int, step: Step) -> None:
    """Remove every message up to now in slices; the reply leaves after the last one."""
    subqueue = state.subqueues[command.kind]
    if command.kind == SubqueueKind.ACTIVE and state.duplicates is not None:
        state.duplicates.forget_all(now_ms)
    add_range_scan(state, subqueue, PurgeSlice(command, 0, state.next_sequence), step)


def _purge_slice(
    state: PartitionState, subqueue: Subqueue, range_scan: PurgeSlice, rows: list[tuple[EntryRow, int]], step: Step
) -> None:
    found = [entry_of(row, None, size_bytes) for row, size_bytes in rows if row.state < FINISHED]
    locked = {pos: batch for batch in subqueue.locks for pos in batch.entries}
    removed: list[Entry] = []
    active: list[Entry] = []
    for entry in found:
        if entry.pos in locked:
            batch = locked[entry.pos]
            removed.append(batch.entries[entry.pos])
            state.unlock(subqueue, batch, [entry.pos], step, still_covered=False)
        elif entry.state == EntryState.ACTIVE:
            active.append(entry)
        else:
            removed.append(entry)
    removed += _take_waiting(state, subqueue, active)
    step.notes.append((PURGE, subqueue.kind, removed, None))
    state.remove(subqueue.kind, removed, Disposition.PURGED, step)
    if rows:
        last, _ = rows[-1]
        subqueue.range_scans.appendleft(PurgeSlice(range_scan.command, last.pos + 1, range_scan.to_pos))
    else:
        step.replies.append(Done(range_scan.request))


def delay_scheduled(state: PartitionState, command: DelayScheduled, now_ms: int, step: Step) -> None:
    """Set the times of scheduled messages anew in slices; the reply leaves when those that are due are active."""
    subqueue = state.subqueues[command.kind]
    if subqueue.waits_for(EntryState.SCHEDULED):
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
        if row.state == EntryState.SCHEDULED and row.due_ms != due_ms:
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
            if not subqueue.loading_page:
                subqueue.edited = True
                subqueue.above.discard(entry.pos)  # it was, if it was found under lock after a restart
                continue  # a page will bring it
            subqueue.above.add(entry.pos)
        if len(subqueue.ready) >= ready_max:
            entry.data = None
        subqueue.ready.requeue(entry)
    step.events.append(Updated(subqueue.kind, entries))
    step.change(subqueue)
