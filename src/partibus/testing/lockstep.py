"""A partition machine, its journal and a store, driven side by side with the reference model.

Every command goes to the machine; its events, replies and loads are brought to the model, which does the same or says
what was not allowed. A command takes effect in the model when the machine answers it, since it may have had to read.
Loads wait here until somebody runs them (what they read is then fixed) and answers them (in any order); rows wait until
somebody commits them. `crash` throws memory away and goes on from the store, the model from its copy at that commit.
"""

import pickle
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from partibus.message import Message, pack
from partibus.partition import commands as c
from partibus.partition import load_requests as w
from partibus.partition import replies as r
from partibus.partition.entry import Entry
from partibus.partition.events import Cleared, CursorSet, Enqueued, Event, FatesLogged, Kept, Moved, Removed, Updated
from partibus.partition.exclusive import PAUSE_MS
from partibus.partition.express import Pool, Room
from partibus.partition.journal import record
from partibus.partition.keys import SubqueueKind
from partibus.partition.machine import Partition
from partibus.partition.options import PartitionOptions
from partibus.partition.ports import FATE_COLUMNS, EntryRow, EntryState, Fate, FateRow, Store, Writes
from partibus.partition.reading import read
from partibus.partition.slot import Slot
from partibus.partition.write_behind import hold_back, write_all
from partibus.testing.cursor_lockstep import KINDS, CursorLockstep, check_fates, chosen
from partibus.testing.cursor_model import CursorState
from partibus.testing.invariants import body_of, i08_no_lock_ends_early, i16_state_is_the_last_written
from partibus.testing.machine_memory import check_memory, check_rows, check_unwritten
from partibus.testing.model import DELAYED, DOOMED, LOCKED, READY, RESERVED, SCHEDULED, Item, Model

T = TypeVar("T")
ROW = 7
DELAYED_ROW = int(EntryState.DELAYED)
NEVER = 1 << 60
"""Number of a commit that does not come."""


@dataclass(slots=True)
class Pending:
    """A request that is not answered yet, and what was true at some moment since it was made: the machine may answer
    as of any of them."""

    command: Any
    unavailable: set[int] = field(default_factory=set)
    """Numbers that named no deferred message that was to be had."""
    reader: tuple[CursorState, int] | None = None
    """Who reads alone, and under which lease."""
    none_free: bool = False
    """No session was to be had."""
    states: set[bytes | None] = field(default_factory=set)
    purged: int = 0


@dataclass(slots=True)
class Demand:
    """How a receiver wants what it waits for."""

    delete: bool
    reserve: bool
    session: int


class Lockstep:
    """One partition and its model. ``copied``: all that passes between machine and world is serialised (D3)."""

    def __init__(
        self,
        store: Store,
        options: PartitionOptions,
        *,
        copied: bool = False,
        now_ms: int = 0,
        row: int = ROW,
        express_bytes: int = 1 << 20,
    ) -> None:
        self.store = store
        self.row = row
        self.options = options
        self.copied = copied
        self.now_ms = now_ms
        self.express_bytes = express_bytes
        self.machine = Partition(row, options)
        self.machine.state.pool = Pool(Room(express_bytes))
        self.slot = self._new_slot()
        self.model = Model(options)
        self.durable_model = deepcopy(self.model)
        self.pending = Writes()
        self.under_way: tuple[Writes, Model, int] | None = None
        self.commit_number = 1
        self.durable = 0
        self.loads: list[tuple[int, w.Load]] = []
        """(commit that it waits for, load) not read yet."""
        self.answers: list[w.Loaded] = []
        self.lock_ids: dict[int, int] = {}
        """Lock id -> the commit that its grant waited for. Whoever got it may use it after a crash, stored or not, so
        it is never given again."""
        self.delivered: list[tuple[int, c.LockToken]] = []
        """Every (kind, token) ever granted under lock, so that late settlements can be tried."""
        self.reserved: list[tuple[int, c.LockToken]] = []
        self.sessions: list[int] = []
        """The lock id of every session accepted since the last crash."""
        self.taken: list[tuple[int, int]] = []
        """(first, count) of numbers taken for messages to come."""
        self.requests: dict[int, Pending] = {}
        self.demands: dict[tuple[int, int], Demand] = {}
        """By kind and receiver."""
        self.paused_ms: dict[int, int] = {}
        """Kind -> until when nothing is handed out, for somebody wants to read alone."""
        self.rows: dict[int, list[EntryRow]] = {}
        self.names: dict[int, list[str]] = {}
        """Sessions listed, by request."""
        self.replies: list[r.Reply] = []
        """Of the last step."""
        self._readers = CursorLockstep(self)
        self.is_broken = False
        """A step has failed: nothing that follows means anything."""
        self._was_express = False
        """Numbers may be reserved in the store."""
        self._request = 0
        self._name = 0

    # -- commands ----------------------------------------------------------------------------------------------------

    def message(self, size: int = 0, ttl_ms: int | None = None, *, forced: bool = False, **keys: Any) -> Message:
        """A message with a body of its own; ``forced``: it is not to be express (row C24)."""
        self._name += 1
        return Message(
            pack(durable=forced, ttl_ms=ttl_ms, rest=body_of(self._name) + bytes(size)), ttl_ms=ttl_ms, **keys
        )

    def ask(self, command: Any) -> None:
        """Give a command that is answered; ``request`` is filled in."""
        command.request = self.new_request()
        self.requests[command.request] = Pending(command)
        self._note_excuses()
        self.step(command)

    def enqueue(self, messages: list[Message], first_sequence: int | None = None) -> None:
        """Send."""
        self.ask(c.Enqueue(0, messages, first_sequence))

    def receive(
        self,
        kind: int,
        receiver: int,
        count: int,
        max_bytes: int,
        *,
        delete: bool = False,
        reserve: bool = False,
        session: int = 0,
    ) -> None:
        """Ask for messages; a receiver keeps its mode while it waits."""
        demand = self.demands.get((kind, receiver), Demand(delete, reserve, session))
        if count > 0:
            self.demands[kind, receiver] = demand
        self.step(c.Receive(kind, receiver, count, max_bytes, demand.delete, demand.reserve, demand.session))

    def receive_in_session(self, lock_id: int, count: int, max_bytes: int, *, delete: bool = False) -> None:
        """Ask for messages of a session that is held, or was."""
        lock = self.model.sessions.get(lock_id)
        if lock is not None:
            self.receive(SubqueueKind.ACTIVE, lock.receiver, count, max_bytes, delete=delete, session=lock_id)
        else:
            self.step(c.Receive(SubqueueKind.ACTIVE, 1_000_000, count, max_bytes, delete, False, lock_id))

    def cancel(self, kind: int, receiver: int) -> None:
        """Stop waiting."""
        self.ask(c.CancelReceive(0, kind, receiver))

    def settle(
        self, kind: int, outcome: c.Outcome, tokens: list[c.LockToken], reason: str | None = None, **more: Any
    ) -> None:
        """Settle; takes effect now, or when the bodies that it needs have been read."""
        self.ask(c.Settle(0, kind, outcome, tokens, reason, **more))

    def lock_reserved(self, kind: int, tokens: list[c.LockToken], *, delete: bool = False) -> None:
        """Hand out from the cache."""
        self.ask(c.LockReserved(0, kind, tokens, delete))

    def return_reserved(self, kind: int, tokens: list[c.LockToken]) -> None:
        """Give reservations back."""
        self.model.return_reserved(kind, tokens, self.now_ms)
        self.step(c.ReturnReserved(kind, tokens))

    def release_session(self, lock_id: int) -> None:
        """The holder of a session goes away."""
        if lock_id in self.model.sessions:
            self.model.end_session(lock_id, counted=False)
        self._forget_demands_of(lock_id)
        self.step(c.ReleaseSession(lock_id))

    def update(self, **changes: Any) -> None:
        """The entity's properties change."""
        self.options = self.model.options = replace(self.options, **changes)
        self.slot.follow(self.options)

    def advance(self, ms: int) -> None:
        """Let time pass, with a tick as the runtime would give it."""
        self.now_ms += ms
        self._tick()

    def peek(self, kind: int, from_sequence: int, count: int, session: str | None = None) -> int:
        """Ask; the answer is in `rows` under the number that this gives."""
        command = c.Peek(0, kind, from_sequence, count, session)
        self.ask(command)
        return command.request

    def new_request(self) -> int:
        """A request number."""
        self._request += 1
        return self._request

    # -- cursors -----------------------------------------------------------------------------------------------------

    def read_on(self, kind: int, name: str, max_bytes: int) -> None:
        """Who reads alone reads what comes next."""
        cursor = self.model.cursors[kind].by_name[name]
        command = c.ReadRange(0, kind, cursor.read_to, NEVER, max_bytes, cursor=name)
        command.request = self.new_request()
        self.requests[command.request] = Pending(command, reader=(cursor, cursor.epoch))
        self._note_excuses()
        self.step(command)

    def is_closed(self, kind: int) -> bool:
        """Nothing is handed out."""
        return self.model.cursors[kind].alone is not None or self.paused_ms.get(kind, 0) > self.now_ms

    # -- the store ---------------------------------------------------------------------------------------------------

    def begin_commit(self) -> None:
        """Take the pending rows."""
        assert self.under_way is None
        self.under_way = (self.pending, self._stored_model(), self.commit_number)
        self.pending = Writes()
        self.commit_number += 1

    def _stored_model(self) -> Model:
        """What would be left after a crash, once the pending rows are durable."""
        model = deepcopy(self.model)
        express = self.machine.state.express
        if express is not None and express.unwritten:
            for item in [item for item in model.queues[SubqueueKind.ACTIVE] if item.pos in express.unwritten]:
                model.remove(SubqueueKind.ACTIVE, item, "lost with the memory that had it")
        return model

    def end_commit(self) -> None:
        """The rows taken are durable."""
        assert self.under_way is not None
        writes, model, number = self.under_way
        self.under_way = None
        self.store.commit(writes)
        self.durable_model, self.durable = model, number

    def runnable(self) -> list[int]:
        """Indexes of the loads whose gate is open."""
        return [index for index, (number, _) in enumerate(self.loads) if number <= self.durable]

    def run_load(self, index: int) -> None:
        """Read for a load; the answer is given later."""
        _, load = self.loads.pop(index)
        self.answers.append(w.Loaded(load, read(self.store, self.row, load)))

    def answer(self, index: int) -> None:
        """Bring an answer to the machine."""
        self.step(self.answers.pop(index))

    def crash(self, *, commit_survives: bool) -> None:
        """Forget memory and begin again from the store. A commit under way is stored or not."""
        if self.under_way is not None and commit_survives:
            self.end_commit()
        self.under_way = None
        self.pending = Writes()
        self.lock_ids = {lock_id: number for lock_id, number in self.lock_ids.items() if number <= self.durable}
        self.commit_number += 1
        self.loads.clear()
        self.answers.clear()
        self.requests.clear()
        self.demands.clear()
        self.paused_ms.clear()
        self.taken.clear()
        self.sessions.clear()  # their holders were links to the process
        self.model = deepcopy(self.durable_model)
        self.model.options = self.options
        self.model.forget_memory()
        self._was_express |= self.machine.state.express is not None
        self.machine = Partition(self.row, self.options, self.store.load_partition(self.row))
        self.machine.state.pool = Pool(Room(self.express_bytes))
        if self._was_express:
            assert self.model.next_sequence <= self.machine.state.next_sequence
            self.model.next_sequence = self.machine.state.next_sequence  # others were given, or might have been
        self.slot = self._new_slot()
        check_memory(self.machine, self.model)

    def settle_down(self) -> None:
        """Commit, read and answer until nothing is left to do."""
        for _ in range(400):
            if self.under_way is not None:
                self.end_commit()
            elif self.pending.counters:
                self.begin_commit()
            elif self.runnable():
                self.run_load(0)
            elif self.answers:
                self.answer(0)
            elif not self._tick():
                return
        raise AssertionError("the partition never comes to rest")

    def _write_behind(self) -> None:
        """As before the store is closed."""
        if (step := write_all(self.machine.state, self.now_ms)) is not None:
            self._record(step.events)
            self.settle_down()

    def _record(self, events: list[Event]) -> None:
        waited_for = record(self.row, self._pass(events), self.pending)
        self.pending.counters[self.row] = self.machine.counters
        for subqueue, messages, size_bytes in self.machine.counts():
            self.pending.counts[subqueue] = (messages, size_bytes)
        self.slot.wrote(self.commit_number, waited_for=waited_for)

    # -- one step ----------------------------------------------------------------------------------------------------

    def step(self, command: w.Input) -> None:
        """One command into the machine; all that comes out is checked."""
        self.is_broken = True
        for of_kind in self.model.cursors.values():
            of_kind.end_leases(self.now_ms)
        step = self.machine.handle(self._pass(command), self.now_ms)
        events = self._pass(list(step.events))
        express = self.machine.state.express
        kept = {} if express is None else {entry.sequence: entry.data for entry in express.unwritten.values()}
        if express is not None:
            hold_back(self.machine.state, step)
        self.replies, loads = self._pass(step.replies), self._pass(step.loads)
        if step.events:
            self._record(step.events)
        self.loads += [(self.slot.needed_by(load, self.durable), load) for load in loads]
        enqueued = [entry for event in events if isinstance(event, Enqueued) for entry in event.entries]
        kept |= {entry.sequence: entry.data for entry in enqueued}
        bodies = {sequence: data for sequence, data in kept.items() if data is not None}
        if isinstance(command, c.Arrive):
            self.model.enqueue(command.messages, bodies, self.now_ms)
        for reply in self.replies:
            if not isinstance(reply, r.Granted | r.Locked | r.DeferredGranted):
                self._answered(reply, bodies)
        for event in events:
            self._happened(event, command)
        check_fates(self.model, events)
        for reply in self.replies:
            if isinstance(reply, r.Granted):
                self._check_granted(reply)
            elif isinstance(reply, r.Locked):
                self._check_locked(reply)
            elif isinstance(reply, r.DeferredGranted):
                self._check_deferred(reply)
            elif isinstance(reply, r.Purged):
                assert self.requests.pop(reply.request).purged == reply.count
            elif isinstance(reply, r.CursorOpened) and isinstance(command, w.Loaded):
                self._readers.check_consumed(command)
        self._note_excuses()
        check_memory(self.machine, self.model)
        check_unwritten(self.machine, self.now_ms, self.row)
        for kind in KINDS:
            self.model.cursors[kind].check_memory(self.machine.state.subqueues[kind].cursors)
        self.is_broken = False

    def _answered(self, reply: Any, kept: dict[int, bytes]) -> None:
        """Do in the model what the machine says it has done."""
        model, now_ms = self.model, self.now_ms
        if isinstance(reply, r.ReceiveRefused):
            self.demands.pop((reply.kind, reply.receiver), None)
            return
        if isinstance(reply, r.SessionEnded) and any(isinstance(other, r.ReceiveRefused) for other in self.replies):
            model.end_session(reply.lock_id, counted=False)  # revoked
            self._forget_demands_of(reply.lock_id)
            return
        if isinstance(reply, r.SessionEnded):
            lock = model.sessions[reply.lock_id]
            i08_no_lock_ends_early(f"session {lock.session!r}", lock.until_ms, now_ms)
            assert lock.receiver == reply.receiver
            model.end_session(reply.lock_id, counted=True)
            self._forget_demands_of(reply.lock_id)
            return
        if isinstance(reply, r.Purged):
            return  # counted when the events have been seen
        self._note_excuses()
        asked = self.requests.pop(reply.request)
        command = asked.command
        match command, reply:
            case c.Enqueue(), r.Accepted():
                assert not model.is_full, "accepted although it is full"
                assert reply.first_sequence == model.enqueue(command.messages, kept, now_ms, command.first_sequence)
            case c.Enqueue(), r.Refused():
                assert model.is_full, f"refused as full: {reply}"
            case c.TakeNumbers(), r.Accepted():
                assert reply.first_sequence == model.take_numbers(command.count)
                self.taken.append((reply.first_sequence, command.count))
            case c.CancelReceive(), r.Cancelled():
                self.demands.pop((command.kind, command.receiver), None)
            case c.Settle(), r.Settled():
                lost = model.settle(command, now_ms)
                assert sorted(reply.lost) == lost, f"lost {reply.lost}, the model says {lost}"
            case c.RenewLocks(), r.LocksRenewed():
                assert model.renew(command.kind, command.tokens, now_ms) == []
                assert reply.until_ms == [now_ms + self.options.lock_duration_ms] * len(command.tokens)
            case c.RenewLocks(), r.Settled():
                lost = model.renew(command.kind, command.tokens, now_ms)
                assert sorted(reply.lost) == lost, f"lost {reply.lost}, the model says {lost}"
                assert lost, "not renewed although every token is held"
            case c.ReceiveDeferred(), r.NotFound():
                assert set(reply.sequences) & asked.unavailable, f"{reply.sequences} were to be had all the time"
            case c.CancelScheduled(), r.Done():
                assert model.cancel(command.sequences) == []
            case c.CancelScheduled(), r.NotFound():
                assert reply.sequences
                assert not any(map(model.is_scheduled, reply.sequences)), f"{reply.sequences} can be cancelled"
            case c.AcceptSession(), r.SessionAccepted():
                self._session_accepted(command, reply)
            case c.AcceptSession(), r.SessionHeld():
                assert command.session is not None
                holder = model.holder(command.session, now_ms)
                assert holder is not None, f"session {command.session!r} is held by nobody"
                assert holder.until_ms == reply.until_ms
            case c.AcceptSession(), r.NoSession():
                assert asked.none_free, f"no session, although {model.free_sessions(now_ms)} are free"
                assert not command.wait
                assert command.session is None
            case c.CancelAccept(), r.Done():
                self.requests.pop(command.accept, None)
            case c.RenewSession(), r.SessionRenewed():
                assert model.is_held(command.session, now_ms)
                assert reply.until_ms == model.renew_session(command.session, now_ms)
            case c.GetSessionState(), r.SessionState():
                i16_state_is_the_last_written(f"of lock {command.session}", reply.state, asked.states)
            case c.SetSessionState(), r.Done():
                assert model.is_held(command.session, now_ms)
                model.set_state(command.session, command.state, now_ms)
            case c.SetSessionState(), r.Refused():
                assert model.is_full, f"refused as full: {reply}"
            case (
                (c.RenewSession() | c.GetSessionState() | c.SetSessionState() | c.ReceiveDeferred()),
                r.SessionLost(),
            ):
                assert not model.is_held(command.session, now_ms), f"{command} says lost, and the session is held"
            case c.Transact(), r.Transacted():
                refused = model.cannot_transact(command.commands, now_ms)
                assert refused is None, f"done, although command {refused} can't be: {command}"
                model.transact(command.commands, kept, now_ms)
            case c.Transact(), r.TransactionRefused():
                refused = model.cannot_transact(command.commands, now_ms)
                assert refused == reply.index, f"refused because of {reply.index}, the model says {refused}: {command}"
            case c.ListSessions(), r.Sessions():
                self.names[reply.request] = reply.sessions
            case c.Inspect(), r.Inspected():
                for kind in KINDS:
                    queue, info = model.queues[kind], reply.subqueues[kind]
                    assert (info.messages, info.size_bytes) == (len(queue), sum(len(item.data) for item in queue))
                    assert info.locked == len(model.held(kind, LOCKED))
                assert reply.end_pos == model.next_sequence
                assert reply.has_scheduled or not model.held(SubqueueKind.ACTIVE, SCHEDULED)
            case c.Peek(), r.Rows():
                self.rows[reply.request] = reply.rows
            case ((c.OpenCursor() | c.AdvanceCursor()), r.CursorOpened()):
                self._readers.opened(command, reply)
            case c.OpenCursor(), r.CursorHeld():
                alone = model.cursors[command.kind].alone
                assert alone is not None, f"nobody reads alone: {reply}"
                assert model.cursors[command.kind].by_name[reply.name] is alone
                assert (reply.name == command.name, reply.until_ms) == (False, alone.until_ms)
            case ((c.AcceptSession() | c.ReceiveDeferred() | c.Purge()), r.CursorHeld()):
                asked_of = SubqueueKind.ACTIVE if isinstance(command, c.AcceptSession) else command.kind
                asking = any(isinstance(other, r.CursorOpened) for other in self.replies)
                assert asking or self.is_closed(asked_of), f"refused, and nobody reads alone: {command}"
            case c.OpenCursor(), r.CursorBusy():
                assert model.is_held_back(command.kind), f"nothing is locked: {reply}"
                doomed = model.held(command.kind, DOOMED)
                assert doomed or not command.revoke, f"nothing is to be waited for: {reply}"
                assert reply.locked > 0
                self.paused_ms[command.kind] = now_ms + PAUSE_MS
                for item in model.held(command.kind, RESERVED):
                    item.state = READY
            case c.CloseCursor(), r.Done():
                self._readers.closed(command)
            case (
                (c.OpenCursor() | c.AdvanceCursor() | c.CloseCursor() | c.ReadRange() | c.ReadFates()),
                r.CursorLost(),
            ):
                self._readers.check_lost(command)
            case c.ReadFates(), r.FatesRead():
                log = [row for row in model.cursors[command.kind].log if row.number >= command.from_number]
                assert reply.rows == log[: len(reply.rows)] or log[0].number < model.cursors[command.kind].fates_from
            case c.ReadRange(), r.RangeRead():
                self._readers.range_read(command, asked.reader, reply)
            case _:
                raise AssertionError(f"{command} was answered with {reply}")

    def _session_accepted(self, command: c.AcceptSession, reply: r.SessionAccepted) -> None:
        named = command.session is not None
        assert not named or reply.session == command.session
        self._new_lock_id(reply.lock_id)
        self.lock_ids[reply.lock_id] = NEVER  # its holder is a link to this process
        self.model.accept(reply.session, reply.lock_id, command.receiver, reply.until_ms, self.now_ms, named=named)
        self.sessions.append(reply.lock_id)

    def _happened(self, event: Event, command: w.Input) -> None:
        """What the machine did of itself; of the rest the replies have told already."""
        if isinstance(event, Moved):
            for old, new in event.pairs:
                item_before = self._item(event.kind, old)
                if event.kind == event.to_kind and item_before is not None and item_before.state == DELAYED:
                    item = self.model.move_to_end(event.kind, old.sequence, new.sequence, new.pos, self.now_ms)
                elif event.to_kind == SubqueueKind.ACTIVE:
                    item = self.model.activate(old.sequence, new.sequence, self.now_ms)
                    assert (new.pos, new.enqueued_ms) == (item.pos, item.enqueued_ms)
                else:
                    assert new.data is not None
                    item = self.model.dead_letter(event.kind, old.sequence, new.pos, new.data, self.now_ms)
                assert new.data == item.data
        elif isinstance(event, Removed | Kept):
            for entry in event.entries:
                if event.fate is Fate.CONSUMED:
                    self.model.consume(event.kind, entry.sequence, chosen(command))
                else:
                    self._removed(event.kind, entry, command)
        elif isinstance(event, Cleared):
            self.model.cursors[event.kind].clear(event.positions)
        elif isinstance(event, CursorSet):
            self._readers.moved(event, command)
        elif isinstance(event, FatesLogged):
            lines = [event.rows[start : start + FATE_COLUMNS] for start in range(0, len(event.rows), FATE_COLUMNS)]
            self.model.cursors[event.kind].log += [FateRow._make(line) for line in lines]
        elif isinstance(event, Updated):
            for entry in event.entries:
                item_now = self._item(event.kind, entry)
                if item_now is not None and item_now.state == DELAYED and entry.state == EntryState.ACTIVE:
                    self.model.return_delayed(event.kind, entry.sequence, self.now_ms)

    def _removed(self, kind: int, entry: Entry, command: w.Input) -> None:
        item = self._item(kind, entry)
        if item is None or self._is_in_a_grant(entry):
            return
        purge = command.load.sweep if isinstance(command, w.Loaded) and isinstance(command.load, w.SweepLoad) else None
        if isinstance(purge, c.Purge) and purge.request in self.requests:
            self.model.purge(kind, entry.sequence, purge.enqueued_before_ms, purge.session)
            self.requests[purge.request].purged += 1
        else:
            self.model.expire(kind, entry.sequence, self.now_ms)

    def _is_in_a_grant(self, entry: Entry) -> bool:
        """It is received and deleted in this step."""
        return any(
            entry.sequence == granted.sequence
            for reply in self.replies
            if isinstance(reply, r.Granted | r.Locked | r.DeferredGranted)
            for granted in reply.entries
        )

    def _check_locked(self, reply: r.Locked) -> None:
        command = self.requests.pop(reply.request).command
        state = READY if command.delete else LOCKED
        items = self.model.lock_reserved(reply.kind, command.tokens, reply.lock_id, reply.until_ms, self.now_ms, state)
        by_sequence = {item.sequence: item for item in items}
        sequences = [entry.sequence for entry in reply.entries]
        assert sorted(sequences) == sorted(by_sequence)
        items = [by_sequence[sequence] for sequence in sequences]
        self._handed_out(reply.kind, reply.entries, items, reply.lock_id, state)

    def _check_granted(self, reply: r.Granted) -> None:
        sequences = [entry.sequence for entry in reply.entries]
        demand = self.demands[reply.kind, reply.receiver]
        state = RESERVED if demand.reserve else READY if demand.delete else LOCKED
        if demand.session:
            assert demand.delete or reply.lock_id == demand.session
            assert demand.delete or reply.until_ms == self.model.sessions[demand.session].until_ms
        elif state == LOCKED:
            self._new_lock_id(reply.lock_id)
        items = self.model.grant(
            reply.kind, sequences, reply.lock_id, reply.until_ms, self.now_ms, state, demand.session
        )
        if reply.ended:
            del self.demands[reply.kind, reply.receiver]
        self._handed_out(reply.kind, reply.entries, items, reply.lock_id, state)

    def _check_deferred(self, reply: r.DeferredGranted) -> None:
        command = self.requests.pop(reply.request).command
        assert [entry.sequence for entry in reply.entries] == command.sequences
        state = READY if command.delete else LOCKED
        if command.session and state == LOCKED:
            assert reply.lock_id == command.session
            assert reply.until_ms == self.model.sessions[command.session].until_ms
        elif state == LOCKED:
            self._new_lock_id(reply.lock_id)
        items = self.model.grant_deferred(
            command.kind, command.sequences, reply.lock_id, reply.until_ms, self.now_ms, state, command.session
        )
        self._handed_out(command.kind, reply.entries, items, reply.lock_id, state)

    def _handed_out(self, kind: int, entries: list[Entry], items: list[Item], lock_id: int, state: str) -> None:
        for entry, item in zip(entries, items, strict=True):
            assert (entry.data, entry.delivery_count, entry.enqueued_ms, entry.pos) == (
                item.data, item.delivery_count, item.enqueued_ms, item.pos,
            )  # fmt: skip
            token = (kind, (lock_id, entry.pos))
            if state == LOCKED:
                self.delivered.append(token)
            elif state == RESERVED:
                self.reserved.append(token)

    def _new_lock_id(self, lock_id: int) -> None:
        assert lock_id not in self.lock_ids, f"lock id {lock_id} was given before"
        self.lock_ids[lock_id] = self.slot.waited

    def _tick(self) -> bool:
        """A tick, if one is due. Whose lock is over must be noticed by it."""
        deadline_ms = self.machine.next_deadline_ms()
        is_due = deadline_ms is not None and deadline_ms <= self.now_ms
        self.model.tick(self.now_ms)
        if is_due:
            self.step(c.Tick())
        check_memory(self.machine, self.model)
        late = [lock for lock in self.model.sessions.values() if lock.until_ms <= self.now_ms]
        assert not late, f"nobody notices that sessions are over: {late}"
        return is_due

    def _note_excuses(self) -> None:
        """What the machine may answer to requests that wait."""
        model = self.model
        accepts = [asked for asked in self.requests.values() if isinstance(asked.command, c.AcceptSession)]
        any_session = sum(asked.command.session is None for asked in accepts)
        asked_for = Counter(
            (asked.command.kind, sequence)
            for asked in self.requests.values()
            if isinstance(asked.command, c.ReceiveDeferred)
            for sequence in asked.command.sequences
        )
        for asked in self.requests.values():
            command = asked.command
            if isinstance(command, c.ReceiveDeferred):
                session = command.session if command.session in model.sessions else 0
                asked.unavailable.update(
                    sequence
                    for sequence in command.sequences
                    if asked_for[command.kind, sequence] > 1
                    or not model.is_to_be_had_by_number(command.kind, sequence, session)
                    or model.is_spent(command.kind, model.find(command.kind, sequence), self.now_ms)
                )
            elif isinstance(command, c.AcceptSession):
                # One that others wait for is as good as theirs.
                asked.none_free |= len(model.free_sessions(self.now_ms)) < any_session
            elif isinstance(command, c.GetSessionState) and command.session in model.sessions:
                asked.states.add(model.state_of(model.sessions[command.session].session))

    def _forget_demands_of(self, lock_id: int) -> None:
        self.demands = {key: demand for key, demand in self.demands.items() if demand.session != lock_id}

    def _item(self, kind: int, entry: Entry) -> Item | None:
        return next((item for item in self.model.queues[kind] if item.sequence == entry.sequence), None)

    def _new_slot(self) -> Slot:
        slot = Slot(self.row, self.options)
        slot.machine = self.machine
        return slot

    def _pass(self, value: T) -> T:
        """Through bytes and back, where asked for."""
        if not self.copied:
            return value
        copied: T = pickle.loads(pickle.dumps(value))
        return copied

    # -- at rest -----------------------------------------------------------------------------------------------------

    def check_at_rest(self) -> None:
        """What holds when nothing is under way: nobody waits beside a ready message, nothing due is left."""
        self.settle_down()
        self._write_behind()
        model = self.model
        for (kind, receiver), demand in self.demands.items():
            session = model.sessions[demand.session].session if demand.session else None
            ready = model.ready(kind, session) if not self.is_closed(kind) else []
            assert not ready, f"{receiver} waits while {ready} is ready"
        for kind in KINDS:
            waiting_ms = [i.due_ms for i in model.queues[kind] if i.state in (SCHEDULED, DELAYED)]
            late = [due_ms for due_ms in waiting_ms if due_ms is not None and due_ms <= self.now_ms]
            assert not late, f"nobody notices that messages were due at {late}"
        waiting = [asked.command for asked in self.requests.values()]
        unanswered = [command for command in waiting if not isinstance(command, c.AcceptSession)]
        assert not unanswered, f"never answered: {unanswered}"
        if waiting and not self.is_closed(SubqueueKind.ACTIVE):
            assert not model.free_sessions(self.now_ms), f"{waiting} wait while {model.free_sessions(self.now_ms)} wait"
        check_rows(self.store, self.row, self.machine, model)
