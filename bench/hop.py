"""The cost of the hop to another broker: both ends in this process, a real Unix socket, an owner that answers at once.

``python -m bench.hop`` prints CPU time (user and system, both ends together) and messages per second. The store is left
out: what is measured comes on top of what a message costs at its owner.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from partibus.cluster.peers import PeerChannels
from partibus.cluster.serving import Serving
from partibus.cluster.sockets import listen
from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.options import PartitionOptions
from partibus.routing.store_access import StoreRoute

BODY_BYTES = 1_024
MESSAGES = 100_000
OPTIONS = PartitionOptions()
RUNS = (1, 8, 64)
"""Messages of one command."""
AT_ONCE = 64
"""Commands under way."""


class Owner:
    """A `partibus.routing.store_access.StoreAccess` that stores nothing."""

    failure: str | None = None
    overloaded = False

    def __init__(self) -> None:
        self._receivers: dict[int, Callable[[Any], None]] = {}
        self._data = pack(rest=bytes(BODY_BYTES))

    def submit(
        self, row: int, options: PartitionOptions, command: Any, on_reply: Any = None, *, holdable: bool = False
    ) -> None:
        if isinstance(command, c.Enqueue):
            on_reply(r.Accepted(command.request, 1))
        elif isinstance(command, c.Settle):
            on_reply(r.Settled(command.request, []))
        elif isinstance(command, c.Receive):
            entries = [Entry(i, i, i, 0, 0, None, None, len(self._data), self._data) for i in range(command.count)]
            self._receivers[command.receiver](r.Granted(command.receiver, 0, 1, 1, entries, True))

    def register(self, receiver: int, on_granted: Callable[[Any], None]) -> None:
        self._receivers[receiver] = on_granted

    def unregister(self, receiver: int) -> None:
        self._receivers.pop(receiver, None)

    def forget(self, request: int) -> None:
        pass

    def when_usable(self, call: Callable[[], None]) -> None:
        pass

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        on_dropped(row)

    def retire(self, why: str) -> list[Callable[[], None]]:
        return []


class Load:
    """Commands of one kind, always `AT_ONCE` under way, until all messages have passed."""

    def __init__(self, route: StoreRoute, run: int, loop: asyncio.AbstractEventLoop) -> None:
        self._route = route
        self._run = run
        self._numbers = count(1)
        self._left = MESSAGES // run
        self._open = 0
        self._messages = [Message(pack(rest=bytes(BODY_BYTES))) for _ in range(run)]
        self.done = loop.create_future()

    async def send(self) -> None:
        self._begin(self._send)
        await self.done

    async def receive(self) -> None:
        self._receivers = [next(self._numbers) for _ in range(AT_ONCE)]
        for receiver in self._receivers:
            self._route.register(receiver, self._granted)
        for receiver in self._receivers:
            self._open += 1
            self._ask(receiver)
        await self.done

    def _begin(self, one: Callable[[], None]) -> None:
        for _ in range(AT_ONCE):
            self._open += 1
            one()

    def _send(self) -> None:
        command = c.Enqueue(next(self._numbers), self._messages)
        self._route.submit(1, OPTIONS, command, lambda _: self._next(self._send), holdable=True)

    def _ask(self, receiver: int) -> None:
        self._route.submit(1, OPTIONS, c.Receive(0, receiver, self._run, 1 << 30))

    def _granted(self, grant: r.Granted | r.Failed) -> None:
        if isinstance(grant, r.Failed):
            return  # the measurement is over
        tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
        command = c.Settle(next(self._numbers), 0, c.Outcome.COMPLETE, tokens)
        self._route.submit(1, OPTIONS, command, lambda _: self._next(lambda: self._ask(grant.receiver)))

    def _next(self, one: Callable[[], None]) -> None:
        self._left -= 1
        if self._left > 0:
            one()
            return
        self._open -= 1
        if not self._open:
            self.done.set_result(None)


async def main() -> None:
    """Measure and print."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="partibus-hop-") as directory:
        path = Path(directory) / "run" / "owner.sock"
        serving = Serving()
        serving.open(0, Owner())
        owner = PeerChannels(("owner", "1"), b"s" * 32, lambda _: path, serving, loop)
        remote_broker = PeerChannels(("guest", "1"), b"s" * 32, lambda _: path, Serving(), loop)
        server = await listen(path, owner.make_answering, loop)
        route = StoreRoute("store", loop.call_soon)
        remote_broker.lead(route, ("owner", "1"), 0)
        reached = asyncio.Event()
        route.when_usable(reached.set)
        await reached.wait()
        print(f"{MESSAGES} messages of {BODY_BYTES} bytes, {AT_ONCE} commands under way")
        for name in ("send", "receive"):
            for run in RUNS:
                load = Load(route, run, loop)
                cpu_s, began_s = time.process_time(), time.perf_counter()
                await getattr(load, name)()
                cpu_us = (time.process_time() - cpu_s) / MESSAGES * 1e6
                rate = MESSAGES / (time.perf_counter() - began_s)
                what = "send" if name == "send" else "receive and settle"
                print(f"{what:20} {run:3} a command   {cpu_us:6.2f} us CPU a message   {rate:9,.0f} messages/s")
        remote_broker.close()
        owner.close()
        server.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
