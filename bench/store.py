"""The cost of a messaging store per message: `python bench/store.py`.

A life cycle is: commit a batch (bodies, entries, counters, counts, one lock batch), read every second batch back as a
page, and with a later commit delete the batch and its lock. CPU is user + system time of the process. The second run
does the same beside a thread that computes all the time, as a busy event loop would: there every call into SQLite that
takes longer than a wake-up costs a switch interval until the interpreter lock is back, which shows as wall time.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import Store, Writes
from partibus.store.sqlite import Owner, SQLiteStore
from tests.kit.stores.memory import MemoryStore

MESSAGE = bytes(range(256)) * 4
PARTITION = 5
QUEUE = subqueue_key(PARTITION, 0)
NOW_MS = 1_800_000_000_000


class Cost(NamedTuple):
    """Microseconds per message."""

    wall_us: float
    cpu_us: float
    thread_us: float
    """CPU of the thread that commits and reads; the rest is checkpoints and the busy thread."""


def cpu_seconds(who: int) -> float:
    """User and system time."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def enqueue(first: int, batch: int) -> Writes:
    """A commit that brings a batch and locks it."""
    writes = Writes()
    for number in range(first, first + batch):
        body = body_key(PARTITION, number)
        writes.bodies += (body, MESSAGE)
        writes.entries += (entry_key(QUEUE, number), body, number, NOW_MS, 0, 0, None, NOW_MS + 1_209_600_000)
    writes.counters[PARTITION] = (first + batch, first // batch, 0)
    writes.counts[QUEUE] = (batch, batch * len(MESSAGE))
    writes.lock_batches[entry_key(QUEUE, first // batch)] = [(first, NOW_MS + 60_000, b"\xff" * (batch // 8 + 1))]
    return writes


def settle(writes: Writes, first: int, batch: int) -> None:
    """Let a commit take an earlier batch away."""
    writes.deleted_entries.append((entry_key(QUEUE, first), entry_key(QUEUE, first + batch - 1)))
    writes.deleted_bodies.append((body_key(PARTITION, first), body_key(PARTITION, first + batch - 1)))
    writes.deleted_locks.append(entry_key(QUEUE, first // batch))


def life_cycles(store: Store, batch: int, batches: int) -> Cost:
    """Run and measure. The rows are made beforehand: they are the partition's cost."""
    commits = []
    for index in range(batches):
        writes = enqueue(index * batch, batch)
        if index:
            settle(writes, (index - 1) * batch, batch)
        commits.append(writes)
    start, process, thread = time.perf_counter(), cpu_seconds(resource.RUSAGE_SELF), time.thread_time()
    for index, writes in enumerate(commits):
        store.commit(writes)
        if index % 2:
            page = store.read(q.Page(QUEUE, index * batch, batch, 1 << 20))
            assert len(page) == batch, "the page that was just written"
    scale = 1e6 / (batch * batches)
    return Cost(
        (time.perf_counter() - start) * scale,
        (cpu_seconds(resource.RUSAGE_SELF) - process) * scale,
        (time.thread_time() - thread) * scale,
    )


@contextmanager
def busy_thread(switch_interval_s: float) -> Iterator[None]:
    """A thread that never gives up the interpreter lock by itself."""
    stop = Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1_000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(switch_interval_s)
    thread = Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


def main() -> None:
    """Print one line per store and situation."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--batch", type=int, default=100, help="messages per commit")
    arguments.add_argument("--messages", type=int, default=50_000)
    arguments.add_argument("--directory", type=Path, help="where to put the file; a temporary directory by default")
    given = arguments.parse_args()
    batches = max(1, given.messages // given.batch)

    def sqlite(directory: Path) -> Store:
        return SQLiteStore.open(directory / "store-00.db", store_id="store-00", owner=Owner("bench", "1"))

    stores: dict[str, Callable[[Path], Store]] = {"memory": lambda _: MemoryStore(), "sqlite": sqlite}
    print(f"{given.batch} messages of {len(MESSAGE)} bytes per commit; us per message: wall, CPU, CPU of the thread")
    for name, open_store in stores.items():
        with tempfile.TemporaryDirectory(dir=given.directory) as directory:
            store = open_store(Path(directory))
            alone = life_cycles(store, given.batch, batches)
            store.close()
        print(f"{name:8} alone              {alone.wall_us:7.1f} {alone.cpu_us:7.1f} {alone.thread_us:7.1f}")
        with tempfile.TemporaryDirectory(dir=given.directory) as directory, busy_thread(0.0002):
            store = open_store(Path(directory))
            beside = life_cycles(store, given.batch, max(1, batches // 5))
            store.close()
        print(f"{name:8} beside a busy loop {beside.wall_us:7.1f}         {beside.thread_us:7.1f}")


if __name__ == "__main__":
    main()
