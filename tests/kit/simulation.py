"""A store, its runtime, producers and consumers, all decided by one seed (D3, D11, D12).

``python -m tests.kit.simulation --seed N --steps M`` runs one history again. The process crashes and starts
again at any moment, commits and loads fail in every way that `stores.faulty` knows, and `oracle` watches every answer.
In the end the store is closed and drained: all that was acknowledged must come out, and nothing else.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace

from partibus.limits import PartitionLimits, StoreLimits
from partibus.message import Message, pack
from partibus.partition.core.meters import Meters
from partibus.partition.core.residency import Residency
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Store, StoreError
from partibus.partition.runtime.store_runtime import StoreRuntime
from tests.kit.clients import Administrator, Client, Consumer, Producer, Purger
from tests.kit.invariants import BrokenPromise, body_of
from tests.kit.oracle import Oracle, name_of
from tests.kit.session_clients import SESSIONS, SessionConsumer, TransactionalConsumer
from tests.kit.simulated_host import IO_MS_MAX, SimulatedHost, Timeline
from tests.kit.stores.faulty import NO_FAULTS, Faults, FaultSource, FaultyStore
from tests.kit.stores.memory import MemoryDisk, MemoryStore

PLAIN, RESERVED, DELETED, SESSION, TIMED, UNIQUE, TRANSACTED = ROWS = (1, 2, 3, 4, 5, 6, 7)
"""Partition rows: consumed under lock; through reservations; by receive-and-delete; in sessions; with times to live and
messages scheduled; with duplicate detection; in transactions."""
LOCK_WRITTEN_MS = 100.0
"""A lock is in the store by then: a commit under way (12 + 12 ms), 20 ms until rows without a waiter are written,
20 ms of batching, and a commit of its own."""
CRASH_CHANCE = 0.003
FORCED_CHANCE = 0.1
"""The chance of a forced message to an express entity; those in one batch with it are kept, too."""
EXPRESS_BOUND_MS = 600
"""The loss bound, in the last sixth of which a commit has to end, see `LOCK_WRITTEN_MS`."""
FAULTS = Faults(refused=0.01, forgotten=0.004, torn=0.004, unanswered=0.01, unsynced=0.004, load_fails=0.01)
CALM_CRASH_CHANCE = CRASH_CHANCE / 6
CALM_FAULTS = Faults(refused=0.002, unanswered=0.002, load_fails=0.001)
"""Where messages are to become as old as a loss bound."""

assert 4 * IO_MS_MAX + 40 < LOCK_WRITTEN_MS <= EXPRESS_BOUND_MS / 6


def draw_limits(seed: int) -> StoreLimits:
    """The memory for partitions: in a quarter of the histories none, so that all go cold as soon as they may."""
    partition_bytes = Random(-seed).choice((0, 60_000, *[StoreLimits().partition_bytes] * 2))
    # Rounds in which nothing happens are steps of a history, too.
    return StoreLimits(partition_bytes=partition_bytes, gather_rounds=1)


class Simulation:
    """One history. Raises `BrokenPromise`, which names the seed."""

    express_ms = 0
    crash_chance = CRASH_CHANCE

    def __init__(self, seed: int, express_ms: int = 0) -> None:
        """``express_ms``: all entities are express, with this loss bound."""
        self.seed = seed
        self.express_ms = express_ms
        self.random = Random(seed)
        self.timeline = Timeline()
        self.disk = MemoryDisk()
        self.faults = FaultSource(seed, FAULTS if not express_ms else CALM_FAULTS)
        if express_ms:
            self.crash_chance = CALM_CRASH_CHANCE
        self.options = self._draw_options()
        self.oracle = Oracle(
            self.disk, ordered=set(ROWS) - {RESERVED}, lock_written_ms=LOCK_WRITTEN_MS, options=self.options
        )
        self.residencies: list[Residency] = []
        """The residency of each process."""
        self.crashes = 0
        self.names = 0
        self._number = 0
        self.stopping = False
        self.start_process()
        self.clients: list[Client] = [Producer(self, row) for row in ROWS for _ in range(self.random.randint(1, 2))]
        for row in (PLAIN, RESERVED, DELETED, TIMED, UNIQUE):
            self.clients += [
                Consumer(self, row, kind, delete=row == DELETED, reserve=row == RESERVED) for kind in (0, 0, 1)
            ]
        self.clients += [SessionConsumer(self, SESSION, delete=delete) for delete in (False, False, False, True)]
        self.clients += [TransactionalConsumer(self, TRANSACTED, 0) for _ in range(2)]
        self.clients += [Consumer(self, row, 1) for row in (SESSION, TRANSACTED)]
        if self.random.random() < 0.5:
            self.clients.append(Purger(self, PLAIN))
        Administrator(self, UNIQUE)

    def _draw_options(self) -> dict[int, PartitionOptions]:
        """Draw options by partition row."""
        random = self.random
        everywhere = PartitionOptions(
            lock_duration_ms=random.choice((60, 400, 5_000)),
            max_delivery_count=random.choice((2, 5)),
            reservation_ms=200,
            express_ms=self.express_ms,
            limits=PartitionLimits(
                window_entries=random.choice((4, 30)),
                window_bytes=random.choice((500, 100_000)),
                session_window_entries=random.choice((3, 30)),
                session_window_bytes=random.choice((300, 100_000)),
                page_entries=random.choice((3, 20)),
                page_bytes=random.choice((200, 100_000)),
                locked_body_max=random.choice((0, 60, 4_096)),
                scan_ids=random.choice((1, 5_000)),
                scan_sessions=random.choice((1, 256)),
            ),
        )
        special: dict[int, dict[str, Any]] = {
            SESSION: {"requires_session": True},
            TIMED: {
                "default_ttl_ms": random.choice((None, 700)),
                "dead_letter_on_expiration": random.random() < 0.5,
                "redelivery_delay_ms": random.choice((0, 20)),
                "redelivery_delay_max_ms": 100,
            },
            UNIQUE: {"duplicate_window_ms": random.choice((200, 1_000, 5_000))},
        }
        return {row: replace(everywhere, **special.get(row, {})) for row in ROWS}

    def start_process(self) -> None:
        """Start the broker on what the disk has."""
        self.host = self.new_host()
        failed = self._tell_oracle_of_loss if self.express_ms else None
        self.runtime = StoreRuntime(
            self.open_store,
            self.host,
            self.timeline,
            draw_limits(self.seed),
            wake=self._wake,
            failed=failed,
            meters=self.new_meters(),
        )
        self.runtime.open()
        self.runtime.wake_timed()

    def new_host(self) -> SimulatedHost:
        """Return the loop and the threads of a process that starts."""
        return SimulatedHost(self.timeline, self.random)

    def new_meters(self) -> Meters:
        """Return the meters of a process that starts."""
        meters = Meters()
        self.residencies.append(meters.residency)
        return meters

    @property
    def went_cold(self) -> Counter[str]:
        """How often partitions, and windows of partitions that stayed, went cold (D25)."""
        return Counter(
            {
                "went cold": sum(one.went_cold for one in self.residencies),
                "windows dropped": sum(one.windows_dropped for one in self.residencies),
            }
        )

    def _tell_oracle_of_loss(self) -> None:
        """Memory is lost; clients cannot tell it from a store that is closed."""
        self.oracle.express_lost(self.timeline.now_ms())

    def _wake(self, rows: list[int]) -> None:
        for row in rows:
            self.submit(row, c.Tick())

    def open_store(self) -> Store:
        """Opening a store commits its new owner, which makes durable what was written before."""
        if self._refuses_to_open():
            raise StoreError("the disk can't be opened (a planned fault)", executed=False)
        store = MemoryStore(self.disk)
        self.disk.sync()
        return FaultyStore(store, self.faults)

    def submit(self, row: int, command: c.Command, on_reply: Callable[[Any], None] | None = None) -> None:
        """Submit a command through the front door."""
        self.runtime.submit(row, self.options[row], command, on_reply, holdable=row != RESERVED)

    def number(self) -> int:
        """Return a number for requests and receivers."""
        self._number += 1
        return self._number

    def new_message(self, row: int) -> tuple[int, Message]:
        """A message with a name of its own."""
        self.names += 1
        random = self.random
        now_ms = self.timeline.now_ms()
        ttl_ms = random.choice((None, None, 50, 1_500)) if row == TIMED else None
        padding = bytes(random.choice((0, 0, 50, 300)))
        is_forced = bool(self.express_ms) and random.random() < FORCED_CHANCE
        message = Message(
            pack(durable=is_forced, ttl_ms=ttl_ms, rest=body_of(self.names) + padding),
            ttl_ms=ttl_ms,
            session_id=random.choice(SESSIONS) if row == SESSION else None,
            scheduled_ms=now_ms + random.randint(-50, 2_000) if row == TIMED and random.random() < 0.4 else None,
            message_id=str(random.randint(1, 40)) if row == UNIQUE else None,
        )
        self.oracle.asked(self.names, row, message, now_ms)
        return self.names, message

    def crash(self) -> None:
        """The machine loses power and comes up again."""
        self.crashes += 1
        self.host.crash()
        self.disk.crash()
        self.oracle.memory_lost(self.timeline.now_ms())
        self.oracle.express_lost(self.timeline.now_ms())
        self.start_process()
        for client in self.clients:
            client.disconnected()

    def run(self, steps: int) -> None:
        """Do so many events, then come to rest and check."""
        try:
            for _ in range(steps):
                self.timeline.run_next()
                if self.random.random() < self.crash_chance:
                    self.crash()
            self.come_to_rest()
        except AssertionError as error:
            spec = sys.modules[type(self).__module__].__spec__
            assert spec is not None, "a module, even if it is __main__"
            again = f"python -m {spec.name} --seed {self.seed} --steps {steps}"
            again += f" --express-ms {self.express_ms}" if self.express_ms else ""
            raise BrokenPromise(f"{error} (seed {self.seed}, at {self.timeline.now_ms()} ms; {again})") from error

    def come_to_rest(self) -> None:
        """Close the store with requests under way, open it once more and drain it."""
        self.stopping = True
        self.faults.faults = NO_FAULTS
        closed: list[bool] = []
        self.runtime.close(lambda: closed.append(True))
        self._run_until_nothing_is_left()
        if not closed:
            raise BrokenPromise("the store was never closed")
        for client in self.clients:
            if client.requests:
                raise BrokenPromise(f"requests {sorted(client.requests)} were never answered")
        self.start_process()
        found: list[int] = []
        for row in ROWS:
            for kind in (0, 1):
                if (row, kind) != (SESSION, 0):
                    self._drain(row, c.Receive(kind, self.number(), 10**9, 10**12, delete=True), found)
        self._run_until_nothing_is_left()
        for _ in range(50):
            if not self.disk.durable.entries:
                break
            for name in SESSIONS:
                self._drain_session(name, found)
            self._drain_deferred(found, session=None, lock_id=0)
            self._run_until_nothing_is_left()
        if self.disk.durable.entries or self.disk.durable.bodies:
            raise BrokenPromise(f"the drained store still holds {self.disk.durable.entries}")
        self.oracle.check_rest(found, self.timeline.now_ms())

    def _drain(self, row: int, command: c.Receive, found: list[int]) -> None:
        def told(reply: r.Granted | r.SessionEnded) -> None:
            if isinstance(reply, r.Granted):
                found.extend(map(name_of, reply.entries))

        self.runtime.register(command.receiver, told)
        self.submit(row, command)

    def _drain_session(self, name: str, found: list[int]) -> None:
        receiver = self.number()

        def accepted(reply: r.SessionAccepted | r.SessionHeld) -> None:
            if isinstance(reply, r.SessionAccepted):
                self._drain(SESSION, c.Receive(0, receiver, 10**9, 10**12, delete=True, session=reply.lock_id), found)
                self._drain_deferred(found, session=name, lock_id=reply.lock_id)

        self.runtime.register(receiver, lambda _: None)
        self.submit(SESSION, c.AcceptSession(self.number(), receiver, name), accepted)

    def _drain_deferred(self, found: list[int], *, session: str | None, lock_id: int) -> None:
        """Deferred messages are only to be had by number: of one session, or of where there is none."""

        def told(reply: r.DeferredGranted | r.NotFound | r.SessionLost) -> None:
            if isinstance(reply, r.DeferredGranted):
                found.extend(map(name_of, reply.entries))

        for (name, kind), sequence in self.oracle.maybe_deferred.items():
            sent = self.oracle.sent[name]
            of = sent.message.session_id if kind == 0 else None
            if of == session and name not in self.oracle.dispositions:
                self.submit(sent.row, c.ReceiveDeferred(self.number(), kind, [sequence], True, lock_id), told)

    def _refuses_to_open(self) -> bool:
        """Sometimes, but not at the start of a process."""
        return self.runtime.failure is not None and not self.stopping and self.random.random() < 0.2

    def _run_until_nothing_is_left(self) -> None:
        for _ in range(200_000):
            if not self.timeline:
                return
            self.timeline.run_next()
        raise BrokenPromise("the broker never comes to rest")


def main() -> None:
    """Run one seed, or several from it on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--express-ms", type=int, default=0, help="all entities are express, with this loss bound")
    parser.add_argument("--steps", type=int, default=3_000, help="events before the broker comes to rest")
    arguments = parser.parse_args()
    if 0 < arguments.express_ms < EXPRESS_BOUND_MS:
        parser.error(f"--express-ms is {arguments.express_ms}; commits take too long for less than {EXPRESS_BOUND_MS}")
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        simulation = Simulation(seed, arguments.express_ms)
        simulation.run(arguments.steps)
        print(
            f"seed {seed}: {simulation.names} messages, {sum(simulation.oracle.delivered.values())} deliveries,"
            f" {simulation.crashes} crashes, faults {simulation.faults.happened}"
        )


if __name__ == "__main__":
    main()
