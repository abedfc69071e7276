"""A partition machine, its journal and a store, driven side by side with the reference model.

Every command goes to both; every event, reply and load of the machine is checked against the model at once. Loads wait
here until somebody runs them (what they read is then fixed) and answers them (in any order); rows wait until somebody
commits them. `crash` throws memory away and goes on from the store, the model from its copy at that commit.
"""

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

from partibus.message import Message
from partibus.partition import commands as c
from partibus.partition.entry import Entry
from partibus.partition.events import Moved, Removed
from partibus.partition.journal import record
from partibus.partition.keys import SubqueueKind
from partibus.partition.machine import Partition
from partibus.partition.options import PartitionOptions
from partibus.partition.ports import EntryRow, Store, Writes
from partibus.partition.reading import read
from partibus.testing.model import DOOMED, LOCKED, READY, RESERVED, Model

T = TypeVar("T")
KINDS = (SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER)
ROW = 7


class Lockstep:
    """One partition and its model. ``copied``: all that passes between machine and world is serialised (D3)."""

    def __init__(self, store: Store, options: PartitionOptions, *, copied: bool = False, now_ms: int = 0) -> None:
        self.store = store
        self.options = options
        self.copied = copied
        self.now_ms = now_ms
        self.machine = Partition(ROW, options)
        self.model = Model(options)
        self.durable_model = deepcopy(self.model)
        self.pending = Writes()
        self.under_way: tuple[Writes, Model, int] | None = None
        self.commit_number = 1
        self.durable = 0
        self.waited = 0
        self.loads: list[tuple[int, c.Load]] = []
        """(commit that it waits for, load) not read yet."""
        self.answers: list[c.Loaded] = []
        self.lock_ids: dict[int, int] = {}
        """Lock id -> the commit that its grant waited for. Whoever got it may use it after a crash, stored or not, so
        it is never given again."""
        self.delivered: list[tuple[int, c.LockToken]] = []
        """Every (kind, token) ever granted under lock, so that late settlements can be tried."""
        self.reserved: list[tuple[int, c.LockToken]] = []
        self.settling: dict[int, c.Settle] = {}
        self.demands: dict[tuple[int, int], tuple[bool, bool]] = {}
        """(kind, receiver) -> (delete, reserve)."""
        self.rows: dict[int, list[EntryRow]] = {}
        self.replies: list[c.Reply] = []
        """Of the last step."""
        self._request = 0

    # -- commands ----------------------------------------------------------------------------------------------------

    def enqueue(self, messages: list[Message]) -> None:
        """Send to both."""
        first = self.model.enqueue(messages, self.now_ms)
        request = self.new_request()
        self.step(c.Enqueue(request, messages))
        assert c.Accepted(request, first) in self.replies

    def receive(
        self, kind: int, receiver: int, count: int, max_bytes: int, *, delete: bool = False, reserve: bool = False
    ) -> None:
        """Ask for messages; a receiver keeps its mode while it waits."""
        delete, reserve = self.demands.get((kind, receiver), (delete, reserve))
        if count > 0:
            self.demands[kind, receiver] = (delete, reserve)
        self.step(c.Receive(kind, receiver, count, max_bytes, delete, reserve))

    def cancel(self, kind: int, receiver: int) -> None:
        """Stop waiting."""
        self.step(c.CancelReceive(self.new_request(), kind, receiver))
        self.demands.pop((kind, receiver), None)

    def settle(self, kind: int, outcome: c.Outcome, tokens: list[c.LockToken], reason: str | None = None) -> None:
        """Settle; takes effect now, or when the bodies that it needs have been read."""
        command = c.Settle(self.new_request(), kind, outcome, tokens, reason, None)
        self.settling[command.request] = command
        self.step(command)

    def lock_reserved(self, kind: int, receiver: int, tokens: list[c.LockToken], *, delete: bool = False) -> None:
        """Hand out from the cache."""
        self.step(c.LockReserved(kind, receiver, tokens, delete))

    def return_reserved(self, kind: int, tokens: list[c.LockToken]) -> None:
        """Give reservations back."""
        self.model.return_reserved(kind, tokens, self.now_ms)
        self.step(c.ReturnReserved(kind, tokens))

    def advance(self, ms: int) -> None:
        """Let time pass, with a tick as the runtime would give it."""
        self.now_ms += ms
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.model.tick(self.now_ms)
            self.step(c.Tick())

    def peek(self, kind: int, from_sequence: int, count: int) -> int:
        """Ask; the answer is in `rows` under the number that this gives."""
        request = self.new_request()
        self.step(c.Peek(request, kind, from_sequence, count))
        return request

    def new_request(self) -> int:
        """A request number."""
        self._request += 1
        return self._request

    # -- the store ---------------------------------------------------------------------------------------------------

    def begin_commit(self) -> None:
        """Take the pending rows."""
        assert self.under_way is None
        self.under_way = (self.pending, deepcopy(self.model), self.commit_number)
        self.pending = Writes()
        self.commit_number += 1

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
        self.answers.append(c.Loaded(load, read(self.store, ROW, load)))

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
        self.waited = 0
        self.commit_number += 1
        self.loads.clear()
        self.answers.clear()
        self.settling.clear()
        self.demands.clear()
        self.model = deepcopy(self.durable_model)
        self.model.forget_memory()
        self.machine = Partition(ROW, self.options, self.store.load_partition(ROW))
        self.check()

    def settle_down(self) -> None:
        """Commit, read and answer until nothing is left to do."""
        for _ in range(10_000):
            if self.under_way is not None:
                self.end_commit()
            elif self.pending.counters:
                self.begin_commit()
            elif self.runnable():
                self.run_load(0)
            elif self.answers:
                self.answer(0)
            else:
                return
        raise AssertionError("the partition never comes to rest")

    # -- one step ----------------------------------------------------------------------------------------------------

    def step(self, command: c.Command) -> None:
        """One command into the machine; all that comes out is checked."""
        step = self.machine.handle(self._pass(command), self.now_ms)
        events, self.replies, loads = self._pass(step.events), self._pass(step.replies), self._pass(step.loads)
        if step.events:
            if record(ROW, events, self.pending):
                self.waited = self.commit_number
            self.pending.counters[ROW] = self.machine.counters
            for subqueue, messages, size_bytes in self.machine.counts():
                self.pending.counts[subqueue] = (messages, size_bytes)
        self.loads += [(self.waited, load) for load in loads]
        for reply in self.replies:
            if isinstance(reply, c.Settled):
                self._check_settled(reply)
            elif isinstance(reply, c.Rows):
                self.rows[reply.request] = reply.rows
        for event in events:
            if isinstance(event, Moved):
                for old, new in event.pairs:
                    item = self.model.dead_letter(event.kind, old.sequence, new.pos, self.now_ms)
                    assert new.data == item.data
            elif isinstance(event, Removed):
                self._check_removed(event)
        for reply in self.replies:
            if isinstance(reply, c.Granted):
                self._check_granted(command, reply)
        self.check()

    def _check_settled(self, reply: c.Settled) -> None:
        command = self.settling.pop(reply.request)
        reason = (command.reason, command.description)
        lost = self.model.settle(command.kind, command.outcome, command.tokens, reason, self.now_ms)
        assert sorted(reply.lost) == lost, f"lost {reply.lost}, the model says {lost}"

    def _check_removed(self, event: Removed) -> None:
        """What is removed and still there was received-and-deleted, or its time to live was over."""
        for entry in event.entries:
            items = [item for item in self.model.queues[event.kind] if item.sequence == entry.sequence]
            if items and items[0].expires_ms is not None and items[0].expires_ms <= self.now_ms:
                self.model.expire(event.kind, entry.sequence, self.now_ms)

    def _check_granted(self, command: c.Command, reply: c.Granted) -> None:
        sequences = [entry.sequence for entry in reply.entries]
        if isinstance(command, c.LockReserved) and reply is self._answer_to_lock_reserved():
            delete = command.delete
            state = READY if delete else LOCKED
            items = self.model.lock_reserved(
                reply.kind, command.tokens, reply.lock_id, reply.until_ms, self.now_ms, state
            )
            items.sort(key=lambda item: item.pos)
            assert sorted(sequences) == sorted(item.sequence for item in items)
            items = [next(item for item in items if item.sequence == sequence) for sequence in sequences]
        else:
            delete, reserve = self.demands[reply.kind, reply.receiver]
            state = RESERVED if reserve else READY if delete else LOCKED
            items = self.model.grant(reply.kind, sequences, reply.lock_id, reply.until_ms, self.now_ms, state)
            if state == LOCKED:
                assert reply.lock_id not in self.lock_ids, f"lock id {reply.lock_id} was given before"
                self.lock_ids[reply.lock_id] = self.waited
            if reply.ended:
                del self.demands[reply.kind, reply.receiver]
        for entry, item in zip(reply.entries, items, strict=True):
            assert (entry.data, entry.delivery_count, entry.enqueued_ms, entry.pos) == (
                item.data, item.delivery_count, item.enqueued_ms, item.pos,
            )  # fmt: skip
            token = (reply.kind, (reply.lock_id, entry.pos))
            if state == LOCKED:
                self.delivered.append(token)
            elif state == RESERVED:
                self.reserved.append(token)

    def _answer_to_lock_reserved(self) -> c.Reply:
        """Where dropping an expired reservation leads to grants of its own, the answer comes last."""
        return [reply for reply in self.replies if isinstance(reply, c.Granted)][-1]

    def _pass(self, value: T) -> T:
        """Through bytes and back, where asked for."""
        if not self.copied:
            return value
        copied: T = pickle.loads(pickle.dumps(value))
        return copied

    # -- invariants --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """What holds after every step."""
        limits = self.options.limits
        for kind in KINDS:
            subqueue = self.machine.state.subqueues[kind]
            queue = self.model.queues[kind]
            assert subqueue.messages == len(queue), f"{subqueue.messages} messages, the model has {len(queue)}"
            assert subqueue.size_bytes == sum(len(item.data) for item in queue)
            ready: list[Entry] = [*subqueue.ready._in_order, *(entry for _, entry in subqueue.ready._returned)]
            in_memory: dict[str, list[Entry]] = {
                READY: [*ready, *subqueue.tail],
                LOCKED: [entry for batch in subqueue.locks for entry in batch.entries.values()],
                RESERVED: [entry for batch in subqueue.reservations for entry in batch.entries.values()],
                DOOMED: list(subqueue.doomed.values()),
            }
            for state in (LOCKED, RESERVED):
                mine = sorted(entry.sequence for entry in in_memory[state])
                assert mine == sorted(item.sequence for item in self.model.held(kind, state)), state
            known = [entry.pos for entries in in_memory.values() for entry in entries]
            assert len(known) == len(set(known)), "a message is in two places"
            positions = {item.pos for item in queue}
            assert set(known) <= positions, "memory holds what does not exist"
            gap = range(subqueue.paged_up_to, subqueue.tail_from)
            assert all(pos in gap for pos in positions.difference(known)), "neither in memory nor to be paged in"
            assert subqueue.ready.size_bytes == sum(entry.size_bytes for entry in ready if entry.data is not None)
            assert subqueue.tail_bytes == sum(entry.size_bytes for entry in subqueue.tail)
            assert len(subqueue.tail) <= limits.window_entries
            for waiting in (subqueue.ready._in_order, subqueue.tail):
                assert all(a.pos < b.pos for a, b in zip(waiting, list(waiting)[1:], strict=False))

    def check_at_rest(self) -> None:
        """What holds when nothing is under way: nobody waits beside a ready message, nothing doomed is left."""
        self.settle_down()
        for kind in KINDS:
            waiting = [receiver for demand_kind, receiver in self.demands if demand_kind == kind]
            if waiting:
                assert not self.model.ready(kind), f"{waiting} wait while {self.model.ready(kind)} is ready"
        assert not self.settling, f"never answered: {self.settling}"
        self.check_rows()

    def check_rows(self) -> None:
        """All is committed: the store holds what the model has, no more, no less."""
        snapshot = self.store.load_partition(ROW)
        if snapshot is None:
            assert not any(self.model.queues.values())
            return
        everything: Callable[[int], c.Load] = lambda kind: c.BrowseLoad(0, kind, 0, 1 << 40, 1 << 40)  # noqa: E731
        for kind in KINDS:
            rows: dict[int, Any] = {row.pos: row for row in read(self.store, ROW, everything(kind))}
            assert set(rows) == {item.pos for item in self.model.queues[kind]}
            for item in self.model.queues[kind]:
                row = rows[item.pos]
                assert (row.sequence, row.data, row.delivery_count, row.enqueued_ms, row.due_ms) == (
                    item.sequence, item.data, item.delivery_count, item.enqueued_ms, item.expires_ms,
                )  # fmt: skip
        again = Partition(ROW, self.options, snapshot)
        for kind in KINDS:
            locked = {
                (batch.lock_id, entry.pos): batch.until_ms
                for batch in again.state.subqueues[kind].locks
                for entry in batch.entries.values()
            }
            assert locked == {(item.hold, item.pos): item.until_ms for item in self.model.held(kind, LOCKED)}
        assert list(again.counts()) == list(self.machine.counts())
