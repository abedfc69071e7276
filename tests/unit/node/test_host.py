"""Stores that hang keep the threads that they hang in; all others go on."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest

from partibus.clock import SystemClock
from partibus.message import Message, pack
from partibus.node import host as host_module
from partibus.node.host import READERS, WRITERS, AsyncioHost, _WorkerPool
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.sqlite import Owner, SQLiteStore, StoreSettings
from tests.kit.invariants import BrokenPromise

STORES = 16
HUNG = 8
ROUNDS = 40
OPTIONS = PartitionOptions()
HUNG_S = 0.02
"""A store of these tests hangs when one of its jobs takes so long."""
NEVER_MS = 3_600_000
"""A statement that waits for a lock so long never gives up within a test."""

Write = Callable[[AsyncioHost, Callable[[], Any]], Awaitable[Any]]


def write(host: AsyncioHost, job: Callable[[], Any]) -> Awaitable[Any]:
    done = asyncio.get_running_loop().create_future()
    host.write(job, done.set_result)
    return done


def read(host: AsyncioHost, job: Callable[[], Any]) -> Awaitable[Any]:
    done = asyncio.get_running_loop().create_future()
    host.read(job, done.set_result)
    return done


@contextmanager
def hosts_of(count: int) -> Iterator[list[AsyncioHost]]:
    first = AsyncioHost(asyncio.get_running_loop())
    try:
        yield [first, *(first.beside() for _ in range(count - 1))]
    finally:
        first.stop()


class Looks:
    """Checks after each look for stores that hang that enough threads are left for the others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.problem: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        look = _WorkerPool._look

        def look_and_check(pool: _WorkerPool) -> None:
            began_s = monotonic()
            look(pool)
            free = [one for one in pool._shared if one.store is None or began_s - one.begun_s < HUNG_S]
            if len(free) < pool._count and not self.problem.done():
                problem = f"{len(free)} threads of {pool._count} serve the stores that answer"
                self.problem.set_exception(BrokenPromise(problem))

        monkeypatch.setattr(_WorkerPool, "_look", look_and_check)

    async def unless_broken(self, work: Awaitable[None]) -> None:
        """Wait for work. Raises BrokenPromise when a look leaves too few threads, which may stop the work for good."""
        task = asyncio.ensure_future(work)
        await asyncio.wait([task, self.problem], return_when=asyncio.FIRST_COMPLETED)
        if self.problem.done():
            task.cancel()
            await self.problem
        await task


@pytest.mark.parametrize("run", [write, read])
def test_stores_that_hang_leave_threads_to_the_others(run: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job of the others is done while none of theirs is; what waited is done once they answer. The threads are
    bounded by the stores that hang, and end when these have been quick for a while."""
    hang(run, monkeypatch)


def starts_none(_pool: _WorkerPool) -> None:
    """Start no thread in place of one that hangs."""


def starts_one(pool: _WorkerPool) -> None:
    """One thread takes the place of one that hangs, and none that of the others."""
    if not pool._dedicated[1:]:
        start_thread(pool)


start_thread = _WorkerPool._start


@pytest.mark.parametrize("run", [write, read])
@pytest.mark.parametrize("planted", [starts_none, starts_one])
def test_a_pool_that_leaves_threads_to_stores_that_hang_is_found(
    planted: Callable[[_WorkerPool], None], run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrokenPromise, match=r"threads of \d serve the stores that answer"):
        hang(run, monkeypatch, planted)


def test_a_pool_that_finds_no_store_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokenPromise, match=rf"\d threads of {WRITERS} serve the stores that answer"):
        hang(write, monkeypatch, hangs_s=3_600)


def hang(
    run: Write,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[_WorkerPool], None] | None = None,
    hangs_s: float = HUNG_S,
) -> None:
    """Have half of the stores hang. ``start``: of threads, once there are the first ones."""
    monkeypatch.setattr(host_module, "HANGS_S", hangs_s)
    monkeypatch.setattr(host_module, "LOOK_S", 0.01)
    monkeypatch.setattr(host_module, "QUIET_S", 0.05)
    answer = Event()

    async def scenario() -> None:
        looks = Looks(monkeypatch)
        with ExitStack() as ending:
            hosts = ending.enter_context(hosts_of(STORES))
            ending.callback(answer.set)
            if start is not None:
                monkeypatch.setattr(_WorkerPool, "_start", start)
            await looks.unless_broken(work(hosts))

    async def work(hosts: list[AsyncioHost]) -> None:
        held = [asyncio.ensure_future(run(host, answer.wait)) for host in hosts[:HUNG] for _ in range(5)]
        for number in range(ROUNDS):
            results = await asyncio.gather(*(run(host, partial(str, number)) for host in hosts[HUNG:]))
            assert results == [str(number)] * (STORES - HUNG)
        assert not any(one.done() for one in held)
        while (waiting := hosts[0].threads) < WRITERS + READERS + HUNG:
            await run(hosts[-1], bool)  # the last of the stores is found to hang
        assert waiting <= 2 * (WRITERS + READERS) * HUNG
        answer.set()
        await asyncio.gather(*held)
        while hosts[0].threads > WRITERS + READERS:
            await asyncio.gather(*(run(host, bool) for host in hosts))

    asyncio.run(scenario())


def test_a_thread_that_does_not_start_is_started_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "LOOK_S", 0.01)
    monkeypatch.setattr(host_module, "HANGS_S", 0.01)

    async def scenario() -> None:
        answer, refusals = Event(), 0
        start = Thread.start

        def refuse_twice(thread: Thread) -> None:
            nonlocal refusals
            refusals += 1
            if refusals <= 2:
                raise RuntimeError("can't start new thread")
            start(thread)

        with hosts_of(WRITERS + 1) as hosts:
            monkeypatch.setattr(Thread, "start", refuse_twice)
            held = [asyncio.ensure_future(write(host, answer.wait)) for host in hosts[:WRITERS]]
            assert await write(hosts[-1], lambda: "done") == "done"
            assert refusals > 2
            answer.set()
            await asyncio.gather(*held)

    asyncio.run(scenario())


@pytest.mark.row("P3")
def test_half_of_the_files_are_locked_and_the_others_go_on(tmp_path: Path) -> None:
    """A lock never ends by itself here: a commit that waited behind one would never be made."""

    async def scenario() -> None:
        with hosts_of(STORES) as hosts, ExitStack() as locked:
            paths = [tmp_path / f"store-{number:02}.db" for number in range(STORES)]
            runtimes = [runtime_of(path, host) for path, host in zip(paths, hosts, strict=True)]
            numbers = iter(range(1, 1_000_000))

            def send(runtime: StoreRuntime, row: int = 1) -> asyncio.Future[Any]:
                answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                command = c.Enqueue(next(numbers), [Message(pack(rest=b"body"))])
                runtime.submit(row, OPTIONS, command, answered.set_result)
                return answered

            for reply in await asyncio.gather(*map(send, runtimes)):
                assert type(reply) is r.Accepted
            for path in paths[:HUNG]:
                other = locked.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
                other.execute("BEGIN IMMEDIATE")
            # Partition 2 is read before its first message is stored, partition 1 is in memory.
            waiting = [send(runtime, row) for runtime in runtimes[:HUNG] for row in (1, 2)]
            for row in range(2, ROUNDS):
                for reply in await asyncio.gather(*(send(runtime, row) for runtime in runtimes[HUNG:])):
                    assert type(reply) is r.Accepted
            assert not any(one.done() for one in waiting)
            locked.close()
            for reply in await asyncio.gather(*waiting):
                assert type(reply) is r.Accepted
            closed = [asyncio.Event() for _ in runtimes]
            for runtime, event in zip(runtimes, closed, strict=True):
                runtime.close(event.set)
            await asyncio.gather(*(event.wait() for event in closed))

    asyncio.run(scenario())


def runtime_of(path: Path, host: AsyncioHost) -> StoreRuntime:
    settings = StoreSettings(busy_timeout_ms=NEVER_MS, reserved_bytes=65_536, min_free_bytes=0)

    def open_store() -> SQLiteStore:
        return SQLiteStore.open(path, store_id=path.stem, owner=Owner("broker", "run"), settings=settings)

    runtime = StoreRuntime(open_store, host, SystemClock())
    runtime.open()
    return runtime
