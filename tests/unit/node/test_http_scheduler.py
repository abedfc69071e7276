"""When requests over HTTP are done, and who pays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from partibus.namespace.namespace_options import NamespaceOptions
from partibus.node.http_scheduler import REQUEST_BYTES, HttpScheduler
from partibus.units.account import CLAIMED
from partibus.units.fair_scheduler import FairScheduler
from tests.unit.namespace.servers import Cluster

NAME = "acme-plant"


class World:
    def __init__(self, folder: Path) -> None:
        self.namespaces = Cluster(folder).join().namespaces
        self.namespaces.create(NAME, NamespaceOptions())
        self.soon: list[Callable[[], None]] = []
        self.scheduler = FairScheduler(self.soon.append, lambda: 1_000_000_000_000)
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.app = HttpScheduler(self._serve, self.namespaces, self.scheduler)
        self.may_end = asyncio.Event()

    async def _serve(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        self.begun.append(scope["path"])
        try:
            if scope["path"] != "/stranger":
                scope[CLAIMED]()
            sum(range(10_000))
            await self.may_end.wait()
        finally:
            self.ended.append(scope["path"])

    def ask(self, path: str, host: str = "localhost") -> asyncio.Task[None]:
        scope = {"type": "http", "path": path, "headers": [(b"accept", b"*/*"), (b"host", host.encode())]}
        return asyncio.ensure_future(self.app(scope, _nothing, _nothing))


async def _nothing(*_: object) -> Any:
    raise AssertionError("not called")


def test_a_namespace_that_is_alone_does_not_wait_and_each_step_is_charged(tmp_path: Path) -> None:
    async def play() -> None:
        world = World(tmp_path)
        request = world.ask("/a", f"{NAME}.localhost:5300")
        await asyncio.sleep(0)
        assert world.begun == ["/a"]
        account = world.namespaces.named(NAME).account
        before = account.busy_ns
        assert before > 0
        world.may_end.set()
        await request
        assert account.busy_ns > before
        assert world.namespaces.default.account.busy_ns == 0

    asyncio.run(play())


def test_a_host_name_alone_is_charged_to_nobody_elses_namespace(tmp_path: Path) -> None:
    async def play() -> None:
        world = World(tmp_path)
        world.may_end.set()
        account, default = world.namespaces.named(NAME).account, world.namespaces.default.account
        await world.ask("/stranger", f"{NAME}.localhost")
        assert (account.busy_ns, account.moved) == (0, 0)
        assert default.busy_ns > 0
        assert default.moved == REQUEST_BYTES
        await world.ask("/a", f"{NAME}.localhost")
        assert account.busy_ns > 0
        assert (account.moved, default.moved) == (REQUEST_BYTES, REQUEST_BYTES)

    asyncio.run(play())


def test_beside_others_requests_wait_for_their_turn(tmp_path: Path) -> None:
    async def play() -> None:
        world = World(tmp_path)
        world.may_end.set()
        world.scheduler.begin(world.namespaces.default.account)
        requests = [world.ask("/a", f"{NAME}.localhost"), world.ask("/b")]
        await asyncio.sleep(0)
        assert world.begun == []
        assert world.scheduler.waiting == 2
        while world.soon:
            world.soon.pop(0)()
        await asyncio.gather(*requests)
        assert world.ended == ["/a", "/b"]

    asyncio.run(play())


def test_a_request_that_is_given_up_ends_where_it_is(tmp_path: Path) -> None:
    async def play() -> None:
        world = World(tmp_path)
        begun = world.ask("/a")
        waiting = world.ask("/b", f"{NAME}.localhost")
        await asyncio.sleep(0)
        for request in (begun, waiting):
            request.cancel()
        await asyncio.gather(begun, waiting, return_exceptions=True)
        assert world.ended == ["/a"]
        while world.soon:
            world.soon.pop(0)()
        assert world.begun == ["/a"]

    asyncio.run(play())
