"""Faults of brokers while clients use them: killed, stopped, all gone at once, partitions taken away.

By a seed, so that a run can be had again; how the threads and processes interleave can't.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from partibus.client.errors import ClientError
from partibus.client.extensions.cluster import ClusterStatus, FaultInjections, cluster_status
from tests.kit.eventually import eventually
from tests.kit.history import History, Kind, Operation
from tests.kit.plain_client import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from partibus.testing.broker_process import BrokerProcess
    from tests.kit.plain_client import Client

PARTITIONS = 16
_LOOK_S = 0.05
_TIMEOUT_S = 5.0


class Watch:
    """Writes down when a broker process is gone, whoever ended it."""

    def __init__(self, broker: BrokerProcess, history: History) -> None:
        self._broker = broker
        self._history = history
        self._stopping = threading.Event()
        self._seen: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name="watch")

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        now_ms = self._history.now_ms()
        there = children(int(self._broker.ready["pid"]))
        for pid, seen_ms in list(self._seen.items()):
            if pid not in there:
                del self._seen[pid]
                self._history.add(Operation(kind=Kind.LOSS, began_ms=seen_ms, ended_ms=now_ms, note=f"process {pid}"))
        self._seen.update(dict.fromkeys(there, now_ms))

    def start(self) -> None:
        self.look()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def children(pid: int) -> set[int]:
    """Processes that a process has started and that run, or are stopped."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {int(one) for one in found if _runs(int(one))}


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


class Nemesis:
    """One deed after the other; `undo` takes back what lasts."""

    def __init__(self, broker: BrokerProcess, queues: Sequence[str], history: History, random: Random) -> None:
        self.broker = broker
        self._queues = queues
        self._history = history
        self.random = random
        self._waiting = threading.Event()
        self.deeds: list[str] = []
        """Its actions so far, in words."""
        self.chances: list[Callable[[], str]] = [
            *[self.kill_one] * 4, *[self.stop_shortly] * 3, *[self.stop_for_good] * 2, *[self.inject_fault] * 3,
            self.kill_all,
        ]  # fmt: skip
        """The actions of `act`, each as often as it should be. The loss of all is rare: it hides what the loss of
        one alone shows.
        """

    def act(self) -> None:
        """One deed by chance."""
        self.do(self.random.choice(self.chances))

    def do(self, deed: Callable[[], str]) -> None:
        """One deed; what it says is noted."""
        with suppress(ClientError, OSError):  # the broker that it asked is the one that it killed before
            self.deeds.append(deed())

    def kill_one(self) -> str:
        """SIGKILL."""
        pid = self.any_broker()
        os.kill(pid, signal.SIGKILL)
        return f"killed {pid}"

    def kill_all(self) -> str:
        """SIGKILL to their supervisor, with which all end, and a new start."""
        began_ms = self.now_ms()
        self.broker.kill()
        self.broker.start()
        self._history.add(Operation(kind=Kind.OUTAGE, began_ms=began_ms, ended_ms=self.now_ms(), note="all killed"))
        return "killed all"

    def stop_shortly(self) -> str:
        """SIGSTOP, and SIGCONT before it is missed."""
        pid, seconds = self.any_broker(), self.random.uniform(0.1, 1.2)
        os.kill(pid, signal.SIGSTOP)
        self._waiting.wait(seconds)
        os.kill(pid, signal.SIGCONT)
        return f"stopped {pid} for {seconds:.1f} s"

    def stop_for_good(self) -> str:
        """SIGSTOP until the supervisor ends it. AssertionError if it does not."""
        pid = self.any_broker()
        os.kill(pid, signal.SIGSTOP)
        eventually(f"the stopped process {pid} is replaced", lambda: not _runs(pid))
        return f"stopped {pid}"

    def inject_fault(self) -> str:
        """Some partitions of a queue are away for a while."""
        queue = self.random.choice(self._queues)
        partitions = self.random.sample(range(PARTITIONS), self.random.randint(1, 4))
        with self._client() as client:
            FaultInjections(client).fail(entity=queue, partitions=partitions)
        self._waiting.wait(self.random.uniform(0.2, 2))
        with self._client() as client:
            FaultInjections(client).heal(entity=queue)
        return f"took partitions {sorted(partitions)} of '{queue}' away"

    def forgotten(self, began_ms: int, note: str, more_ms: int = 0) -> None:
        """Note that brokers may have forgotten unstored messages from then until ``more_ms`` after now.

        No process has ended.
        """
        self._history.add(Operation(kind=Kind.LOSS, began_ms=began_ms, ended_ms=self.now_ms() + more_ms, note=note))

    def wait_for_sends(self, queue: str, count: int) -> None:
        """Wait until so many more are accepted: chance alone meets few on a busy machine. Raises AssertionError."""
        before = self._history.accepted(queue)
        eventually(f"{count} sends to '{queue}'", lambda: self._history.accepted(queue) >= before + count)

    def now_ms(self) -> int:
        """The time by the clock of the history."""
        return self._history.now_ms()

    @property
    def log(self) -> str:
        """Return the output of the brokers so far."""
        return self.broker.log

    def undo(self) -> None:
        """Wait until every broker serves and every store has an owner, and end all injected faults.

        Raises `AssertionError` when that does not come."""
        eventually("every broker is back", lambda: is_well(self.broker))

        def heal() -> bool:
            with self._client() as client:
                FaultInjections(client).heal()
                return not FaultInjections(client).all()

        eventually("no injected fault is left", heal)

    def any_broker(self) -> int:
        """The process of one that runs, by chance. Raises ProcessLookupError."""
        running = sorted(children(int(self.broker.ready["pid"])))
        if not running:
            raise ProcessLookupError("no broker runs right now")
        return self.random.choice(running)

    def _client(self) -> Client:
        return connect(self.broker.connection_string, timeout_s=_TIMEOUT_S)


def is_well(broker: BrokerProcess) -> bool:
    """All brokers serve, and all stores have an owner and no trouble."""
    with connect(broker.connection_string, timeout_s=_TIMEOUT_S) as client:
        found: ClusterStatus = cluster_status(client)
    return all(one.state == "serving" for one in found.brokers) and all(
        one.owner is not None and one.trouble is None for one in found.stores
    )
