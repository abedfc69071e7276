"""A store's runtime on the other side of a line, on one timeline: nothing happens but by `run`."""

from __future__ import annotations

from random import Random
from typing import Any

from partibus.cluster.serving import Serving
from partibus.limits import PeerLimits
from partibus.partition.protocol import commands as c
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import StoreError
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.partitions import Numbers
from partibus.routing.store_access import StoreRoute
from tests.kit.simulated_host import SimulatedHost
from tests.kit.simulated_line import SimulatedLine
from tests.unit.partition import test_runtime

OPTIONS = test_runtime.OPTIONS
SESSIONS = PartitionOptions(lock_duration_ms=1_000, requires_session=True)
ROW = test_runtime.ROW
STORE = 5


class _Through:
    """The line for calls of a remote broker; calls of the owner to its own runtime do not take it."""

    def __init__(self, route: StoreRoute, runtime: StoreRuntime) -> None:
        self.submit = route.submit
        self.register = route.register
        self.unregister = route.unregister
        self.forget = route.forget
        self.drop = route.drop
        self.when_usable = route.when_usable
        self.run_due = runtime.run_due
        self.close = runtime.close


class FarBroker(test_runtime.Broker):
    """A `test_runtime.Broker` whose runtime (`near`) is at the end of a line; ``route`` is the way there."""

    def __init__(self, seed: int = 1, limits: PeerLimits | None = None) -> None:
        super().__init__(seed)
        self.limits = limits
        self.near = self.runtime
        self.random = Random(seed)
        self.owner_host = SimulatedHost(self.timeline, self.random)
        self.remote_host = SimulatedHost(self.timeline, self.random)
        self.serving = Serving()
        self.serving.open(STORE, self.near)
        self.lines: list[SimulatedLine] = []
        self.route = self.new_route()
        self.numbers = Numbers()
        self.connect()
        self.runtime: Any = _Through(self.route, self.near)

    def new_route(self) -> StoreRoute:
        """Make a remote broker's way to the store, which leads nowhere yet."""
        return StoreRoute("store-05", self.remote_host.call_soon)

    def connect(self, route: StoreRoute | None = None) -> None:
        """Lead a route, `self.route` by default, over a new line."""
        line = SimulatedLine(self.timeline, self.random, self.remote_host, self.owner_host, self.serving, self.limits)
        self.lines.append(line)
        (route or self.route).lead_to(line.remote.store(STORE, route or self.route))

    def failure(self) -> str | None:
        return self.route.failure

    def run(self, ms: float = 100.0) -> None:
        """Let some time pass."""
        self.wait(ms)

    def turn(self) -> None:
        """Let happen what is due now: questions leave."""
        due: list[bool] = []
        self.timeline.call_later(0, lambda: due.append(True))
        self.run_until(lambda: due)

    def submit(self, command: c.Command, options: PartitionOptions = OPTIONS) -> None:
        """A command whose answer comes to `answers`, if it has a request."""
        awaited = bool(getattr(command, "request", 0))
        self.route.submit(ROW, options, command, self.answers.append if awaited else None)

    def register(self) -> int:
        """A receiver whose messages come to `answers`."""
        receiver = self.numbers.next()
        self.route.register(receiver, self.answers.append)
        return receiver

    def taken(self, kind: type) -> list[Any]:
        """Answers of a kind since they were last taken."""
        found = [answer for answer in self.answers if isinstance(answer, kind)]
        self.answers[:] = [answer for answer in self.answers if not isinstance(answer, kind)]
        return found

    def until(self, kind: type, count: int = 1) -> list[Any]:
        """Return so many answers of a kind, as soon as they are there."""
        found: list[Any] = []

        def enough() -> bool:
            found.extend(self.taken(kind))
            return len(found) >= count

        self.run_until(enough)
        return found

    def break_store(self, error: StoreError) -> None:
        """The next commit fails."""
        self.stores[-1].commit_fails = error
