"""The exclusive lease of a cursor: other receivers get no message while it holds (D14).

```text
 open ── an entry is locked ──▶ paused: no more grants, the reader asks again ──┐
   │                                                                            │
   ├── no entry is locked, or locks are revoked ◀───────────────────────────────┘
   ▼
 exclusive ── lease over, or closed ──▶ open for receivers again: the window is read anew
```

The store is the truth about a sub-queue with an exclusive reader: the grant drops all of its entries from memory, and
arrivals are not kept there. So the entries that the reader has passed are found by a scan of the store (`consuming`).

An entry that was away when the reader passed its place must not be completed unread. So an entry that becomes active
again behind a cursor that completes, or during a lease, gets a new place at the end, as scheduled ones do.
"""

from partibus.partition.core.cursor_answers import held_by
from partibus.partition.core.cursors import Cursor, Cursors
from partibus.partition.core.events import CursorSet, Unlocked
from partibus.partition.core.lock_table import LockTable
from partibus.partition.core.retention import begin_clearing
from partibus.partition.core.session_locks import revoke_sessions, stop_probing
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import NEVER, Subqueue
from partibus.partition.protocol import commands as c
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.load_requests import Input
from partibus.partition.protocol.ports import EntryState
from partibus.partition.protocol.replies import CursorBusy, ReceiveRefused

PAUSE_MS = 10_000
"""The length of a pause for a reader that wants the lease. It asks again every second or so. A reader that has ended
stops the receivers for no longer than this.
"""


def is_going_on(subqueue: Subqueue) -> bool:
    """Tell whether messages are being forwarded: they can't be taken back, since the target may have them."""
    return any(batch.until_ms == NEVER for batch in subqueue.reservations)


def locked(state: PartitionState, subqueue: Subqueue) -> tuple[int, int]:
    """Return how many entries are held, and until when (0: soon).

    Held are messages under lock or on their way to another entity, sessions, and pending dead letters without their
    bodies.
    """
    batches = [*subqueue.locks, *(batch for batch in subqueue.reservations if batch.until_ms == NEVER)]
    count = sum(len(batch.entries) for batch in batches) + len(subqueue.pending_dead_letters)
    untils = [until for batch in batches for until, _ in batch.parts() if until != NEVER]
    if subqueue.of_sessions and state.sessions is not None:
        held = [session for session in state.sessions.held.values() if session.asked is None]
        count += len(held) + sum(len(session.ready_list.locks) for session in held)
        untils += [session.until_ms for session in held]
    return count, max(untils, default=0)


def pause(state: PartitionState, subqueue: Subqueue, command: c.OpenCursor, now_ms: int, step: Step) -> None:
    """Grant nothing for a while, so that locks come to an end; the reply counts those that remain."""
    if subqueue.cursors is None:
        subqueue.cursors = Cursors()
    subqueue.cursors.paused_until_ms = now_ms + PAUSE_MS
    subqueue.cursors.paused_by = command.name
    state.closed |= 1 << subqueue.kind
    for batch in [batch for batch in subqueue.reservations if batch.until_ms != NEVER]:
        for entry in batch.entries.values():
            subqueue.requeue(entry)
        subqueue.reservations.unlock(batch.lock_id, list(batch.entries))
    if subqueue.of_sessions:
        stop_probing(state, step)
    count, until_ms = locked(state, subqueue)
    step.replies.append(CursorBusy(command.request, count, until_ms or now_ms))


def take(state: PartitionState, subqueue: Subqueue, cursor: Cursor, until_ms: int, now_ms: int, step: Step) -> None:
    """Give the sub-queue to a cursor until then. Existing locks end, uncounted."""
    cursors = subqueue.cursors
    assert cursors is not None, "it has the cursor"
    cursors.exclusive = cursor
    cursors.paused_until_ms = 0
    cursor.epoch += 1
    cursor.until_ms = until_ms
    cursors.refresh()
    state.closed |= 1 << subqueue.kind
    _refuse_waiting(subqueue, cursor, step)
    if subqueue.of_sessions:
        revoke_sessions(state, cursor.name, until_ms, now_ms, step)
    for table in (subqueue.locks, subqueue.reservations):
        for batch in table:
            if table is subqueue.locks:
                step.events.append(Unlocked(subqueue.kind, batch.lock_id))
            for entry in batch.entries.values():
                if entry.state == EntryState.DEFERRED:
                    subqueue.claimed.discard(entry.sequence)
                elif entry.due_ms is not None:
                    subqueue.note_due(EntryState.ACTIVE, entry.due_ms)
    revoked = subqueue.held
    subqueue.locks = LockTable()
    if subqueue.kind == SubqueueKind.ACTIVE:
        if state.sessions is not None:
            state.sessions.take_back(revoked, step)
        if state.fairness is not None:
            state.fairness.take_back(revoked)
    subqueue.forwarder = 0
    _forget(subqueue)


def let_go(state: PartitionState, subqueue: Subqueue, step: Step) -> None:
    """End the lease: receivers are granted messages again."""
    cursors = subqueue.cursors
    assert cursors is not None, "one has a lease"
    cursor = cursors.exclusive
    assert cursor is not None, "one has a lease"
    cursors.exclusive = None
    cursor.until_ms = 0
    step.events.append(CursorSet(subqueue.kind, cursor))
    _forget(subqueue)
    _reopen(state, subqueue, step)


def end_leases(state: PartitionState, now_ms: int, step: Step) -> None:
    """End leases and pauses whose time is over; called before a command is handled."""
    for subqueue in list(state.subqueues.values()):
        cursors = subqueue.cursors
        if cursors is None:
            continue
        if cursors.exclusive is not None and cursors.exclusive.until_ms <= now_ms:
            let_go(state, subqueue, step)
        if cursors.paused_until_ms and cursors.paused_until_ms <= now_ms:
            cursors.paused_until_ms = 0
            if cursors.exclusive is None:
                _reopen(state, subqueue, step)
            begin_clearing(subqueue, step)


def refuses(state: PartitionState, command: Input, step: Step) -> bool:
    """Answer a command that asks for messages of a closed sub-queue; return whether it was answered.

    While the sub-queue is only paused, receivers may wait.
    """
    match command:
        case c.Receive() | c.ReceiveDeferred() | c.Purge():
            kind = command.kind
        case c.AcceptSession() | c.ReceiveGroups():
            kind = int(SubqueueKind.ACTIVE)
        case _:
            return False
    if not state.closed >> kind & 1:
        return False
    subqueue = state.subqueues[kind]
    cursors = subqueue.cursors
    assert cursors is not None, "why it is closed"
    alone = cursors.exclusive
    if isinstance(command, c.Receive):
        if alone is None:
            return False
        if command.count > 0:
            step.replies.append(ReceiveRefused(command.receiver, kind, alone.name, alone.until_ms))
        return True
    if alone is None and isinstance(command, c.Purge):
        return False
    step.replies.append(held_by(cursors, command.request))
    return True


def _refuse_waiting(subqueue: Subqueue, cursor: Cursor, step: Step) -> None:
    for demand in subqueue.demands.values():
        step.replies.append(ReceiveRefused(demand.receiver, subqueue.kind, cursor.name, cursor.until_ms))
    subqueue.demands.clear()


def _forget(subqueue: Subqueue) -> None:
    subqueue.stale = subqueue.range_scan is not None
    subqueue.forget(is_empty=subqueue.messages == 0)


def _reopen(state: PartitionState, subqueue: Subqueue, step: Step) -> None:
    state.closed &= ~(1 << subqueue.kind)
    step.change(subqueue)
    if subqueue.of_sessions and state.sessions is not None:
        for session in state.sessions.held.values():
            step.change(session.ready_list)
