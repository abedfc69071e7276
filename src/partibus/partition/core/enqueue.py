"""Messages in: numbered, screened for duplicates where the entity or a sink asks for it, put at the end."""

from collections.abc import Iterator, Sequence
from itertools import islice

from partibus.message import WIDE_ID, Message, as_scheduled
from partibus.partition.core.duplicates import DuplicateIds, Waiting, id_of, note_of, original_of
from partibus.partition.core.events import Enqueued, IdsRemembered, NumbersTaken
from partibus.partition.core.forwarding import new_ones, raise_refusals, take_transfers
from partibus.partition.core.publish import publish, schedule, share_some
from partibus.partition.core.sink import Sinks
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.write_behind import express_of, is_express
from partibus.partition.protocol.commands import (
    FORMER,
    HIGHER,
    LOWER,
    SAME,
    CheckIds,
    CommitSink,
    Enqueue,
    TakeNumbers,
    Transact,
)
from partibus.partition.protocol.keys import NUMBERS_FULL, Entry, SubqueueKind
from partibus.partition.protocol.load_requests import DuplicateLoad, DuplicateScan, PublishRest, SinkLoad
from partibus.partition.protocol.notes import FULL, SEND
from partibus.partition.protocol.ports import EntryState
from partibus.partition.protocol.replies import Accepted, Done, IdsKnown, Moved, Refused, ScreenFirst, Transacted

LOOKED_UP_MAX = 8_192
"""Ids that one load looks up."""


def enqueue(
    state: PartitionState, command: Enqueue, now_ms: int, step: Step, ids: Iterator[bytes | None] | None = None
) -> None:
    """Store messages, now or, for a sink, when it is known which of them are stored already.

    ``ids``: their ids, on an entity with duplicate detection.
    """
    if command.sink is not None and not sinks_of(state).lets_pass(command):
        _stand_in_line(state, command, now_ms, step)
        return
    refused: Moved | ScreenFirst | Refused | None = None
    if state.slots is not None:
        refused = elsewhere(state, command, now_ms)
    if ids is not None and (command.announced or state.slots is not None):
        wanted = list(islice(ids, len(command.messages)))
        ids = iter(wanted)
        unannounced = _unannounced(state, command, wanted, now_ms)
        if not isinstance(refused, Moved):
            refused = unannounced or refused
    refused = refused or over_quota(state, command)
    if isinstance(refused, Moved | ScreenFirst):
        step.replies.append(refused)
    elif refused is not None:
        step.refuse((SEND, SubqueueKind.ACTIVE, FULL, command.messages))
        step.replies.append(refused)
    else:
        step.at_once = bool(state.options.express_ms) and is_express(state, command, now_ms)
        reply_last(step, store(state, command, now_ms, step, ids))
    if command.sink is not None:
        sinks_of(state).passed()
        if state.duplicates is not None:  # else the line goes on by itself
            _advance(state, now_ms, step)


def reply_last(step: Step, reply: Accepted | Transacted) -> None:
    """Reply to a command with messages: now, or after the last part of a large publish."""
    if step.rest is None:
        step.replies.append(reply)
    else:
        step.rest.request, step.rest.reply = reply.request, reply


def publish_rest(state: PartitionState, rest: PublishRest, now_ms: int, step: Step) -> None:
    """Do another part of a large publish. Reply after the last one, and go on with the sinks that wait behind it."""
    step.at_once = rest.at_once
    share_some(state, rest, step)
    if step.rest is None:
        if rest.reply is not None:
            step.replies.append(rest.reply)
        if state.sinks is not None:
            _advance(state, now_ms, step)


def elsewhere(state: PartitionState, command: Enqueue, now_ms: int) -> Moved | ScreenFirst | None:
    """Return where messages go that are not for this partition, since slots have moved (ADR 0026)."""
    if state.slots is None:
        return None
    return state.slots.divert(command, now_ms, detects=state.duplicates is not None)


def _unannounced(
    state: PartitionState, command: Enqueue, ids: Sequence[bytes | None], now_ms: int
) -> ScreenFirst | None:
    """End the announcement of a command; refuse the command if it stores ids that needed one.

    A partition that was never part of a move needs none: the front end may know the whole entity as one partition.
    """
    if command.origin is not None or command.sink is not None:
        return None
    screened = set(command.screened or ())
    wide = [
        item
        for index, (message, item) in enumerate(zip(command.messages, ids, strict=True))
        if item is not None and index not in screened and (message.message_id or "").startswith(WIDE_ID)
    ]
    stands = _duplicates(state).intents.take(command.announced, wide, now_ms)
    return None if stands or not wide else ScreenFirst(command.request, {})


def over_quota(state: PartitionState, command: Enqueue) -> Refused | None:
    """Return the refusal of a send to a partition that is full (row P21), or that has few numbers left."""
    given_out = max(state.next_sequence, state.next_number)
    if given_out >= NUMBERS_FULL:
        return Refused(command.request, given_out, NUMBERS_FULL, numbers=True)
    limit = state.options.size_bytes_max
    if limit is not None and state.size_bytes >= limit:
        return Refused(command.request, state.size_bytes, limit)
    return None


def take_numbers(state: PartitionState, command: TakeNumbers, now_ms: int, step: Step) -> None:
    """Reserve sequence counters for messages that come later."""
    if state.next_sequence >= NUMBERS_FULL:
        step.replies.append(Refused(command.request, state.next_sequence, NUMBERS_FULL, numbers=True))
        return
    first = state.next_sequence
    state.next_sequence += command.count
    step.events.append(NumbersTaken())
    step.replies.append(Accepted(command.request, first))


def store(
    state: PartitionState, command: Enqueue, now_ms: int, step: Step, ids: Iterator[bytes | None] | None = None
) -> Accepted:
    """Give messages their sequence counters, and append them to the active sub-queue.

    Messages that are not due yet wait in the store. With ``step.at_once`` the store gets their rows later.
    """
    if command.via:
        if ids is not None:
            next(islice(ids, len(command.messages) - 1, None), None)
        return take_transfers(state, command, now_ms, step)
    messages: Sequence[Message | None] = command.messages
    known = 0
    if command.screened or command.origin is not None or command.sink is not None:
        messages, ids, known = _without_known(state, command, ids, step)
    first = command.first_sequence
    originals: dict[int, tuple[int, bytes]] = {}
    is_promised = first is not None
    if first is None:
        first = state.next_sequence
        state.next_sequence += len(messages)
    if state.duplicates is not None and ids is not None:
        messages, originals = _without_duplicates(state.duplicates, messages, ids, first, now_ms, step)
    if state.options.topic:
        state.tally.received += len(messages)
        step.notes.append((SEND, SubqueueKind.ACTIVE, range(first, first + len(messages)), messages))
        publish(state, command, messages, first, now_ms, step)
        return Accepted(command.request, first, known)
    entries, scheduled, due_ms = _entries_of(state, messages, first, now_ms, is_promised=is_promised)
    state.tally.received += len(entries) + len(scheduled)
    if state.fairness is not None and state.fairness.noisy:
        state.fairness.sent([entry.session for entry in entries])
    step.notes.append((SEND, SubqueueKind.ACTIVE, entries + scheduled if scheduled else entries, messages))
    if scheduled:
        schedule(state, scheduled, step)
    if entries:
        total = 0
        for entry in entries:
            total += entry.size_bytes
        if step.at_once:
            express_of(state, state.options.express_ms).hold(entries, total, due_ms, now_ms)
        else:
            if due_ms is not None:
                state.subqueues[SubqueueKind.ACTIVE].note_due(EntryState.ACTIVE, due_ms)
            step.events.append(Enqueued(entries))
        state.arrive(SubqueueKind.ACTIVE, entries, total, step)
    elif not scheduled:
        step.events.append(NumbersTaken())
    return Accepted(command.request, first, known, originals)


def _without_known(
    state: PartitionState, command: Enqueue, ids: Iterator[bytes | None] | None, step: Step
) -> tuple[Sequence[Message | None], Iterator[bytes | None] | None, int]:
    """Drop messages that are stored already, of a command that was screened, forwarded, or sent by a sink.

    Returns the messages with None in place of those, or without those that were forwarded before; their ``ids``; and
    the number of those.
    """
    messages: Sequence[Message | None]
    if command.screened or (command.origin is not None and state.slots is not None):
        messages, ids = _not_elsewhere(state, command, ids, step)
    elif command.origin is not None:
        messages = new_ones(state, command, ids, step)
        return messages, ids, len(command.messages) - len(messages)
    else:
        messages, ids = sinks_of(state).new_rows(command, ids, step)
    return messages, ids, messages.count(None)


def _entries_of(
    state: PartitionState, messages: Sequence[Message | None], first: int, now_ms: int, *, is_promised: bool
) -> tuple[list[Entry], list[Entry], int | None]:
    """Make the entries of messages, numbered from ``first`` on; None takes a number and gives no entry.

    Returns the active entries, the scheduled ones, and the earliest time at which an active one expires. With
    ``is_promised`` the sequence numbers were given out before, and other entries may have come since.
    """
    base = state.body_base
    default_ttl = state.options.default_ttl_ms
    with_session = state.sessions is not None or state.options.fair
    entries: list[Entry] = []
    scheduled: list[Entry] = []
    earliest_ms: int | None = None
    for sequence, message in enumerate(messages, first):
        if message is None:
            continue
        size = len(message.data)
        session = message.session_id if with_session else None
        since_ms = now_ms if message.enqueued_ms is None else message.enqueued_ms
        if message.scheduled_ms is not None and message.scheduled_ms > now_ms:
            scheduled.append(
                Entry(
                    sequence, base | sequence, sequence, since_ms, 0, session, message.scheduled_ms, size,
                    as_scheduled(message.data), EntryState.SCHEDULED,
                )
            )  # fmt: skip
            continue
        ttl = message.ttl_ms
        if default_ttl is not None and (ttl is None or ttl > default_ttl):
            ttl = default_ttl
        due = None
        if ttl is not None:
            due = since_ms + ttl
            if earliest_ms is None or due < earliest_ms:
                earliest_ms = due
        number = sequence
        if is_promised:  # an active entry's position has to be the last, whatever number was promised
            number = state.next_sequence
            state.next_sequence += 1
        entries.append(Entry(number, base | number, number, since_ms, 0, session, due, size, message.data))
    return entries, scheduled, earliest_ms


def _not_elsewhere(
    state: PartitionState, command: Enqueue, ids: Iterator[bytes | None] | None, step: Step
) -> tuple[Sequence[Message | None], Iterator[bytes | None] | None]:
    """Return the messages with None in place of known ones, and their ``ids``.

    Known are those that a former owner of their slots knows, or that were forwarded here before.
    """
    known = set(command.screened or ())
    if command.origin is not None and state.slots is not None:
        known.update(state.slots.forwarded_before(command, state.inbound_marks, step))
        if command.history is not None and len(known) < len(command.messages):
            raise_refusals(state, command.origin[0], command.history, step)
    messages = [None if index in known else message for index, message in enumerate(command.messages)]
    if ids is not None:
        taken = list(islice(ids, len(messages)))
        ids = iter([None if message is None else item for message, item in zip(messages, taken, strict=True)])
    return messages, ids


# Sinks --------------------------------------------------------------------------------------------------------------


def sinks_of(state: PartitionState) -> Sinks:
    """Return the sinks of the partition, made at their first use."""
    if state.sinks is None:
        state.sinks = Sinks({})
    return state.sinks


def commit_sink(state: PartitionState, command: CommitSink, now_ms: int, step: Step) -> None:
    """Commit a batch of a sink."""
    sinks_of(state).commit(command, step)
    step.replies.append(Done(command.request))


def sink_ids_found(
    state: PartitionState, load: SinkLoad, stored: set[bytes], count: int | None, now_ms: int, step: Step
) -> None:
    """Take the store's answer about ids of a sink."""
    sinks_of(state).found(load, stored, count)
    _advance(state, now_ms, step)


def _stand_in_line(state: PartitionState, command: Enqueue, now_ms: int, step: Step) -> None:
    sinks_of(state).wait(command)
    _advance(state, now_ms, step)


def _advance(state: PartitionState, now_ms: int, step: Step) -> None:
    """Carry out what may leave the line; on an entity with duplicate detection it goes on to that one's line."""
    sinks = sinks_of(state)
    while not state.publishing and (command := sinks.next(step)) is not None:
        if state.duplicates is not None:
            screen(state, command, now_ms, step)
        else:
            enqueue(state, command, now_ms, step)


# Duplicates ---------------------------------------------------------------------------------------------------------


def screen(state: PartitionState, command: Enqueue | Transact | CheckIds, now_ms: int, step: Step) -> None:
    """Have a command wait until it is known which of its messages are duplicates; see `next_screened`."""
    if isinstance(command, Enqueue) and command.sink is not None and not sinks_of(state).lets_pass(command):
        _stand_in_line(state, command, now_ms, step)
        return
    duplicates = _duplicates(state)
    sends = command.commands if isinstance(command, Transact) else [command]
    ids = [id_of(message) for send in sends if isinstance(send, Enqueue | CheckIds) for message in send.messages]
    duplicates.waiting.append(Waiting(command, ids))
    if not duplicates.is_known and not duplicates.scanning:
        duplicates.begin_scan(step, state.options.limits.scan_ids)


def check_ids(
    state: PartitionState, command: CheckIds, now_ms: int, step: Step, ids: Iterator[bytes | None] | None = None
) -> None:
    """Tell which messages were accepted here, for the partition to which their slots have moved."""
    known: set[int] = set()
    originals: dict[int, tuple[int, bytes]] = {}
    token = 0
    if ids is not None and state.duplicates is not None:
        wanted = list(ids)
        known.update(state.duplicates.known(wanted, now_ms))
        if command.asker != FORMER:
            new = [item for index, item in enumerate(wanted) if item is not None and index not in known]
            intents = state.duplicates.intents
            if command.asker == HIGHER and intents.park(command, new):
                return
            if command.asker == LOWER:
                intents.revoke(new)
            elif command.asker == SAME and new:
                token = state.epoch << 40 | state.next_reservation
                state.next_reservation += 1
                intents.announce(token, new, now_ms)
        notes = state.duplicates.originals
        for index in known:
            item = wanted[index]
            if item is not None and item in notes:
                originals[index] = original_of(notes[item])
    rules = state.slots
    sources: list[int] = []
    if rules is not None:
        if command.origin is not None:
            known.update(rules.forwarded(command.messages, command.origin, command.history, state.inbound_marks))
        sources = rules.older_sources([message.key for message in command.messages], now_ms)
        if command.asker != FORMER:
            sources = rules.others()
    step.replies.append(IdsKnown(command.request, sorted(known), sources, originals, token))


def next_screened(state: PartitionState, now_ms: int, step: Step) -> Waiting | None:
    """Take the next command of which everything is known. None: none waits, or the store has been asked."""
    duplicates = _duplicates(state)
    if duplicates.intents.parked:
        for released in duplicates.intents.released():
            screen(state, released, now_ms, step)
    if duplicates.loading:
        return None
    if not duplicates.waiting:
        duplicates.forget_answers()
        return None
    duplicates.drop_oldest()
    if duplicates.unknown(duplicates.waiting[0].ids, now_ms):
        unknown: dict[bytes, None] = {}
        for waiting in duplicates.waiting:
            unknown.update((item, None) for item in duplicates.unknown(waiting.ids, now_ms))
            if len(unknown) >= LOOKED_UP_MAX:
                break
        duplicates.loading = True
        step.loads.append(DuplicateLoad(duplicates.first_bucket(now_ms), list(unknown)))
        return None
    return duplicates.waiting.popleft()


def duplicates_found(state: PartitionState, load: DuplicateLoad, found: dict[bytes, tuple[int, bytes]]) -> None:
    """Take the store's answer about ids of duplicate detection."""
    duplicates = _duplicates(state)
    duplicates.loading = False
    if not duplicates.has_forgotten(load.first_bucket):  # else a purge came meanwhile, and the store is asked anew
        duplicates.take_answers(load.ids, found)


def duplicates_scanned(state: PartitionState, rows: list[tuple[int, bytes, int]], now_ms: int, step: Step) -> None:
    """Take ids from before the partition was loaded; the scan goes on until it has seen all."""
    duplicates = _duplicates(state)
    if duplicates.is_stale:
        duplicates.begin_scan(step, state.options.limits.scan_ids)
        return
    duplicates.take_scanned(rows, now_ms)
    if rows:
        bucket, last_id, _ = rows[-1]
        step.loads.append(DuplicateScan((bucket, last_id), state.options.limits.scan_ids))
    else:
        duplicates.end_scan(now_ms)


def _without_duplicates(
    duplicates: DuplicateIds,
    messages: Sequence[Message | None],
    ids: Iterator[bytes | None],
    first: int,
    now_ms: int,
    step: Step,
) -> tuple[Sequence[Message | None], dict[int, tuple[int, bytes]]]:
    """Remember the ids of messages, numbered from ``first`` on.

    Returns the messages with None in place of each that was accepted before, and the original of each of those that has
    a tag.
    """
    wanted = list(islice(ids, len(messages)))
    duplicate, accepted = duplicates.accept(wanted, now_ms)
    notes: list[bytes | None] | None = None
    if any(message is not None and message.tag for message in messages):
        notes = []
        for index, (message, item) in enumerate(zip(messages, wanted, strict=True)):
            if message is not None and item is not None and not duplicate[index]:
                note = note_of(first + index, message.tag) if message.tag else None
                notes.append(note)
                if note is not None:
                    duplicates.originals[item] = note
    if accepted:
        bucket = duplicates.bucket_for(len(accepted), now_ms)
        step.events.append(IdsRemembered(bucket, now_ms, accepted, notes))
    if len(accepted) == len(messages):  # the usual case
        return messages, {}
    originals = {
        index: original_of(duplicates.originals[item])
        for index, item in enumerate(wanted)
        if duplicate[index] and item in duplicates.originals
    }
    return [None if known else message for message, known in zip(messages, duplicate, strict=True)], originals


def _duplicates(state: PartitionState) -> DuplicateIds:
    assert state.duplicates is not None, "the entity detects duplicates"
    return state.duplicates
