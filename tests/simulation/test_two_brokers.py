"""Two guests use the store of a third broker over lines that are cut at any moment, decided by a seed.

Nothing runs out by itself in here: locks and reservations last longer than a history. So whatever is free at the end
was given back because its guest was gone, and a lock that is lost was lost by mistake.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from partibus.cluster.remote_store import RemoteBroker, RemoteStore
from partibus.cluster.served_store import RemoteReceiver, ServedStore
from partibus.cluster.serving import Serving
from partibus.message import Message, pack
from partibus.partition.core.machine import Partition
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.partitions import Numbers
from partibus.routing.store_access import StoreRoute
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.simulated_line import SimulatedLine
from tests.kit.stores.memory import MemoryDisk, MemoryStore
from tests.plugins.soak import seeds

FOR_EVER_MS = 10_000_000
PLAIN, SESSIONS = 1, 2
OPTIONS = {
    PLAIN: PartitionOptions(lock_duration_ms=FOR_EVER_MS, reservation_ms=FOR_EVER_MS),
    SESSIONS: PartitionOptions(lock_duration_ms=FOR_EVER_MS, reservation_ms=FOR_EVER_MS, requires_session=True),
}
STORE = 3
ROOM = 1 << 20
STEPS = 1_500
SETTLED_MS = 200.0
"""Longer than two batches, two commits and the notice of a cut take."""


class World:
    """An owner and its guests."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.timeline = Timeline()
        self.disk = MemoryDisk()
        self.host = SimulatedHost(self.timeline, self.random)
        self.runtime = StoreRuntime(self.open_store, self.host, self.timeline)
        self.runtime.open()
        self.serving = Serving()
        self.serving.open(STORE, self.runtime)
        self.remote_brokers = [Guest(self, number) for number in range(2)]

    def open_store(self) -> Store:
        return MemoryStore(self.disk)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for remote_broker in self.remote_brokers:
                remote_broker.act()
            if self.timeline:
                self.timeline.run_next()

    def rest(self) -> None:
        """Let end what has begun, but nothing that is due much later."""
        end_ms = self.timeline.time_ms + SETTLED_MS
        self.timeline.call_later(SETTLED_MS, lambda: None)
        while self.timeline.time_ms < end_ms:
            self.timeline.run_next()

    def machine(self, row: int) -> Partition | None:
        slot = self.runtime.slots.get(row)
        return None if slot is None else slot.machine

    def held_sessions(self) -> dict[str, Any]:
        machine = self.machine(SESSIONS)
        return {} if machine is None or machine.state.sessions is None else machine.state.sessions.held

    def stored(self) -> set[bytes]:
        return {data[-9:] for data in self.disk.durable.bodies.values()}


class Guest:
    """A broker without a store, its clients, and what they were told."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.host = SimulatedHost(world.timeline, world.random)
        self.route = StoreRoute("store-03", self.host.call_soon)
        self.numbers = Numbers()
        self.line: SimulatedLine | None = None
        self.cuts = 0
        self.answers: Counter[int] = Counter()
        self.asked: dict[int, str] = {}
        self.accepted: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.finished: set[bytes] = set()
        """Completed, or perhaps completed."""
        self.delivered: list[bytes] = []
        self.told: Counter[int] = Counter()
        """Receiver -> how often it was told that it is over."""
        self.receivers: set[int] = set()
        self.left: set[int] = set()
        self.kept: list[tuple[SimulatedLine | None, int, list[c.LockToken]]] = []
        """Reservations with the line that they came by."""
        self.connect()

    # -- the line ----------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        world = self.world
        self.line = line = SimulatedLine(world.timeline, world.random, self.host, world.host, world.serving)
        self.route.lead_to(line.remote.store(STORE, self.route))

    def cut(self) -> None:
        if self.line is not None:
            self.line.cut()
            self.line = None
            self.cuts += 1
            self.world.timeline.call_later(30 * self.world.random.random(), self.connect_again)

    def connect_again(self) -> None:
        if self.line is None and self.route.access is None:
            self.connect()
        elif self.line is None:
            self.world.timeline.call_later(5, self.connect_again)

    # -- clients -----------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Do one thing, or nothing."""
        random = self.world.random
        if random.random() < 0.01:
            self.cut()
        if random.random() < 0.3:
            action = random.choice(
                (self.send, self.send, self.receive, self.reserve, self.grants, self.accept, self.leave)
            )
            action()

    def ask(self, row: int, command: Any, on_reply: Any) -> None:
        """A request; what it is answered is counted."""
        self.asked[command.request] = type(command).__name__

        def answered(reply: Any) -> None:
            self.answers[reply.request] += 1
            assert reply.request == command.request
            on_reply(reply)

        self.route.submit(row, OPTIONS[row], command, answered, holdable=True)

    def send(self) -> None:
        row = self.world.random.choice((PLAIN, SESSIONS))
        request = self.numbers.next()
        name = bytes([self.number]) + request.to_bytes(8, "big")
        session = self.world.random.choice("xyz") if row == SESSIONS else None

        def sent(reply: Any) -> None:
            if isinstance(reply, r.Accepted):
                self.accepted.add(name)
            else:
                (self.refused if reply.executed is False else self.unknown).add(name)

        self.ask(row, c.Enqueue(request, [Message(pack(rest=b"body" + name), session_id=session)]), sent)

    def register(self, on_granted: Any) -> int:
        receiver = self.numbers.next()
        self.receivers.add(receiver)

        def told(reply: Any) -> None:
            if isinstance(reply, r.Failed):
                assert reply.request == receiver
                self.told[receiver] += 1
            elif isinstance(reply, r.Granted):
                assert reply.receiver == receiver
                on_granted(reply)

        self.route.register(receiver, told)
        return receiver

    def receive(self) -> None:
        receiver = self.register(lambda grant: self.settle_later(PLAIN, grant))
        self.route.submit(PLAIN, OPTIONS[PLAIN], c.Receive(0, receiver, self.world.random.randint(1, 4), ROOM))

    def reserve(self) -> None:
        line = self.line

        def granted(grant: r.Granted) -> None:
            self.kept.append((line, grant.lock_id, [(grant.lock_id, entry.pos) for entry in grant.entries]))

        receiver = self.register(granted)
        self.route.submit(
            PLAIN, OPTIONS[PLAIN], c.Receive(0, receiver, self.world.random.randint(1, 4), ROOM, reserve=True)
        )

    def grants(self) -> None:
        """Some of what is kept; the rest goes back. Batches of another channel are void."""
        if not self.kept:
            return
        line, _, tokens = self.kept.pop(0)
        if line is not self.line:
            return
        some = self.world.random.randint(0, len(tokens))
        if tokens[some:]:
            self.route.submit(PLAIN, OPTIONS[PLAIN], c.ReturnReserved(0, tokens[some:]))
        if tokens[:some]:
            self.ask(PLAIN, c.LockReserved(self.numbers.next(), 0, tokens[:some]), self.locked)

    def locked(self, reply: r.Locked | r.Failed) -> None:
        if isinstance(reply, r.Locked):
            self.settle_later(PLAIN, reply)

    def accept(self) -> None:
        receiver = self.register(lambda grant: self.delivered.extend(map(_name, grant.entries)))
        name = self.world.random.choice(("x", "y", None, None))
        request = self.numbers.next()

        def accepted(reply: Any) -> None:
            if isinstance(reply, r.SessionAccepted):
                self.use_session(receiver, reply)

        self.ask(SESSIONS, c.AcceptSession(request, receiver, name), accepted)
        if self.world.random.random() < 0.3:
            self.route.submit(SESSIONS, OPTIONS[SESSIONS], c.CancelAccept(0, request))
            self.route.forget(request)
            self.asked.pop(request)

    def use_session(self, receiver: int, held: r.SessionAccepted) -> None:
        options = OPTIONS[SESSIONS]
        self.route.submit(SESSIONS, options, c.Receive(0, receiver, 5, ROOM, session=held.lock_id))

        def release() -> None:
            self.leave_with(receiver)
            self.route.submit(SESSIONS, options, c.ReleaseSession(held.lock_id))

        self.world.timeline.call_later(40 * self.world.random.random(), release)

    def leave(self) -> None:
        """A receiver goes."""
        if self.receivers:
            receiver = min(self.receivers - self.left, default=0)
            if receiver:
                self.leave_with(receiver)
                self.route.submit(PLAIN, OPTIONS[PLAIN], c.CancelReceive(0, 0, receiver))

    def leave_with(self, receiver: int) -> None:
        self.left.add(receiver)
        self.route.unregister(receiver)

    def settle_later(self, row: int, grant: r.Granted | r.Locked) -> None:
        if not grant.entries:
            return
        names = [_name(entry) for entry in grant.entries]
        for name in names:
            assert name not in self.finished, "delivered again although its lock was never over"
        self.delivered += names
        tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
        unknown = False

        def settle() -> None:
            self.ask(row, c.Settle(self.numbers.next(), 0, c.Outcome.COMPLETE, tokens), settled)

        def settled(reply: Any) -> None:
            nonlocal unknown
            if isinstance(reply, r.Failed):
                unknown = unknown or reply.executed is None
                self.world.timeline.call_later(10, settle)
            else:
                assert unknown or reply.lost == [], "a lock outlives the line that it was given by"
                self.finished.update(names)

        self.world.timeline.call_later(60 * self.world.random.random(), settle)


def _name(entry: Any) -> bytes:
    data: bytes = entry.data
    return data[-9:]


def play(seed: int) -> World:
    """One history, and what must be true of every one."""
    world = World(seed)
    world.run(STEPS)
    for remote_broker in world.remote_brokers:
        remote_broker.connect_again = lambda: None  # type: ignore[method-assign]
    for _ in range(20):  # whoever waits for a session may get one, and gives it back
        world.rest()
    assert world.held_sessions() == {}, "sessions that nobody uses are free"
    for remote_broker in world.remote_brokers:
        if remote_broker.line is not None:
            remote_broker.line.cut()
    world.rest()
    stored = world.stored()
    delivered = {name for remote_broker in world.remote_brokers for name in remote_broker.delivered}
    for remote_broker in world.remote_brokers:
        unanswered = {
            request: kind for request, kind in remote_broker.asked.items() if remote_broker.answers[request] != 1
        }
        assert unanswered == {}, "every request is answered once"
        assert {*remote_broker.told.values()} <= {1}, "a receiver is told once"
        assert remote_broker.receivers - remote_broker.left <= {*remote_broker.told}, (
            "everyone is told who has not left"
        )
        assert remote_broker.accepted <= stored | delivered, "what was accepted is there"
        assert not remote_broker.refused & (stored | delivered), "what was not executed is not there"
    for row in OPTIONS:
        machine = world.machine(row)
        assert machine is not None
        active = machine.state.subqueues[0]
        assert not active.reservations, "what was reserved for guests that are gone is free"
        assert not active.demands, "nobody waits who is gone"
    assert world.held_sessions() == {}, "sessions of guests that are gone are free"
    machine = world.machine(SESSIONS)
    assert machine is not None
    assert machine.state.sessions is not None
    assert not machine.state.sessions.waiting, "nobody waits for a session who is gone"
    return world


SEEDS = seeds(25)


def test_lines_that_are_cut() -> None:
    for seed in SEEDS:
        for remote_broker in play(seed).remote_brokers:
            assert remote_broker.cuts, f"seed {seed}: a history without a cut shows nothing"
            assert remote_broker.accepted, f"seed {seed}"
            assert remote_broker.delivered, f"seed {seed}"
            assert remote_broker.refused | remote_broker.unknown, f"seed {seed}"


def play_all() -> None:
    for seed in SEEDS:
        play(seed)


def _lost_says_not_executed(self: RemoteBroker, why: str) -> None:
    self.outbox.left = -1
    LOST(self, why)


def _answers_twice(self: RemoteBroker, why: str) -> None:
    requests = dict(self.requests)
    LOST(self, why)
    for number, asked in list(requests.items())[:1]:
        asked.on_reply(r.Failed(number, None, False, why))


LOST = RemoteBroker.lost


@pytest.mark.parametrize(
    ("owner", "name", "bug", "caught"),
    [
        (RemoteBroker, "lost", _lost_says_not_executed, "what was not executed|a lock outlives"),
        (RemoteBroker, "lost", _answers_twice, "every request is answered once"),
        (RemoteStore, "retire", lambda self, why: [], "everyone is told who has not left"),
        (ServedStore, "give_back", lambda self: None, "free|nobody waits"),
        (RemoteReceiver, "_take_back", lambda self, granted: None, "what was reserved"),
        (ServedStore, "forget", lambda self, request: None, "sessions that nobody uses"),
    ],
)
def test_planted_bug_is_caught(owner: type, name: str, bug: Any, caught: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError, match=caught):
        play_all()
