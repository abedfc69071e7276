"""A topic with subscriptions, its publishers and their consumers, all decided by one seed (D17).

``python -m tests.kit.topic_simulation --seed N --steps M`` runs one history again. The world is that of
`tests.kit.simulation`: crashes, commits and loads that fail. Each subscription has an oracle of its own, which
knows the copies that it must get, as a queue's knows its messages; beside them the histories hold that a message is in
all of its subscriptions or in none, and that a drained topic leaves nothing.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, cast

from msgspec.structs import replace

from partibus.message import Message, pack, with_application_properties
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import KIND_BITS, POSITION_BITS
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.store_runtime import StoreRuntime
from tests.kit import invariants as i
from tests.kit.clients import Client, Consumer
from tests.kit.invariants import BrokenPromise, body_of, name_in
from tests.kit.oracle import Oracle, name_of
from tests.kit.session_clients import SESSIONS, SessionConsumer
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.simulated_topic import Rule, SimulatedFanOut, SimulatedSubscribers
from tests.kit.simulation import FAULTS, LOCK_WRITTEN_MS, Simulation, draw_limits
from tests.kit.stores.faulty import NO_FAULTS, FaultSource
from tests.kit.stores.memory import MemoryDisk

TOPIC = 20
ALL, EVEN, MARKED, SHORT = SUBSCRIPTIONS = (21, 22, 23, 24)
"""Partition rows of subscriptions: to everything; to every other message, in sessions; to every third, whose copies an
action changes; to everything, until it is deleted."""
ACTION = {"marked": True}


def _marked(message: Message) -> Message:
    return Message(
        with_application_properties(message.data, ACTION),
        message_id=message.message_id,
        session_id=message.session_id,
        scheduled_ms=message.scheduled_ms,
    )


def _every(divisor: int) -> Callable[[Message], bool]:
    return lambda message: name_in(message.data) % divisor == 0


RULES: dict[int, Rule] = {
    ALL: lambda message: [message],
    EVEN: lambda message: [message] if _every(2)(message) else [],
    MARKED: lambda message: [_marked(message)] if _every(3)(message) else [],
    SHORT: lambda message: [message],
}


class _Copies(Oracle):
    """The copies of one subscription. After its deletion nothing is promised: grants may still be on their way."""

    is_deleted = False

    def granted(self, *told: Any, **more: Any) -> None:
        """A consumer got messages."""
        if not self.is_deleted:
            super().granted(*told, **more)

    def completed(self, row: int, kind: int, name: int, pos: int) -> None:
        """A consumer was told that its message is finished."""
        if not self.is_deleted:
            super().completed(row, kind, name, pos)


class _View:
    """The world as the clients of one subscription see it: with its oracle."""

    def __init__(self, world: "TopicSimulation", row: int) -> None:
        self.oracle = world.oracles[row]
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


class TopicSimulation(Simulation):
    """One history. Raises `BrokenPromise`, which names the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.timeline = Timeline()
        self.disk = MemoryDisk()
        self.faults = FaultSource(seed, FAULTS)
        self.options = self._draw_options()
        self.fan_out = SimulatedFanOut(
            dict(RULES), self.options, message_work=self.random.choice((0, 0, 40_000, 110_000))
        )
        self.topics = {TOPIC: self.fan_out}
        window_ms = self.options[TOPIC].duplicate_window_ms
        promised = {row: replace(self.options[row], duplicate_window_ms=window_ms) for row in SUBSCRIPTIONS}
        self.oracles = {
            row: _Copies(self.disk, ordered={row}, lock_written_ms=LOCK_WRITTEN_MS, options=promised)
            for row in SUBSCRIPTIONS
        }
        self.residencies = []
        self.crashes = 0
        self.names = 0
        self.refusals = 0
        self._number = 0
        self.stopping = False
        self.start_process()
        self.clients: list[Client] = [Publisher(self) for _ in range(self.random.randint(1, 3))]
        for row in (ALL, MARKED, SHORT):
            view = cast("Simulation", _View(self, row))
            self.clients += [Consumer(view, row, kind) for kind in (0, 0, 1)]
        view = cast("Simulation", _View(self, EVEN))
        self.clients += [SessionConsumer(view, EVEN, delete=False) for _ in range(3)]
        self.clients.append(Consumer(view, EVEN, 1))
        if self.random.random() < 0.7:
            self.timeline.call_later(self.random.random() * 1_500, self._delete_subscription)

    def _draw_options(self) -> dict[int, PartitionOptions]:
        everywhere = super()._draw_options()[1]
        topic = replace(
            everywhere,
            topic=True,
            duplicate_window_ms=self.random.choice((None, 300)),
            size_bytes_max=self.random.choice((None, None, 20_000)),
        )
        sessions = replace(everywhere, requires_session=True)
        return {TOPIC: topic, EVEN: sessions} | {row: replace(everywhere) for row in (ALL, MARKED, SHORT)}

    def start_process(self) -> None:
        """Start the broker on what the disk has."""
        self.host = SimulatedHost(self.timeline, self.random)
        subscribers = SimulatedSubscribers(self.topics)
        self.runtime = StoreRuntime(
            self.open_store,
            self.host,
            self.timeline,
            draw_limits(self.seed),
            wake=self._wake,
            subscribers=subscribers,
            failed=self.lose_memory,
            meters=self.new_meters(),
        )
        self.runtime.open()
        self.runtime.wake_timed()
        if SHORT not in self.fan_out.rules:
            self._drop()  # as a broker does with what was deleted and may have rows

    def lose_memory(self) -> None:
        """The broker has forgotten what it had in memory. Of a topic that is not express nothing was promised of it."""

    def _delete_subscription(self) -> None:
        if not self.stopping:
            del self.fan_out.rules[SHORT]
            self.oracles[SHORT].is_deleted = True
            self._drop()

    def _drop(self) -> None:
        def dropped(_: int) -> None:
            if _rows_of(self.disk, SHORT):
                raise BrokenPromise("a deleted subscription has entries after its end")

        self.runtime.drop(SHORT, dropped)

    def submit(self, row: int, command: c.Command, on_reply: Callable[[Any], None] | None = None) -> None:
        """Submit a command through the front door, which knows no deleted entity."""
        if row in self.fan_out.rules or row == TOPIC:
            self.runtime.submit(row, self.options[row], command, on_reply, holdable=row != ALL)

    def new_message(self, row: int = TOPIC) -> tuple[int, Message]:
        """A message with a name of its own."""
        self.names += 1
        random = self.random
        name, now_ms = self.names, self.timeline.now_ms()
        message = Message(
            pack(rest=body_of(name) + bytes(random.choice((0, 0, 50, 300)))),
            session_id=random.choice((*SESSIONS, *SESSIONS, None)),
            scheduled_ms=now_ms + random.randint(-50, 1_000) if random.random() < 0.2 else None,
        )
        if self.options[TOPIC].duplicate_window_ms is not None:
            # Duplicates of each other are for the same subscriptions.
            message.message_id = f"{name % 6} {random.randint(1, 8)}"
        for of in self.wanted_by(message):
            self.oracles[of].asked(name, of, _marked(message) if of == MARKED else message, now_ms)
        return name, message

    def wanted_by(self, message: Message) -> list[int]:
        """The subscriptions that a message is for."""
        return [row for row, rule in RULES.items() if rule(message)]

    def copies(self, name: int) -> list[Oracle]:
        """Return the subscriptions that know a message."""
        return [oracle for oracle in self.oracles.values() if name in oracle.sent]

    def crash(self) -> None:
        """The machine loses power and comes up again."""
        self.crashes += 1
        self.host.crash()
        self.disk.crash()
        for row in SUBSCRIPTIONS:
            _rows_of(self.disk, row)
        for oracle in self.oracles.values():
            oracle.memory_lost(self.timeline.now_ms())
        self.start_process()
        for client in self.clients:
            client.disconnected()

    def come_to_rest(self) -> None:
        """Close the store with requests under way, open it once more and drain it."""
        self.stopping = True
        self.faults.faults = NO_FAULTS
        closed: list[bool] = []
        self.runtime.close(lambda: closed.append(True))
        self._run_until_nothing_is_left()
        if not closed:
            raise BrokenPromise("the store was never closed")
        self.start_process()
        self.submit(TOPIC, c.Tick())
        self._run_until_nothing_is_left()
        found: dict[int, list[int]] = {row: [] for row in SUBSCRIPTIONS}
        for row in self.fan_out.rules:
            for kind in (0, 1):
                if (row, kind) != (EVEN, 0):
                    self._drain(row, c.Receive(kind, self.number(), 10**9, 10**12, delete=True), found[row])
        self._run_until_nothing_is_left()
        for _ in range(50):
            if not self.disk.durable.entries:
                break
            for name in SESSIONS:
                self._drain_session_of(name, found[EVEN])
            for row in (ALL, EVEN, MARKED, SHORT):
                self._drain_deferred_of(row, found[row], session=None, lock_id=0)
            self._run_until_nothing_is_left()
        if self.disk.durable.entries or self.disk.durable.bodies:
            entries, bodies = self.disk.durable.entries, sorted(self.disk.durable.bodies)
            raise BrokenPromise(f"the drained topic still holds {entries}, bodies {bodies}")
        self._check_rest(found)

    def _drain_session_of(self, name: str, found: list[int]) -> None:
        receiver = self.number()

        def accepted(reply: r.SessionAccepted | r.SessionHeld) -> None:
            if isinstance(reply, r.SessionAccepted):
                self._drain(EVEN, c.Receive(0, receiver, 10**9, 10**12, delete=True, session=reply.lock_id), found)
                self._drain_deferred_of(EVEN, found, session=name, lock_id=reply.lock_id)

        self.runtime.register(receiver, lambda _: None)
        self.submit(EVEN, c.AcceptSession(self.number(), receiver, name), accepted)

    def _drain_deferred_of(self, row: int, found: list[int], *, session: str | None, lock_id: int) -> None:
        oracle = self.oracles[row]

        def told(reply: r.DeferredGranted | r.NotFound | r.SessionLost) -> None:
            if isinstance(reply, r.DeferredGranted):
                found.extend(map(name_of, reply.entries))

        for (name, kind), sequence in oracle.maybe_deferred.items():
            of = oracle.sent[name].message.session_id if kind == 0 and row == EVEN else None
            if of == session and name not in oracle.dispositions:
                self.submit(row, c.ReceiveDeferred(self.number(), kind, [sequence], True, lock_id), told)

    def _check_rest(self, found: dict[int, list[int]]) -> None:
        live = [row for row in SUBSCRIPTIONS if row in self.fan_out.rules]
        for row in live:
            self.oracles[row].check_rest(found[row], self.timeline.now_ms())
        for name in range(1, self.names + 1):
            copies = {
                row: bool(self.oracles[row].delivered[name]) or name in found[row]
                for row in live
                if name in self.oracles[row].sent
            }
            i.i20_in_all_subscriptions_or_in_none(name, copies)

    def tally(self) -> Counter[str]:
        """How much of what has happened."""
        happened: Counter[str] = Counter()
        for oracle in self.oracles.values():
            happened += oracle.tally()
        happened["subscriptions deleted"] = SHORT not in self.fan_out.rules
        happened["refused"] = self.refusals
        return happened


class Publisher(Client):
    """Sends small batches, a few at once; cancels some of those that are scheduled."""

    def __init__(self, world: TopicSimulation) -> None:
        self._at_once = world.random.randint(1, 3)
        self.world = world
        super().__init__(world, TOPIC)

    def _connect_later(self) -> None:
        for _ in range(self._at_once):
            self._send_later()

    def _send_later(self) -> None:
        self._later(self.world.random.choice((1.0, 200.0, 500.0)), self._send)

    def _send(self) -> None:
        world = self.world
        sent = [world.new_message() for _ in range(world.random.randint(1, 6))]

        def answered(reply: r.Accepted | r.Refused | r.Failed) -> None:
            if isinstance(reply, r.Accepted):
                self._accepted(sent, reply.first_sequence)
            else:
                if isinstance(reply, r.Refused):
                    world.refusals += 1
                    if reply.size_bytes < reply.size_bytes_max:
                        raise BrokenPromise(f"{reply} of a topic that is not full")
                for name, _ in sent:
                    for oracle in world.copies(name):
                        oracle.refused([name], reply.executed if isinstance(reply, r.Failed) else False)
            self._send_later()

        self._ask(c.Enqueue(0, [message for _, message in sent]), answered)

    def _accepted(self, sent: list[tuple[int, Message]], first_sequence: int) -> None:
        world = self.world
        now_ms = world.timeline.now_ms()
        if world.disk.durable.partitions.get(TOPIC, (0, 0, 0))[0] < first_sequence + len(sent):
            raise BrokenPromise(f"messages {sent} were acknowledged before they were durable")
        unique = world.options[TOPIC].duplicate_window_ms is None
        for sequence, (name, message) in enumerate(sent, first_sequence):
            due_later = message.scheduled_ms is not None
            for row in world.wanted_by(message):
                oracle = world.oracles[row]
                oracle.accepted([name], row, None, now_ms)
                is_there = name in _rows_of(world.disk, row) or oracle.delivered[name]
                if unique and not due_later and row in world.fan_out.rules and row != SHORT and not is_there:
                    raise BrokenPromise(f"message {name} was acknowledged before subscription {row} had it")
            if due_later and world.random.random() < 0.4:
                self._cancel_later(name, sequence)

    def _cancel_later(self, name: int, sequence: int) -> None:
        world = self.world
        oracles = world.copies(name)

        def unknown() -> None:
            for oracle in oracles:
                oracle.maybe_gone.add(name)

        def answered(reply: r.Done | r.NotFound | r.Failed) -> None:
            for oracle in oracles:
                if isinstance(reply, r.Done):
                    oracle.cancelled(name)
                elif isinstance(reply, r.NotFound) and world.options[TOPIC].duplicate_window_ms is None:
                    oracle.not_cancelled(name, world.timeline.now_ms())
                elif isinstance(reply, r.Failed) and reply.executed is None:
                    unknown()

        self._later(
            world.random.choice((100, 1_000)),
            lambda: self._ask(c.CancelScheduled(0, 0, [sequence]), answered, unknown),
        )


def _rows_of(disk: MemoryDisk, row: int) -> set[int]:
    """Names of what a partition has on the disk, which is looked at as a whole first."""
    tables = disk.durable
    i.i19_bodies_and_entries_belong_together({entry.body for entry in tables.entries.values()}, tables.bodies)
    names = [
        name_in(tables.bodies[entry.body])
        for key, entry in tables.entries.items()
        if key >> (KIND_BITS + POSITION_BITS) == row
    ]
    i.i21_once_per_subscription(row, names)
    return {*names}


def main() -> None:
    """Run one seed, or several from it on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--steps", type=int, default=3_000, help="events before the broker comes to rest")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        simulation = TopicSimulation(seed)
        simulation.run(arguments.steps)
        print(f"seed {seed}: {simulation.names} messages, {simulation.crashes} crashes, {dict(simulation.tally())}")


if __name__ == "__main__":
    main()
