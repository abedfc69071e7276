"""Delayed writes of a partition with express messages (D18): no rows until a message is old or the store needs it.

The events of each step are filtered. Events about unwritten messages are removed: locks, abandons, completions of
messages that the store never had. An event that moves or defers such a message writes it in its new state. Entries that
a load has to find are written before, in the same step; the load then waits for them (`partition.runtime.slot`). So for
the rest of the machine the store has all entries.
"""

from collections.abc import Container, Iterator, Mapping

from partibus.message import is_durable
from partibus.partition.core.events import (
    Enqueued,
    Event,
    LockChanged,
    Locked,
    Moved,
    NumbersTaken,
    Removed,
    Rewritten,
    Unlocked,
    Updated,
    Written,
)
from partibus.partition.core.express import Express
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import Enqueue, Purge
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.load_requests import (
    Load,
    LostTokens,
    PageLoad,
    PeekLoad,
    PurgeSlice,
    RangeLoad,
    RangeScanLoad,
    SessionListLoad,
    SessionResume,
    SessionScan,
)
from partibus.partition.protocol.ports import EntryState

_ACTIVE = int(SubqueueKind.ACTIVE)


def is_express(state: PartitionState, command: Enqueue, now_ms: int) -> bool:
    """Tell whether messages are acknowledged from memory, all of a command or none.

    Some messages go the durable way: forced and scheduled ones, and those that a forwarder or a sink sends, because
    these drop them once answered. So does every message where the store has to know what was there: with duplicate
    detection, and in a sub-queue that cursors read. And so does every message while the store can't keep the loss
    bound.
    """
    options = state.options
    return bool(
        options.express_ms
        and command.origin is None
        and command.sink is None
        and command.first_sequence is None
        and not command.via
        and state.duplicates is None
        and state.subqueues[_ACTIVE].cursors is None
        and not state.pool.lags(now_ms, options.express_ms)
        and not any(is_durable(message.data) or message.scheduled_ms is not None for message in command.messages)
    )


def express_of(state: PartitionState, bound_ms: int) -> Express:
    """Return the partition's own unwritten messages, made with its first express message."""
    express = state.express
    if express is None:
        express = state.express = Express(state.pool, bound_ms, state.subqueues[_ACTIVE].end_pos - 1)
    express.bound_ms = bound_ms
    return express


def hold_back(state: PartitionState, step: Step) -> None:
    """Remove the rows of messages that stay unwritten, and add those of messages to be written.

    The last call of a step.
    """
    express = state.express
    assert express is not None, "asked of no other"
    written: list[Entry] = []
    if step.events and (express.unwritten or express.locks):
        step.events = _filter(state, express, step.events, written)
    if express.unwritten:
        if state.subqueues[_ACTIVE].cursors is not None:
            written += express.let_go(list(express.unwritten.values()))
        elif express.is_over:
            written += express.make_room(step.now_ms)
        elif express.write_ms is not None and express.write_ms <= step.now_ms:
            written += express.take_old(step.now_ms)
        for load in step.loads:
            if express.unwritten:
                written += express.let_go(_needed(express, load))
    express.came = 0
    if written:
        write(state, express, written, step)
    reserved = express.reserve(state.next_sequence, state.next_number)
    if reserved is not None:
        step.reserves = reserved
        step.events.append(NumbersTaken() if reserved else Written([], []))


def write_all(state: PartitionState, now_ms: int) -> Step | None:
    """Write all that is unwritten: the store is about to be closed. None: nothing is."""
    express = state.express
    if express is None or not express.unwritten:
        return None
    step = Step(now_ms)
    write(state, express, express.let_go(list(express.unwritten.values())), step)
    return step


def write(state: PartitionState, express: Express, entries: list[Entry], step: Step) -> None:
    """Write released entries to the store as they are, with their locks."""
    subqueue = state.subqueues[_ACTIVE]
    for entry in entries:
        if entry.due_ms is not None and entry.state != EntryState.DEFERRED:
            subqueue.note_due(entry.state, entry.due_ms)
    locks = []
    if express.locks:
        positions = {entry.pos for entry in entries}
        for batch in subqueue.locks:
            if batch.lock_id in express.locks and not positions.isdisjoint(batch.entries):
                locks.append((batch.lock_id, batch.parts()))
                express.locks.discard(batch.lock_id)
    step.events.append(Written(entries, locks))
    last_pos, oldest_ms = max([entry.pos for entry in entries]), min([entry.enqueued_ms for entry in entries])
    express.stored_to = max(express.stored_to, last_pos)
    express.written_ms = oldest_ms if express.written_ms is None else min(oldest_ms, express.written_ms)


def _needed(express: Express, load: Load) -> list[Entry]:
    """Return the unwritten entries that a load might have to find."""
    every = express.unwritten.values()
    match load:
        case PageLoad(kind=SubqueueKind.ACTIVE):
            if load.session is not None:
                return [entry for entry in every if entry.session == load.session]
            return [entry for entry in every if load.from_pos <= entry.pos < load.end_pos]
        case RangeLoad(kind=SubqueueKind.ACTIVE):
            return [entry for entry in every if entry.pos < load.end_pos]
        case PeekLoad(kind=SubqueueKind.ACTIVE):
            return list(every)
        case RangeScanLoad(kind=SubqueueKind.ACTIVE, range_scan=Purge() | PurgeSlice() | LostTokens()):
            return list(every)
        case SessionScan() | SessionListLoad() | SessionResume():
            return list(every)
    return []  # other loads ask for entries that are always written: due, deferred, scheduled, dead


def _filter(state: PartitionState, express: Express, events: list[Event], written: list[Entry]) -> list[Event]:
    """Return the events that the store has to hear of. ``written`` gets the entries that it must have from now on."""
    unwritten = express.unwritten
    moved = {
        id(new)
        for event in events
        if type(event) is Moved and event.kind == _ACTIVE
        for old, new in event.pairs
        if unwritten.get(old.pos) is old
    }
    left: list[Event] = []
    for event in events:
        if type(event) is Rewritten:
            left += _rewritten(event, unwritten, moved)
        elif getattr(event, "kind", None) != _ACTIVE:
            left.append(event)
        elif type(event) is Removed:
            gone = express.let_go(event.entries)
            state.tally.never_written += len(gone)
            if len(gone) < len(event.entries):
                left.append(Removed(event.kind, _others(event.entries, gone), event.disposition))
        elif type(event) is Locked:
            if all(entry.pos in unwritten for entry in event.entries):
                express.locks.add(event.lock_id)
            else:
                left.append(event)
        elif type(event) is Unlocked:
            if event.lock_id in express.locks:
                express.locks.discard(event.lock_id)
            else:
                left.append(event)
        elif type(event) is LockChanged:
            if event.lock_id not in express.locks:
                left.append(event)
        elif type(event) is Updated:
            away = express.let_go([entry for entry in event.entries if entry.state != EntryState.ACTIVE])
            written += away  # the next reader asks the store
            updated = [entry for entry in _others(event.entries, away) if entry.pos not in unwritten]
            if updated:
                left.append(Updated(event.kind, updated))
        elif type(event) is Moved:
            left += _moved(event, express, moved)
        else:
            left.append(event)
    return left


def _rewritten(event: Rewritten, unwritten: Mapping[int, Entry], moved: Container[int]) -> Iterator[Event]:
    pairs = [
        (old_body, entry)
        for old_body, entry in event.pairs
        if unwritten.get(entry.pos) is not entry and id(entry) not in moved
    ]
    if pairs:
        yield Rewritten(pairs)


def _moved(event: Moved, express: Express, moved: Container[int]) -> Iterator[Event]:
    """Turn moves of unwritten entries into new entries; ``moved`` has the identities of these."""
    new = [new for _, new in event.pairs if id(new) in moved]
    if new:
        express.let_go([old for old, made in event.pairs if id(made) in moved])
        yield Enqueued(new, event.to_kind)
    others = [pair for pair in event.pairs if id(pair[1]) not in moved]
    if others:
        yield Moved(event.kind, event.to_kind, others, event.kept)


def _others(entries: list[Entry], some: list[Entry]) -> list[Entry]:
    if not some:
        return entries
    left_out = {entry.pos for entry in some}
    return [entry for entry in entries if entry.pos not in left_out]
