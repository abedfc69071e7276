"""Moves of entries: to the dead-letter sub-queue, or back to their place after a delivery.

A receiver, too many deliveries, or expiry moves an entry to the dead-letter sub-queue. `requeue` returns entries that
were handed out: to their place, away for a while, or to the dead-letter sub-queue.
"""

from collections.abc import Iterable, Mapping
from operator import attrgetter

from partibus.message import with_application_properties
from partibus.partition.core.cursors import NOWHERE
from partibus.partition.core.events import Moved, Published, Rewritten, Updated
from partibus.partition.core.retention import count_kept, log
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.protocol.keys import REWRITTEN_BODY, Entry, SubqueueKind, body_key
from partibus.partition.protocol.notes import DEAD_LETTER, EXPIRE
from partibus.partition.protocol.ports import Disposition, EntryState

MAX_DELIVERIES_REASON = "MaxDeliveryCountExceeded"
EXPIRED_REASON = "TTLExpiredException"


def dead_letter(
    state: PartitionState,
    kind: int,
    entries: list[Entry],
    properties: Mapping[str, object],
    step: Step,
    to_kind: SubqueueKind = SubqueueKind.DEAD_LETTER,
) -> None:
    """Move entries, whose bodies are loaded, to the dead-letter sub-queue, and set application properties.

    They keep their sequence number and get a new position. A message that is a dead letter already goes to the end,
    with the new reason.
    """
    if not entries:
        return
    state.leave(kind, entries)
    subqueue = state.subqueues[kind]
    keep_from = NOWHERE if subqueue.cursors is None else subqueue.cursors.keep_from
    pairs: list[tuple[Entry, Entry]] = []
    kept: list[tuple[Entry, Entry]] = []
    for old in entries:
        is_kept = old.pos >= keep_from  # it stays readable, with the body that it had
        new = _dead(state, old, properties, own_body=bool(properties) or is_kept)
        (kept if is_kept else pairs).append((old, new))
    if properties and pairs:
        step.events.append(Rewritten([(old.body, new) for old, new in pairs]))
    state.tally.dead_lettered += len(entries)
    if pairs:
        step.events.append(Moved(kind, to_kind, pairs))
    if kept:
        copies = [column for _, new in kept for column in (new.body, new.data or b"")]
        step.events.append(Published(copies, are_new=False))
        step.events.append(Moved(kind, to_kind, kept, kept=True))
        count_kept(subqueue, [old for old, _ in kept], step)
    if subqueue.cursors is not None:
        log(subqueue, entries, Disposition.DEAD_LETTERED, step, state.take_number)
    moved = [new for _, new in (pairs + kept if kept else pairs)]
    if pairs and kept:
        moved.sort(key=attrgetter("pos"))
    state.arrive(to_kind, moved, sum([entry.size_bytes for entry in moved]), step)


def _dead(state: PartitionState, old: Entry, properties: Mapping[str, object], *, own_body: bool) -> Entry:
    """Return the dead letter of an entry, with a new position and, if asked for, a body of its own."""
    assert old.data is not None, "callers read the body first"
    number = state.take_number()
    data = with_application_properties(old.data, properties) if properties else old.data
    body = body_key(state.row, REWRITTEN_BODY | number) if own_body else old.body
    return Entry(number, body, old.sequence, old.enqueued_ms, old.delivery_count, old.session, None, len(data), data)


def counts_deliveries(kind: int) -> bool:
    """Tell whether a delivery that was not completed raises the count.

    In a dead-letter sub-queue the count stands still.
    """
    return kind == SubqueueKind.ACTIVE


def exceeds_max_deliveries(state: PartitionState, kind: int, entry: Entry) -> bool:
    """Tell whether an entry was delivered as often as the entity allows. A dead-letter sub-queue has no such bound."""
    return kind == SubqueueKind.ACTIVE and entry.delivery_count >= state.options.max_delivery_count


def is_deferred_too_often(state: PartitionState, kind: int, entry: Entry) -> bool:
    """Tell whether a deferred entry has more deliveries than the entity allows.

    The deferral itself counts, so an entry at the bound can still be received once by its number.
    """
    return kind == SubqueueKind.ACTIVE and entry.delivery_count > state.options.max_delivery_count


def dead_letter_exceeded(state: PartitionState, kind: int, entries: list[Entry], step: Step) -> None:
    """Move entries that were delivered too often."""
    description = f"Message could not be consumed after {state.options.max_delivery_count} delivery attempts."
    step.notes.append((DEAD_LETTER, kind, entries, None))
    dead_letter(state, kind, entries, with_reason(MAX_DELIVERIES_REASON, description), step)


def dead_letter_pending(state: PartitionState, kind: int, entries: Iterable[Entry], step: Step) -> None:
    """Move those of these pending dead letters whose bodies are loaded; the machine loads the other bodies."""
    subqueue = state.subqueues[kind]
    pending_dead_letters = subqueue.pending_dead_letters
    whole = [entry for entry in entries if entry.data is not None]
    for entry in whole:
        del pending_dead_letters[entry.pos]
        if entry.session is not None and state.sessions is not None:
            state.sessions.note_changed(entry.session)
            if subqueue.range_scan is not None:
                subqueue.released.add(entry.session)
    dead_letter_exceeded(state, kind, whole, step)
    if pending_dead_letters:
        step.change(subqueue)


def is_expired(kind: int, entry: Entry, now_ms: int) -> bool:
    """Tell whether an entry's time to live is over. Entries in a dead-letter sub-queue have none."""
    return kind == SubqueueKind.ACTIVE and entry.due_ms is not None and entry.due_ms <= now_ms


def expire(state: PartitionState, kind: int, entries: list[Entry], step: Step) -> None:
    """Drop entries whose time is over, or dead-letter them where the entity says so."""
    state.tally.expired += len(entries)
    step.notes.append((EXPIRE, kind, entries, None))
    if state.options.dead_letter_on_expiration:
        reason = with_reason(EXPIRED_REASON, "The message expired and was dead lettered.")
        step.notes.append((DEAD_LETTER, kind, entries, None))
        dead_letter(state, kind, entries, reason, step)
    else:
        state.remove(kind, entries, Disposition.EXPIRED, step)


def with_reason(reason: str, description: str) -> dict[str, object]:
    """Return the application properties that give the reason of a dead letter."""
    return {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}


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
    exceeded: list[Entry] = []
    raised = counted and counts_deliveries(kind)
    at_receive = state.options.dead_letter_at_receive
    for entry in entries:
        entry.delivery_count += raised
        if not at_receive and exceeds_max_deliveries(state, kind, entry):
            subqueue.pending_dead_letters[entry.pos] = entry
            exceeded.append(entry)
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
    if exceeded:
        dead_letter_pending(state, kind, exceeded, step)
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
