"""Stores that are slow: one against sixteen, each of which takes 100 messages in 10 ms.

Sixteen of them take 160,000 messages a second, which is more than the AMQP engine brings on two cores. So this is what
lies behind it: runs of messages without keys go through `partibus.routing.send` to the partitions of one entity, whose
stores have a writer thread each, as distant stores do. They keep nothing: to store is their computers' work, not this
one's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import uvloop

from partibus.amqp.section_encoding import encode_data
from partibus.clock import SystemClock
from partibus.message import Message, pack
from partibus.node.host import AsyncioHost
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import BODY_COLUMNS, Store, StoreError, Writes
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.send import send
from tests.kit.stores.memory import MemoryStore

STORES = (1, 4, 16)
COMMIT_S = 0.01
COMMIT_MESSAGES = 100
IN_FLIGHT = 10_000
RUN = 100
"""Messages that a link has waiting, as many as a store takes at once: a sender with a batch or a few hundred in flight.
With runs of 20 this process's own work per run, not the stores, is what ends the growth (8.4 times)."""
BODY_BYTES = 128
"""Copying more of them would only be this process's work, not the stores'."""
_WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Messages stored per second."""

    scenario: str = "stores"
    stores: int
    in_flight: int
    commit_ms: float
    commit_messages: int
    send_per_s: float
    ratio: float
    """The ratio to one store."""
    cpu_us: float
    """CPU time of this process per message."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


class LimitedStore(MemoryStore):
    """Takes its time for each hundred messages, or part of them, and forgets them."""

    def commit(self, writes: Writes) -> None:
        time.sleep(COMMIT_S * max(1, -(-len(writes.bodies) // BODY_COLUMNS // COMMIT_MESSAGES)))


class Load:
    """A load that keeps so many messages under way all the time."""

    def __init__(self, route: EntityRoute) -> None:
        self.stored = 0
        self.stored_s = 0.0
        """When the last ones were."""
        self._route = route
        self._over = False
        self._runs = 0
        self._ended = asyncio.Event()
        self._batches = [[Message(pack(durable=True, rest=encode_data(bytes(BODY_BYTES))))] for _ in range(RUN)]

    def begin(self) -> None:
        for _ in range(IN_FLIGHT // RUN):
            self._runs += 1
            self._send()

    async def end(self) -> None:
        """Wait until the requests under way are answered."""
        self._over = True
        await self._ended.wait()

    def _send(self) -> None:
        send(self._route, self._batches, self._sent, more=True)

    def _sent(self, errors: object) -> None:
        assert errors is None, errors
        self.stored += RUN
        self.stored_s = time.perf_counter()
        if not self._over:
            self._send()
            return
        self._runs -= 1
        if not self._runs:
            self._ended.set()


def _no_reopening() -> Store:
    raise StoreError("a store in memory is not opened again", executed=False)


def measure_stores(*, seconds: float) -> Iterator[Stores]:
    """One after the other."""
    one: float | None = None
    for stores in STORES:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rate, cpu_us = runner.run(_rate(stores, seconds))
        one = one or rate
        yield Stores(
            stores=stores,
            in_flight=IN_FLIGHT,
            commit_ms=COMMIT_S * 1e3,
            commit_messages=COMMIT_MESSAGES,
            send_per_s=rate,
            ratio=rate / one,
            cpu_us=cpu_us,
        )


async def _rate(stores: int, seconds: float) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    hosts = [AsyncioHost.of_distant_store(loop) for _ in range(stores)]
    opened = [LimitedStore() for _ in range(stores)]
    options = PartitionOptions()
    partitions = [
        PartitionHandle(number, 1, StoreRuntime(_no_reopening, host, SystemClock(), store=store), options, batched=True)
        for number, (host, store) in enumerate(zip(hosts, opened, strict=True))
    ]
    load = Load(EntityRoute("bench", partitions, Numbers(), 0))
    load.begin()
    await asyncio.sleep(_WARM_UP_S)
    stored, began_s, cpu_s = load.stored, load.stored_s, time.process_time()
    await asyncio.sleep(seconds)
    # From answer to answer: one store answers thousands at once.
    stored, wall_s, cpu_s = load.stored - stored, load.stored_s - began_s, time.process_time() - cpu_s
    await load.end()
    for host in hosts:
        host.stop()
    return stored / wall_s, cpu_s / stored * 1e6
