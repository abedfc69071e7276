"""The event loop and the threads that stores are run on.

All stores share a few writer threads. A store has one commit under way at most, so each still has one writer; but under
load they queue for a thread, and the commit that waits gathers more, which costs less than sixteen threads that wake
each other for small commits.
"""

import asyncio
import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Self

from partibus.store.opening import StorePlace

WRITERS = 2
READERS = 2
SWITCH_INTERVAL_S = 0.0002
"""A thread that comes back from SQLite waits so long for the interpreter at most. The default of 5 ms would make every
statement of a commit wait that long beside a busy loop (measured: docs/adr/0002)."""

_Job = tuple[Callable[[], Any], Callable[[Any], None]]


class AsyncioHost:
    """`partibus.partition.host.Host` in production."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writers: int = WRITERS, readers: int = READERS) -> None:
        """``writers`` and ``readers``: how many threads; see `of_distant_store`."""
        self._loop = loop
        self._writers = writers
        self._readers = readers
        self._write_jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._read_jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._work, args=(jobs,), name=f"store-{name}-{index}", daemon=True)
            for name, jobs, count in (("writer", self._write_jobs, writers), ("reader", self._read_jobs, readers))
            for index in range(count)
        ]
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        for thread in self._threads:
            thread.start()

    @classmethod
    def of_distant_store(cls, loop: asyncio.AbstractEventLoop) -> Self:
        """For one store on another machine: its threads wait for the network, perhaps in vain, and nobody else's
        commits must wait behind them."""
        return cls(loop, 1, 1)

    def write(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._write_jobs.put((job, done))

    def read(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._read_jobs.put((job, done))

    def call_soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, call)

    def stop(self) -> None:
        """Let the threads end once their jobs are done."""
        for _ in range(self._writers):
            self._write_jobs.put(None)
        for _ in range(self._readers):
            self._read_jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, jobs: SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            run, done = job
            result: Any
            try:
                result = run()
            except Exception as error:  # noqa: BLE001 (whatever a store raises is its outcome)
                result = error
            self._loop.call_soon_threadsafe(done, result)


class StoreHosts:
    """Where stores are run: files together on a few threads, each distant store on threads of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.near = AsyncioHost(loop)
        self._distant: dict[str, AsyncioHost] = {}

    def of(self, place: StorePlace) -> AsyncioHost:
        """The same each time."""
        if not place.is_distant:
            return self.near
        if place.store_id not in self._distant:
            self._distant[place.store_id] = AsyncioHost.of_distant_store(self._loop)
        return self._distant[place.store_id]

    def stop(self) -> None:
        """Let the threads end once their jobs are done."""
        self.near.stop()
        for host in self._distant.values():
            host.stop()
