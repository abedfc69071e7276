"""A store, its runtime, producers and consumers, all decided by one seed (D3, D11, D12).

``python -m partibus.testing.simulation --seed N --steps M`` runs one history again. The process crashes and starts
again at any moment, commits and loads fail in every way that `partibus.store.faulty` knows, and `oracle` watches every
answer. In the end the store is closed and drained: all that was acknowledged must come out, and nothing else.
"""

import argparse
from collections.abc import Callable
from random import Random
from typing import Any

from partibus.limits import PartitionLimits
from partibus.message import Message, pack
from partibus.partition import commands as c
from partibus.partition.options import PartitionOptions
from partibus.partition.ports import Store, StoreError
from partibus.partition.runtime import StoreRuntime
from partibus.store.faulty import NO_FAULTS, Faults, FaultSource, FaultyStore
from partibus.store.memory import MemoryDisk, MemoryStore
from partibus.testing.clients import Consumer, Producer
from partibus.testing.oracle import MARK, BrokenPromise, Oracle, name_of
from partibus.testing.simulated_host import IO_MS_MAX, SimulatedHost, Timeline

PLAIN, RESERVED, DELETED = ROWS = (1, 2, 3)
"""Partition rows: consumed under lock, through reservations, by receive-and-delete."""
LOCK_WRITTEN_MS = 100.0
"""A lock is in the store by then: a commit under way (12 + 12 ms), 20 ms until rows that nobody waits for are written,
20 ms of batching, and a commit of its own."""
CRASH_CHANCE = 0.003
FAULTS = Faults(refused=0.01, forgotten=0.004, torn=0.004, unanswered=0.01, unsynced=0.004, load_fails=0.01)

assert 4 * IO_MS_MAX + 40 < LOCK_WRITTEN_MS


class Simulation:
    """One history. Raises `BrokenPromise`, which names the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.timeline = Timeline()
        self.disk = MemoryDisk()
        self.oracle = Oracle(self.disk, ordered={PLAIN, DELETED}, lock_written_ms=LOCK_WRITTEN_MS)
        self.faults = FaultSource(seed, FAULTS)
        self.options = PartitionOptions(
            lock_duration_ms=self.random.choice((60, 400, 5_000)),
            max_delivery_count=self.random.choice((2, 5)),
            reservation_ms=200,
            limits=PartitionLimits(
                window_entries=self.random.choice((4, 30)),
                window_bytes=self.random.choice((500, 100_000)),
                page_entries=self.random.choice((3, 20)),
                page_bytes=self.random.choice((200, 100_000)),
                locked_body_max=self.random.choice((0, 60, 4_096)),
            ),
        )
        self.crashes = 0
        self.names = 0
        self.deleting: set[int] = set()
        self._number = 0
        self.stopping = False
        self.start_process()
        self.clients: list[Producer | Consumer] = [
            Producer(self, row) for row in ROWS for _ in range(self.random.randint(1, 2))
        ]
        self.clients += [
            Consumer(self, row, kind, delete=row == DELETED, reserve=row == RESERVED)
            for row in ROWS
            for kind in (0, 0, 1)
        ]

    def start_process(self) -> None:
        """Start the broker on what the disk has."""
        self.host = SimulatedHost(self.timeline, self.random)
        self.runtime = StoreRuntime(self.open_store, self.host, self.timeline)
        self.runtime.open()

    def open_store(self) -> Store:
        """Opening a store commits its new owner, which makes durable what was written before."""
        if self._refuses_to_open():
            raise StoreError("the disk can't be opened (a planned fault)", executed=False)
        store = MemoryStore(self.disk)
        self.disk.sync()
        return FaultyStore(store, self.faults)

    def submit(self, row: int, command: c.Command, on_reply: Callable[[Any], None] | None = None) -> None:
        """Through the front door."""
        self.runtime.submit(row, self.options, command, on_reply, holdable=row != RESERVED)

    def number(self) -> int:
        """For requests and receivers."""
        self._number += 1
        return self._number

    def new_message(self, row: int) -> tuple[int, Message]:
        """A message with a name of its own."""
        self.names += 1
        self.oracle.sent[self.names] = None
        if row == DELETED:
            self.deleting.add(self.names)
        padding = bytes(self.random.choice((0, 0, 50, 300)))
        return self.names, Message(pack(rest=MARK + self.names.to_bytes(8, "big") + padding))

    def crash(self) -> None:
        """The machine loses power and comes up again."""
        self.crashes += 1
        self.host.crash()
        self.disk.crash()
        self.oracle.memory_lost(self.timeline.now_ms())
        self.start_process()
        for client in self.clients:
            client.disconnected()

    def run(self, steps: int) -> None:
        """Do so many events, then come to rest and check."""
        try:
            for _ in range(steps):
                self.timeline.run_next()
                if self.random.random() < CRASH_CHANCE:
                    self.crash()
            self.come_to_rest()
        except AssertionError as error:
            again = f"python -m partibus.testing.simulation --seed {self.seed} --steps {steps}"
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
                receiver = self.number()
                self.runtime.register(receiver, lambda reply: found.extend(map(name_of, reply.entries)))
                self.submit(row, c.Receive(kind, receiver, 10**9, 10**12, delete=True))
        self._run_until_nothing_is_left()
        if self.disk.durable.entries or self.disk.durable.bodies:
            raise BrokenPromise(f"the drained store still holds {self.disk.durable.entries}")
        self.oracle.check_rest(found, self.deleting)

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
    parser.add_argument("--steps", type=int, default=1_000, help="events before the broker comes to rest")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        simulation = Simulation(seed)
        simulation.run(arguments.steps)
        print(
            f"seed {seed}: {simulation.names} messages, {sum(simulation.oracle.delivered.values())} deliveries,"
            f" {simulation.crashes} crashes, faults {simulation.faults.happened}"
        )


if __name__ == "__main__":
    main()
