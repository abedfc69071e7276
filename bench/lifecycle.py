"""CPU per message life cycle of store and partition alone, driven in-process: no protocol, no sockets, no loop.

    python -m bench.lifecycle [--messages N]

A life cycle is enqueue, commit, (page in,) lock, commit, complete, commit, in batches of 100 messages of 1 KB. In the
first figure the receiver keeps up and messages are handed out from memory; in the second one all messages are enqueued
first and every one is paged in from the store.
"""

import argparse
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

from partibus.message import Message, pack
from partibus.partition.core.journal import record
from partibus.partition.core.machine import Partition
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import Writes
from partibus.partition.runtime.queries import read
from partibus.store.sqlite.owner import Owner
from partibus.store.sqlite.store import SQLiteStore

BATCH = 100
BODY = pack(properties=bytes(40), rest=b"\x00\x53\x75\xb0\x00\x00\x04\x00" + os.urandom(1024))
ROW = 1


class Driver:
    """Feeds one partition and commits after each command that wrote something, as a runtime does under load."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store
        self._partition = Partition(ROW, PartitionOptions())

    def handle(self, command: w.Input) -> list[r.Reply]:
        """Replies, after the commit, with those that loads led to."""
        replies: list[r.Reply] = []
        commands: list[w.Input] = [command]
        while commands:
            step = self._partition.handle(commands.pop(0), 1_000)
            if step.events:
                writes = Writes()
                record(ROW, step.events, writes)
                writes.counters[ROW] = self._partition.counters
                for subqueue, messages, size_bytes in self._partition.counts():
                    writes.counts[subqueue] = (messages, size_bytes)
                self._store.commit(writes)
            replies += step.replies
            commands += [w.Loaded(load, read(self._store, ROW, load)) for load in step.loads]
        return replies

    def enqueue(self) -> None:
        """One batch in."""
        self.handle(c.Enqueue(1, [Message(BODY) for _ in range(BATCH)]))

    def consume(self) -> None:
        """One batch out and settled."""
        for granted in self._granted(BATCH):
            tokens = [(granted.lock_id, entry.pos) for entry in granted.entries]
            replies = self.handle(c.Settle(2, 0, c.Outcome.COMPLETE, tokens))
            assert any(isinstance(reply, r.Settled) and not reply.lost for reply in replies)

    def _granted(self, count: int) -> Iterator[r.Granted]:
        got = 0
        for reply in self.handle(c.Receive(0, 7, count, 1 << 30)):
            if isinstance(reply, r.Granted):
                got += len(reply.entries)
                yield reply
        assert got == count, f"{got} of {count}"


def cpu_us() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    batches = parser.parse_args().messages // BATCH
    with tempfile.TemporaryDirectory() as folder:
        store = SQLiteStore.open(Path(folder) / "store-00.db", store_id="store-00", owner=Owner("bench", "1"))
        driver = Driver(store)
        start = cpu_us()
        for _ in range(batches):
            driver.enqueue()
            driver.consume()
        print(f"handed out from memory: {(cpu_us() - start) / (batches * BATCH):.1f} us CPU per message")
        start = cpu_us()
        for _ in range(batches):
            driver.enqueue()
        for _ in range(batches):
            driver.consume()
        print(f"paged in from the store: {(cpu_us() - start) / (batches * BATCH):.1f} us CPU per message")
        store.close()


if __name__ == "__main__":
    main()
