"""The brokers of a supervisor: the wanted ones, and their present child processes."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from secrets import token_hex
from typing import Any, Protocol

from partibus.cluster.control import Body, ControlChannel, ControlLost, ControlRefused

log = logging.getLogger(__name__)


class Process(Protocol):
    """The process of a child: of `asyncio.subprocess.Process`, what a supervisor calls."""

    @property
    def pid(self) -> int: ...  # noqa: D102
    @property
    def returncode(self) -> int | None: ...  # noqa: D102
    async def wait(self) -> int: ...  # noqa: D102
    def kill(self) -> None: ...  # noqa: D102


class Child:
    """One run of one broker."""

    def __init__(self, broker: str, process: Process) -> None:
        self.broker = broker
        self.incarnation = token_hex(8)
        self.process = process
        self.channel: ControlChannel
        self.joined = False
        """Whether it has read the catalog and follows announcements."""
        self.serving = False
        """Whether it takes connections."""
        self.silent_ticks = 0
        self.lag_ms = 0.0
        """The duration of its last answer."""
        self.told: Body = {}
        """Its continuous report for the other brokers, as of a moment ago: its load, and its numbers of clients. Only
        brokers interpret it.
        """
        self.introduced = False
        """Whether it was told its identity, or is about to be before any other message."""
        self.leaving = False
        """Whether it gives up its stores, and ends."""
        self.closing = False
        """Whether it was told to close: it may be silent until it has ended."""

    @property
    def is_stopped(self) -> bool:
        """Whether the system has stopped it: SIGSTOP, or a debugger. False where the system can't tell."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except (AttributeError, ChildProcessError):
            return False

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def facts(self) -> dict[str, Any]:
        """The facts for its status that it does not report itself."""
        state = "serving" if self.serving else "starting"
        return {"pid": self.pid, "incarnation": self.incarnation, "state": state, "lag_ms": round(self.lag_ms, 1)}

    def kill(self) -> None:
        """Kill the process with SIGKILL, whatever state it is in."""
        with suppress(ProcessLookupError):
            self.process.kill()


class Children:
    """The child processes of the brokers."""

    def __init__(self, brokers: int) -> None:
        self.brokers = [f"broker-{index}" for index in range(brokers)]
        """The names of the brokers that should run."""
        self.restarts = dict.fromkeys(self.brokers, -1)
        """The number of restarts of each broker."""
        self._runs: dict[str, Child] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[Child]:
        """Iterate over the running children."""
        return iter(list(self._runs.values()))

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, broker: str) -> Child:
        """Return the child of a broker. Raises KeyError when it does not run."""
        return self._runs[broker]

    def find(self, broker: str | None) -> Child | None:
        """Return the child that runs as a broker now."""
        return None if broker is None else self._runs.get(broker)

    def add(self, child: Child) -> None:
        """Add a running child."""
        self._runs[child.broker] = child

    def remove(self, child: Child) -> None:
        """Remove a child that has ended."""
        if self._runs.get(child.broker) is child:
            del self._runs[child.broker]

    @property
    def joined(self) -> list[Child]:
        """The children that have read the catalog."""
        return [child for child in self._runs.values() if child.joined]

    @property
    def all_joined(self) -> bool:
        """Whether every wanted broker has joined."""
        return all((child := self.find(broker)) is not None and child.joined for broker in self.brokers)

    def more(self) -> str:
        """Add a name to the brokers that should run, and return it."""
        broker = f"broker-{len(self.brokers)}"
        self.brokers.append(broker)
        self.restarts[broker] = -1
        return broker

    def told_by_others(self, child: Child) -> list[Body]:
        """Return the continuous reports of the other brokers for a child."""
        return [other.told for other in self._runs.values() if other is not child]

    async def ask_all(self, op: str, *, but: Child | None = None, **body: Any) -> dict[str, Body]:
        """Ask all children; return the answers by broker, without those of children that end meanwhile.

        A starting child that knows its identity is asked as well, since it may have read the catalog already. Its
        answer is not waited for, because it has no clients yet.
        """
        answers: dict[str, Body] = {}

        async def ask(child: Child) -> None:
            with suppress(ControlLost):
                try:
                    answers[child.broker] = await child.channel.ask(op, **body)
                except ControlRefused as error:
                    log.warning("%s could not do '%s': %s", child.broker, op, error)

        there = [child for child in self._runs.values() if child.introduced and child is not but]
        asked = [(self.spawn(ask(child)), child) for child in there]
        await asyncio.gather(*(task for task, child in asked if child.joined))
        return answers

    # -- what is under way for them ----------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task and keep it: the loop itself keeps only weak references."""
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel_all(self) -> None:
        """Cancel all tasks but the caller's."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
