"""Entries that were handed out go back: to their place, away for a while, or to the dead-letter sub-queue."""

from partibus.partition.core.dead_letter import counts_deliveries, dead_letter_pending, exceeds_max_deliveries
from partibus.partition.core.events import Updated
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.protocol.entry import Entry
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.ports import EntryState

DOUBLINGS_MAX = 30


def requeue(
    state: PartitionState,
    kind: int,
    entries: list[Entry],
    now_ms: int,
    step: Step,
    *,
    counted: bool,
    delay_ms: int | None = 0,
    rewritten: bool = False,
) -> None:
    """Return entries that are no longer locked to their place; dead-letter those that exceed the delivery count.

    ``counted``: the delivery counts, if the sub-queue counts deliveries. ``delay_ms``: the delay before they are ready,
    0: none, None: the entity's policy. ``rewritten``: their rows have changed in any case.
    """
    if not entries:
        return
    subqueue = state.subqueues[kind]
    pending_dead_letters = False
    raised = counted and counts_deliveries(kind)
    at_receive = state.options.dead_letter_at_receive
    for entry in entries:
        entry.delivery_count += raised
        if not at_receive and exceeds_max_deliveries(state, kind, entry):
            subqueue.pending_dead_letters[entry.pos] = entry
            pending_dead_letters = True
        elif entry.state == EntryState.DEFERRED:
            subqueue.claimed.discard(entry.sequence)
        else:
            away_ms = delay_ms if delay_ms is not None else _policy_delay_ms(state, kind, entry)
            if away_ms:
                entry.state = EntryState.DELAYED
                entry.due_ms = now_ms + away_ms
                subqueue.note_due(EntryState.DELAYED, entry.due_ms)
            else:
                _to_its_place(state, kind, entry, step)
    if counted or rewritten:
        step.events.append(Updated(kind, entries))
    if pending_dead_letters:
        dead_letter_pending(state, kind, step)
        step.change(subqueue)


def _to_its_place(state: PartitionState, kind: int, entry: Entry, step: Step) -> None:
    ready_list = state.ready_list_of(kind, entry.session)
    if entry.due_ms is not None:
        state.subqueues[kind].note_due(EntryState.ACTIVE, entry.due_ms)
    if ready_list is not None:  # else the session's next holder reads it from the store
        ready_list.ready.requeue(entry)
        step.change(ready_list)


def _policy_delay_ms(state: PartitionState, kind: int, entry: Entry) -> int:
    """Return the delay of the entity's policy: twice as long after each delivery, up to a bound.

    Sessions keep their order instead, and readers of dead letters are not delayed.
    """
    options = state.options
    if not options.redelivery_delay_ms or state.sessions is not None or kind != SubqueueKind.ACTIVE:
        return 0
    doubled = options.redelivery_delay_ms << min(max(0, entry.delivery_count - 1), DOUBLINGS_MAX)
    return min(doubled, max(options.redelivery_delay_max_ms, options.redelivery_delay_ms))
