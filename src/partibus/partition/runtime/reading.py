"""Loads, done: the only place that knows which call of a store answers which load."""

from typing import Any

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol.keys import SubqueueKind, subqueue_key
from partibus.partition.protocol.ports import EntryRow, EntryState, FateRow, Store

RANGE_ENTRIES_MAX = 16_384
"""Of one `ReadRange`: some 3 MB of small messages, which a reader decodes at once."""


def read(store: Store, row: int, load: w.Load) -> Any:
    """Do a load; blocks."""
    match load:
        case w.PageLoad():
            return store.load_page(
                subqueue_key(row, load.kind), load.from_pos, load.max_entries, load.max_bytes, load.session
            )
        case w.BodyLoad():
            return store.load_bodies(load.bodies)
        case w.SweepLoad():
            return _read_for_sweep(store, subqueue_key(row, load.kind), load)
        case w.DeferredLoad():
            return store.load_sequences(subqueue_key(row, load.command.kind), load.command.sequences)
        case w.ScheduledCount():
            return store.count_due(subqueue_key(row, SubqueueKind.ACTIVE), EntryState.SCHEDULED)
        case w.SessionScan():
            return store.scan_sessions(subqueue_key(row, SubqueueKind.ACTIVE), load.after, load.max_sessions)
        case w.SessionStateLoad():
            return store.load_session_state(row, load.session)
        case w.SessionResume():
            return store.load_sequences(subqueue_key(row, SubqueueKind.ACTIVE), load.sequences)
        case w.SessionListLoad():
            wanted = load.command
            return store.list_sessions(
                subqueue_key(row, SubqueueKind.ACTIVE), wanted.skip, wanted.top, wanted.updated_after_ms
            )
        case w.DuplicateLoad():
            return store.find_duplicates(row, load.first_bucket, load.ids)
        case w.DuplicateScan():
            return store.scan_duplicates(row, load.after, load.max_ids)
        case w.SinkLoad():
            count = store.count_sink_ids(row, load.sink, c.SINK_ENDS) if load.counts else None
            return store.find_sink_ids(row, load.sink, load.ids) if count != 0 else set(), count
        case w.SinkCount():
            return store.count_sink_ids(row, load.sink, load.batch)
        case w.PeekLoad():
            return store.peek(
                subqueue_key(row, load.kind), load.from_sequence, load.max_entries, load.max_bytes, load.session
            )
        case w.RangeLoad():
            asked = load.command
            return store.read_range(
                subqueue_key(row, load.kind), asked.from_pos, load.end_pos, RANGE_ENTRIES_MAX, asked.max_bytes,
                finished=asked.finished,
            )  # fmt: skip
        case w.FatesLoad():
            most = min(load.command.most, RANGE_ENTRIES_MAX)
            return store.load_fates(subqueue_key(row, load.command.kind), load.command.from_number, most)
        case w.ClearLoad():
            return _read_for_janitor(store, subqueue_key(row, load.kind), load)


def _read_for_sweep(store: Store, subqueue: int, load: w.SweepLoad) -> Any:
    sweep = load.sweep
    if isinstance(sweep, w.DueSweep):
        return store.load_due(subqueue, sweep.state, sweep.until_ms, load.max_entries, load.max_bytes)
    if isinstance(sweep, w.Consume):
        return store.scan(subqueue, sweep.from_pos, sweep.to_pos, load.max_entries)
    if isinstance(sweep, c.CancelScheduled):
        return store.load_sequences(subqueue, sweep.sequences)
    return store.load_page(subqueue, 0, load.max_entries, load.max_bytes, sweep.session)


def _read_for_janitor(
    store: Store, subqueue: int, load: w.ClearLoad
) -> tuple[list[tuple[EntryRow, int]], list[FateRow]]:
    rows = store.scan(subqueue, load.from_pos, load.to_pos, load.most) if load.from_pos < load.to_pos else []
    fates = [] if load.fates_from is None else store.load_fates(subqueue, load.fates_from, load.most)
    return rows, fates
