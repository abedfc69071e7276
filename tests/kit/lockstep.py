"""A partition machine, its journal and a store, driven side by side with the reference model.

Every command goes to the machine; its events, replies and loads are brought to the model, which does the same or says
what was not allowed. A command takes effect in the model when the machine answers it, since it may have had to read.
Loads wait here until a test runs them (their results are then fixed) and answers them (in any order); rows wait until a
test commits them. `crash` throws memory away and goes on from the store, the model from its copy at that commit.
"""

import pickle
from copy import deepcopy
from typing import Any, TypeVar

from msgspec.structs import replace

from partibus.message import Message, pack
from partibus.partition.core.events import Enqueued, Event
from partibus.partition.core.express import Pool, Room
from partibus.partition.core.journal import record
from partibus.partition.core.machine import Partition
from partibus.partition.core.write_behind import hold_back, write_all
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import EntryRow, Store, Writes
from partibus.partition.runtime.queries import read
from partibus.partition.runtime.slot import Slot
from tests.kit.answer_lockstep import NEVER, AnswerLockstep, Demand, Pending
from tests.kit.cursor_lockstep import KINDS, CursorLockstep, check_dispositions
from tests.kit.event_lockstep import EventLockstep
from tests.kit.invariants import body_of
from tests.kit.machine_memory import check_memory, check_rows, check_unwritten, check_windows
from tests.kit.model import DELAYED, SCHEDULED, Model

T = TypeVar("T")
ROW = 7


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
        """Lock id -> the commit that its grant waited for. Its owner may use it after a crash, stored or not, so it is
        never given again."""
        self.delivered: list[tuple[int, c.LockToken]] = []
        """Every (kind, token) ever granted under lock, so that late settlements can be tried."""
        self.reserved: list[tuple[int, c.LockToken]] = []
        self.sessions: list[int] = []
        """The lock id of every session accepted since the last crash."""
        self.taken: list[tuple[int, int]] = []
        """(first, count) of numbers taken for messages to come."""
        self.requests: dict[int, Pending] = {}
        self.demands: dict[tuple[int, int], Demand] = {}
        """Demands by kind and receiver."""
        self.paused_ms: dict[int, int] = {}
        """Kind -> the end of the time without grants, since a reader wants to read alone."""
        self.rows: dict[int, list[EntryRow]] = {}
        self.names: dict[int, list[str]] = {}
        """Sessions listed, by request."""
        self.replies: list[r.Reply] = []
        """The replies of the last step."""
        self.readers = CursorLockstep(self)
        self._answers = AnswerLockstep(self)
        self._events = EventLockstep(self)
        self.is_broken = False
        """A step has failed: nothing that follows means anything."""
        self.last_reservation = 0
        """The last reservation; none is made twice while the store has the same owner."""
        self.went_cold = 0
        self.windows_dropped = 0
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
        self._answers.note_excuses()
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
        self.forget_demands_of(lock_id)
        self.step(c.ReleaseSession(lock_id))

    def update(self, **changes: Any) -> None:
        """Change properties of the entity."""
        window_ms = self.options.duplicate_window_ms
        if window_ms is not None and changes.get("duplicate_window_ms", 0) > window_ms:
            for model in (self.model, self.durable_model, *([self.under_way[1]] if self.under_way else [])):
                model.lengthen_window(window_ms, self.now_ms)
        self.options = self.model.options = replace(self.options, **changes)
        self.slot.follow(self.options)

    def advance(self, ms: int) -> None:
        """Let time pass, with a tick as the runtime would give it."""
        self.now_ms += ms
        self.tick()

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
        """Have the exclusive reader read the next messages."""
        cursor = self.model.cursors[kind].by_name[name]
        command = c.ReadRange(0, kind, cursor.read_to, NEVER, max_bytes, cursor=name)
        command.request = self.new_request()
        self.requests[command.request] = Pending(command, reader=(cursor, cursor.epoch))
        self._answers.note_excuses()
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
        """Return the state after a crash, once the pending rows are durable."""
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
        self.last_reservation = 0
        self.sessions.clear()  # their holders were links to the process
        self.model = deepcopy(self.durable_model)
        self.model.options = self.options
        self.model.forget_memory()
        self._was_express |= self.machine.state.express is not None
        self.machine = Partition(self.row, self.options, self.store.read(q.Partition(self.row)))
        self.machine.state.pool = Pool(Room(self.express_bytes))
        if self._was_express:
            assert self.model.next_sequence <= self.machine.state.next_sequence
            self.model.next_sequence = self.machine.state.next_sequence  # others were given, or might have been
        self.slot = self._new_slot()
        check_memory(self.machine, self.model)

    def go_cold(self) -> None:
        """Have the partition go cold as the runtime would: forgotten and loaded again, or without its windows. No
        visible state changes, so the model does not."""
        if self.loads or self.answers:
            return
        is_durable = self.under_way is None and not self.pending.counters
        if is_durable and self.machine.may_go_cold:
            pool = self.machine.state.pool
            self._was_express |= self.machine.state.express is not None
            cold = self.machine.go_cold()
            self.machine = Partition(self.row, self.options, self.store.read(q.Partition(self.row)), 0, cold)
            self.machine.state.pool = pool
            if self._was_express:  # numbers were reserved in the store
                assert self.model.next_sequence <= self.machine.state.next_sequence
                self.model.next_sequence = self.machine.state.next_sequence
            self.slot = self._new_slot()
            self.went_cold += 1
        else:
            self.machine.drop_windows()
            self.windows_dropped += 1
            check_windows(self.machine)
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
            elif not self.tick():
                return
        raise AssertionError("the partition never comes to rest")

    def _write_behind(self) -> None:
        """Write express messages, as before the store is closed."""
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
                self._answers.answered(reply, bodies)
        for event in events:
            self._events.happened(event, command)
        check_dispositions(self.model, events)
        for reply in self.replies:
            if isinstance(reply, r.Granted):
                self._answers.granted(reply)
            elif isinstance(reply, r.Locked):
                self._answers.locked(reply)
            elif isinstance(reply, r.DeferredGranted):
                self._answers.deferred(reply)
            elif isinstance(reply, r.Purged):
                assert self.requests.pop(reply.request).purged == reply.count
            elif isinstance(reply, r.CursorOpened) and isinstance(command, w.Loaded):
                self.readers.check_consumed(command)
        self._answers.note_excuses()
        check_memory(self.machine, self.model)
        check_unwritten(self.machine, self.now_ms, self.row)
        for kind in KINDS:
            self.model.cursors[kind].check_memory(self.machine.state.subqueues[kind].cursors)
        self.is_broken = False

    def tick(self) -> bool:
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

    def forget_demands_of(self, lock_id: int) -> None:
        """End the waits for messages of a session."""
        self.demands = {key: demand for key, demand in self.demands.items() if demand.session != lock_id}

    def _new_slot(self) -> Slot:
        slot = Slot(self.row, self.options)
        slot.machine = self.machine
        return slot

    def _pass(self, value: T) -> T:
        """Pass a value through bytes and back, where asked for."""
        if not self.copied:
            return value
        copied: T = pickle.loads(pickle.dumps(value))
        return copied

    # -- at rest -----------------------------------------------------------------------------------------------------

    def check_at_rest(self) -> None:
        """Check an idle partition: no receiver waits beside a ready message, and nothing due is left."""
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
