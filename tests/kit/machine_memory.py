"""Invariants of a partition's memory and rows, beside the reference model."""

from partibus.message import is_durable
from partibus.partition.core.deadlines import DeadlineHeap
from partibus.partition.core.machine import Partition
from partibus.partition.core.ready_list import ENTRY_BYTES, ReadyList
from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import POSITION_MAX, Entry, SubqueueKind, subqueue_key
from partibus.partition.protocol.ports import EntryState, Store
from tests.kit.cursor_model import CursorModel, Shown, unpack
from tests.kit.invariants import (
    i01_everything_is_accounted_for,
    i03_sections_are_untouched,
    i22_express_is_lost_only_young,
)
from tests.kit.model import (
    DEFERRED,
    DELAYED,
    LOCKED,
    PENDING_DEAD_LETTER,
    READY,
    RESERVED,
    SCHEDULED,
    Item,
    Model,
)

STALE_MAX = 64
"""Rows of a heap beside twice the deadlines."""
KINDS = (SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER)


def check_memory(machine: Partition, model: Model) -> None:
    """Check the invariants that hold after every step."""
    for kind in KINDS:
        subqueue = machine.state.subqueues[kind]
        queue = model.queues[kind]
        assert subqueue.messages == len(queue), f"{subqueue.messages} messages, the model has {len(queue)}"
        assert subqueue.size_bytes == sum(len(item.data) for item in queue)
        ready_lists = _ready_lists(machine, kind)
        pending_dead_letters = list(subqueue.pending_dead_letters.values())
        known: set[int] = {entry.pos for entry in pending_dead_letters}
        assert known <= {item.pos for item in queue if item.state == PENDING_DEAD_LETTER}
        for ready_list in ready_lists:
            known |= _check_ready_list(ready_list, machine, queue, pending_dead_letters)
        for state in (LOCKED, RESERVED):
            mine = sorted(entry.sequence for ready_list in ready_lists for entry in _held(ready_list, state))
            assert mine == sorted(item.sequence for item in model.held(kind, state)), state
    sessions = machine.state.sessions
    if sessions is not None:
        held = {session.lock_id: session.name for session in sessions.held.values() if session.asked is None}
        assert held == {lock_id: lock.session for lock_id, lock in model.sessions.items()}
        _check_deadlines(sessions._deadlines, len(sessions.held))
    assert machine.state.session_state_bytes == sum(len(state) for state, _ in model.states.values())


def _check_deadlines(heap: DeadlineHeap, keys: int) -> None:
    """A heap keeps no rows of what has ended, but for a bounded part."""
    assert len(heap) <= 2 * keys + STALE_MAX, f"a heap of deadlines has {len(heap)} rows for {keys} keys"


def check_windows(machine: Partition) -> None:
    """Check the sizes of windows after each lane was looked at."""
    counted = machine.memory_bytes  # which takes off what has ended
    windows = sum(
        ready_list.ready.size_bytes
        + ready_list.tail_bytes
        + ENTRY_BYTES * (len(ready_list.ready) + len(ready_list.tail))
        for ready_list in machine.state.ready_lists
    )
    assert machine.state.window_bytes == windows, f"{machine.state.window_bytes} of {counted} counted, not {windows}"


def check_unwritten(machine: Partition, now_ms: int, partition_row: int) -> None:
    """Check that messages in memory only are young, were not forced, and are counted (D18)."""
    state, express = machine.state, machine.state.express
    if express is None:
        return
    unwritten = list(express.unwritten.values())
    for entry in unwritten:
        assert entry.data is not None, "memory alone has it, and has let it go"
        # Until the next tick, which is due.
        age_ms = now_ms - entry.enqueued_ms if express.write_ms is None or express.write_ms > now_ms else 0
        i22_express_is_lost_only_young(
            f"at {entry.pos} of partition {partition_row}",
            age_ms,
            express.bound_ms * 5 // 6,
            forced=is_durable(entry.data),
        )
    assert [entry.pos for entry in unwritten] == sorted(express.unwritten)
    assert express.size_bytes == sum(entry.size_bytes for entry in unwritten) == state.pool.size_bytes
    assert len(unwritten) == state.pool.messages
    assert state.subqueues[SubqueueKind.ACTIVE].cursors is None or not unwritten, "a cursor does not find it"
    locks = {batch.lock_id for batch in state.subqueues[SubqueueKind.ACTIVE].locks}
    assert express.locks <= locks, "locks that are over are remembered"


def _check_ready_list(
    ready_list: ReadyList, machine: Partition, queue: list[Item], pending_dead_letters: list[Entry]
) -> set[int]:
    """A lane knows everything that waits in it, or has it before itself; the positions that it knows."""
    for table in (ready_list.locks, ready_list.reservations):
        _check_deadlines(table.deadlines, len([*table]))
    limits = machine.state.options.limits
    ready = ready_list.ready.positions()
    assert len(ready) == len(ready_list.ready), "a message is ready twice"
    entries = [*ready_list.tail, *_held(ready_list, LOCKED), *_held(ready_list, RESERVED)]
    known = [*ready, *(entry.pos for entry in entries)]
    assert len(known) == len(set(known)), "a message is in two places"
    unheld_sessions = (
        machine.state.sessions is not None and ready_list.kind == SubqueueKind.ACTIVE and ready_list.session is None
    )
    mine = [item for item in queue if ready_list.session is None or item.session == ready_list.session]
    assert set(known) <= {item.pos for item in mine}, "memory holds what does not exist"
    if not unheld_sessions:
        waiting = {item.pos for item in mine if item.state in (READY, PENDING_DEAD_LETTER)}
        unknown = waiting.difference(known, (entry.pos for entry in pending_dead_letters))
        gap = range(ready_list.paged_up_to, ready_list.tail_from)
        assert all(pos in gap for pos in unknown), f"{unknown} are neither in memory nor to be paged in ({gap})"
    size_bytes = sum(len(item.data) for item in mine if item.pos in ready)
    bodyless = ready_list.ready.bodyless(len(ready))
    assert ready_list.ready.size_bytes == size_bytes - sum(entry.size_bytes for entry in bodyless)
    assert ready_list.tail_bytes == sum(entry.size_bytes for entry in ready_list.tail)
    most = limits.window_entries if ready_list.session is None else limits.session_window_entries
    assert len(ready_list.tail) <= most
    for line in (ready_list.ready.in_order or (), ready_list.tail):
        assert all(a.pos < b.pos for a, b in zip(line, list(line)[1:], strict=False))
    return set(known)


def _ready_lists(machine: Partition, kind: int) -> list[ReadyList]:
    sessions = machine.state.sessions
    ready_lists: list[ReadyList] = [machine.state.subqueues[kind]]
    if sessions is not None and kind == SubqueueKind.ACTIVE:
        ready_lists += [held.ready_list for held in sessions.held.values()]
    return ready_lists


def _held(ready_list: ReadyList, state: str) -> list[Entry]:
    table = ready_list.locks if state == LOCKED else ready_list.reservations
    return [entry for batch in table for entry in batch.entries.values()]


def check_rows(store: Store, partition_row: int, machine: Partition, model: Model) -> None:
    """All is committed: the store holds what the model has, no more, no less."""
    snapshot = store.read(q.Partition(partition_row))
    if snapshot is None:
        assert not any(model.queues.values())
        return
    present: list[int] = []
    for kind in KINDS:
        rows = store.read(q.Browse(subqueue_key(partition_row, kind), 0, POSITION_MAX, 1 << 40, 1 << 40))
        items = {item.pos: item for item in model.queues[kind]}
        assert {row.pos for row in rows} == items.keys()
        for row in rows:
            item = items[row.pos]
            i03_sections_are_untouched(item.name, item.sent, row.data, item.changes)
            session = item.session if model.options.requires_session else None
            due_ms = item.due_ms if item.due_ms is not None else item.expires_ms
            assert row[2:8] == (
                item.sequence, item.enqueued_ms, _row_state(item), item.delivery_count, session, due_ms,
            )  # fmt: skip
        present += [item.name for item in items.values()]
        _check_cursor_rows(store, subqueue_key(partition_row, kind), model.cursors[kind], items)
    i01_everything_is_accounted_for(model.accepted, model.dispositions, present)
    for session in {item.session for item in model.queues[SubqueueKind.ACTIVE] if item.session} | model.states.keys():
        assert store.read(q.SessionState(partition_row, session)) == model.state_of(session)
    again = Partition(partition_row, model.options, snapshot)
    for kind in KINDS:
        assert _locks(again.state.subqueues[kind]) == {
            (item.hold, item.pos): item.until_ms for item in model.held(kind, LOCKED) if item.hold not in model.sessions
        }
        model.cursors[kind].check_memory(again.state.subqueues[kind].cursors)
    assert list(again.counts()) == list(machine.counts())
    assert again.state.session_state_bytes == machine.state.session_state_bytes


def _check_cursor_rows(store: Store, subqueue: int, cursors: CursorModel, items: dict[int, Item]) -> None:
    shown: list[Shown] = []
    at = 0
    while at < POSITION_MAX:
        frame = store.read(q.Range(subqueue, at, POSITION_MAX, 1 << 40, 1 << 40, finished=True))
        shown += unpack(frame.count, frame.data)
        at = frame.next_pos
    finished = {one.pos: (one.sequence, one.data) for one in shown if one.is_finished}
    cursors.check_at_rest(finished, store.read(q.Dispositions(subqueue, 0, 1 << 40)))
    present = {one.pos: (one.sequence, one.data) for one in shown if not one.is_finished}
    assert present == {pos: (i.sequence, i.data) for pos, i in items.items() if i.state != SCHEDULED}


def _row_state(item: Item) -> EntryState:
    if item.state in (SCHEDULED, DELAYED):
        return EntryState.SCHEDULED if item.state == SCHEDULED else EntryState.DELAYED
    return EntryState.DEFERRED if item.state == DEFERRED or item.deferred else EntryState.ACTIVE


def _locks(ready_list: ReadyList) -> dict[tuple[int, int], int]:
    return {
        (batch.lock_id, pos): until_ms
        for batch in ready_list.locks
        for until_ms, positions in batch.parts()
        for pos in positions
    }
