"""The process: its event loop, its file descriptors, and the threads that stores are run on.

All stores in files share the writer threads. A store has one commit under way at most, so each still has one writer.
Eight syncs at once take a disk hardly longer than one. The statements of large commits take turns
(`partibus.store.sqlite.apply`): the next commit gathers more meanwhile, and threads don't wake each other at each
statement.

A store that hangs (a locked file, a disk that does not answer) keeps the thread that it hangs in: the thread serves
this store alone from then on, and a new thread takes its place among the shared ones. See `_WorkerPool`.
"""

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from time import monotonic
from typing import Any, Final, NamedTuple, Self

from partibus.store.opening import StorePlace

log = logging.getLogger(__name__)

WRITERS = 8
READERS = 2
SWITCH_INTERVAL_S = 0.0002
"""A thread that comes back from SQLite waits so long for the interpreter at most. The default of 5 ms would make every
statement of a commit wait that long beside a busy loop (measured: docs/adr/0002)."""
LOOK_S = 0.05
"""The time between two looks of a pool with work for threads that hang. When no job has begun for so long and some
wait, the pool starts threads for those: twenty commits under load take this long."""
HANGS_S = 0.25
"""A store hangs when one of its jobs takes this long."""
QUIET_S = 10.0
"""A store that has hung goes back to the shared threads when none of its jobs has taken `HANGS_S` for so long. A locked
file fails each 2 s and is tried again 0.2 s later."""
STOP_S = 10.0
"""How long `AsyncioHost.stop` waits for jobs under way. Threads are daemons: one that hangs ends with the process."""


class _StoreQueue:
    """The jobs of one store."""

    __slots__ = ("dedicated", "hung_s", "jobs")

    def __init__(self) -> None:
        self.dedicated = 0
        """The number of threads that serve this store alone. With none the shared ones do."""
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        """Jobs for the dedicated threads."""
        self.hung_s = 0.0
        """The end of the latest job that took `HANGS_S`."""


class _Job(NamedTuple):
    store: _StoreQueue
    run: Callable[[], Any]
    done: Callable[[Any], None]


class _Worker:
    """A shared thread and the job that it runs."""

    __slots__ = ("begun_s", "is_dedicated", "store")

    def __init__(self) -> None:
        self.begun_s = 0.0
        """The start of its latest job."""
        self.store: _StoreQueue | None = None
        """The queue of the present job's store."""
        self.is_dedicated = False
        """Whether its store hangs: then, after the job, it serves this store alone."""


class _WorkerPool:
    """Threads that do the jobs of several stores.

    ```text
       put ─▶ jobs ─▶ shared workers ──hangs──▶ dedicated to its store ──quiet──▶ end
                 └──▶ store.jobs, while the store has dedicated threads ─▶┘
    ```

    Each store has at most as many dedicated threads as there are shared workers, and at most one more thread for each
    store stands in for those. So the number of stores bounds the number of threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, count: int) -> None:
        """``count``: shared workers while no store hangs."""
        self._loop = loop
        self._name = name
        self._count = count
        self._stores = 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        """Guards the assignment of dedicated threads to stores."""
        self._shared: set[_Worker] = set()
        self._dedicated: list[_StoreQueue] = []
        """The store of each dedicated thread."""
        self._threads: set[Thread] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._stopped = False
        for _ in range(count):
            self._start()

    @property
    def threads(self) -> int:
        """The number of threads."""
        return len(self._threads)

    def add_store(self) -> _StoreQueue:
        """Make the queue of one more store."""
        self._stores += 1
        return _StoreQueue()

    def put(self, job: _Job) -> None:
        """Queue a job. On the loop."""
        if job.store.dedicated and self._put_dedicated(job):
            return
        self._jobs.put(job)
        if self._looking is None and self._stores > 1:
            self._looking = self._loop.call_later(LOOK_S, self._look)

    def stop(self) -> list[Thread]:
        """Let the threads end once their jobs are done. Returns them."""
        self._stopped = True
        if self._looking is not None:
            self._looking.cancel()
        with self._lock:
            for _ in self._shared:
                self._jobs.put(None)
            for store in self._dedicated:
                store.jobs.put(None)
        return list(self._threads)

    def _put_dedicated(self, job: _Job) -> bool:
        """Give a job to the dedicated threads of its store. Returns False when it has none."""
        with self._lock:
            if not job.store.dedicated:
                return False
            job.store.jobs.put(job)
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
            busy = [worker for worker in self._shared if worker.store is not None]
            for worker in busy:
                store = worker.store
                if store is not None and now_s - worker.begun_s >= HANGS_S:
                    worker.is_dedicated = True
                    self._shared.discard(worker)
                    store.dedicated += 1
                    self._dedicated.append(store)
            missing = self._count - len(self._shared)
            waiting = self._jobs.qsize()
            if waiting and all(now_s - worker.begun_s >= LOOK_S for worker in self._shared):
                missing = max(missing, min(waiting, self._stores + self._count - len(self._shared)))
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
            store = job.store
            if store.dedicated and self._put_dedicated(job):  # since it was put
                continue
            worker.begun_s = monotonic()
            worker.store = store
            self._do(job)
            with lock:
                worker.store = None
                if len(shared) <= self._count and not worker.is_dedicated:
                    continue
                shared.discard(worker)
            if worker.is_dedicated:
                self._serve_alone(store)
            break
        else:
            with lock:
                shared.discard(worker)
        self._end()

    def _serve_alone(self, store: _StoreQueue) -> None:
        """Serve one store until it has been quick for `QUIET_S`."""
        store.hung_s = monotonic()
        while True:
            job: _Job | None = None
            with suppress(Empty):
                job = store.jobs.get(timeout=QUIET_S)
            if job is not None:
                begun_s = monotonic()
                self._do(job)
                now_s = monotonic()
                if now_s - begun_s >= HANGS_S:
                    store.hung_s = now_s
                if now_s - store.hung_s < QUIET_S:
                    continue
            with self._lock:
                if job is None and not self._stopped and not store.jobs.empty():
                    continue
                store.dedicated -= 1
                self._dedicated.remove(store)
                while not store.dedicated and not store.jobs.empty():
                    self._jobs.put(store.jobs.get())
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

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writers: int = WRITERS,
        readers: int = READERS,
        *,
        pools: tuple[_WorkerPool, _WorkerPool] | None = None,
    ) -> None:
        """Start ``writers`` and ``readers`` threads, or use the ``pools`` of another host."""
        if pools is None:
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            pools = _WorkerPool(loop, "writer", writers), _WorkerPool(loop, "reader", readers)
        self._loop = loop
        self._writers, self._readers = pools
        self._writes = self._writers.add_store()
        self._reads = self._readers.add_store()

    @classmethod
    def of_distant_store(cls, loop: asyncio.AbstractEventLoop) -> Self:
        """Make the host of a store on another machine.

        Its threads wait for the network, which may never answer, so other stores' commits must not wait behind them.
        """
        return cls(loop, 1, 1)

    def beside(self) -> Self:
        """Make the host of another store on the same threads."""
        return type(self)(self._loop, pools=(self._writers, self._readers))

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


_MOST: Final = 1 << 20
"""The bound where the system sets none: the usual one of a Linux process."""
_PER_STORE: Final = 8
"""The descriptors of a store: its file, log and shared memory, for writer and readers. 6 were counted; a backup takes 2
more.
"""
_OTHERS: Final = 64
"""The catalog, telemetry, modules that are loaded late, other brokers, pipes: 20 were counted."""
_QUEUE_MAX: Final = 512
_WARN_BELOW: Final = 512


def raise_limit() -> int:
    """Let the process have as many as it may. Return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
            return soft
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


class Share:
    """The shares of the descriptors by use."""

    def __init__(self, limit: int, stores: int, listeners: int) -> None:
        """Divide ``limit`` descriptors.

        ``stores``: how many this broker may come to own. ``listeners``: sockets that take connections.
        """
        own = max(_open_now(), stores * _PER_STORE) + _OTHERS
        room = max(limit - own, limit // 4)
        self.queue = max(8, min(_QUEUE_MAX, room // 8))
        """Connections that the system holds for a listener until it accepts them: they may come all at once."""
        self.handshakes = max(8, room // 8)
        """TLS handshakes that may be under way at a listener."""
        self.connections = max(8, room - listeners * self.queue)
        if self.connections < _WARN_BELOW:
            log.warning(
                "the process may have %d files open: %d are for stores and other files: at most %d connections can be "
                "there at a time; raise the limit (ulimit -n, or LimitNOFILE of systemd)",
                limit,
                own,
                self.connections,
            )


def _open_now() -> int:
    """Return the number of open descriptors; an estimate where the system does not tell."""
    try:
        return len(os.listdir(Path("/proc/self/fd")))
    except OSError:
        return _OTHERS
