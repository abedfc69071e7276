"""Forwarding at both ends: strictly ordered grants at the source, and marks of known positions at the destination."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice

from partibus.message import Message
from partibus.partition.core.dead_letter import dead_letter, with_reason
from partibus.partition.core.events import Enqueued, Moved
from partibus.partition.core.lock_table import by_lock
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import NEVER, Subqueue
from partibus.partition.protocol.commands import Enqueue, Forwarded
from partibus.partition.protocol.generations import History, keys_of, mark_key
from partibus.partition.protocol.keys import REWRITTEN_BODY, Entry, SubqueueKind, body_key
from partibus.partition.protocol.notes import DEAD_LETTER, FORWARD, SEND
from partibus.partition.protocol.ports import Disposition, EntryState
from partibus.partition.protocol.replies import Accepted, Done, Granted


def forwards(state: PartitionState, kind: int) -> bool:
    """Tell whether messages of that sub-queue go on to another entity."""
    return kind == SubqueueKind.TRANSFER or bool(state.options.forwards >> kind & 1)


def take_transfers(state: PartitionState, command: Enqueue, now_ms: int, step: Step) -> Accepted:
    """Store messages that were sent through this entity.

    Their due time puts them into the store's index of timed entries, so that they are found after a restart.
    """
    base = body_key(state.row, REWRITTEN_BODY)
    entries = []
    for message in command.messages:
        number = state.take_number()
        size = len(message.data)
        entries.append(Entry(number, base | number, number, now_ms, 0, None, now_ms, size, message.data))
    step.notes.append((SEND, SubqueueKind.TRANSFER, entries, command.messages))
    step.events.append(Enqueued(entries, SubqueueKind.TRANSFER))
    state.arrive(SubqueueKind.TRANSFER, entries, sum([entry.size_bytes for entry in entries]), step)
    return Accepted(command.request, entries[0].sequence)


def forwards_no_longer(state: PartitionState, kinds: int) -> None:
    """Let time run again in sub-queues that an update stopped forwarding (bits as in `PartitionOptions.forwards`)."""
    for kind, subqueue in state.subqueues.items():
        if kinds >> kind & 1 and subqueue.messages:
            subqueue.note_due(EntryState.ACTIVE, 0)


def take_over(state: PartitionState, subqueue: Subqueue, receiver: int) -> None:
    """Let a forwarder begin: it gets the entries that its predecessor has not finished."""
    if subqueue.forwarder == receiver:
        return
    subqueue.demands.pop(subqueue.forwarder, None)
    subqueue.forwarder = receiver
    for batch in [batch for batch in subqueue.reservations if batch.until_ms == NEVER]:
        for entry in batch.entries.values():
            subqueue.ready.requeue(entry)
        subqueue.reservations.unlock(batch.lock_id, list(batch.entries))


def barrier(ready_list: ReadyList) -> int:
    """Return the position up to which a forwarder may be granted entries: the first that another receiver holds."""
    end_pos = ready_list.paged_up_to
    if ready_list.locks:
        held = [e.pos for batch in ready_list.locks for e in batch.entries.values() if e.state != EntryState.DEFERRED]
        end_pos = min([end_pos, *held])
    for batch in ready_list.reservations:
        if batch.until_ms != NEVER:
            end_pos = min([end_pos, *batch.entries])
    return end_pos


def forwarded(state: PartitionState, command: Forwarded, now_ms: int, step: Step) -> None:
    """Remove reserved entries, or make them transfer dead letters."""
    subqueue = state.subqueues[command.kind]
    entries: list[Entry] = []
    for reservation, positions in by_lock(command.tokens):
        batch = subqueue.reservations.find(reservation)
        if batch is not None:
            held = [pos for pos in positions if pos in batch.entries]
            entries += [batch.entries[pos] for pos in held]
            subqueue.reservations.unlock(reservation, held)
    if command.reason is None:
        state.tally.forwarded += len(entries)
        step.notes.append((FORWARD, command.kind, entries, None))
        state.remove(command.kind, entries, Disposition.FORWARDED, step)
    else:
        properties = with_reason(command.reason, command.description or "")
        step.notes.append((DEAD_LETTER, command.kind, entries, None))
        if entries:
            state.count_refusal(command.kind, step)
        dead_letter(state, command.kind, entries, properties, step, SubqueueKind.TRANSFER_DEAD_LETTER)
        _tell_refusals(state, subqueue, step)
    if command.request:
        step.replies.append(Done(command.request))


def _tell_refusals(state: PartitionState, subqueue: Subqueue, step: Step) -> None:
    """Tell the forwarder the new count of refusals, with a grant of no messages."""
    kind = subqueue.kind
    if not subqueue.forwarder:  # it has ended since
        return
    series, refusals = state.series.get(kind, 0), state.refusals(kind)
    step.replies.append(Granted(subqueue.forwarder, kind, 0, 0, [], False, series, refusals))


def to_the_end(state: PartitionState, subqueue: Subqueue, entries: list[Entry], step: Step) -> None:
    """Move delayed entries, whose bodies are loaded, to the end.

    They take new positions, and in the active sub-queue new sequence counters; nothing else changes.
    """
    if not entries:
        return
    state.leave(subqueue.kind, entries)
    pairs = []
    for old in entries:
        sequence = old.sequence
        if subqueue.kind == SubqueueKind.ACTIVE:
            number = sequence = state.next_sequence
            state.next_sequence += 1
        else:
            number = state.take_number()
        new = Entry(
            number, old.body, sequence, old.enqueued_ms, old.delivery_count, old.session, None, old.size_bytes, old.data
        )
        state.become_active(subqueue.kind, new)
        if new.due_ms is not None:
            subqueue.note_due(EntryState.ACTIVE, new.due_ms)
        pairs.append((old, new))
    step.events.append(Moved(subqueue.kind, subqueue.kind, pairs))
    active = [new for _, new in pairs]
    state.arrive(subqueue.kind, active, sum([entry.size_bytes for entry in active]), step)


def raise_refusals(state: PartitionState, source: int, history: History, step: Step) -> None:
    """Record the source's count of refusals beside its mark, which is being raised."""
    key = mark_key(source, "refusals")
    if history.refusals > state.inbound_marks.get(key, 0):
        state.raise_mark(key, history.refusals, step)


def new_ones(state: PartitionState, command: Enqueue, ids: Iterator[bytes | None] | None, step: Step) -> list[Message]:
    """Return the messages that have not come before; they count as received from now on.

    ``ids``, one for each message of the command, are skipped with the others.
    """
    assert command.origin is not None, "forwarded"
    source, positions = command.origin
    marks = state.inbound_marks
    history = command.history
    mark = max([marks.get(key, 0) for key in keys_of(source, history, marks)]) if history else marks.get(source, 0)
    known = bisect_right(positions, mark)
    if known < len(positions):
        state.raise_mark(source, positions[-1], step)
        if history is not None:
            raise_refusals(state, source, history, step)
    if not known:  # the usual case
        return command.messages
    if ids is not None:
        next(islice(ids, known - 1, None), None)
    return command.messages[known:]
