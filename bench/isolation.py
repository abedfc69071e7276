"""The cost of locked store files for the other stores of a broker: sends with keys, in turns with and without locks.

    python -m bench.isolation [--locked N] [--pairs N] [--seconds S]    (or: python -m bench --only isolation)

One connection for each partition of a partitioned queue sends one message of 1 KB after the other. While another
program holds a lock on N of the 16 files, connections to their partitions go on trying. Compared are the sends to the
other partitions. The locks begin one second before the measurement: a broker needs up to 0.3 s to find the stores that
hang.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from partibus.bench.measures import median, percentile
from partibus.bench.scenarios import TemporaryBroker
from partibus.client.errors import ClientError
from partibus.client.extensions.entities import Entities
from partibus.client.messages import OutgoingMessage
from partibus.routing.slots import partition_for_key
from tests.kit.plain_client import connect

STORES = 16
QUEUE = "isolation"
BEFORE_S = 1.0
TIMEOUT_S = 10.0
RETRY_S = 0.8
"""The first pause of Azure's clients after an error that they try again."""
BODY = os.urandom(1024)


class Isolation(NamedTuple):
    """Sends to the other partitions without locks, then beside ``locked`` files."""

    locked: int
    free_per_s: float
    free_p99_ms: float
    free_longest_ms: float
    beside_per_s: float
    beside_p99_ms: float
    beside_longest_ms: float


class Sender(threading.Thread):
    """Sends to one partition until it is told to stop, and keeps when each send ended and how long it took."""

    def __init__(self, connection: str, key: str) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._key = key
        self.sends: list[tuple[float, float]] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with connect(self._connection, timeout_s=TIMEOUT_S) as client:
                    self._send(client.sender(QUEUE).send)
            except ClientError:
                self.stopping.wait(RETRY_S)

    def _send(self, send: object) -> None:
        assert callable(send)
        while not self.stopping.is_set():
            begun_s = time.monotonic()
            send([OutgoingMessage(body=BODY, partition_key=self._key)], timeout_s=TIMEOUT_S)
            ended_s = time.monotonic()
            self.sends.append((ended_s, ended_s - begun_s))


def keys() -> list[str]:
    """One for each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < STORES:
        found.setdefault(partition_for_key(f"key-{number}", STORES), f"key-{number}")
        number += 1
    return [found[partition] for partition in range(STORES)]


def places(data: Path) -> dict[int, str]:
    """The store of each partition."""
    with closing(sqlite3.connect(data / "catalog.db")) as catalog:
        rows = catalog.execute(
            "SELECT partition_no, store_no FROM placement JOIN entity USING (entity_id) WHERE name = ?", (QUEUE,)
        ).fetchall()
    return {partition: f"store-{store_no:02}" for partition, store_no in rows}


@contextmanager
def locked(data: Path, stores: list[str]) -> Iterator[None]:
    """Hold SQLite's lock for writing on some stores."""
    with ExitStack() as held:
        for store in stores:
            other = held.enter_context(
                closing(sqlite3.connect(data / "stores" / f"{store}.db", isolation_level=None, timeout=TIMEOUT_S))
            )
            other.execute("BEGIN IMMEDIATE")
        yield


def measure(senders: list[Sender], seconds: float) -> tuple[float, float, float]:
    """Sends per second, p99 and the longest in ms."""
    time.sleep(BEFORE_S)
    begun_s = time.monotonic()
    time.sleep(seconds)
    ended_s = time.monotonic()
    took = sorted(took_s for sender in senders for at_s, took_s in list(sender.sends) if begun_s <= at_s <= ended_s)
    if not took:
        return 0.0, float("inf"), float("inf")
    return len(took) / (ended_s - begun_s), 1e3 * percentile(took, 0.99), 1e3 * took[-1]


def measure_isolation(folder: Path, locks: int = 8, pairs: int = 4, seconds: float = 5.0) -> Iterator[Isolation]:
    """Measure in turns with and without locks."""
    with TemporaryBroker(folder) as broker:
        data = folder / "data"
        with connect(broker.connection) as client:
            Entities(client).create_queue(QUEUE, {"EnablePartitioning": True, "MaxSizeInMegabytes": 5120})
        place = places(data)
        others = [Sender(broker.connection, key) for key in keys()[locks:]]
        for sender in others:
            sender.start()
        for _ in range(pairs):
            free = measure(others, seconds)
            with locked(data, [place[partition] for partition in range(locks)]):
                trying = [Sender(broker.connection, key) for key in keys()[:locks]]
                for sender in trying:
                    sender.start()
                beside = measure(others, seconds)
                for sender in trying:
                    sender.stopping.set()
            yield Isolation(locks, *free, *beside)
        for sender in others:
            sender.stopping.set()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locked", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for one in measure_isolation(Path(folder), arguments.locked, arguments.pairs, arguments.seconds):
            found.append(one)
            print(
                f"no lock: {one.free_per_s:.0f}/s, p99 {one.free_p99_ms:.1f} ms, longest {one.free_longest_ms:.0f} ms; "
                f"{one.locked} of {STORES} files locked: {one.beside_per_s:.0f}/s, p99 {one.beside_p99_ms:.1f} ms, "
                f"longest {one.beside_longest_ms:.0f} ms",
                flush=True,
            )
        throughput = median([one.beside_per_s / one.free_per_s for one in found])
        tail = median([one.beside_p99_ms / one.free_p99_ms for one in found])
        print(f"median ratio: throughput {throughput:.2f}, p99 {tail:.2f}")


if __name__ == "__main__":
    main()
