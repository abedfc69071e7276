"""The counts and measurements of one broker, as plain values that travel between processes.

`docs/metrics.md` explains them, `partibus.frontends.rest.metrics` formats them. Counting costs a few additions per
batch (`partition.core.meters`, `partibus.namespace.requests`). The rest is read for each request, and the counts of the
stores at most every `COUNT_S`. A request for metrics must not delay senders: the work is done in slices of `SLICE_S`,
between which the loop does other work.
"""

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice, repeat
from operator import add, attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from partibus.errors import EntityNotFound
from partibus.frontends.amqp.server import AmqpServer
from partibus.namespace.broker import Broker
from partibus.namespace.entities import EntityKind
from partibus.namespace.namespace import Queue
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.tiers import Tier
from partibus.node.cursor_watch import CursorFacts, CursorWatch, Retained
from partibus.node.traffic import uses_of
from partibus.partition.core.meters import COMMITTED, PARTITION_NUMBERS, TALLIED, Meters, Tally
from partibus.partition.protocol.commands import Inspect
from partibus.partition.protocol.keys import KIND_BITS, SubqueueKind
from partibus.partition.protocol.replies import Inspected
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.store_access import StoreAccess, StoreRoute

if TYPE_CHECKING:
    from partibus.frontends.rest.metrics import Snapshot

Thing = TypeVar("Thing")
Measurements = Mapping[str, Any]
"""The measurements of one broker (`Measuring.measure`)."""

SLICE_S = 0.001
"""The longest work at a time; then the loop does its other work."""
COUNT_S = 5.0
"""The age at which the counts of the stores are read anew."""
SUBQUEUES_MAX = 50_000
"""The most sub-queues with messages that are examined in one store: 3,000 partitioned queues in use."""
ASKED_AT_ONCE = 64
ENTITIES_MAX = 1_000
"""The most entities in the metrics of one broker, those with the most messages first: each has a time series per
number, which the monitoring system has to store.
"""
PARTITIONS_MAX = 16_384
"""The most partitions of partitioned entities in the metrics of one broker: those of the first 1,000 entities."""
NAMESPACES_MAX = 1_000
"""The most namespaces in the metrics of one broker, those with the most requests first."""
BYTES_MAX = 3 << 20
"""The lists in all brokers' answers together: they travel in one line (`partibus.cluster.control`)."""
_ENTITY_BYTES = 300
"""The numbers of one entity, written down."""
_PARTITION_BYTES = 48
_ROWS = 256
"""Rows between two rests, where little is done for each."""
_NONE = (0, 0)
_IDLE = Tally()
_COUNTS = attrgetter(*TALLIED, *COMMITTED)
_KINDS = [str(int(kind)) for kind in SubqueueKind]
_KIND_MASK = (1 << KIND_BITS) - 1
_RECEIVED, _DELIVERED = TALLIED.index("received"), TALLIED.index("delivered")


class Slices:
    """Work that must not hold up the loop."""

    def __init__(self) -> None:
        self._since_s = perf_counter()

    async def rest(self) -> None:
        """Let the loop do what else there is, if this has worked for long enough. Called between small steps."""
        if perf_counter() - self._since_s > SLICE_S:
            await asyncio.sleep(0)
            self._since_s = perf_counter()


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
        """Measure a broker; ``stores``: the ways to all stores by name."""
        self._cursors = cursors
        self._of_cursors: tuple[list[CursorFacts], list[Retained]] = ([], [])
        self._namespaces = namespaces
        self._meters = meters
        self._server = server
        self._stores = stores
        self._waiting: list[dict[int, tuple[int, int]]] = [{} for _ in _KINDS]
        """Messages and bytes by kind of sub-queue and partition row."""
        self._scheduled: dict[int, int] = {}
        """Scheduled messages by partition row."""
        self._waiting_of_s = float("-inf")
        self._alone = asyncio.Lock()
        self._since_ms = self._namespaces.default.clock.now_ms()
        self._passed: dict[int, tuple[list[int], list[int]]] = {}
        """Messages in and out by namespace id: the last sum, and the counts of deleted entities."""

    async def measure(self, brokers: int = 1) -> dict[str, Any]:
        """Return all measurements of this broker.

        They are ``clients``, ``process``, ``stores`` that this broker owns, ``peers`` (bytes that wait for other
        brokers' stores), ``telemetry`` (rows recorded and rows dropped), ``cursors``, the messages ``retained`` for
        them, ``namespaces`` by name, ``entities`` with messages, the ``uses`` of entities by clients, for how long all
        was counted (``counted_ms``), and how many of each kind were ``left_out``. ``brokers``: so many share the room.
        """
        async with self._alone:
            slices = Slices()
            await self._count(slices)
            part = BYTES_MAX // max(1, brokers) // 8
            entities, totals, left_out = await self._entities(4 * part, slices)
            self._keep_rising(totals)
            namespaces = dict(await _that_fit((await self._of_namespaces(totals, slices)).items(), 2 * part, slices))
            left_out["namespaces"] = len(self._namespaces) - len(namespaces)
            peers = [protocol.peer for protocol in self._server.protocols]
            uses = await uses_of(self._namespaces, peers, slices.rest)
            return {
                "counted_ms": self._namespaces.default.clock.now_ms() - self._since_ms,
                "uses": await _that_fit(uses, part, slices),
                "process": {"cpu_seconds": sum(os.times()[:2]), "resident_bytes": _resident_bytes()},
                "clients": {
                    "connections": len(self._server.protocols),
                    "unclaimed": self._server.admission.unclaimed,
                    "dropped": self._server.admission.dropped,
                    "refused": self._server.sign_ins.refused,
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
                "cursors": await _that_fit(self._of_cursors[0], part // 2, slices),
                "retained": await _that_fit(self._of_cursors[1], part // 2, slices),
                "namespaces": namespaces,
                "entities": entities,
                "left_out": left_out,
            }

    def forget(self) -> None:
        """Count what waits in the stores when the next one asks."""
        self._waiting_of_s = float("-inf")

    async def describe(
        self, measured: Mapping[str, Measurements], status: Mapping[str, Any], only: str | None = None
    ) -> "Snapshot":
        """Return the measurements of every broker, with the entities known here.

        ``only``: of one namespace, by its name.
        """
        from partibus.frontends.rest.metrics import Snapshot  # asked for over HTTP: it is there

        slices = Slices()
        away = {store["name"] for store in status["stores"] if store["trouble"]}
        away_numbers = {number for number, name in enumerate(self._stores) if name in away}
        kinds: dict[str, dict[str, int]] = {}
        for broker in self._namespaces:
            name = broker.namespace.name
            if only is None or name == only:
                of = kinds[name] = {kind.value: 0 for kind in EntityKind}
                # A list, since entities may come and go while this rests.
                queues = list(broker.namespace)
                for first in range(0, len(queues), _ROWS):
                    for queue in queues[first : first + _ROWS]:
                        of[queue.kind.value] += 1
                    await slices.rest()
        available: dict[tuple[str, str], bool] = {}
        bounds_ms: dict[tuple[str, str], int] = {}
        moved: dict[tuple[str, str], tuple[int, int]] = {}
        for one in measured.values():
            for namespace, path, *_ in one["entities"]:
                found = self._named(namespace, path)
                if found is not None:
                    is_limited = away_numbers and any(place.store_no in away_numbers for place in found.partitions)
                    available[namespace, path] = not is_limited
                    if found.express_ms:
                        bounds_ms[namespace, path] = found.express_ms
                    if found.slots.version:
                        moved[namespace, path] = (len(found.partitions), len(found.slots.moves))
                await slices.rest()
        default = self._namespaces.default.namespace.name
        return Snapshot(status, measured, available, bounds_ms, moved, kinds, default, only, slices.rest, perf_counter)

    def _named(self, namespace: str, path: str) -> Queue | None:
        try:
            return self._namespaces.named(namespace).namespace.find(path)
        except EntityNotFound:
            return None

    def _telemetry(self) -> tuple[int, int]:
        recorder = self._meters.recorder
        return (0, 0) if recorder is None else (recorder.rows, recorder.dropped)

    def _runtimes(self) -> dict[str, StoreRuntime]:
        behind = {name: _behind(access) for name, access in self._stores.items()}
        return {name: access for name, access in behind.items() if isinstance(access, StoreRuntime)}

    # -- what waits --------------------------------------------------------------------------------------------------

    async def _count(self, slices: Slices) -> None:
        """Count what waits in the stores, unless that was done a moment ago."""
        loop = self._server.loop
        if loop.time() < self._waiting_of_s + COUNT_S:
            return
        self._waiting_of_s = loop.time()
        asked, timed = [], []
        for runtime in self._runtimes().values():
            answer: asyncio.Future[Mapping[int, tuple[int, int]] | None] = loop.create_future()
            runtime.questions.count_messages(SUBQUEUES_MAX, answer.set_result)
            asked.append(answer)
            rows: asyncio.Future[list[int] | None] = loop.create_future()
            runtime.questions.find_timed(rows.set_result)
            timed.append(rows)
        waiting: list[dict[int, tuple[int, int]]] = [{} for _ in _KINDS]
        for answer in asked:
            for some in _batches((await answer or {}).items()):
                for key, counts in some:
                    waiting[key & _KIND_MASK][key >> KIND_BITS] = counts
                await slices.rest()
        self._waiting = waiting
        self._scheduled = await self._count_scheduled([row for rows in timed for row in (await rows or ())], slices)
        self._of_cursors = await self._cursors.look()

    async def _count_scheduled(self, rows: list[int], slices: Slices) -> dict[int, int]:
        found: dict[int, int] = {}
        for first in range(0, len(rows), ASKED_AT_ONCE):
            some = rows[first : first + ASKED_AT_ONCE]
            for row, reply in zip(some, await asyncio.gather(*map(self._inspect, some)), strict=True):
                if isinstance(reply, Inspected) and reply.scheduled:
                    found[row] = reply.scheduled
            await slices.rest()
        return found

    def _inspect(self, row: int) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = self._server.loop.create_future()
        queue = self._namespaces.queue_of(row)
        if queue is None:
            answer.set_result(None)
            return answer
        partition = self._namespaces.entity_of(queue).route.partitions[queue.index_of(row)]

        def on_reply(reply: Any) -> None:
            if not answer.done():  # who asked may be gone: the broker stops
                answer.set_result(reply)

        partition.submit(Inspect(self._namespaces.default.numbers.next(), count_scheduled=True), on_reply)
        return answer

    # -- entities ----------------------------------------------------------------------------------------------------

    async def _entities(
        self, bytes_max: int, slices: Slices
    ) -> tuple[list[tuple[Any, ...]], dict[int, list[int]], dict[str, int]]:
        """Return the entities as `_entity` does, those with the most messages first.

        With them, by namespace id, messages in and out of all entities, and the numbers of ``entities`` and
        ``partitions`` that were left out.
        """
        found: list[tuple[int, Queue, tuple[Any, ...]]] = []
        totals: dict[int, list[int]] = {}
        for queue in await self._queues(slices):
            if queue is None or queue.deleted:
                continue
            weight, entity = self._entity(queue)
            if weight:
                found.append((weight, queue, entity))
                total = totals.setdefault(queue.namespace_id, [0, 0, 0, 0])
                counted = entity[3]
                # Messages of a subscription were counted as received at its topic.
                total[0] += counted[_RECEIVED] if queue.kind is not EntityKind.SUBSCRIPTION else 0
                total[1] += counted[_DELIVERED]
                total[2] += sum(messages for messages, _ in entity[5].values())
                total[3] += sum(size_bytes for _, size_bytes in entity[5].values())
            await slices.rest()
        found.sort(key=lambda one: one[0], reverse=True)
        told, partitions_left_out = await _fitting(found, bytes_max, slices)
        return told, totals, {"entities": len(found) - len(told), "partitions": partitions_left_out}

    async def _queues(self, slices: Slices) -> dict[Queue | None, None]:
        """Return the queues with a partition in use or with messages; None stands for deleted ones."""
        tallies = self._meters.tallies
        queues: dict[Queue | None, None] = {}
        # A list, since partitions come into use while this rests.
        for rows in _batches(list(tallies)):
            queues.update(dict.fromkeys(map(self._namespaces.queue_of, rows)))
            await slices.rest()
        for of_kind in self._waiting:
            for rows in _batches(of_kind):
                untold = [row for row in rows if row not in tallies]
                queues.update(dict.fromkeys(map(self._namespaces.queue_of, untold)))
                await slices.rest()
        return queues

    def _keep_rising(self, totals: dict[int, list[int]]) -> None:
        """Keep the counts of deleted entities in the sums of their namespaces."""
        for number in self._passed:  # a namespace without an entity in use has no sum yet
            totals.setdefault(number, [0, 0, 0, 0])
        for number, total in totals.items():
            last, gone = self._passed.setdefault(number, ([0, 0], [0, 0]))
            for i in (0, 1):
                gone[i] += max(0, last[i] - total[i])
                last[i] = total[i]
                total[i] += gone[i]

    def _entity(self, queue: Queue) -> tuple[int, tuple[Any, ...]]:
        """Return the number of an entity's messages, and its measurements.

        These are namespace, path, kind, messages counted (`TALLIED`), commits (`COMMITTED`), messages and bytes waiting
        by kind of sub-queue, how many of them are scheduled, and for each partition with messages of a partitioned
        entity, one behind the other, `PARTITION_NUMBERS`.
        """
        # Thousands of partitions are looked at here: nothing is done for each by a statement of its own.
        rows = [place.partition_row for place in queue.partitions]
        tallies = list(map(self._meters.tallies.get, rows, repeat(_IDLE)))
        columns = list(zip(*map(_COUNTS, tallies), strict=True))
        counted = tuple(map(sum, columns))
        tallied, commits = counted[: len(TALLIED)], counted[len(TALLIED) :]
        kinds: dict[str, tuple[int, int]] = {}
        waits: list[tuple[int, ...]] = []
        """The messages of each partition by kind of sub-queue."""
        sizes = none = (0,) * len(rows)
        for kind, of_kind in zip(_KINDS, self._waiting, strict=True):
            messages = none
            if not of_kind.keys().isdisjoint(rows):
                messages, bytes_of = zip(*map(of_kind.get, rows, repeat(_NONE)), strict=True)
                kinds[kind] = (sum(messages), sum(bytes_of))
                sizes = bytes_of if sizes is none else tuple(map(add, sizes, bytes_of))
            waits.append(messages)
        is_scheduled = sum(map(self._scheduled.get, rows, repeat(0))) if self._scheduled else 0
        partitions: tuple[int, ...] = ()
        if queue.partitioned:
            # In the order of `PARTITION_NUMBERS`.
            values = zip(
                [place.partition_no for place in queue.partitions],
                columns[_RECEIVED],
                columns[_DELIVERED],
                waits[SubqueueKind.ACTIVE],
                waits[SubqueueKind.DEAD_LETTER],
                sizes,
                strict=True,
            )
            used = [tally is not _IDLE or size_bytes for tally, size_bytes in zip(tallies, sizes, strict=True)]
            # Tuples of numbers are nothing that a collection of garbage looks at again.
            partitions = tuple(chain.from_iterable(compress(values, used)))
        weight = int(sum(tallied)) + sum([messages for messages, _ in kinds.values()])
        namespace = self._namespaces.broker_of(queue).namespace.name
        path, kind_of = queue.name, queue.kind.value
        return weight, (namespace, path, kind_of, tallied, commits, kinds, is_scheduled, partitions)

    # -- namespaces --------------------------------------------------------------------------------------------------

    async def _of_namespaces(self, totals: Mapping[int, list[int]], slices: Slices) -> dict[str, dict[str, Any]]:
        found = []
        for broker in self._namespaces:
            requests = sum(broker.requests.requests)
            is_first = broker.is_default
            found.append(((is_first, requests), broker))
            await slices.rest()
        found.sort(key=lambda one: one[0], reverse=True)
        told = {}
        for _, broker in found[:NAMESPACES_MAX]:
            total = totals.get(broker.namespace.record.namespace_id, (0, 0, 0, 0))
            told[broker.namespace.name] = _namespace_facts(broker, total)
            await slices.rest()
        return told


def _batches(things: Iterable[Thing]) -> Iterator[list[Thing]]:
    """Yield ``_ROWS`` at a time."""
    left = iter(things)
    while some := list(islice(left, _ROWS)):
        yield some


def packed(measured: Measurements) -> str:
    """Return measurements as a text, which goes through other formats as one word."""
    return msgspec.json.encode(measured).decode()


async def unpacked(texts: Iterable[tuple[str, str | bytes]]) -> dict[str, Measurements]:
    """Measurements by broker."""
    slices, found = Slices(), {}
    for broker, text in texts:
        found[broker] = msgspec.json.decode(text)
        await slices.rest()
    return found


def _namespace_facts(broker: Broker, total: Iterable[int]) -> dict[str, Any]:
    throttle, account, settings = broker.throttle, broker.account, broker.throttle.settings
    incoming, outgoing, messages, size_bytes = total
    options = broker.namespace.record.options
    return {
        "connections": broker.clients.connections,
        "requests": broker.requests.requests,
        "failed": broker.requests.failed,
        "incoming": incoming,
        "outgoing": outgoing,
        "messages": messages,
        "bytes": size_bytes,
        "policy": settings.policy.value,
        "rate": settings.credits_per_s,
        "granted": throttle.granted,
        "used": throttle.counters.used,
        "throttled": throttle.counters.throttled,
        "would_throttle": throttle.counters.would_throttle,
        "cpu_seconds": account.cpu_s,
        "held_bytes": account.held_bytes,
        "closed": account.closed,
        "units": options.units if options.tier is Tier.PREMIUM else 0,
        "cpu_load": account.cpu_load,
        "memory_load": account.memory_load,
    }


def _behind(access: StoreAccess) -> StoreAccess | None:
    return access.access if isinstance(access, StoreRoute) else access


def _store_facts(runtime: StoreRuntime) -> dict[str, Any]:
    meter, store = runtime.meter, runtime.store
    operations, size_bytes = runtime.queued
    return {
        "buckets": meter.buckets,
        "seconds": meter.seconds,
        "failures": meter.failures,
        "breaks": runtime.breaks,
        "operations": meter.operations,
        "waited_seconds": meter.waited_s,
        "written_bytes": meter.size_bytes,
        "queued_operations": operations,
        "queued_bytes": size_bytes,
        "has_room": store is not None and store.has_room,
        "express_messages": runtime.express.messages,
        "express_bytes": runtime.express.size_bytes,
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


async def _that_fit(facts: Iterable[Thing], bytes_max: int, slices: Slices) -> list[Thing]:
    """Return the first facts that are no longer than ``bytes_max`` together, as they travel: a text in a text."""
    told: list[Thing] = []
    for fact in facts:
        bytes_max -= len(json.dumps(msgspec.json.encode(fact).decode()))
        if bytes_max < 0:
            break
        told.append(fact)
        await slices.rest()
    return told


async def _fitting(
    found: Sequence[tuple[int, Queue, tuple[Any, ...]]], bytes_max: int, slices: Slices
) -> tuple[list[tuple[Any, ...]], int]:
    """Return the first entities that the bounds leave room for, and the number of their partitions left out."""
    told: list[tuple[Any, ...]] = []
    size = partitions = partitions_left_out = 0
    for _, queue, entity in found[:ENTITIES_MAX]:
        size += len(queue.name.encode()) * 2 + _ENTITY_BYTES
        if size > bytes_max:
            break
        count = len(entity[7]) // len(PARTITION_NUMBERS)
        size += count * _PARTITION_BYTES
        if partitions + count > PARTITIONS_MAX or size > bytes_max:
            size -= count * _PARTITION_BYTES
            partitions_left_out += count
            entity, count = (*entity[:7], ()), 0
        partitions += count
        told.append(entity)
        await slices.rest()
    return told, partitions_left_out
