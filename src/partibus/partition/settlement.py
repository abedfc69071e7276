"""Locks end: by the receiver's word, or by their deadline."""

from partibus.partition.commands import BodyLoad, LockToken, Outcome, Settle, Settled, Tick
from partibus.partition.dead_letter import dead_letter, dead_letter_doomed, is_used_up
from partibus.partition.entry import Entry
from partibus.partition.events import Counted
from partibus.partition.loads import body_load
from partibus.partition.lock_table import by_lock
from partibus.partition.state import PartitionState
from partibus.partition.step import Step


def settle(state: PartitionState, command: Settle, now_ms: int, step: Step) -> None:
    """Apply an outcome to what is still under lock; the reply names the tokens whose lock has ended."""
    kind, outcome = command.kind, command.outcome
    if outcome is Outcome.DEAD_LETTER and _await_bodies(state, command, now_ms, step):
        return
    gone = outcome is Outcome.COMPLETE or outcome is Outcome.DEAD_LETTER
    locks = state.subqueues[kind].locks
    lost: list[int] = []
    settled: list[Entry] = []
    for lock_id, positions in by_lock(command.tokens):
        batch = locks.find(lock_id, now_ms)
        held = [] if batch is None else [pos for pos in positions if pos in batch.entries]
        if len(held) != len(positions):
            lost += _indexes(command.tokens, {(lock_id, pos) for pos in positions if pos not in held})
        if batch is not None and held:
            settled += [batch.entries[pos] for pos in held]
            state.unlock(kind, batch, held, step, still_covered=not gone)
    if outcome is Outcome.COMPLETE:
        state.remove(kind, settled, step)
    elif outcome is Outcome.DEAD_LETTER:
        dead_letter(state, kind, settled, command.reason, command.description, step)
    else:
        _put_back(state, kind, settled, step, counted=outcome is Outcome.ABANDON)
    step.replies.append(Settled(command.request, lost))


def settle_with_bodies(state: PartitionState, load: BodyLoad, found: dict[int, bytes], now_ms: int, step: Step) -> None:
    """Go on with a settlement that had to wait for bodies. A message whose body the store has lost can't be moved,
    delivered or read: it is removed, lest its partition asks for the body for ever."""
    command = load.then
    assert command is not None, "somebody waited"
    locks = state.subqueues[command.kind].locks
    for lock_id, positions in by_lock(command.tokens):
        batch = locks.find(lock_id, now_ms)
        if batch is None:
            continue
        waiting = [batch.entries[pos] for pos in positions if pos in batch.entries]
        waiting = [entry for entry in waiting if entry.data is None]
        for entry in waiting:
            entry.data = found.get(entry.pos)
        bodyless = [entry for entry in waiting if entry.data is None and entry.pos in load.positions]
        if bodyless:
            state.unlock(command.kind, batch, [entry.pos for entry in bodyless], step, still_covered=False)
            state.remove(command.kind, bodyless, step)
    settle(state, command, now_ms, step)


def tick(state: PartitionState, command: Tick, now_ms: int, step: Step) -> None:
    """Locks and reservations whose deadline has passed: their entries go back, those that were locked counted."""
    # Dead-letter sub-queues first: what the others move there comes behind what is put back.
    for kind, subqueue in reversed(state.subqueues.items()):
        for batch in subqueue.reservations.expired(now_ms):
            for entry in batch.entries.values():
                subqueue.ready.put_back(entry)
            subqueue.reservations.unlock(batch.lock_id, list(batch.entries))
            step.change(kind)
        for batch in subqueue.locks.expired(now_ms):
            entries = list(batch.entries.values())
            state.unlock(kind, batch, list(batch.entries), step, still_covered=True)
            _put_back(state, kind, entries, step, counted=True)


def _put_back(state: PartitionState, kind: int, entries: list[Entry], step: Step, *, counted: bool) -> None:
    """Return entries to their place; those delivered often enough are dead-lettered."""
    if not entries:
        return
    if counted:
        for entry in entries:
            entry.delivery_count += 1
        step.events.append(Counted(kind, entries))
    subqueue = state.subqueues[kind]
    for entry in entries:
        if is_used_up(state, kind, entry):
            subqueue.doomed[entry.pos] = entry
        else:
            subqueue.ready.put_back(entry)
    dead_letter_doomed(state, kind, step)
    step.change(kind)


def _await_bodies(state: PartitionState, command: Settle, now_ms: int, step: Step) -> bool:
    """A message to be dead-lettered is rewritten, so its body has to be there; True when it must be read first and the
    command comes again with it."""
    locks = state.subqueues[command.kind].locks
    missing = []
    for lock_id, pos in command.tokens:
        batch = locks.find(lock_id, now_ms)
        entry = batch.entries.get(pos) if batch else None
        if entry is not None and entry.data is None:
            missing.append(entry)
    if missing:
        step.loads.append(body_load(command.kind, missing, then=command))
    return bool(missing)


def _indexes(tokens: list[LockToken], wanted: set[LockToken]) -> list[int]:
    return [index for index, token in enumerate(tokens) if token in wanted]
