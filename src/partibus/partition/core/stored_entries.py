"""Entries that a scan has read from the store, compared with memory: which of them wait, which are under lock."""

from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.ports import EntryState


def take_in_flight(state: PartitionState, subqueue: Subqueue, entries: list[Entry], step: Step) -> list[Entry]:
    """Take locked messages out of their locks: retention of SQS ends them, too. Those of a session's holder stay."""
    taken: list[Entry] = []
    rows = {entry.pos: entry for entry in entries}
    for pos, batch in subqueue.locks.holders(rows).items():
        entry = batch.entries[pos]
        state.unlock(subqueue, batch, [pos], step, still_covered=False)
        if entry.data is None and entry.body == rows[pos].body:
            entry.data = rows[pos].data  # memory has let it go
        taken.append(entry)
    return taken


def take_waiting(
    state: PartitionState, subqueue: Subqueue, entries: list[Entry], most: int | None = None
) -> list[Entry]:
    """Remove entries without a holder from their ready lists, the first ``most`` of each list."""
    taken: list[Entry] = []
    free: list[Entry] = []
    ready_lists: dict[ReadyList, list[Entry]] = {}
    for entry in entries:
        if entry.pos in subqueue.pending_dead_letters:
            continue
        if entry.session in subqueue.released:
            if entry.due_ms is not None:
                subqueue.note_due(EntryState.ACTIVE, entry.due_ms)
            continue
        ready_list = state.ready_list_of(subqueue.kind, entry.session)
        if ready_list is None:
            if state.sessions is None or not state.sessions.is_in_flight(entry.session, entry.pos):
                free.append(entry)
        else:
            ready_lists.setdefault(ready_list, []).append(entry)
    rows = {entry.pos: entry for entry in entries}
    for ready_list, of_ready_list in ready_lists.items():
        taken += ready_list.take_out(ready_list.waiting(of_ready_list)[: None if most is None else most - len(taken)])
    taken += free[: None if most is None else most - len(taken)]
    if state.sessions is not None:
        for entry in taken:
            state.sessions.note_changed(entry.session or "")
    stale: list[Entry] = []
    for entry in taken:
        if entry.data is None and entry.body == rows[entry.pos].body:
            entry.data = rows[entry.pos].data  # memory has let it go
        elif entry.data is None:
            stale.append(entry)
    for entry in stale:  # rewritten since the row was read
        taken.remove(entry)
        ready_list = state.ready_list_of(subqueue.kind, entry.session)
        assert ready_list is not None, "memory knew it"
        ready_list.ready.requeue(entry)
        if entry.due_ms is not None:
            subqueue.note_due(EntryState.ACTIVE, entry.due_ms)
    return taken


def is_waiting(state: PartitionState, subqueue: Subqueue, entry: Entry) -> bool:
    """Tell whether an entry that was read still waits, by what memory knows."""
    ready_list = state.ready_list_of(subqueue.kind, entry.session)
    return ready_list is None or bool(ready_list.waiting([entry]))
