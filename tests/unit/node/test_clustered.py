"""One broker of several machines, beside others that only report: what it makes of their use of queues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from partibus.clock import SystemClock
from partibus.cluster.sockets import bound_tcp
from partibus.namespace.catalog import Catalog
from partibus.node.clustered import Clustered
from partibus.node.joining import Joined
from partibus.node.node import Broker
from partibus.node.settings import Settings
from partibus.store.acknowledged import AcknowledgedCommits
from partibus.store.postgresql.connection import Address
from partibus.store.postgresql.registry import Registry
from tests.unit.cluster.loops import eventually, on_loop
from tests.unit.cluster.test_membership import US, FakeRegistry


class ReportingRegistry(FakeRegistry):
    """A registry that knows of no commits in the stores."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged: dict[str, object] = {}


def make_broker(data: Path, registry: FakeRegistry) -> Broker:
    """Make a broker without stores, which would be in PostgreSQL, and with a catalog of its own."""
    data.mkdir()
    settings = Settings(data=data, amqp_port=0, http_port=0)
    joined = Joined(
        US,
        cast(Address, None),
        cast(Registry, registry),
        [],
        b"s" * 32,
        bound_tcp("127.0.0.1", 0),
        0,
        cast(AcknowledgedCommits, None),
        [],
    )
    loop = asyncio.get_running_loop()
    return Broker(
        US, settings, loop, SystemClock(), [], Catalog(data, 1), lambda broker: Clustered(broker, joined), lambda: None
    )


@on_loop
async def test_the_leading_broker_learns_which_queues_the_others_have_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ReportingRegistry()
    broker = make_broker(tmp_path / "data", registry)
    begun: list[None] = []
    monkeypatch.setattr(broker.front.idle, "begin", lambda: begun.append(None))
    assert await broker.coordinator.used() is None, "it has not joined"
    await broker.coordinator.join()
    try:
        registry.used = {7}
        assert await broker.coordinator.used() == [7]
        assert len(begun) == 1, "it leads from now on"
        registry.rows["b"] = ("first run", "b:1", "the first", 0, "{}")
        while len((await broker.coordinator.status())["brokers"]) < 2:  # noqa: ASYNC110 (nobody is told)
            await asyncio.sleep(0.001)
        assert len(begun) == 1
        registry.rows["b"] = ("another run", "b:1", "the first", 0, "{}")
        await eventually(lambda: len(begun) == 2)
    finally:
        await broker.close()
