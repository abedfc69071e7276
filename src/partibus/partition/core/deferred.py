"""Deferred messages, which receivers ask for by sequence number.

They are in the store only. From the first request until the message is settled, or its lock has ended, its number is
*claimed*. So no other receiver gets it, and a row that was read meanwhile is not taken for the current one.
"""

from partibus.partition.core.cursor_answers import held_by
from partibus.partition.core.dead_letter import dead_letter_exceeded, expire, is_deferred_too_often, is_expired
from partibus.partition.core.locks import lock
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.retention import cursors_of
from partibus.partition.core.state import PartitionState, entry_of
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import ReceiveDeferred
from partibus.partition.protocol.load_requests import DeferredLoad
from partibus.partition.protocol.notes import COMPLETE, DELIVER
from partibus.partition.protocol.ports import Disposition, EntryRow, EntryState
from partibus.partition.protocol.replies import DeferredGranted, NotFound, SessionLost


def receive_deferred(state: PartitionState, command: ReceiveDeferred, now_ms: int, step: Step) -> None:
    """Claim the numbers and have the rows read."""
    if _ready_list(state, command, now_ms) is None:
        step.replies.append(SessionLost(command.request))
        return
    subqueue = state.subqueues[command.kind]
    claimed = subqueue.claimed
    taken = claimed.intersection(command.sequences)
    if taken:
        step.replies.append(NotFound(command.request, sorted(taken)))
        return
    claimed.update(command.sequences)
    if subqueue.range_scan is not None:
        subqueue.was_claimed.update(command.sequences)
    step.loads.append(DeferredLoad(command))


def deferred_loaded(
    state: PartitionState, command: ReceiveDeferred, rows: list[EntryRow], now_ms: int, step: Step
) -> None:
    """Lock or remove the requested messages, if all of them exist."""
    subqueue = state.subqueues[command.kind]
    if state.closed >> command.kind & 1:  # since it was asked for
        subqueue.claimed.difference_update(command.sequences)
        step.replies.append(held_by(cursors_of(subqueue), command.request))
        return
    ready_list = _ready_list(state, command, now_ms)
    found = {
        row.sequence: row
        for row in rows
        if row.state == EntryState.DEFERRED and (ready_list is None or ready_list.session in (None, row.session))
    }
    missing = [sequence for sequence in command.sequences if sequence not in found]
    if ready_list is None or missing:
        subqueue.claimed.difference_update(command.sequences)
        step.replies.append(SessionLost(command.request) if ready_list is None else NotFound(command.request, missing))
        return
    in_order = [found[sequence] for sequence in dict.fromkeys(command.sequences)]
    entries = [entry_of(row, row.data, len(row.data)) for row in in_order]
    # The partition does not watch the time of deferred entries (row C20), and a deferral moves no message.
    exceeded = [entry for entry in entries if is_deferred_too_often(state, command.kind, entry)]
    expired = [entry for entry in entries if is_expired(command.kind, entry, now_ms) and entry not in exceeded]
    if exceeded or expired:
        subqueue.claimed.difference_update(command.sequences)
        dead_letter_exceeded(state, command.kind, exceeded, step)
        expire(state, command.kind, expired, step)
        step.replies.append(NotFound(command.request, [entry.sequence for entry in exceeded + expired]))
        return
    lock_id = until_ms = 0
    if command.delete:
        state.tally.delivered += len(entries)
        state.tally.completed += len(entries)
        step.notes += ((DELIVER, command.kind, entries, None), (COMPLETE, command.kind, entries, None))
        state.remove(command.kind, entries, Disposition.RECEIVED_AND_DELETED, step)
    else:
        lock_id, until_ms = lock(state, ready_list, sorted(entries, key=lambda entry: entry.pos), now_ms, step)
    step.replies.append(DeferredGranted(command.request, lock_id, until_ms, entries))


def _ready_list(state: PartitionState, command: ReceiveDeferred, now_ms: int) -> ReadyList | None:
    """Return the ready list of the lock; None when the session is not held under that lock id."""
    return state.ready_list_under(command.kind, command.session, now_ms)
