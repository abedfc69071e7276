"""Locks end by the receiver's word: complete, abandon, release, dead-letter, defer.

A transaction does sends and settlements together or not at all (D16, row T1). Everything is checked before anything is
done, and all that is done is one step: its rows are in one commit.
"""

from collections.abc import Iterator, Mapping

from partibus.partition.core.dead_letter import counts_deliveries, dead_letter, requeue
from partibus.partition.core.enqueue import elsewhere, over_quota, reply_last, store
from partibus.partition.core.events import Updated
from partibus.partition.core.loads import body_load
from partibus.partition.core.lock_table import LockBatch, by_lock
from partibus.partition.core.range_scans import add_range_scan
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import Enqueue, Outcome, Settle, Transact
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.load_requests import BodyLoad, LostTokens
from partibus.partition.protocol.notes import ABANDON, COMPLETE, DEAD_LETTER_HELD, DEFER, LOCK_LOST, RELEASE
from partibus.partition.protocol.ports import Disposition, EntryState
from partibus.partition.protocol.replies import Moved, Refused, Settled, Transacted, TransactionRefused

_OPERATIONS = {
    Outcome.COMPLETE: COMPLETE,
    Outcome.ABANDON: ABANDON,
    Outcome.RELEASE: RELEASE,
    Outcome.DEAD_LETTER: DEAD_LETTER_HELD,
    Outcome.DEFER: DEFER,
}
"""The outcomes in notes."""


def settle(state: PartitionState, command: Settle, now_ms: int, step: Step) -> None:
    """Apply an outcome to messages that are still locked; the reply names the tokens whose lock has ended."""
    sessions = state.sessions
    if sessions is not None and sessions.resuming and sessions.must_wait(command):
        return
    if command.outcome is not Outcome.COMPLETE and (missing := bodies_missing(state, command, now_ms)):
        step.loads.append(body_load(command.kind, missing, then=command))
        return
    apply_settlement(state, command, now_ms, step)


def apply_settlement(state: PartitionState, command: Settle, now_ms: int, step: Step) -> None:
    """Settle as `settle` does, with every body in memory."""
    kind, outcome = command.kind, command.outcome
    gone = outcome is Outcome.COMPLETE or outcome is Outcome.DEAD_LETTER
    held = _held(state, command, now_ms)
    settled: list[Entry] = []
    for ready_list, batch, positions in held:
        settled += map(batch.entries.__getitem__, positions)
        state.unlock(ready_list, batch, positions, step, still_covered=not gone)
    lost = [] if len(settled) == len(command.tokens) else _lost(command, held)
    step.notes.append((_OPERATIONS[outcome], kind, settled, None))
    if outcome is Outcome.COMPLETE:
        state.tally.completed += len(settled)
        state.remove(kind, settled, Disposition.COMPLETED, step)
    elif outcome is Outcome.DEAD_LETTER:
        dead_letter(state, kind, settled, _with_reason(command), step)
    elif settled:
        if command.properties:
            state.rewrite(kind, settled, command.properties, step)
        if outcome is Outcome.DEFER:
            state.tally.deferred += len(settled)
            _defer(state, kind, settled, step)
        else:
            counted = outcome is Outcome.ABANDON
            if counted:
                state.tally.abandoned += len(settled)
            delay_ms = (command.delay_ms or None) if counted else 0
            rewritten = bool(command.properties)
            requeue(state, kind, settled, now_ms, step, counted=counted, delay_ms=delay_ms, rewritten=rewritten)
    if lost:
        step.refuse((_OPERATIONS[outcome], kind, LOCK_LOST, [command.tokens[index][1] for index in lost]))
    if lost and (command.late or command.explain):
        add_range_scan(state, state.subqueues[kind], LostTokens(command, lost), step)
        return
    step.replies.append(Settled(command.request, lost))


def lost_tokens(state: PartitionState, command: Settle, now_ms: int) -> list[int]:
    """Return the indexes of tokens whose lock has ended."""
    return _lost(command, _held(state, command, now_ms))


def bodies_missing(state: PartitionState, command: Settle, now_ms: int) -> list[Entry]:
    """Return entries that a settlement rewrites or moves, and whose body was let go while they were locked."""
    if command.outcome is not Outcome.DEAD_LETTER and not command.properties:
        return []
    held = _held(state, command, now_ms)
    return [entry for _, batch, positions in held for pos in positions if (entry := batch.entries[pos]).data is None]


def take_bodies(state: PartitionState, load: BodyLoad, found: dict[int, bytes], now_ms: int, step: Step) -> None:
    """Take loaded bodies of locked entries.

    A message whose body the store has lost can't be moved, delivered or read. It is removed: otherwise its partition
    would ask for the body for ever.
    """
    assert load.then is not None, "only a command that waits asks for bodies"
    commands = load.then.commands if isinstance(load.then, Transact) else [load.then]
    for command in commands:
        if not isinstance(command, Settle) or command.kind != load.kind:
            continue
        for ready_list, batch, positions in _held(state, command, now_ms):
            waiting = [batch.entries[pos] for pos in positions if batch.entries[pos].data is None]
            for entry in waiting:
                entry.data = found.get(entry.pos)
            bodyless = [entry for entry in waiting if entry.data is None and entry.pos in load.positions]
            if bodyless:
                state.unlock(ready_list, batch, [entry.pos for entry in bodyless], step, still_covered=False)
                state.remove(command.kind, bodyless, Disposition.LOST, step)


def _held(state: PartitionState, command: Settle, now_ms: int) -> list[tuple[ReadyList, LockBatch, list[int]]]:
    """Return the positions that a settlement's tokens still hold, by delivery batch."""
    held: list[tuple[ReadyList, LockBatch, list[int]]] = []
    subqueue = state.subqueues[command.kind]
    sessions = state.sessions if command.kind == SubqueueKind.ACTIVE else None
    for lock_id, positions in by_lock(command.tokens):
        session = None if sessions is None else sessions.by_lock.get(lock_id)
        if session is not None and session.until_ms > now_ms:  # as `ready_list_under`; its messages are held as it is
            found = list(filter(session.locks.entries.__contains__, positions))
            if found:
                held.append((session.ready_list, session.locks, found))
            continue
        batch = subqueue.locks.batches.get(lock_id)
        if batch is not None and (found := batch.held(positions, now_ms)):
            held.append((subqueue, batch, found))
    return held


def _lost(command: Settle, held: list[tuple[ReadyList, LockBatch, list[int]]]) -> list[int]:
    """Return the indexes of the other tokens."""
    if sum([len(positions) for _, _, positions in held]) == len(command.tokens):
        return []
    known = {(batch.lock_id, pos) for _, batch, positions in held for pos in positions}
    return [index for index, token in enumerate(command.tokens) if token not in known]


def _defer(state: PartitionState, kind: int, entries: list[Entry], step: Step) -> None:
    """Put entries aside until a receiver asks for their numbers. A deferral counts as a delivery."""
    claimed = state.subqueues[kind].claimed
    for entry in entries:
        if entry.state == EntryState.DEFERRED:
            claimed.discard(entry.sequence)  # else a receiver that asked for it meanwhile has the claim
        entry.state = EntryState.DEFERRED
        entry.delivery_count += counts_deliveries(kind)
    step.events.append(Updated(kind, entries))


def _with_reason(command: Settle) -> Mapping[str, object]:
    given = {"DeadLetterReason": command.reason, "DeadLetterErrorDescription": command.description}
    reasons = {name: text for name, text in given.items() if text is not None}
    return {**(command.properties or {}), **reasons}


def transact(
    state: PartitionState, command: Transact, now_ms: int, step: Step, ids: Iterator[bytes | None] | None = None
) -> None:
    """Carry out all commands or none, now or when the bodies that they need are loaded.

    ``ids``: the ids of the messages, on an entity with duplicate detection.
    """
    sessions = state.sessions
    if sessions is not None and sessions.resuming and sessions.must_wait(command):
        return
    for part in command.commands:
        missing = bodies_missing(state, part, now_ms) if isinstance(part, Settle) else []
        if missing:
            assert isinstance(part, Settle)
            step.loads.append(body_load(part.kind, missing, then=command))
            return
    if state.slots is not None:
        for part in command.commands:
            if isinstance(part, Enqueue) and (reply := elsewhere(state, part, now_ms)) is not None:
                reply.request = command.request
                step.replies.append(reply)
                return
    refused = _refusal(state, command, now_ms)
    if refused is not None:
        step.replies.append(refused)
        return
    answers = step.replies
    step.replies = []  # the client gets one answer, not one per part
    for part in command.commands:
        if isinstance(part, Enqueue):
            store(state, part, now_ms, step, ids)
        else:
            apply_settlement(state, part, now_ms, step)
    step.replies = answers
    reply_last(step, Transacted(command.request))


def _refusal(state: PartitionState, command: Transact, now_ms: int) -> TransactionRefused | Moved | None:
    """Why nothing can be done; the first reason."""
    settled: set[tuple[int, int, int]] = set()
    for index, part in enumerate(command.commands):
        because: Refused | Settled | None = None
        if isinstance(part, Enqueue):
            if part.first_sequence is not None and part.numbered_by != state.row:
                return Moved(command.request, {})
            because = over_quota(state, part)
        else:
            lost = lost_tokens(state, part, now_ms)
            lost += [i for i, token in enumerate(part.tokens) if (part.kind, *token) in settled]
            if lost:
                because = Settled(part.request, sorted(set(lost)))
            else:
                settled.update((part.kind, *token) for token in part.tokens)
        if because is not None:
            return TransactionRefused(command.request, index, because)
    return None
