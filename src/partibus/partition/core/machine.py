"""The partition: a state machine. Commands in; events, replies and loads out. No IO, no clock, no randomness (D3).

The runtime calls `handle` with a command and the time. It adds the events to the store's next commit, releases the
replies once the state that they saw is durable (D11), and returns the result of each load as a `Loaded`.

A machine handles one command at a time and completely; memory has changed when `handle` returns. A table names the
module of each command. Ready lists that a command changed are then served and read ahead.
"""

from collections.abc import Callable, Iterable

from partibus.partition.core.cursor_commands import (
    advance_cursor,
    close_cursor,
    open_cursor,
    read_dispositions,
    read_range,
)
from partibus.partition.core.deferred import receive_deferred
from partibus.partition.core.enqueue import (
    check_ids,
    commit_sink,
    enqueue,
    next_screened,
    publish_rest,
    screen,
    take_numbers,
)
from partibus.partition.core.exclusive import end_leases, refuses
from partibus.partition.core.forwarding import forwarded, forwards_no_longer
from partibus.partition.core.grants import cancel_receive, grant_awaited, lock_reserved, receive, return_reserved, serve
from partibus.partition.core.groups import (
    cancel_receive_groups,
    look_after_group,
    receive_groups,
    serve_groups,
)
from partibus.partition.core.loaded import loaded
from partibus.partition.core.loads import inspect, peek, read_ahead
from partibus.partition.core.locks import change_locks, renew_locks, tick
from partibus.partition.core.move_commands import (
    ask_groups,
    await_held,
    finish_slots,
    give_slots,
    open_groups,
    scan_slots,
    set_states,
    take_slots,
)
from partibus.partition.core.publish import arrive
from partibus.partition.core.range_scans import cancel_scheduled, delay_scheduled, purge, purge_all
from partibus.partition.core.residency import Cold
from partibus.partition.core.session_locks import (
    accept_session,
    cancel_accept,
    close_group,
    get_session_state,
    list_sessions,
    look_after_probe,
    offer,
    release_session,
    renew_session,
    set_session_state,
)
from partibus.partition.core.settlement import settle, transact
from partibus.partition.core.slot_moves import tell_held
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import NEVER
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Snapshot

_HANDLERS: dict[type, Callable[..., None]] = {
    c.Enqueue: enqueue,
    c.Arrive: arrive,
    c.TakeNumbers: take_numbers,
    c.CancelScheduled: cancel_scheduled,
    c.Receive: receive,
    c.CancelReceive: cancel_receive,
    c.LockReserved: lock_reserved,
    c.ReturnReserved: return_reserved,
    c.Forwarded: forwarded,
    c.Settle: settle,
    c.RenewLocks: renew_locks,
    c.ChangeLocks: change_locks,
    c.ReceiveGroups: receive_groups,
    c.CancelReceiveGroups: cancel_receive_groups,
    c.PurgeAll: purge_all,
    c.DelayScheduled: delay_scheduled,
    c.ReceiveDeferred: receive_deferred,
    c.Purge: purge,
    c.AcceptSession: accept_session,
    c.CancelAccept: cancel_accept,
    c.RenewSession: renew_session,
    c.ReleaseSession: release_session,
    c.GetSessionState: get_session_state,
    c.SetSessionState: set_session_state,
    c.ListSessions: list_sessions,
    c.Transact: transact,
    c.Peek: peek,
    c.ReadRange: read_range,
    c.ReadDispositions: read_dispositions,
    c.OpenCursor: open_cursor,
    c.AdvanceCursor: advance_cursor,
    c.CloseCursor: close_cursor,
    c.CommitSink: commit_sink,
    c.TakeSlots: take_slots,
    c.GiveSlots: give_slots,
    c.FinishSlots: finish_slots,
    c.AwaitHeld: await_held,
    c.AskGroups: ask_groups,
    c.OpenGroups: open_groups,
    c.SetStates: set_states,
    c.ScanSlots: scan_slots,
    c.CheckIds: check_ids,
    c.Inspect: inspect,
    c.Tick: tick,
    w.Loaded: loaded,
    w.PublishRest: publish_rest,
}


MACHINE_BYTES = 8_000
"""Memory of an empty partition in use, with the runtime's objects for it."""
MARK_BYTES = 130
"""Memory of a mark, with its share of a dictionary of 175,000. A mark stays as long as its partition."""


class Partition:
    """One partition of one entity with its sub-queues."""

    __slots__ = ("state",)

    def __init__(
        self,
        row: int,
        options: PartitionOptions,
        snapshot: Snapshot | None = None,
        epoch: int = 0,
        cold: Cold | None = None,
    ) -> None:
        """Make a partition from its snapshot.

        ``epoch``: of the store's owner; rises each time that the store is opened. ``cold``: the result of `go_cold`, if
        this owner had the partition in use before.
        """
        self.state = PartitionState(row, options, snapshot, epoch, cold)

    def handle(self, command: w.Input, now_ms: int) -> Step:
        """Apply one command at one moment."""
        step = Step(now_ms)
        state = self.state
        sessions = state.sessions
        if state.fairness is not None:
            state.fairness.look(now_ms)
        if state.closed:
            end_leases(state, now_ms, step)
        if state.closed and refuses(state, command, step):
            pass
        elif state.duplicates is None:
            _HANDLERS[type(command)](state, command, now_ms, step)
        else:
            self._screen(command, now_ms, step)
        if step.awaited:
            grant_awaited(state, now_ms, step)
        while True:
            while step.changed:
                ready_lists, step.changed = step.changed, {}
                for ready_list in ready_lists:
                    if sessions is not None and (session := sessions.by_lock.get(ready_list.holder)) is not None:
                        if session.asked is not None:
                            look_after_probe(state, session, session.asked, now_ms, step)
                        elif session.is_group:
                            look_after_group(state, session)
                    if ready_list.demands:
                        serve(state, ready_list, now_ms, step)
                    if ready_list.session is not None and not ready_list.weighed and ready_list.is_drained:
                        continue  # a session whose receiver waits: there is nothing to read or to weigh
                    read_ahead(state, ready_list, step)
                    state.weigh(ready_list)
            if sessions is None or state.closed & 1:
                break
            if sessions.groups is not None:
                serve_groups(state, now_ms, step)
            if not step.changed and not (sessions.waiting and offer(state, step)):
                break
        if state.slots is not None:
            tell_held(state.slots, step)
        return step

    def _screen(self, command: w.Input, now_ms: int, step: Step) -> None:
        """Handle a command of an entity with duplicate detection."""
        if type(command) is c.Enqueue or type(command) is c.Transact or type(command) is c.CheckIds:
            screen(self.state, command, now_ms, step)
        else:
            _HANDLERS[type(command)](self.state, command, now_ms, step)
        while not self.state.publishing and (screened := next_screened(self.state, now_ms, step)) is not None:
            _HANDLERS[type(screened.command)](self.state, screened.command, now_ms, step, iter(screened.ids))

    def follow(self, options: PartitionOptions) -> None:
        """Apply an update of the entity."""
        forwards_no_longer(self.state, self.state.options.forwards & ~options.forwards)
        self.state.options = options
        if self.state.fairness is not None:
            self.state.fairness.turn(on=options.fair and not (options.forwards & 1 or options.express_ms))
        if self.state.duplicates is not None and options.duplicate_window_ms is not None:
            self.state.duplicates.change_window(options.duplicate_window_ms)

    # -- memory ------------------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """The memory of the partition, without entries under lock."""
        state = self.state
        size_bytes = MACHINE_BYTES + state.window_bytes + MARK_BYTES * len(state.inbound_marks)
        if state.duplicates is not None:
            size_bytes += state.duplicates.memory_bytes
        if (sessions := state.sessions) is not None:
            if sessions.ended_bytes:
                state.window_bytes -= sessions.ended_bytes
                size_bytes -= sessions.ended_bytes
                sessions.ended_bytes = 0
            size_bytes += sessions.memory_bytes
        if state.sinks is not None:
            size_bytes += state.sinks.memory_bytes
        return size_bytes

    @property
    def may_go_cold(self) -> bool:
        """Whether the store will have all of the state once the pending rows are durable.

        The runtime knows whether other work is under way.
        """
        state = self.state
        if state.closed or state.options.forwards or _has_unwritten(state):
            return False
        others = (state.sessions, state.duplicates, state.sinks)
        return all(subqueue.is_idle for subqueue in state.subqueues.values()) and all(
            other is None or other.is_idle for other in others
        )

    def go_cold(self) -> Cold:
        """Return the state that the next machine needs beside the store; this one must not be used again."""
        state = self.state
        trim_ms = None if state.duplicates is None else state.duplicates.trim_ms
        return Cold(self.counters[1], state.next_reservation, state.activated_ms, trim_ms)

    def drop_windows(self) -> None:
        """Drop all windows, while no load is under way. Entries that only memory has stay."""
        state = self.state
        if state.sessions is not None:
            for session in [session for session in state.sessions.held.values() if session.is_group]:
                close_group(state, session)
        stays = _has_unwritten(state) or any(subqueue.pending_dead_letters for subqueue in state.subqueues.values())
        for ready_list in state.ready_lists:
            if not stays and not state.closed >> ready_list.kind & 1:
                ready_list.drop_window()
            state.weigh(ready_list)

    def next_deadline_ms(self) -> int | None:
        """Return when a `Tick` has work.

        That is the earliest end of a lock, reservation or session, or the earliest due time in the store.
        """
        state = self.state
        earliest = NEVER
        for subqueue in state.subqueues.values():
            for table in (subqueue.locks, subqueue.reservations):
                if table.batches and (deadline := table.deadlines.earliest_ms()) is not None and deadline < earliest:
                    earliest = deadline
            if subqueue.cursors is not None and (deadline := subqueue.cursors.next_deadline_ms()) is not None:
                earliest = min(earliest, deadline)
            if subqueue.next_due:
                earliest = min(earliest, *subqueue.next_due.values())
        for others in (state.sessions, state.duplicates, state.sinks):
            deadline = None if others is None else others.next_deadline_ms()
            if deadline is not None and deadline < earliest:
                earliest = deadline
        if state.express is not None and state.express.write_ms is not None:
            earliest = min(earliest, state.express.write_ms)
        return None if earliest == NEVER else earliest

    @property
    def catching_up(self) -> bool:
        """Whether due entries are not handled yet: a scan of the store is under way."""
        return any(subqueue.catching_up for subqueue in self.state.subqueues.values())

    @property
    def counters(self) -> tuple[int, int, int]:
        """(next sequence, next number, bytes of session states): goes into each commit beside the events."""
        state = self.state
        if state.express is None:
            return state.next_sequence, state.next_number, state.session_state_bytes
        return (*state.express.counters(state.next_sequence, state.next_number), state.session_state_bytes)

    def counts(self) -> Iterable[tuple[int, int, int]]:
        """Return (sub-queue key, messages, bytes) of every sub-queue as the store has it, for each commit, too."""
        express, first = self.state.express, self.state.subqueue_base
        counts: list[tuple[int, int, int]] = []
        for kind, subqueue in self.state.subqueues.items():
            messages, size_bytes = subqueue.messages, subqueue.size_bytes
            if express is not None and kind == SubqueueKind.ACTIVE:
                messages -= len(express.unwritten)
                size_bytes -= express.size_bytes
            counts.append((first | kind, messages, size_bytes))
        return counts


def _has_unwritten(state: PartitionState) -> bool:
    return state.express is not None and bool(state.express.unwritten or state.express.locks)
