"""Stores that hang keep the threads that they hang in; all others go on."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from partibus.clock import SystemClock
from partibus.message import Message, pack
from partibus.node import host as host_module
from partibus.node.host import READERS, WRITERS, AsyncioHost
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.store.sqlite import Owner, SQLiteStore, StoreSettings

STORES = 16
HUNG = 8
ROUNDS = 40
OPTIONS = PartitionOptions()
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


@pytest.mark.parametrize("run", [write, read])
def test_stores_that_hang_leave_threads_to_the_others(run: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job of the others is done while none of theirs is; what waited is done once they answer. The threads are
    bounded by the stores that hang, and end when these have been quick for a while."""
    monkeypatch.setattr(host_module, "HANGS_S", 0.02)
    monkeypatch.setattr(host_module, "LOOK_S", 0.01)
    monkeypatch.setattr(host_module, "QUIET_S", 0.05)

    async def scenario() -> None:
        answer = Event()
        with hosts_of(STORES) as hosts:
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

        with hosts_of(4) as hosts:
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
