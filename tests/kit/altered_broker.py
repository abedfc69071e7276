"""`partibus serve` with something wrong in it on purpose: run in place of the real command, it changes classes of the
broker before it starts them. Nothing of it is in the broker itself.

``PARTIBUS_ALTERED`` names what is wrong, separated by spaces and quoted as in a shell. The children of a supervisor
inherit it. Each name is that of a function here, some with an argument behind a ``:``.

```text
PARTIBUS_ALTERED="answers_late:0.05 denies_what_was_executed" python tests/kit/altered_broker.py serve …
```
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

VARIABLE = "PARTIBUS_ALTERED"
COMMAND = (sys.executable, str(Path(__file__)))
_CHILD = "--child"
_BEHIND_S = 0.4


def _replace(owner: object, name: str, by: object) -> None:
    setattr(owner, name, by)


# -- bugs that the rules of histories must find ----------------------------------------------------------------------


def acknowledges_before_the_commit() -> None:
    """A store says that a commit is durable and makes it a little later."""
    from partibus.store.sqlite.store import SQLiteStore

    commit, read = SQLiteStore.commit, SQLiteStore.read
    queues: dict[int, list[Any]] = {}
    locks: dict[int, threading.Lock] = {}
    closed: set[SQLiteStore] = set()

    def write_all(store: SQLiteStore) -> None:
        with locks[id(store)]:
            queue = queues[id(store)]
            while queue:
                commit(store, queue.pop(0))

    def write_behind(store: SQLiteStore) -> None:
        while store not in closed:
            time.sleep(_BEHIND_S)
            write_all(store)

    def promise(store: SQLiteStore, writes: Any) -> None:
        if id(store) not in queues:
            queues[id(store)], locks[id(store)] = [], threading.Lock()
            threading.Thread(target=write_behind, args=(store,), daemon=True).start()
        queues[id(store)].append(writes)

    def read_what_was_promised(store: SQLiteStore, query: Any) -> Any:
        if queues.get(id(store)):
            write_all(store)
        return read(store, query)

    close = SQLiteStore.close

    def write_and_close(store: SQLiteStore) -> None:
        if queues.get(id(store)):
            write_all(store)
        closed.add(store)
        close(store)

    _replace(SQLiteStore, "commit", promise)
    _replace(SQLiteStore, "read", read_what_was_promised)
    _replace(SQLiteStore, "close", write_and_close)


def forgets_locks() -> None:
    """Message locks are never stored."""
    from partibus.store.sqlite.store import SQLiteStore

    commit = SQLiteStore.commit

    def forgetful(store: SQLiteStore, writes: Any) -> None:
        writes.lock_batches.clear()
        commit(store, writes)

    _replace(SQLiteStore, "commit", forgetful)


def denies_what_was_executed() -> None:
    """Have the new owner of a store claim that the last one executed none of its unanswered commands."""
    from partibus.partition.runtime.store_runtime import StoreRuntime

    def deny(runtime: Any, asker: str, requests: Any, found: Callable[[Any], None]) -> None:
        asyncio.get_running_loop().call_soon(lambda: found(dict.fromkeys(requests)))

    _replace(StoreRuntime, "find_executed", deny)


def spares_the_silent() -> None:
    """A broker that does not answer loses its stores, and goes on when it wakes. By itself harmless where stores are
    fenced: that is what the epoch is for."""
    from partibus.cluster.children import Child
    from partibus.cluster.supervisor import Supervisor
    from partibus.node import supervised

    kill, ended = Child.kill, Supervisor._ended
    supervisors: list[Supervisor] = []
    run = Supervisor._run

    async def noted(supervisor: Supervisor, broker: str) -> Child:
        if supervisor not in supervisors:
            supervisors.append(supervisor)
        return await run(supervisor, broker)

    def spare(child: Child) -> None:
        if child.joined and child.silent_ticks > 0 and supervisors and not supervisors[0]._stopping:
            child.joined = False
            ended(supervisors[0], child, 0)
        elif child.joined:
            kill(child)

    _replace(Supervisor, "_run", noted)
    _replace(Child, "kill", spare)
    _replace(supervised, "_orphaned", lambda: None)


def forgets_the_epoch() -> None:
    """A store in PostgreSQL takes commits of whoever sends them, and so does who sends them."""
    from partibus.store.postgresql.ownership import read_owner
    from partibus.store.postgresql.store import PostgreSQLStore
    from partibus.store.postgresql.writer import Writer

    commit = Writer.commit

    def as_if_ours(writer: Writer) -> None:
        if writer.connection.closed:
            writer._connect_again()
        now = read_owner(writer.connection)
        writer.ownership.epoch, writer.ownership.last_commit = now.epoch, now.last_commit
        writer._owner = writer.ownership._owner = writer._owner._replace(incarnation=now.incarnation)

    def unfenced(writer: Writer, writes: Any) -> None:
        as_if_ours(writer)
        commit(writer, writes)

    _replace(Writer, "commit", unfenced)
    _replace(Writer, "renew", as_if_ours)
    _replace(PostgreSQLStore, "is_held", property(lambda _: True))


def accepts_what_lags() -> None:
    """A store in PostgreSQL goes on with whatever the server has, and gives its next numbers out again."""
    from partibus.store.postgresql import ownership

    _replace(ownership, "lacks", lambda *_: False)
    _replace(ownership, "went_another_way", lambda *_: False)


def follows_stores() -> None:
    """A broker goes by the latest time that a store remembers, whatever its machine's clock says."""
    from partibus.node import node

    def stored_time(clock: Any, _settings: Any, jumped: Callable[[], None], loop: Any) -> Callable[[str, int], None]:
        def check(_name: str, highest_ms: int) -> None:
            if clock.catch_up(highest_ms):
                loop.call_soon_threadsafe(jumped)

        return check

    _replace(node, "stored_time", stored_time)


# -- what the broker writes down, which is no bug ---------------------------------------------------------------------


def notes_grants(folder: str) -> None:
    """Each process notes what its owners hand out under lock, as `tests.kit.history.add_epochs` reads it."""
    from partibus.partition.protocol import replies as r
    from partibus.partition.runtime.dispatcher import ReplyDispatcher
    from partibus.partition.runtime.store_runtime import StoreRuntime

    files: dict[int, IO[str]] = {}
    being_made: list[Any] = []
    make, make_dispatcher = StoreRuntime.__init__, ReplyDispatcher.__init__

    def file() -> IO[str]:
        """Return the file of this process, which may be a fork of another."""
        if os.getpid() not in files:
            files[os.getpid()] = (Path(folder) / f"{os.getpid()}.jsonl").open("a", buffering=1)
        return files[os.getpid()]

    def known(runtime: Any, *arguments: Any, **options: Any) -> None:
        being_made.append(runtime)
        make(runtime, *arguments, **options)
        being_made.pop()

    def known_by_dispatcher(dispatcher: ReplyDispatcher, *arguments: Any) -> None:
        make_dispatcher(dispatcher, *arguments)
        dispatcher.outbox = Outbox(being_made[-1])

    def note(runtime: StoreRuntime, reply: Any) -> None:
        if isinstance(reply, r.Granted | r.Locked) and reply.lock_id:
            sent_ms, store = time.time_ns() // 1_000_000, runtime.store
            assert store is not None, "it hands out"
            for entry in reply.entries:
                given = [entry.sequence, reply.lock_id, entry.pos, reply.until_ms]
                file().write(json.dumps([given, store.epoch, sent_ms, (entry.data or b"")[-40:].hex()]) + "\n")

    class Outbox(deque[tuple[Callable[[Any], None], Any]]):
        """Replies of one runtime, noted as they come."""

        def __init__(self, runtime: StoreRuntime) -> None:
            super().__init__()
            self._runtime = runtime

        def append(self, pair: tuple[Callable[[Any], None], Any]) -> None:
            note(self._runtime, pair[1])
            super().append(pair)

        def extend(self, pairs: Iterable[tuple[Callable[[Any], None], Any]]) -> None:
            for pair in pairs:
                self.append(pair)

    _replace(StoreRuntime, "__init__", known)
    _replace(ReplyDispatcher, "__init__", known_by_dispatcher)


# -- slowness, which is no bug ---------------------------------------------------------------------------------------


def answers_late(seconds: str) -> None:
    """Delay the answers behind a durable commit."""
    from partibus.store.sqlite.store import SQLiteStore

    commit, pause_s = SQLiteStore.commit, float(seconds)

    def late(store: SQLiteStore, writes: Any) -> None:
        commit(store, writes)
        time.sleep(pause_s)

    _replace(SQLiteStore, "commit", late)


# -- versions --------------------------------------------------------------------------------------------------------


def is_newer() -> None:
    """A broker whose commands have other fields."""
    from partibus.cluster import handshake
    from partibus.node import joining

    _replace(handshake, "FINGERPRINT", "another")
    _replace(joining, "FINGERPRINT", "another")


# -- deaths ----------------------------------------------------------------------------------------------------------


def dies(folder: str) -> None:
    """The first process that comes to a point of which the name is that of a file in ``folder`` takes the file away and
    kills itself. `POINTS` has the names."""
    from partibus.store.postgresql.store import PostgreSQLStore
    from partibus.store.postgresql.writer import Writer as PostgreSQLWriter
    from partibus.store.sqlite import checkpoint as checkpoints
    from partibus.store.sqlite import store as sqlite_store
    from partibus.store.sqlite.store import SQLiteStore
    from partibus.store.sqlite.writer import Writer as SQLiteWriter

    def point(name: str) -> None:
        try:
            os.unlink(Path(folder) / name)
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # the signal ends all threads, but not before the next line

    def around(owner: Any, name: str, before: str = "", after: str = "") -> None:
        """Put points before and after a function."""
        original = getattr(owner, name)

        def passed(*arguments: Any, **options: Any) -> Any:
            if before:
                point(before)
            result = original(*arguments, **options)
            if after:
                point(after)
            return result

        setattr(owner, name, passed)

    around(SQLiteStore, "commit", "before a commit", "after a commit")
    around(sqlite_store, "apply_writes", "in a commit", "at the end of a commit")
    around(SQLiteWriter, "take_over", "before taking a store over", "after taking a store over")
    around(checkpoints, "checkpoint", "before a checkpoint", "after a checkpoint")
    around(SQLiteStore, "read", "before a read", "after a read")
    around(PostgreSQLStore, "commit", "before a distant commit", "after a distant commit")
    around(PostgreSQLWriter, "open", "before opening a distant store", "after opening a distant store")

    apply = PostgreSQLWriter._apply

    def on_its_way(writer: Any, number: int, parameters: Any) -> None:
        threading.Timer(0.001, point, ("while the server commits",)).start()
        apply(writer, number, parameters)

    _replace(PostgreSQLWriter, "_apply", on_its_way)


NEAR_POINTS = (
    "before a commit",
    "in a commit",
    "at the end of a commit",
    "after a commit",
    "before taking a store over",
    "after taking a store over",
    "before a read",
    "after a read",
)
"""Points of stores in files; where a test writes megabytes, also those before and after a checkpoint."""
DISTANT_POINTS = (
    "before a distant commit",
    "while the server commits",
    "after a distant commit",
    "before opening a distant store",
    "after opening a distant store",
)
TAKING_OVER = frozenset((*NEAR_POINTS[4:], *DISTANT_POINTS[3:5]))
"""The faults that happen only when a store gets another owner."""


# -- time ------------------------------------------------------------------------------------------------------------


def wall_clock(file: str) -> None:
    """The machine's clock is ahead of the real one by as many seconds as ``file`` says, at each look; behind if that is
    negative."""
    real_ns, real_s = time.time_ns, time.time

    def ahead_s() -> float:
        return float(Path(file).read_text())

    _replace(time, "time_ns", lambda: real_ns() + int(ahead_s() * 1e9))
    _replace(time, "time", lambda: real_s() + ahead_s())


def main() -> None:
    """The command line of partibus, or with ``--child FD`` a child of its supervisor."""
    for one in shlex.split(os.environ[VARIABLE]):
        name, _, argument = one.partition(":")
        alter = globals()[name]
        alter(argument) if argument else alter()
    if sys.argv[1] == _CHILD:
        from partibus.node import supervised

        supervised.run(int(sys.argv[2]))
        return
    from partibus.cli.main import main as command
    from partibus.node import child

    # A supervisor that may not fork starts its children so.
    _replace(child, "COMMAND", (*COMMAND, _CHILD))
    command()


if __name__ == "__main__":
    main()
