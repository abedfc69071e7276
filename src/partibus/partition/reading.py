"""Loads, done: the only place that knows which call of a store answers which load."""

from typing import Any

from partibus.partition import commands as c
from partibus.partition import load_requests as w
from partibus.partition.keys import SubqueueKind, subqueue_key
from partibus.partition.ports import EntryState, Store

BROWSE_ENTRIES_MAX = 10_000


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
            return store.find_sink_ids(row, load.sink, load.ids)
        case w.SinkCount():
            return store.count_sink_ids(row, load.sink, load.batch)
        case w.PeekLoad():
            return store.peek(
                subqueue_key(row, load.kind), load.from_sequence, load.max_entries, load.max_bytes, load.session
            )
        case w.BrowseLoad():
            return store.browse(
                subqueue_key(row, load.kind), load.from_pos, load.to_pos, BROWSE_ENTRIES_MAX, load.max_bytes
            )


def _read_for_sweep(store: Store, subqueue: int, load: w.SweepLoad) -> Any:
    sweep = load.sweep
    if isinstance(sweep, w.DueSweep):
        return store.load_due(subqueue, sweep.state, sweep.until_ms, load.max_entries, load.max_bytes)
    if isinstance(sweep, c.CancelScheduled):
        return store.load_sequences(subqueue, sweep.sequences)
    return store.load_page(subqueue, 0, load.max_entries, load.max_bytes, sweep.session)
