"""The brokers of a supervisor: which there should be, and the child processes that they are now."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from secrets import token_hex
from typing import Any

from partibus.cluster.control import Body, ControlChannel, ControlLost, ControlRefused

log = logging.getLogger(__name__)


class Child:
    """One run of one broker."""

    def __init__(self, broker: str, process: asyncio.subprocess.Process) -> None:
        self.broker = broker
        self.incarnation = token_hex(8)
        self.process = process
        self.channel: ControlChannel
        self.joined = False
        """It has read the catalog and follows what is said."""
        self.serving = False
        """It takes connections."""
        self.silent_ticks = 0
        self.lag_ms = 0.0
        """How long it took to answer the last time."""
        self.told: Body = {}
        """What the other brokers have to know of it all the time, as it was a moment ago: how busy it is, and with how
        many clients. What is in it brokers know."""
        self.introduced = False
        """It has been told who it is, or is about to be before anything else."""
        self.leaving = False
        """It gives up its stores, and ends."""

    @property
    def is_stopped(self) -> bool:
        """It is the system that says so: SIGSTOP, or a debugger. False where systems can't tell."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except (AttributeError, ChildProcessError):
            return False

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, whatever state it is in."""
        with suppress(ProcessLookupError):
            self.process.kill()


class Children:
    """Those of so many brokers."""

    def __init__(self, brokers: int) -> None:
        self.brokers = [f"broker-{index}" for index in range(brokers)]
        """Those that should run."""
        self.restarts = dict.fromkeys(self.brokers, -1)
        """How often each was started after the first time."""
        self._runs: dict[str, Child] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[Child]:
        """Those that run."""
        return iter(list(self._runs.values()))

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, broker: str) -> Child:
        """KeyError when it does not run."""
        return self._runs[broker]

    def find(self, broker: str | None) -> Child | None:
        """The child that is this broker now."""
        return None if broker is None else self._runs.get(broker)

    def add(self, child: Child) -> None:
        """It runs."""
        self._runs[child.broker] = child

    def remove(self, child: Child) -> None:
        """It has ended."""
        if self._runs.get(child.broker) is child:
            del self._runs[child.broker]

    @property
    def joined(self) -> list[Child]:
        """Those that have read the catalog."""
        return [child for child in self._runs.values() if child.joined]

    @property
    def all_joined(self) -> bool:
        """Every broker that should run is there."""
        return all((child := self.find(broker)) is not None and child.joined for broker in self.brokers)

    def more(self) -> str:
        """The name of one more that should run."""
        broker = f"broker-{len(self.brokers)}"
        self.brokers.append(broker)
        self.restarts[broker] = -1
        return broker

    def told_by_others(self, child: Child) -> list[Body]:
        """What a child has to know of the others all the time."""
        return [other.told for other in self._runs.values() if other is not child]

    async def ask_all(self, op: str, *, but: Child | None = None, **body: Any) -> dict[str, Body]:
        """The answers of all that are there, by broker; who ends meanwhile has none. A child that is still starting
        is asked as well once it knows who it is, since it may have read the catalog already, but not waited for: nobody
        uses it yet."""
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
        """The loop itself keeps tasks weakly only."""
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel_all(self) -> None:
        """All that is under way, but who calls."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
