"""The event loop and the threads that stores are run on.

All stores in files share a few writer threads. A store has one commit under way at most, so each still has one writer;
but under load they queue for a thread, and the commit that waits gathers more, which costs less than sixteen threads
that wake each other for small commits.

A store that hangs (a locked file, a disk that does not answer) keeps the thread that it hangs in: the thread serves
this store alone from then on, and a new thread takes its place among the shared ones. See `_Crew`.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from time import monotonic
from typing import Any, NamedTuple, Self

from partibus.store.opening import StorePlace

log = logging.getLogger(__name__)

WRITERS = 2
READERS = 2
SWITCH_INTERVAL_S = 0.0002
"""A thread that comes back from SQLite waits so long for the interpreter at most. The default of 5 ms would make every
statement of a commit wait that long beside a busy loop (measured: docs/adr/0002)."""
LOOK_S = 0.05
"""How often a crew with work looks for threads that hang. When no job has begun for so long and some wait, it starts
threads for those: twenty commits under load take this long."""
HANGS_S = 0.25
"""A store hangs when one of its jobs takes this long."""
QUIET_S = 10.0
"""A store that has hung goes back to the shared threads when none of its jobs has taken `HANGS_S` for so long. A locked
file fails each 2 s and is tried again 0.2 s later."""
STOP_S = 10.0
"""How long `AsyncioHost.stop` waits for jobs under way. Threads are daemons: one that hangs ends with the process."""


class _Lane:
    """The jobs of one store."""

    __slots__ = ("hung_s", "jobs", "keepers")

    def __init__(self) -> None:
        self.keepers = 0
        """Threads that serve this store alone. With none the shared ones do."""
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        """Jobs for the keepers."""
        self.hung_s = 0.0
        """The end of the latest job that took `HANGS_S`."""


class _Job(NamedTuple):
    lane: _Lane
    run: Callable[[], Any]
    done: Callable[[Any], None]


class _Worker:
    """A shared thread and the job that it runs."""

    __slots__ = ("begun_s", "is_keeper", "lane")

    def __init__(self) -> None:
        self.begun_s = 0.0
        """The start of its latest job."""
        self.lane: _Lane | None = None
        """The lane of the present job."""
        self.is_keeper = False
        """Whether its store hangs: then, after the job, it serves this store alone."""


class _Crew:
    """Threads that do the jobs of several stores.

    ```text
       put ─▶ jobs ─▶ shared workers ──hangs──▶ keeper of its lane ──quiet──▶ end
                 └──▶ lane.jobs, while the lane has keepers ─▶┘
    ```

    Each lane has at most as many keepers as there are shared workers, and stand-ins are at most as many as lanes, so
    the threads are bounded by the number of stores.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, count: int) -> None:
        """``count``: shared workers while no store hangs."""
        self._loop = loop
        self._name = name
        self._count = count
        self._lanes = 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        """Guards the assignment of keepers to lanes."""
        self._shared: set[_Worker] = set()
        self._kept: list[_Lane] = []
        """The lane of each keeper."""
        self._threads: set[Thread] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._stopped = False
        for _ in range(count):
            self._start()

    @property
    def threads(self) -> int:
        """The number of threads."""
        return len(self._threads)

    def lane(self) -> _Lane:
        """Make the lane of one more store."""
        self._lanes += 1
        return _Lane()

    def put(self, job: _Job) -> None:
        """Have a job done. On the loop."""
        if job.lane.keepers and self._kept_back(job):
            return
        self._jobs.put(job)
        if self._looking is None and self._lanes > 1:
            self._looking = self._loop.call_later(LOOK_S, self._look)

    def stop(self) -> list[Thread]:
        """Let the threads end once their jobs are done. Returns them."""
        self._stopped = True
        if self._looking is not None:
            self._looking.cancel()
        with self._lock:
            for _ in self._shared:
                self._jobs.put(None)
            for lane in self._kept:
                lane.jobs.put(None)
        return list(self._threads)

    def _kept_back(self, job: _Job) -> bool:
        """Give a job to the keepers of its lane. Returns False when it has none."""
        with self._lock:
            if not job.lane.keepers:
                return False
            job.lane.jobs.put(job)
            return True

    def _start(self) -> None:
        worker = _Worker()
        thread = Thread(target=self._work, args=(worker,), name=f"store-{self._name}", daemon=True)
        with self._lock:
            self._shared.add(worker)
            self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            with self._lock:
                self._shared.discard(worker)
                self._threads.discard(thread)
            raise

    def _look(self) -> None:
        """Find the threads that hang, and start others in their place. On the loop."""
        self._looking = None
        now_s = monotonic()
        with self._lock:
            busy = [worker for worker in self._shared if worker.lane is not None]
            for worker in busy:
                lane = worker.lane
                if lane is not None and now_s - worker.begun_s >= HANGS_S:
                    worker.is_keeper = True
                    self._shared.discard(worker)
                    lane.keepers += 1
                    self._kept.append(lane)
            missing = self._count - len(self._shared)
            waiting = self._jobs.qsize()
            if waiting and all(now_s - worker.begun_s >= LOOK_S for worker in self._shared):
                missing = max(missing, min(waiting, self._lanes + self._count - len(self._shared)))
        try:
            for _ in range(missing):
                self._start()
        except RuntimeError as error:  # the next look tries again
            log.warning("no %s thread can be started in place of one that hangs: %s", self._name, error)
        if busy or waiting:
            self._looking = self._loop.call_later(LOOK_S, self._look)

    def _work(self, worker: _Worker) -> None:
        lock, shared = self._lock, self._shared
        while (job := self._jobs.get()) is not None:
            lane = job.lane
            if lane.keepers and self._kept_back(job):  # since it was put
                continue
            worker.begun_s = monotonic()
            worker.lane = lane
            self._do(job)
            with lock:
                worker.lane = None
                if len(shared) <= self._count and not worker.is_keeper:
                    continue
                shared.discard(worker)
            if worker.is_keeper:
                self._keep(lane)
            break
        else:
            with lock:
                shared.discard(worker)
        self._end()

    def _keep(self, lane: _Lane) -> None:
        """Serve one store until it has been quick for a while."""
        lane.hung_s = monotonic()
        while True:
            job: _Job | None = None
            with suppress(Empty):
                job = lane.jobs.get(timeout=QUIET_S)
            if job is not None:
                begun_s = monotonic()
                self._do(job)
                now_s = monotonic()
                if now_s - begun_s >= HANGS_S:
                    lane.hung_s = now_s
                if now_s - lane.hung_s < QUIET_S:
                    continue
            with self._lock:
                if job is None and not self._stopped and not lane.jobs.empty():
                    continue
                lane.keepers -= 1
                self._kept.remove(lane)
                while not lane.keepers and not lane.jobs.empty():
                    self._jobs.put(lane.jobs.get())
                return

    def _do(self, job: _Job) -> None:
        result: Any
        try:
            result = job.run()
        except Exception as error:  # noqa: BLE001 (whatever a store raises is its outcome)
            result = error
        self._loop.call_soon_threadsafe(job.done, result)

    def _end(self) -> None:
        with self._lock:
            self._threads.discard(current_thread())


class AsyncioHost:
    """`partition.protocol.host.Host` of one store in production."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writers: int = WRITERS, readers: int = READERS) -> None:
        """``writers`` and ``readers``: how many threads; see `beside` and `of_distant_store`."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._begin(loop, _Crew(loop, "writer", writers), _Crew(loop, "reader", readers))

    def _begin(self, loop: asyncio.AbstractEventLoop, writers: _Crew, readers: _Crew) -> None:
        self._loop = loop
        self._writers = writers
        self._readers = readers
        self._writes = writers.lane()
        self._reads = readers.lane()

    @classmethod
    def of_distant_store(cls, loop: asyncio.AbstractEventLoop) -> Self:
        """Make the host of a store on another machine.

        Its threads wait for the network, perhaps in vain, so other stores' commits must not wait behind them.
        """
        return cls(loop, 1, 1)

    def beside(self) -> Self:
        """Make the host of another store on the same threads."""
        host = type(self).__new__(type(self))
        host._begin(self._loop, self._writers, self._readers)
        return host

    @property
    def threads(self) -> int:
        """The number of threads, with those that hang."""
        return self._writers.threads + self._readers.threads

    def write(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a blocking job on a writer thread; ``done`` gets its result on the loop."""
        self._writers.put(_Job(self._writes, job, done))

    def read(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a blocking job on a reader thread; ``done`` gets its result on the loop."""
        self._readers.put(_Job(self._reads, job, done))

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call after the current event has been handled."""
        self._loop.call_soon(call)

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call after a delay."""
        return self._loop.call_later(delay_ms / 1000, call)

    def stop(self) -> None:
        """End the threads after their jobs, with those of all hosts `beside` this one; wait `STOP_S` at most."""
        until_s = monotonic() + STOP_S
        for thread in self._writers.stop() + self._readers.stop():
            thread.join(max(0.0, until_s - monotonic()))
            if thread.is_alive():
                log.warning("a %s thread still waits for its store; it ends with the process", thread.name)


class StoreHosts:
    """The hosts of stores: files share a few threads, each distant store has threads of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.near = AsyncioHost(loop)
        self._of: dict[str, AsyncioHost] = {}
        self._distant: list[AsyncioHost] = []

    def of(self, place: StorePlace) -> AsyncioHost:
        """Return the host of a store, the same each time."""
        host = self._of.get(place.store_id)
        if host is None:
            if place.is_distant:
                host = AsyncioHost.of_distant_store(self._loop)
                self._distant.append(host)
            else:
                host = self.near.beside()
            self._of[place.store_id] = host
        return host

    def stop(self) -> None:
        """Let the threads end once their jobs are done."""
        with ExitStack() as stopping:
            for host in (self.near, *self._distant):
                stopping.callback(host.stop)
