"""Entities that forward to one another, their stores owned by processes that crash or are fenced off; a seed decides.

```text
 inbox (2 partitions) ──▶ hub (3 partitions) ──▶ sink (2 partitions)
                                    errors (plain) ── its dead letters ──▶ sink
 inbox, errors: some messages are sent through them ──▶ sink
```

In some histories destinations refuse messages for a while, which become transfer dead letters. A copy of the source
from before has them at their places.

Now and then a store is put back from a backup of it, while the others go on: what came to it since is lost, and
nothing else. Messages that came to it since and went on may come twice.

Every store has a process of its own; commands between them take time, in order, and what a process was asked when it
crashed is not answered. `inbox` is an ordinary queue at first, with receivers that lock, abandon and complete; its
forwarding begins later. In the end everything comes to rest, and each message that was accepted must be at the sink,
once, or was completed before; the messages of a key are in order there, and in one partition.

``python -m tests.kit.forwarding_simulation --seed N --steps M`` runs one history again.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol
from partibus.forwarding.destination import PARTITION_KEY, Destination
from partibus.forwarding.pump import Pump, Source
from partibus.limits import PartitionLimits
from partibus.message import Message, hops_of, pack, with_destination
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import POSITION_MAX, SubqueueKind, subqueue_key
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store, StoreError
from partibus.partition.runtime.dispatcher import OnReply
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.slots import partition_for_key
from tests.kit.invariants import BrokenPromise, body_of, name_in
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.simulation import draw_limits
from tests.kit.stores.faulty import NO_FAULTS, Faults, FaultSource, FaultyStore
from tests.kit.stores.memory import MemoryDisk, MemoryStore

INBOX, HUB, ERRORS, SINK = ENTITIES = ("inbox", "hub", "errors", "sink")
ROWS = {INBOX: (1, 2), HUB: (11, 12, 13), ERRORS: (21,), SINK: (31, 32)}
STORE_OF = {1: 0, 2: 1, 11: 1, 12: 2, 13: 0, 21: 2, 31: 0, 32: 2}
ENTITY_OF = {row: name for name, rows in ROWS.items() for row in rows}
STORES = 3
KEYS = (None, None, "red", "green", "blue")
CRASH_CHANCE = 0.004
FENCE_CHANCE = 0.002
BACKUP_CHANCE = 0.004
RESTORE_CHANCE = 0.002
FAULTS = Faults(refused=0.01, forgotten=0.005, torn=0.005, unanswered=0.02, unsynced=0.005, load_fails=0.005)
REFUSING_SEEDS = 5
"""The number of histories of which one has destinations that refuse the longer messages now and then."""
REFUSED_BYTES = 60
WAY_MS = 3.0
STEPS = 2_000


class Process:
    """A broker that has one store."""

    def __init__(self, world: "ForwardingSimulation", number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.numbers = Numbers()
        self.host = SimulatedHost(world.timeline, world.random)
        self.runtime = StoreRuntime(
            self._open, self.host, world.timeline, draw_limits(world.seed), forward=self._see, wake=self.wake
        )
        self.runtime.open()
        self.pumps: dict[tuple[int, int], Pump] = {}
        self._handles: dict[str, list[PartitionHandle]] = {}

    def _open(self) -> Store:
        disk = self.world.disks[self.number]
        if self.world.processes.get(self.number) not in (None, self) or not self.alive:
            raise StoreError("another process has the store", executed=False)
        store = MemoryStore(disk)
        disk.sync()
        return FaultyStore(store, self.world.faults)

    def begin(self) -> None:
        """Forward waiting messages and handle due ones."""
        self.runtime.wake_timed()
        self.wake([row for row, store in STORE_OF.items() if store == self.number])

    def wake(self, rows: list[int]) -> None:
        """Handle what is due in partitions."""
        for row in rows:
            self.runtime.submit(row, self.world.options[ENTITY_OF[row]], c.Tick())

    def _see(self, row: int, transfers: bool) -> None:
        if self.runtime.failure is not None:
            self.runtime.when_usable(lambda: self._see(row, transfers))
            return
        entity = ENTITY_OF[row]
        targets: dict[int, str | None] = {SubqueueKind.TRANSFER: None} if transfers else {}
        for kind, target in {**targets, **self.world.targets(entity)}.items():
            if (row, kind) not in self.pumps:
                place = ROWS[entity].index(row)
                source = Source(
                    self.runtime,
                    row,
                    kind,
                    lambda: self.world.options[entity],
                    entity,
                    place,
                    lambda: self.runtime.generations,
                )
                pump = Pump(source, target, self.find, self.numbers, self.host.call_later, self._lost((row, kind)))
                self.pumps[row, kind] = pump
                pump.begin()

    def _lost(self, key: tuple[int, int]) -> Callable[[], None]:
        def lost() -> None:
            del self.pumps[key]
            self.runtime.when_usable(lambda: self._see(key[0], key[1] == SubqueueKind.TRANSFER))

        return lost

    def find(self, name: str) -> Destination:
        """Return the entity of a name as a destination."""
        if name not in self._handles:
            self._handles[name] = [
                PartitionHandle(place, row, Distant(self, STORE_OF[row]), self.world.options[name], batched=True)
                for place, row in enumerate(ROWS[name])
            ]
        size_max = REFUSED_BYTES - 1 if self.world.refuses else 10_000
        return Destination(name, self._handles[name], True, size_max, False, name == SINK)

    def crash(self) -> None:
        """The power fails."""
        self.alive = False
        self.host.crash()


class Distant:
    """The way of a process to a store, wherever that is: a `partibus.routing.store_access.StoreAccess` for requests."""

    overloaded = False

    def __init__(self, process: Process, store: int) -> None:
        self._process = process
        self._store = store
        self._arrives_ms = 0.0

    @property
    def failure(self) -> str | None:
        return None

    def submit(
        self,
        row: int,
        options: PartitionOptions,
        command: c.Command,
        on_reply: OnReply | None = None,
        *,
        holdable: bool = False,
    ) -> None:
        """Deliver the request later, even if its sender has crashed since."""
        world, process = self._process.world, self._process
        assert isinstance(command, c.Enqueue), "what pumps send"
        assert on_reply is not None, "they wait for the answer"
        sent = replace(command, messages=list(command.messages))
        answered: list[bool] = []

        def answer(reply: Any) -> None:
            if not answered:
                answered.append(True)
                world.timeline.call_later(world.way_ms(), lambda: on_reply(reply) if process.alive else None)

        def arrive() -> None:
            owner = world.processes[self._store]
            sent.request = world.number()
            owner.runtime.submit(row, world.options[ENTITY_OF[row]], sent, lambda r: answer(r) if owner.alive else None)
            world.timeline.call_later(300.0, lambda: answer(r.Failed(command.request, None, False, "no answer")))

        self._arrives_ms = max(self._arrives_ms, world.timeline.time_ms + world.way_ms())
        world.timeline.call_later(self._arrives_ms - world.timeline.time_ms, arrive)

    def when_usable(self, call: Callable[[], None]) -> None:
        self._process.host.call_later(10.0, call)

    def register(self, receiver: int, on_granted: OnReply) -> None:
        raise AssertionError("nobody receives from elsewhere")

    def unregister(self, receiver: int) -> None:
        raise AssertionError("nobody receives from elsewhere")

    forget = unregister

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        raise AssertionError("nothing is deleted")

    def retire(self, why: str) -> list[Callable[[], None]]:
        return []


class ForwardingSimulation:
    """One history. Raises `BrokenPromise`, which names the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.timeline = Timeline()
        self.faults = FaultSource(seed, FAULTS)
        self.disks = [MemoryDisk(random.randrange) for _ in range(STORES)]
        self.backups: dict[int, MemoryDisk] = {}
        """Copies of some moment before, by store."""
        self.lost: set[int] = set()
        """Names of messages that were in a partition when its store was put back, and not in the backup of it."""
        self._numbers = Numbers()
        self._requests = 1 << 40
        self.happened: Counter[str] = Counter()
        self.begun = False
        """The inbox forwards."""
        limits = PartitionLimits(
            window_entries=random.choice((4, 60)),
            window_bytes=random.choice((800, 100_000)),
            page_entries=random.choice((3, 20)),
            page_bytes=random.choice((300, 100_000)),
        )
        plain = PartitionOptions(
            lock_duration_ms=random.choice((60, 400)), max_delivery_count=1_000, reservation_ms=100, limits=limits
        )
        full = random.choice((None, 3_000))
        refuses = seed % REFUSING_SEEDS == 1
        if refuses:  # transfer dead letters stay, and would fill the hub for good
            full = None
        self.options = {
            INBOX: replace(plain, redelivery_delay_ms=random.choice((0, 30)), default_ttl_ms=100_000),
            HUB: replace(plain, forwards=1, size_bytes_max=full),
            ERRORS: replace(plain, forwards=2),
            SINK: replace(plain, duplicate_window_ms=random.choice((None, None, 50_000))),
        }
        self.sent: dict[int, tuple[str | None, int]] = {}
        """Name -> (key, producer)."""
        self.sent_through: set[int] = set()
        """Names of messages that are sent through the inbox, or through `errors`, to the sink."""
        self.accepted: set[int] = set()
        self.order: dict[tuple[str, int], list[int]] = {}
        """(key, producer) -> names in the order in which they were stored."""
        self.maybe_twice: set[int] = set()
        """Names of messages that were sent before a store was put back: one that had gone on from there comes again if
        the store that it came from does not know yet, or was put back as well."""
        self.gone: set[int] = set()
        """Completed at the inbox, surely or perhaps, or received at the sink."""
        self.found: list[tuple[int, int, bytes]] = []
        """(row, name, stored form) at the sink."""
        self.refuses = False
        """Destinations refuse messages of `REFUSED_BYTES`, which become transfer dead letters."""
        self.processes: dict[int, Process] = {}
        for store in range(STORES):
            self.processes[store] = Process(self, store)
            self.processes[store].begin()
        self.timeline.call_later(random.choice((0, 200, 1_500)), self.begin_forwarding)
        self.producing = True
        for producer in range(3):
            self._produce(producer)
        self._consume_inbox()
        self._dead_letter()
        if refuses:
            self._refuse(Random(seed))

    def _refuse(self, random: Random) -> None:
        """Let destinations refuse messages for some ms, again and again."""
        if self.producing:
            self.refuses = not self.refuses
            self.timeline.call_later(random.choice((5.0, 50.0, 300.0)), lambda: self._refuse(random))

    def targets(self, entity: str) -> dict[int, str]:
        """Return the destinations as `partibus.forwarding.forwarder.targets_of` does."""
        found = {HUB: {0: SINK}, ERRORS: {1: SINK}}
        if self.begun:
            found[INBOX] = {0: HUB}
        return found.get(entity, {})

    def begin_forwarding(self) -> None:
        """The inbox is updated; its receivers are sent away."""
        self.begun = True
        self.options[INBOX] = replace(self.options[INBOX], forwards=1)
        for row in ROWS[INBOX]:
            self.processes[STORE_OF[row]].wake([row])

    def way_ms(self) -> float:
        """Draw the time from one process to another."""
        return self.random.choice((0.0, 0.2, WAY_MS)) * self.random.random()

    def number(self) -> int:
        """Return a number for requests and receivers of clients, apart from those of processes."""
        self._requests += 1
        return self._requests

    # -- clients -----------------------------------------------------------------------------------------------------

    def _produce(self, producer: int) -> None:
        random = self.random
        if not self.producing:
            return
        entity = random.choice((INBOX, INBOX, ERRORS)) if producer else INBOX
        names: list[int] = []
        messages: list[Message] = []
        key = random.choice(KEYS)
        via = random.random() < 0.15
        row = ROWS[entity][partition_for_key(key, len(ROWS[entity])) if key else random.randrange(len(ROWS[entity]))]
        for _ in range(random.choice((1, 3, 12))):
            name = self._numbers.next()
            self.sent[name] = (key, producer)
            names.append(name)
            annotations = b"" if key is None else encode(Symbol(PARTITION_KEY)) + encode(key)
            properties = b"\x00\x53\x73" + encode([str(name)])
            self.sent_through.update([name] if via else [])
            body = body_of(name) + bytes(random.choice((0, 60)))
            data = pack(annotation_count=key is not None, annotations=annotations, properties=properties, rest=body)
            messages.append(Message(with_destination(data, SINK) if via else data, partition_key=key))

        again: list[bool] = []

        def answered(reply: Any) -> None:
            if isinstance(reply, r.Accepted):
                self.accepted.update(names)
                if key is not None and entity == INBOX and not via:
                    self.order.setdefault((key, producer), []).extend(names)
            go_on()

        def go_on() -> None:
            if not again:
                again.append(True)
                self.timeline.call_later(random.choice((0.0, 2.0, 20.0)), lambda: self._produce(producer))

        self.timeline.call_later(400.0, go_on)
        self.processes[STORE_OF[row]].runtime.submit(
            row, self.options[entity], c.Enqueue(self.number(), messages, via=via), answered
        )

    def _consume_inbox(self) -> None:
        """Consume messages before the queue forwards them: lock, then complete, abandon, or leave them."""
        if self.begun or not self.producing:
            return
        row = self.random.choice(ROWS[INBOX])
        process = self.processes[STORE_OF[row]]
        receiver = self.number()

        def told(reply: Any) -> None:
            if isinstance(reply, r.Granted):
                self.happened["locked before"] += len(reply.entries)
                tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
                outcome = self.random.choice((c.Outcome.COMPLETE, c.Outcome.ABANDON, c.Outcome.ABANDON, None))
                if outcome is c.Outcome.COMPLETE:
                    # Perhaps it comes again all the same: no client was told that it is lost.
                    self.gone.update(name_in(entry.data) for entry in reply.entries if entry.data is not None)
                if outcome is not None:
                    delay_ms = self.random.choice((0.0, 30.0, 300.0))
                    settle = c.Settle(self.number(), 0, outcome, tokens, delay_ms=self.random.choice((0, 40)))
                    process.host.call_later(
                        delay_ms, lambda: process.runtime.submit(row, self.options[INBOX], settle, lambda _: None)
                    )

        process.runtime.register(receiver, told)
        reserve = self.random.random() < 0.2
        process.runtime.submit(
            row, self.options[INBOX], c.Receive(0, receiver, self.random.choice((1, 5)), 5_000, reserve=reserve)
        )
        process.host.call_later(
            20.0, lambda: process.runtime.submit(row, self.options[INBOX], c.CancelReceive(0, 0, receiver))
        )
        self.timeline.call_later(self.random.choice((5.0, 40.0)), self._consume_inbox)

    def _dead_letter(self) -> None:
        """Everything in `errors` becomes a dead letter."""
        row = ROWS[ERRORS][0]
        process = self.processes[STORE_OF[row]]
        receiver = self.number()

        def told(reply: Any) -> None:
            if isinstance(reply, r.Granted):
                tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
                settle = c.Settle(self.number(), 0, c.Outcome.DEAD_LETTER, tokens, "because")
                process.runtime.submit(row, self.options[ERRORS], settle, lambda _: None)

        process.runtime.register(receiver, told)
        process.runtime.submit(row, self.options[ERRORS], c.Receive(0, receiver, 50, 50_000))

        def end() -> None:
            if process.alive:
                process.runtime.unregister(receiver)
                process.runtime.submit(row, self.options[ERRORS], c.CancelReceive(0, 0, receiver))
            self._dead_letter()

        self.timeline.call_later(30.0, end)

    # -- what happens to processes -----------------------------------------------------------------------------------

    def crash(self, store: int) -> None:
        """The machine of a store loses power, and a new process starts."""
        self.happened["crashes"] += 1
        self.processes[store].crash()
        self.disks[store].crash()
        self._start(store)

    def fence(self, store: int) -> None:
        """A store gets another owner, and the one before goes on without knowing it."""
        self.happened["fenced"] += 1
        self._start(store)

    def restore(self, store: int) -> None:
        """A store is put back from its backup, perhaps not for the first time."""
        self.happened["restored"] += 1
        self.maybe_twice = set(self.sent)
        self.processes[store].crash()
        self.disks[store].crash()
        before, self.disks[store] = self.disks[store], self.backups[store].backup()
        self.lost |= {name for name, _ in self.places(store, before) - self.places(store, self.disks[store])}
        self._start(store)

    def places(self, store: int, disk: MemoryDisk) -> set[tuple[int, int]]:
        """(name, partition row) of all messages in a store."""
        return {
            (name_in(entry.data), row)
            for row, number in STORE_OF.items()
            if number == store
            for kind in SubqueueKind
            for entry in disk.durable.in_range(subqueue_key(row, kind), 0, POSITION_MAX)
        }

    def _start(self, store: int) -> None:
        del self.processes[store]
        self.processes[store] = Process(self, store)
        self.processes[store].begin()

    # -- the end -----------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Do so many events, then come to rest and check."""
        try:
            for _ in range(steps):
                self.timeline.run_next()
                if self.random.random() < CRASH_CHANCE:
                    self.crash(self.random.randrange(STORES))
                if self.random.random() < FENCE_CHANCE:
                    self.fence(self.random.randrange(STORES))
                if self.random.random() < BACKUP_CHANCE:
                    store = self.random.randrange(STORES)
                    self.backups[store] = self.disks[store].backup()
                if self.backups and self.random.random() < RESTORE_CHANCE:
                    self.restore(self.random.choice(sorted(self.backups)))
            self._come_to_rest()
            self._check()
        except AssertionError as error:
            again = f"python -m tests.kit.forwarding_simulation --seed {self.seed} --steps {steps}"
            raise BrokenPromise(f"{error} (seed {self.seed}, at {self.timeline.now_ms()} ms; {again})") from error

    def _come_to_rest(self) -> None:
        self.producing = self.refuses = False
        self.faults.faults = NO_FAULTS
        if not self.begun:
            self.begin_forwarding()
        end_ms = self.timeline.time_ms + 60_000
        while self.timeline.time_ms < end_ms:
            for _ in range(200):
                self.timeline.run_next()
            if not self.left() and self.timeline.time_ms > end_ms - 55_000:
                break
        for row in ROWS[SINK]:
            tables = self.disks[STORE_OF[row]].durable
            for entry in tables.in_range(subqueue_key(row, 0), 0, POSITION_MAX):
                self.found.append((row, name_in(entry.data), entry.data))

    def places_of(self, entity: str) -> set[tuple[int, int]]:
        """(name, partition row) of the messages that an entity has."""
        rows = ROWS[entity]
        return {
            place for row in rows for place in self.places(STORE_OF[row], self.disks[STORE_OF[row]]) if place[1] in rows
        }

    def left(self) -> int:
        """Count the entries that are not at the sink yet, without refused ones."""
        return sum(len(self._in_subqueues(kind)) for kind in SubqueueKind if kind != SubqueueKind.TRANSFER_DEAD_LETTER)

    def _in_subqueues(self, kind: int) -> list[int]:
        """Return the names of the messages in sub-queues of a kind, in all entities that forward."""
        return [
            name_in(entry.data)
            for entity in (INBOX, HUB, ERRORS)
            for row in ROWS[entity]
            for entry in self.disks[STORE_OF[row]].durable.in_range(subqueue_key(row, kind), 0, POSITION_MAX)
        ]

    def _check(self) -> None:
        left = self.left()
        if left:
            raise BrokenPromise(f"{left} messages were never forwarded")
        times = Counter(name for _, name, _ in self.found)
        most = 1 + self.happened["restored"]
        twice = sorted(n for n, count in times.items() if count > (most if n in self.maybe_twice else 1))
        if twice:
            raise BrokenPromise(f"messages {twice} were forwarded more than once")
        refused = set(self._in_subqueues(SubqueueKind.TRANSFER_DEAD_LETTER))
        self.happened["refused"] += len(refused)
        lost = sorted(self.accepted - times.keys() - self.gone - self.lost - refused)
        if lost:
            raise BrokenPromise(f"messages {lost} were accepted and are lost")
        place: dict[int, int] = {}
        for index, (row, name, data) in enumerate(self.found):
            place[name] = index
            key, _ = self.sent[name]
            if key is not None and row != ROWS[SINK][partition_for_key(key, len(ROWS[SINK]))]:
                raise BrokenPromise(f"message {name} with the key {key} is in partition row {row}")
            if hops_of(data) not in ((0,) if name in self.sent_through else (1, 2)):
                raise BrokenPromise(f"message {name} counts {hops_of(data)} hops")
        if not self.happened["locked before"]:  # else some were held back by receivers, or abandoned
            for (key, producer), names in self.order.items():
                places = [place[name] for name in names if name in place and name not in self.maybe_twice]
                if places != sorted(places):
                    raise BrokenPromise(f"messages of the key {key} of producer {producer} are out of order")
        self.happened["forwarded"] += len(self.found)


def main() -> None:
    """Run one seed, or several from it on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--steps", type=int, default=STEPS, help="events before everything comes to rest")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        simulation = ForwardingSimulation(seed)
        simulation.run(arguments.steps)
        print(
            f"seed {seed}: {len(simulation.sent)} messages, {dict(simulation.happened)}, {simulation.faults.happened}"
        )


if __name__ == "__main__":
    main()
