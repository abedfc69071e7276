"""Messages of a topic on their way to its subscriptions (D17).

The topic's partition gives numbers, drops duplicates, keeps scheduled messages, and stores each message once. A
subscription's partition has an entry that names the body. The fan-out comes with the command, as a `Plan`. A message
without subscribers is accepted and not stored.

A body that belongs to one subscription is deleted with its entry, by range. The body of several copies, and of a
scheduled message, is marked as shared, and is deleted with the last entry that names it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from partibus.message import Message, as_scheduled, with_application_properties
from partibus.partition.core.dead_letter import with_reason
from partibus.partition.core.events import Enqueued, NumbersTaken, Published, Rewritten
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.write_behind import express_of
from partibus.partition.protocol.commands import Arrive, Enqueue
from partibus.partition.protocol.fan_out import Plan, Planned, Unfiltered
from partibus.partition.protocol.keys import REWRITTEN_BODY, SHARED_BODY, Entry, SubqueueKind, body_key
from partibus.partition.protocol.load_requests import PublishRest
from partibus.partition.protocol.notes import DEAD_LETTER, SEND
from partibus.partition.protocol.ports import EntryState

PUBLISH_WORK_MAX: Final = 100_000
"""The work of one step, in units of a tenth of a microsecond: 10 ms. The rest of a publish follows in further steps."""
NO_SESSION_REASON = "Session ID is null."
NO_SESSION_DESCRIPTION = "Session enabled entity doesn't allow a message whose session identifier is null."


# At the topic -------------------------------------------------------------------------------------------------------


def publish(
    state: PartitionState,
    command: Enqueue,
    messages: Sequence[Message | None],
    first: int,
    now_ms: int,
    step: Step,
) -> None:
    """Store the messages that a subscription gets, and scheduled ones.

    ``messages`` are the last ones of the command, with None in place of duplicates. ``first`` is the sequence counter
    of the first of them.
    """
    assert command.planned is not None, "planned when the command came in"
    assert state.subscriptions is not None, "a topic's"
    there = state.subscriptions.sizes
    dropped = len(command.messages) - len(messages)
    scheduled = dict(enumerate(messages, dropped))
    shares: deque[tuple[Planned, dict[int, int]]] = deque()
    base = state.body_base - dropped + first
    for planned in command.planned:
        new = {
            id(message): base + index
            for index, message in zip(planned.indexes, planned.messages, strict=True)
            if scheduled.pop(index, None) is not None
        }
        if new:
            shares.append((planned, new))
    entries = [
        Entry(
            first + at, base + index | SHARED_BODY, first + at, now_ms, 0, message.session_id, message.scheduled_ms,
            len(message.data), as_scheduled(message.data), EntryState.SCHEDULED,
        )
        for index, message in scheduled.items()
        if message is not None
        for at in (index - dropped,)
    ]  # fmt: skip
    if entries:
        schedule(state, entries, step)
    elif step.at_once:
        express_of(state, state.options.express_ms)  # for the numbers
    elif not any(row in there for planned, _ in shares for row in planned.plan.shares):
        step.events.append(NumbersTaken())
    share_some(state, PublishRest(command.request, shares, at_once=step.at_once), step)


def publish_due(
    state: PartitionState, entries: list[Entry], planned: list[Planned] | None, now_ms: int, step: Step
) -> None:
    """Publish due scheduled entries, read with their bodies; a body stays if a subscription gets it."""
    if not entries:
        return
    assert planned is not None, "planned when the rows came"
    state.activated_ms = now_ms
    shares = deque(
        (part, {id(message): entries[index].body for index, message in zip(part.indexes, part.messages, strict=True)})
        for part in planned
    )
    share_some(state, PublishRest(0, shares, are_stored=True), step)
    state.remove(SubqueueKind.ACTIVE, entries, None, step)


def schedule(state: PartitionState, entries: list[Entry], step: Step) -> None:
    """Store entries that wait for their time; they are in the store only."""
    subqueue = state.subqueues[SubqueueKind.ACTIVE]
    subqueue.messages += len(entries)
    subqueue.size_bytes += sum([entry.size_bytes for entry in entries])
    for entry in entries:
        assert entry.due_ms is not None, "scheduled"
        subqueue.note_due(EntryState.SCHEDULED, entry.due_ms)
    step.events.append(Enqueued(entries))


def share_some(state: PartitionState, rest: PublishRest, step: Step) -> None:
    """Give a bounded part to the subscriptions, and note the rest in the step."""
    if step.rest is not None:  # an earlier part of a transaction has used up the step
        step.rest.shares.extend(rest.shares)
        return
    bodies: list[int | bytes] = []
    work = 0
    while rest.shares and work < PUBLISH_WORK_MAX:
        planned, keys = rest.shares.popleft()
        work += planned.plan.work
        _share(state, planned.plan, keys, bodies, step, are_stored=rest.are_stored)
    if bodies:
        # A partition without room must still publish due messages: a refusal would fail the store again and again.
        step.events.append(Published(bodies, are_new=not rest.are_stored))
    step.rest = rest if rest.shares else None
    state.publishing = bool(rest.shares)


def _share(
    state: PartitionState,
    plan: Plan,
    keys: dict[int, int],
    bodies: list[int | bytes],
    step: Step,
    *,
    are_stored: bool = False,
) -> None:
    """Give planned messages to their subscriptions.

    ``keys`` are the body keys by message (`id`). ``bodies`` gets the bodies to store, and is new unless ``are_stored``.
    """
    assert state.subscriptions is not None, "a topic's"
    there = state.subscriptions.sizes
    shares = [(row, copies) for row, copies in plan.shares.items() if row in there]
    uses: dict[int, int] = {}
    for _, copies in shares:
        for message in copies:
            uses[id(message)] = uses.get(id(message), 0) + 1
    known = dict(keys) if are_stored else {}
    express_ms = state.options.express_ms if step.at_once else 0
    for row, copies in shares:
        arrive = step.arriving(row, state.options.default_ttl_ms, express_ms)
        arrive.messages += copies
        if express_ms:  # each subscription writes its own, if it has to
            arrive.bodies += [0] * len(copies)
            continue
        for message in copies:
            name = id(message)
            key = known.get(name)
            if key is None:
                key = keys.get(name) or body_key(state.row, REWRITTEN_BODY | state.take_number())
                if uses[name] > 1:
                    key |= SHARED_BODY
                known[name] = key
                bodies += (key, message.data)
            arrive.bodies.append(key)
    for failed in plan.unfiltered:
        if failed.row in there:
            step.arriving(failed.row, state.options.default_ttl_ms).unfiltered.append(failed)


# At a subscription --------------------------------------------------------------------------------------------------


def arrive(state: PartitionState, command: Arrive, now_ms: int, step: Step) -> None:
    """Put messages, whose bodies are stored with the same commit, at the end."""
    limits = [ttl for ttl in (command.ttl_max_ms, state.options.default_ttl_ms) if ttl is not None]
    ttl_max = min(limits, default=None)
    with_session = state.sessions is not None
    entries = []
    homeless: list[tuple[int, Message]] = []
    total = 0
    earliest_ms: int | None = None
    number = state.next_sequence
    own_body = state.body_base if command.express_ms else None
    for body, message in zip(command.bodies, command.messages, strict=True):
        session = None
        if with_session:
            session = message.session_id
            if session is None:
                homeless.append((body, message))
                continue
        ttl = message.ttl_ms
        if ttl_max is not None and (ttl is None or ttl > ttl_max):
            ttl = ttl_max
        due = None
        if ttl is not None:
            due = now_ms + ttl
            if earliest_ms is None or due < earliest_ms:
                earliest_ms = due
        size = len(message.data)
        if own_body is not None:
            body = own_body | number
        entries.append(Entry(number, body, number, now_ms, 0, session, due, size, message.data))
        number += 1
        total += size
    state.next_sequence = number
    state.tally.received += len(command.messages)
    step.notes.append((SEND, SubqueueKind.ACTIVE, entries, command.messages))
    if entries and command.express_ms and state.subqueues[SubqueueKind.ACTIVE].cursors is None:
        express_of(state, command.express_ms).hold(entries, total, earliest_ms, now_ms)
    elif entries:
        if earliest_ms is not None:
            state.subqueues[SubqueueKind.ACTIVE].note_due(EntryState.ACTIVE, earliest_ms)
        step.events.append(Enqueued(entries, with_bodies=bool(command.express_ms)))
    if entries:
        state.arrive(SubqueueKind.ACTIVE, entries, total, step)
    if homeless or command.unfiltered:
        _dead_letter(state, homeless, command.unfiltered, now_ms, step)


def _dead_letter(
    state: PartitionState,
    homeless: list[tuple[int, Message]],
    unfiltered: Sequence[Unfiltered],
    now_ms: int,
    step: Step,
) -> None:
    """Dead-letter messages without the session that the subscription needs, and those that a rule failed on.

    ``homeless``: the former, with the keys of their stored bodies.
    """
    if homeless:
        dead = [_dead(state, message, NO_SESSION_REASON, NO_SESSION_DESCRIPTION, now_ms) for _, message in homeless]
        step.events.append(Rewritten([(body, entry) for (body, _), entry in zip(homeless, dead, strict=True)]))
        _bury(state, dead, step)
    if unfiltered:
        dead = [_dead(state, item.message, item.reason, item.description, now_ms) for item in unfiltered]
        bodies = [column for entry in dead for column in (entry.body, entry.data or b"")]
        step.events.append(Published(bodies, are_new=False))
        _bury(state, dead, step)


def _dead(state: PartitionState, message: Message, reason: str, description: str, now_ms: int) -> Entry:
    """Return a dead letter with a body of the subscription's own."""
    sequence = state.next_sequence
    state.next_sequence += 1
    number = state.take_number()
    data = with_application_properties(message.data, with_reason(reason, description))
    session = message.session_id if state.sessions is not None else None
    body = body_key(state.row, REWRITTEN_BODY | number)
    return Entry(number, body, sequence, now_ms, 0, session, None, len(data), data)


def _bury(state: PartitionState, dead: list[Entry], step: Step) -> None:
    state.tally.dead_lettered += len(dead)
    step.notes.append((DEAD_LETTER, SubqueueKind.ACTIVE, dead, None))
    step.events.append(Enqueued(dead, SubqueueKind.DEAD_LETTER, with_bodies=False))
    state.arrive(SubqueueKind.DEAD_LETTER, dead, sum([entry.size_bytes for entry in dead]), step)
