"""Late settlements and lock changes of SQS: their tokens have no lock, and the store has the messages."""

from partibus.partition.core.dead_letter import requeue
from partibus.partition.core.events import LockChanged, Locked, Updated
from partibus.partition.core.lock_table import LockBatch
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.stored_entries import is_waiting, take_waiting
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.protocol.commands import ChangeLocks, Settle
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.load_requests import LostTokens
from partibus.partition.protocol.notes import ABANDON, COMPLETE, RENEW
from partibus.partition.protocol.ports import Disposition, EntryState
from partibus.partition.protocol.replies import Settled


def look_for_lost(
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
    locked = subqueue.locks.holders(stored)
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
    locked = subqueue.locks.holders(stored)
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
            is_there = is_waiting(state, subqueue, stored[pos]) or pos in subqueue.reservations.holders(stored)
            lost.append(index)
            if not is_there:
                gone.append(index)
        elif taken := _take_free(state, subqueue, stored[pos]):
            _lock_again(state, subqueue, taken, now_ms + command.lock_ms[index], step)
            locked.update(subqueue.locks.holders(stored))
        else:
            lost.append(index)
            gone.append(index)
    return lost, gone


def _take_free(state: PartitionState, subqueue: Subqueue, entry: Entry) -> list[Entry]:
    """Take a message that waits, or that is reserved for a front end and not locked yet."""
    batch = subqueue.reservations.holders((entry.pos,)).get(entry.pos)
    if batch is None:
        return take_waiting(state, subqueue, [entry])
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
