"""CPU per message of a topic beside a queue's, store and runtime alone: no protocol, no sockets, no rules.

    python -m bench.topics [--messages N]

A life cycle is publish, commit, lock, commit, complete, commit, in batches of 100 messages of 1 KB, whose receivers
keep up; what the subscriptions do at the same time is in the same commits. The goals: with one subscription a topic
costs no more than 1.25 times a queue; with ten, a delivery costs at most two thirds of a queue's, since the body is
stored once.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from partibus.clock import SystemClock
from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.host import Timer
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.sqlite.owner import Owner
from partibus.store.sqlite.store import SQLiteStore
from tests.kit.simulated_topic import SimulatedFanOut, SimulatedSubscribers, everything

BATCH = 100
BODY = pack(properties=bytes(40), rest=b"\x00\x53\x75\xb0\x00\x00\x04\x00" + os.urandom(1024))
TOPIC = 1


class InlineHost:
    """A host that does blocking work at once and keeps later calls for `run`."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []

    def write(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Carry the job out at once."""
        done(job())

    read = write

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call with the next `run`."""
        self._soon.append(call)

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        """Call with the next `run`; deadlines never come."""
        if delay_ms < 1_000:
            self._soon.append(call)
        return _Never()

    def run(self) -> None:
        """Run calls until none is left."""
        while self._soon:
            calls, self._soon = self._soon, []
            for call in calls:
                call()


class _Never:
    def cancel(self) -> None:
        """Do nothing: the work is done in any case."""


class Broker:
    """A queue, or a topic with subscriptions that take everything."""

    def __init__(self, directory: str, subscriptions: int) -> None:
        options = PartitionOptions()
        self._rows = range(TOPIC + 1, TOPIC + 1 + subscriptions) or range(TOPIC, TOPIC + 1)
        self._options = dict.fromkeys(self._rows, options)
        self._options[TOPIC] = PartitionOptions(topic=bool(subscriptions))
        fan_out = SimulatedFanOut(dict.fromkeys(self._rows, everything), self._options)
        path = Path(directory) / f"store-{subscriptions}.db"
        store = SQLiteStore.open(path, store_id="bench", owner=Owner("bench", "1"))
        self._host = InlineHost()
        subscribers = SimulatedSubscribers({TOPIC: fan_out})
        self._runtime = StoreRuntime(lambda: store, self._host, SystemClock(), store=store, subscribers=subscribers)
        self._granted: list[tuple[int, r.Granted]] = []
        for row in self._rows:
            self._runtime.register(row, partial(self._take, row))

    def _take(self, row: int, grant: r.Granted) -> None:
        self._granted.append((row, grant))

    def cycle(self) -> None:
        """One batch in, and out of every subscription."""
        for row in self._rows:
            self._runtime.submit(row, self._options[row], c.Receive(0, row, BATCH, 1 << 30))
        messages = [Message(BODY) for _ in range(BATCH)]
        self._runtime.submit(TOPIC, self._options[TOPIC], c.Enqueue(1, messages), lambda _: None)
        self._host.run()
        granted, self._granted = self._granted, []
        assert sum(len(grant.entries) for _, grant in granted) == BATCH * len(self._rows)
        for row, grant in granted:
            tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
            command = c.Settle(row, 0, c.Outcome.COMPLETE, tokens)
            self._runtime.submit(row, self._options[row], command, lambda _: None)
        self._host.run()


def main() -> None:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    cycles = parser.parse_args().messages // BATCH
    gc.disable()
    with tempfile.TemporaryDirectory() as directory:
        brokers = {count: Broker(directory, count) for count in (0, 1, 10)}
        best: dict[int, float] = {}
        for count, broker in brokers.items():
            times = []
            for _ in range(cycles):
                before = time.process_time()
                broker.cycle()
                times.append(time.process_time() - before)
            best[count] = sorted(times)[len(times) // 4] / BATCH * 1e6
    print(f"queue: {best[0]:.1f} us CPU per message")
    print(f"topic with 1 subscription: {best[1]:.1f} us, {best[1] / best[0]:.2f} of a queue's")
    print(f"topic with 10: {best[10] / 10:.1f} us per delivery, {best[10] / 10 / best[0]:.2f} of a queue's")


if __name__ == "__main__":
    main()
