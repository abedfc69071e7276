"""Three brokers, one store with sessions, and clients that hold some of them while its owners are killed, or hand it
over (D21). A seed decides when. A client keeps what the broker granted it: the session, and its messages.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from partibus.cluster.in_doubt import InDoubt
from partibus.cluster.serving import Serving
from partibus.message import Message, pack
from partibus.partition.core import loaded, session_resume
from partibus.partition.core.sessions import AWAY_MS, Sessions
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store
from partibus.partition.runtime import commits
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.session_source import Resuming, SessionHold, SessionSource
from partibus.routing.sessions import SessionDesk
from partibus.routing.store_access import StoreRoute
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.simulated_line import SimulatedLine
from tests.kit.stores.memory import MemoryDisk, MemoryStore
from tests.plugins.soak import seeds

ROW, STORE = 7, 3
FOR_EVER_MS = 10_000_000
OPTIONS = PartitionOptions(lock_duration_ms=FOR_EVER_MS, max_delivery_count=1_000, requires_session=True)
SESSIONS = "uvwxyz"
STEPS = 2_500
NAME_BYTES = 4


class World:
    """The store, who owns it, and what is true of every message."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.timeline = Timeline()
        self.disk = MemoryDisk()
        self.runs = 0
        self.brokers = [Broker(self, f"broker-{number}") for number in range(3)]
        self.owner: Broker | None = None
        self.accepted: dict[int, tuple[bytes, str]] = {}
        """Name and session of what was accepted, by position."""
        self.perhaps: set[bytes] = set()
        """Sent, with an unknown outcome."""
        self.finished: set[int] = set()
        self.unclear: set[int] = set()
        """Completed, with an unknown outcome."""
        self.take_overs = self.kept = self.lost = 0
        self.brokers[0].take()

    def open_store(self) -> Store:
        return MemoryStore(self.disk)

    def is_present(self, run: str) -> bool:
        return any(broker.run == run for broker in self.brokers)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.random.random() < 0.004:
                self.lose()
            broker = self.random.choice(self.brokers)
            if self.random.random() < 0.1:
                broker.send()
            elif self.random.random() < 0.1 and len(broker.clients) < 3:
                Client(broker)
            self.timeline.run_next()

    def lose(self) -> None:
        owner = self.owner
        if owner is None or owner.runtime is None or owner.runtime.failure is not None:
            return
        self.take_overs += 1
        others = [broker for broker in self.brokers if broker is not owner]
        if self.random.random() < 0.5:
            self.owner = None
            owner.hand_over(self.random.choice(others))
            return
        self.owner = None
        self.brokers[self.brokers.index(owner)] = Broker(self, owner.name)
        owner.die()
        self.timeline.call_later(20 * self.random.random(), self.random.choice(others).take)

    def rest(self, ms: float = 400.0) -> None:
        end_ms = self.timeline.time_ms + ms
        while self.timeline.time_ms < end_ms:
            self.timeline.run_next()


class Broker:
    """One run of a broker."""

    def __init__(self, world: World, name: str) -> None:
        world.runs += 1
        self.world = world
        self.name = name
        self.run = f"{name}/run-{world.runs}"
        self.host = SimulatedHost(world.timeline, world.random)
        self.serving = Serving()
        self.route = StoreRoute("store-03", self.host.call_soon, self.host.call_later)
        self.numbers = Numbers()
        self.partition = PartitionHandle(0, ROW, self.route, OPTIONS, batched=True)
        self.desk = SessionDesk("q", [self.partition], self.numbers, 0)
        self.in_doubt = InDoubt(
            self.run, lambda s, call: self.host.call_later(1_000 * s, call), lambda: world.timeline.time_ms / 1_000
        )
        self.runtime: StoreRuntime | None = None
        self.line: SimulatedLine | None = None
        self.clients: list[Client] = []
        if getattr(world, "owner", None) is not None:
            assert world.owner is not None
            self.reach(world.owner)

    def take(self) -> None:
        world = self.world
        runtime = self.runtime = StoreRuntime(world.open_store, self.host, world.timeline)
        runtime.executed.asker_of = self.serving.asker_of
        runtime.run = self.run
        runtime.is_present = world.is_present

        def begun() -> None:
            world.owner = self
            self.route.lead_to(runtime)
            self.serving.open(STORE, runtime)
            for broker in world.brokers:
                if broker is not self:
                    broker.reach(self)

        runtime.begin(begun)

    def reach(self, owner: Broker) -> None:
        world = self.world
        self.route.lead_nowhere("it has another owner")
        self.line = line = SimulatedLine(
            world.timeline,
            world.random,
            self.host,
            owner.host,
            owner.serving,
            asker=self.run,
            run=owner.run,
            in_doubt=self.in_doubt,
        )
        self.route.lead_to(line.remote.store(STORE, self.route))

    def hand_over(self, to: Broker) -> None:
        assert self.runtime is not None
        self.route.lead_nowhere("it is being handed over")
        self.serving.close(STORE, "it is being handed over")
        self.runtime.close(to.take)
        self.runtime = None

    def die(self) -> None:
        self.host.crash()
        for client in self.clients:
            client.is_gone = True
        for broker in self.world.brokers:
            if broker.line is not None and broker.line.remote.run == self.run:
                broker.line.cut()
        if self.line is not None:
            self.line.cut()

    def send(self) -> None:
        world = self.world
        session = world.random.choice(SESSIONS)
        name = world.random.randbytes(NAME_BYTES)

        def sent(reply: Any) -> None:
            if isinstance(reply, r.Accepted):
                world.accepted[reply.first_sequence] = (name, session)
            elif reply.executed is None:
                world.perhaps.add(name)

        world.perhaps.add(name)  # until it is answered: its broker may die
        message = Message(pack(rest=b"body" + name), session_id=session)
        self.partition.submit(c.Enqueue(self.numbers.next(), [message]), sent)


class Client:
    """Takes a session, works on it for a while, and lets it go."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.world = broker.world
        self.is_gone = False
        self.hold: SessionHold | None = None
        self.source: SessionSource | None = None
        self.held: set[int] = set()
        """Positions, until it is known what became of them."""
        self.abandoned: set[int] = set()
        """They come again, behind what was under way."""
        self.take_overs = 0
        broker.clients.append(self)
        session = self.world.random.choice([*SESSIONS, None, None, None])
        self.search = broker.desk.search(session, self.found)
        self.search.start()
        if session is None:
            broker.host.call_later(50.0, self.search.give_up)

    def leave(self) -> None:
        self.is_gone = True
        if self in self.broker.clients:
            self.broker.clients.remove(self)
        if self.source is not None:
            self.source.close()

    def found(self, found: Any) -> None:
        if not isinstance(found, SessionHold):
            self.leave()
            return
        self.hold = found
        self.take_overs = self.world.take_overs
        self.source = SessionSource(
            "q",
            found,
            self.broker.numbers,
            delete=False,
            on_granted=self.granted,
            on_failed=self.failed,
            resuming=Resuming(self.broker.host.call_later, lambda: sorted(self.held)),
        )
        self.source.ask(3, 1 << 20)
        self.later(200.0, self.leave)

    def later(self, ms: float, call: Any) -> None:
        self.broker.host.call_later(ms * self.world.random.random(), lambda: None if self.is_gone else call())

    def failed(self, _: Any) -> None:
        self.world.lost += 1
        self.source = None
        self.leave()

    def granted(self, _: Any, granted: r.Granted) -> None:
        world = self.world
        assert self.hold is not None
        for entry in granted.entries:
            assert entry.session == self.hold.session
            assert entry.pos not in self.held, "delivered again to who has it"
            assert entry.pos not in world.finished, "delivered after it was completed"
            known = {pos for pos, (_, session) in world.accepted.items() if session == self.hold.session}
            before = (
                {pos for pos in known if pos < entry.pos} - world.finished - world.unclear - self.held - self.abandoned
            )
            assert not before, "out of order"
            self.held.add(entry.pos)
            self.later(40.0, lambda pos=entry.pos: self.settle(pos))
        if world.take_overs > self.take_overs and granted.entries:
            world.kept += 1

    def settle(self, pos: int) -> None:
        world = self.world
        assert self.hold is not None
        if pos not in self.held or (self.held and pos != min(self.held)):
            if pos in self.held:
                self.later(5.0, lambda: self.settle(pos))  # in order
            return
        outcome = world.random.choice((c.Outcome.COMPLETE, c.Outcome.COMPLETE, c.Outcome.ABANDON))
        if outcome is c.Outcome.COMPLETE:
            world.unclear.add(pos)
        else:
            self.abandoned.add(pos)

        def answered(reply: Any) -> None:
            if self.is_gone and pos not in self.held:
                return
            if isinstance(reply, r.Failed) and reply.executed is False:
                self.later(5.0, lambda: self.settle(pos))
                return
            self.held.discard(pos)
            if isinstance(reply, r.Failed):
                self.leave()  # nobody can tell, so he can't go on
                return
            if outcome is c.Outcome.COMPLETE and not reply.lost:
                assert pos not in world.finished, "completed twice"
                world.finished.add(pos)
                if world.take_overs > self.take_overs:
                    world.kept += 1
            if self.source is not None and not self.is_gone:
                assert not reply.lost, "a lock that holds is known to every owner"
                self.source.ask(1, 1 << 20)

        command = c.Settle(self.broker.numbers.next(), 0, outcome, [(self.hold.lock_id, pos)])
        self.hold.partition.submit(command, answered)


def play(seed: int) -> World:
    """One history, and what must be true of every one."""
    world = World(seed)
    world.run(STEPS)
    world.rest(2_000)
    for broker in world.brokers:
        for client in list(broker.clients):
            client.leave()
    assert world.owner is not None
    world.owner.partition.wake()
    world.rest(2 * AWAY_MS)
    assert world.owner.runtime is not None
    slot = world.owner.runtime.slots.get(ROW)
    assert slot is not None
    assert slot.machine is not None
    assert slot.machine.state.sessions is not None
    assert not slot.machine.state.sessions.held, "sessions that nobody uses are free"
    assert not slot.machine.state.sessions.resuming
    stored = {entry.pos for entry in _entries(world)}
    for pos in world.accepted:
        assert pos in stored or pos in world.finished or pos in world.unclear, "what was accepted is there"
    assert not stored & world.finished, "what was completed is gone"
    return world


def _entries(world: World) -> list[Any]:
    return MemoryStore(world.disk).read(q.Page(subqueue_key(ROW, 0), 0, 1_000_000, 1 << 40))


SEEDS = seeds(30)


def play_all() -> None:
    take_overs = kept = lost = 0
    for seed in SEEDS:
        world = play(seed)
        take_overs, kept, lost = take_overs + world.take_overs, kept + world.kept, lost + world.lost
        assert world.finished
    assert take_overs > 3 * len(SEEDS)
    assert kept > take_overs, "sessions are worked on across take-overs"
    assert 10 * lost < take_overs, "a lock is lost only when its owner is killed before the next commit"


@pytest.mark.row("K4")
def test_sessions_go_on_at_the_next_owner() -> None:
    play_all()


def _locks_nothing(state: Any, load: Any, rows: Any, now_ms: int, step: Any) -> None:
    RESUMED(state, load, [], now_ms, step)


RESUMED = session_resume.resumed


@pytest.mark.parametrize(
    ("owner", "name", "bug", "caught"),
    [
        (Sessions, "restore", lambda self, rows, end_pos: None, "known to every owner"),
        (Sessions, "must_wait", lambda self, command: False, "known to every owner"),
        (Sessions, "await_holders", lambda self, now_ms: None, "nobody uses are free"),
        (loaded, "resumed", _locks_nothing, "known to every owner"),
        (commits, "note_of", lambda reply: None, "known to every owner|out of order|delivered after"),
    ],
)
def test_planted_bug_is_caught(owner: Any, name: str, bug: Any, caught: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError, match=caught):
        play_all()
