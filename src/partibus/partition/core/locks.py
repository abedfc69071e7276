"""Locks are made, renewed, and run out (D12)."""

from collections.abc import Mapping

from partibus.partition.core.dead_letter import requeue
from partibus.partition.core.events import LockChanged, Locked
from partibus.partition.core.lock_table import LockBatch
from partibus.partition.core.range_scans import add_range_scan, begin_due_scans
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.retention import begin_clearing
from partibus.partition.core.session_locks import expire_sessions
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import NEVER, Subqueue
from partibus.partition.protocol.commands import ChangeLocks, RenewLocks, Tick
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.load_requests import LostTokens
from partibus.partition.protocol.notes import ABANDON, DELIVER, LOCK_EXPIRED, RENEW
from partibus.partition.protocol.replies import LocksRenewed, Settled


def lock(
    state: PartitionState, ready_list: ReadyList, entries: list[Entry], now_ms: int, step: Step, lock_ms: int = 0
) -> tuple[int, int]:
    """Lock entries as one delivery batch, or under the session's lock where they belong to one: (lock id, until ms).

    Positions ascend. ``lock_ms`` is the length of the locks; 0: the entity's LockDuration.
    """
    state.tally.delivered += len(entries)
    step.notes.append((DELIVER, ready_list.kind, entries, None))
    most = state.options.limits.locked_body_max
    remembered = entries
    for entry in entries:
        if entry.size_bytes > most:
            remembered = _without_large_bodies(state, ready_list, entries, most)
            break
    if ready_list.session is not None:
        assert state.sessions is not None, "a session's lane"
        session = state.sessions.by_lock[ready_list.holder]
        session.hand_out(remembered)
        return session.lock_id, session.until_ms
    lock_id = state.take_number()
    until_ms = now_ms + (lock_ms or state.options.lock_duration_ms)
    ready_list.locks.add(LockBatch(lock_id, until_ms, remembered))
    if state.fairness is not None and ready_list.kind == SubqueueKind.ACTIVE:
        state.fairness.hand_out(entries)
    step.events.append(Locked(ready_list.kind, lock_id, until_ms, entries))
    return lock_id, until_ms


def _without_large_bodies(state: PartitionState, ready_list: ReadyList, entries: list[Entry], most: int) -> list[Entry]:
    """Return the entries to remember under lock: large bodies leave memory meanwhile.

    The given entries stay whole, because the grant needs them. Unwritten ones stay whole too.
    """
    unwritten = state.express.unwritten if state.express is not None and ready_list.kind == SubqueueKind.ACTIVE else ()
    return [
        entry.without_body() if entry.size_bytes > most and entry.pos not in unwritten else entry for entry in entries
    ]


def renew_locks(state: PartitionState, command: RenewLocks, now_ms: int, step: Step) -> None:
    """Renew all locks or none.

    The lock of a session's message is renewed with its session, so such tokens are not found.
    """
    ready_list = state.subqueues[command.kind]
    found: list[LockBatch] = []
    lost: list[int] = []
    for index, (lock_id, pos) in enumerate(command.tokens):
        batch = ready_list.locks.find(lock_id)
        if batch is None or not batch.held([pos], now_ms):
            lost.append(index)
        else:
            found.append(batch)
    if lost:
        step.replies.append(Settled(command.request, lost))
        return
    renewed = [batch.entries[pos] for batch, (_, pos) in zip(found, command.tokens, strict=True)]
    step.notes.append((RENEW, command.kind, renewed, None))
    until_ms = now_ms + state.options.lock_duration_ms
    for batch, (_, pos) in zip(found, command.tokens, strict=True):
        ready_list.locks.renew(batch, [pos], until_ms)
    for batch in dict.fromkeys(found):
        step.events.append(LockChanged(command.kind, batch.lock_id, batch.parts()))
    step.replies.append(LocksRenewed(command.request, [until_ms] * len(command.tokens)))


def change_locks(state: PartitionState, command: ChangeLocks, now_ms: int, step: Step) -> None:
    """Set the end of each lock that still holds; with 0 ms it ends at once, and the delivery counts."""
    subqueue = state.subqueues[command.kind]
    lost: list[int] = []
    ended: dict[int, list[int]] = {}
    changed: dict[int, LockBatch] = {}
    entries: list[Entry] = []
    for index, ((lock_id, pos), lock_ms) in enumerate(zip(command.tokens, command.lock_ms, strict=True)):
        batch = subqueue.locks.find(lock_id)
        holds = batch is not None and (pos in batch.entries if command.late else bool(batch.held([pos], now_ms)))
        if batch is None or not holds or pos in ended.get(lock_id, ()):
            lost.append(index)
        elif lock_ms <= 0:
            ended.setdefault(lock_id, []).append(pos)
        else:
            subqueue.locks.renew(batch, [pos], now_ms + lock_ms)
            changed[lock_id] = batch
            entries.append(batch.entries[pos])
    if entries:
        step.notes.append((RENEW, command.kind, entries, None))
    for lock_id, batch in changed.items():
        if lock_id not in ended:
            step.events.append(LockChanged(command.kind, lock_id, batch.parts()))
    for lock_id, positions in ended.items():
        batch = subqueue.locks.find(lock_id)
        assert batch is not None, "found above"
        back = [batch.entries[pos] for pos in positions]
        state.tally.abandoned += len(back)
        step.notes.append((ABANDON, command.kind, back, None))
        state.unlock(subqueue, batch, positions, step, still_covered=True)
        requeue(state, command.kind, back, now_ms, step, counted=True)
    if lost:
        add_range_scan(state, subqueue, LostTokens(command, lost), step)
    else:
        step.replies.append(Settled(command.request, lost))


def tick(state: PartitionState, command: Tick, now_ms: int, step: Step) -> None:
    """End locks, reservations and sessions whose deadline has passed, and begin scans for due entries.

    Locked entries return with their delivery counted.
    """
    # Dead-letter sub-queues come first: entries that the others move there follow the returned ones.
    for kind, subqueue in reversed(state.subqueues.items()):
        end_lapsed(subqueue, now_ms, step)
        for batch in subqueue.locks.expired(now_ms):
            entries = batch.over(now_ms)
            if entries:
                state.tally.locks_expired += len(entries)
                step.notes.append((LOCK_EXPIRED, kind, entries, None))
                state.unlock(subqueue, batch, [entry.pos for entry in entries], step, still_covered=True)
                requeue(state, kind, entries, now_ms, step, counted=True)
    if state.sessions is not None:
        expire_sessions(state, now_ms, step)
    if state.duplicates is not None:
        state.duplicates.trim(now_ms, step, state.options.limits.scan_ids)
        state.duplicates.intents.expire(now_ms)
    if state.sinks is not None:
        state.sinks.trim(now_ms, step)
    for subqueue in state.subqueues.values():
        if subqueue.cursors is not None and subqueue.cursors.unbegun:
            begin_clearing(subqueue, step)
    begin_due_scans(state, now_ms, step)


def end_lapsed(subqueue: Subqueue, now_ms: int, step: Step) -> None:
    """End the reservations whose deadline has passed, and the later ones of the same receivers."""
    deadline_ms = subqueue.reservations.deadlines.earliest_ms()
    if deadline_ms is None or deadline_ms > now_ms:
        return
    first: dict[int, int] = {}
    for batch in subqueue.reservations.expired(now_ms):
        first[batch.receiver] = min(batch.lock_id, first.get(batch.receiver, batch.lock_id))
    end_reservations(subqueue, first, step)


def end_reservations(subqueue: Subqueue, first: Mapping[int, int], step: Step) -> None:
    """End the reservations of receivers from the given ones on.

    A receiver that loses a reservation loses its later ones, too. Its front end may be about to hand them out, and
    messages of one key would come out of order.
    """
    reservations = subqueue.reservations
    for batch in list(reservations):
        if batch.until_ms != NEVER and first.get(batch.receiver, NEVER) <= batch.lock_id:
            for entry in batch.entries.values():
                subqueue.requeue(entry)
            reservations.unlock(batch.lock_id, list(batch.entries))
    step.change(subqueue)
