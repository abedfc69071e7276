"""What one broker counts and measures, as plain values that travel between processes; `docs/metrics.md` says what they
mean, `partibus.frontends.rest.metrics` writes them down.

Counting costs a few additions per batch (`partibus.partition.meters`). The rest is looked at when somebody asks, and
what waits in the stores at most every `COUNT_S`.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from partibus.errors import EntityNotFound
from partibus.frontends.amqp.server import AmqpServer
from partibus.frontends.rest.metrics import EntityFacts, Snapshot
from partibus.namespace.namespace import Queue
from partibus.namespace.namespaces import Namespaces
from partibus.node.cursor_watch import CursorFacts, CursorWatch, Retained
from partibus.partition.keys import KIND_BITS, kind_of
from partibus.partition.meters import TALLIED, Meters
from partibus.partition.ports import SubqueueCounts
from partibus.partition.runtime import StoreRuntime
from partibus.routing.store_access import StoreAccess, StoreRoute

Measurements = Mapping[str, Any]
"""Of one broker: see `Measuring.measure`."""

COUNT_S = 5.0
"""What waits in the stores is counted anew after so long."""
SUBQUEUES_MAX = 50_000
"""So many sub-queues that hold messages are looked at in one store: 3,000 partitioned queues in use."""
ENTITIES_MAX = 1_000
"""So many entities one broker tells of, those with the most messages first: a time series per number of each costs the
one who keeps it."""
BYTES_MAX = 2 << 20
"""All brokers' answers together: they travel in one line between processes (`partibus.cluster.control`)."""
_ENTITY_BYTES = 400
"""The numbers of one entity, written down."""


class Measuring:
    """One broker's own."""

    def __init__(
        self,
        namespaces: Namespaces,
        meters: Meters,
        server: AmqpServer,
        stores: Mapping[str, StoreAccess],
        cursors: CursorWatch,
    ) -> None:
        """``stores``: the ways to all stores by name."""
        self._cursors = cursors
        self._of_cursors: tuple[list[CursorFacts], list[Retained]] = ([], [])
        self._namespaces = namespaces
        self._meters = meters
        self._server = server
        self._stores = stores
        self._queues: dict[int, Queue] = {}
        """By partition row, as far as they were asked for."""
        self._waiting: dict[int, SubqueueCounts] = {}
        self._waiting_of_s = float("-inf")

    async def measure(self, brokers: int = 1) -> dict[str, Any]:
        """``clients``, ``process``, ``stores`` that this broker owns, ``peers`` (bytes that wait for other brokers'
        stores), ``telemetry`` (rows recorded, and those of them that were dropped), ``cursors``, what is ``retained``
        for them, ``entities`` with messages, and how many were ``left_out``. ``brokers``: so many share the room."""
        await self._count()
        entities, left_out = self._entities(BYTES_MAX // max(1, brokers))
        return {
            "process": {"cpu_seconds": sum(os.times()[:2]), "resident_bytes": _resident_bytes()},
            "clients": {
                "connections": len(self._server.protocols),
                "links": sum(protocol.peer.links for protocol in self._server.protocols),
                "unsettled": sum(protocol.peer.unsettled for protocol in self._server.protocols),
            },
            "stores": {name: _store_facts(runtime) for name, runtime in self._runtimes().items()},
            "peers": {
                name: waiting
                for name, access in self._stores.items()
                if (waiting := getattr(_behind(access), "unanswered_bytes", None)) is not None
            },
            "telemetry": self._telemetry(),
            "cursors": self._of_cursors[0],
            "retained": self._of_cursors[1],
            "entities": entities,
            "left_out": left_out,
        }

    def describe(self, measured: Mapping[str, Measurements], status: Mapping[str, Any]) -> Snapshot:
        """All there is to say: of every broker, with what is known here about entities."""
        away = {store["name"] for store in status["stores"] if store["trouble"]}
        away_numbers = {number for number, name in enumerate(self._stores) if name in away}
        kinds: dict[str, int] = {}
        for queue in self._namespaces.queues():
            kinds[queue.kind.value] = kinds.get(queue.kind.value, 0) + 1
        entities = {}
        for name in sorted({name for one in measured.values() for name in one["entities"]}):
            found = self._named(name)
            if found is not None:
                is_limited = any(place.store_no in away_numbers for place in found.partitions)
                entities[name] = EntityFacts(found.kind.value, not is_limited)
        return Snapshot(status, measured, entities, kinds)

    def _name(self, queue: Queue) -> str:
        return self._namespaces.broker_of(queue).qualified(queue.name)

    def _named(self, name: str) -> Queue | None:
        namespace, colon, path = name.rpartition(":")
        try:
            broker = self._namespaces.named(namespace) if colon else self._namespaces.default
        except EntityNotFound:
            return None
        return broker.namespace.find(path)

    def _telemetry(self) -> tuple[int, int]:
        recorder = self._meters.recorder
        return (0, 0) if recorder is None else (recorder.rows, recorder.dropped)

    def _runtimes(self) -> dict[str, StoreRuntime]:
        behind = {name: _behind(access) for name, access in self._stores.items()}
        return {name: access for name, access in behind.items() if isinstance(access, StoreRuntime)}

    async def _count(self) -> None:
        """See what waits in the stores, unless that was done a moment ago."""
        loop = self._server.loop
        if loop.time() < self._waiting_of_s + COUNT_S:
            return
        self._waiting_of_s = loop.time()
        asked = []
        for runtime in self._runtimes().values():
            answer: asyncio.Future[Mapping[int, SubqueueCounts] | None] = loop.create_future()
            runtime.count_messages(SUBQUEUES_MAX, answer.set_result)
            asked.append(answer)
        waiting: dict[int, SubqueueCounts] = {}
        for answer in asked:
            waiting.update(await answer or {})
        self._waiting = waiting
        self._of_cursors = await self._cursors.look()

    def _entities(self, bytes_max: int) -> tuple[dict[str, Any], int]:
        """By name: messages ``counted`` (`TALLIED`) and ``waiting``, by kind of sub-queue: (messages, bytes)."""
        found: dict[int, dict[str, Any]] = {}
        queues = self._queues_of({*self._meters.tallies, *(key >> KIND_BITS for key in self._waiting)})
        for row, queue in queues.items():
            of = found.setdefault(
                queue.entity_id, {"counted": [0] * len(TALLIED), "waiting": {}, "name": self._name(queue)}
            )
            tally = self._meters.tallies.get(row)
            if tally is not None:
                of["counted"] = [sum(pair) for pair in zip(of["counted"], tally.values(), strict=True)]
        for key, counts in self._waiting.items():
            owner = queues.get(key >> KIND_BITS)
            if owner is not None:
                waiting, kind = found[owner.entity_id]["waiting"], str(kind_of(key))
                messages, size_bytes = waiting.get(kind, (0, 0))
                waiting[kind] = (messages + counts.messages, size_bytes + counts.size_bytes)
        entities = {}
        size = 0
        in_use = sorted(filter(_messages, found.values()), key=_messages, reverse=True)
        for one in in_use[:ENTITIES_MAX]:
            name = one.pop("name")
            size += len(name.encode()) * 2 + _ENTITY_BYTES
            if size > bytes_max:
                break
            entities[name] = one
        return entities, len(in_use) - len(entities)

    def _queues_of(self, rows: set[int]) -> dict[int, Queue]:
        """The entities of partitions, those that are deleted left out."""
        known = self._queues
        if not rows <= known.keys():
            known = self._queues = {
                place.partition_row: queue for queue in self._namespaces.queues() for place in queue.partitions
            }
        return {row: queue for row in sorted(rows) if (queue := known.get(row)) is not None and not queue.deleted}


def _messages(entity: Mapping[str, Any]) -> int:
    waiting: int = sum(messages for messages, _ in entity["waiting"].values())
    return waiting + int(sum(entity["counted"]))


def _behind(access: StoreAccess) -> StoreAccess | None:
    return access.access if isinstance(access, StoreRoute) else access


def _store_facts(runtime: StoreRuntime) -> dict[str, Any]:
    meter, store = runtime.meter, runtime.store
    operations, size_bytes = runtime.queued
    return {
        "buckets": meter.buckets,
        "seconds": meter.seconds,
        "failures": meter.failures,
        "operations": meter.operations,
        "written_bytes": meter.size_bytes,
        "queued_operations": operations,
        "queued_bytes": size_bytes,
        "has_room": store is not None and store.has_room,
    }


def _resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        page_bytes: int = os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        return 0
    return pages * page_bytes
