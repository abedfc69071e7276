"""``GET /metrics``: what all brokers count and measure, for Prometheus (rows A4, R13; `docs/metrics.md`).

Whichever broker is asked answers for all. Nothing is authorised here, as at ``/health``: who reaches the port learns
the names of entities and how many messages they have, and nothing that is in them.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from partibus.partition.meters import COMMIT_BUCKETS_S, TALLIED

SUBQUEUES = {"0": "active", "1": "dead_letter", "2": "transfer_dead_letter", "3": "transfer"}
"""Label values by kind of sub-queue."""


class EntityFacts(NamedTuple):
    """What is known of an entity at the broker that is asked."""

    kind: str
    available: bool
    """All its partitions can be used (row A4)."""


class Snapshot(NamedTuple):
    """Everything at one moment."""

    status: Mapping[str, Any]
    """``brokers`` and ``stores``, as `partibus.node.front.Whole.status` has them."""
    measured: Mapping[str, Mapping[str, Any]]
    """By broker: what `partibus.node.metrics.Measuring.measure` says."""
    entities: Mapping[str, EntityFacts]
    kinds: Mapping[str, int]
    """How many entities there are of each kind."""


Ask = Callable[[], Awaitable[Snapshot]]


class ShowMetrics:
    """The route."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if request.method not in ("GET", "HEAD"):
            await JSONResponse({"error": "only GET is answered here"}, 405)(scope, receive, send)
            return
        snapshot = await self._ask()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # A thousand entities are some ten thousand lines: the loop has better things to do.
        body = await run_in_threadpool(encode, Collected(families(snapshot)))
        await Response(body, media_type=content_type)(scope, receive, send)


class Collected:
    """`prometheus_client.registry.Collector`, of what there is already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Once."""
        return self._metrics


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Every metric that there is, with its values, if only none."""
    yield from _of_brokers(snapshot)
    yield from _of_stores(snapshot)
    yield from _of_entities(snapshot)
    yield from _of_cursors(snapshot)


def _of_brokers(snapshot: Snapshot) -> Iterator[Metric]:
    up = _gauge("broker_up", "1: the broker serves clients.", "broker")
    restarts = _counter("broker_restarts", "How often the supervisor has started the broker again.", "broker")
    lag = _gauge("broker_lag_seconds", "How long the broker took to answer its supervisor, or its catalog.", "broker")
    for one in snapshot.status["brokers"]:
        label = [str(one["id"])]
        up.add_metric(label, float(one["state"] == "serving"))
        restarts.add_metric(label, one["restarts"])
        if one["lag_ms"] is not None:
            lag.add_metric(label, one["lag_ms"] / 1_000)
    yield from (up, restarts, lag)
    of_clients = {
        "connections": _gauge("broker_connections", "AMQP connections of clients.", "broker"),
        "links": _gauge("broker_links", "AMQP links of clients.", "broker"),
        "unsettled": _gauge("broker_unsettled_messages", "Messages that clients were given and hold.", "broker"),
    }
    cpu = _counter("broker_cpu_seconds", "Processor time, of all threads, in user and in system mode.", "broker")
    resident = _gauge("broker_resident_memory_bytes", "Memory of the process.", "broker")
    left_out = _gauge("broker_entities_left_out", "Entities in use that are left out here: too many are.", "broker")
    peers = _gauge(
        "broker_unanswered_bytes", "Messages sent to a store of another broker, or held back.", "broker", "store"
    )
    rows = _counter("telemetry_rows", "Rows of telemetry that were recorded.", "broker")
    dropped = _counter("telemetry_dropped", "Of those: that did not get into a file.", "broker")
    for broker, measured in snapshot.measured.items():
        rows.add_metric([broker], measured["telemetry"][0])
        dropped.add_metric([broker], measured["telemetry"][1])
        for name, family in of_clients.items():
            family.add_metric([broker], measured["clients"][name])
        cpu.add_metric([broker], measured["process"]["cpu_seconds"])
        resident.add_metric([broker], measured["process"]["resident_bytes"])
        left_out.add_metric([broker], measured["left_out"])
        for store, size_bytes in measured["peers"].items():
            peers.add_metric([broker, store], size_bytes)
    yield from (*of_clients.values(), cpu, resident, left_out, peers, rows, dropped)


def _of_stores(snapshot: Snapshot) -> Iterator[Metric]:
    up = _gauge("store_up", "1: what is in the store can be used, and it has room.", "store")
    owner = _gauge("store_owner", "1 for the broker that has the store.", "store", "broker")
    epoch = _gauge("store_epoch", "How often the store was taken over.", "store")
    for one in snapshot.status["stores"]:
        up.add_metric([one["name"]], float(not one["trouble"]))
        if one["owner"] is not None:
            owner.add_metric([one["name"], str(one["owner"])], 1)
        if one.get("epoch") is not None:
            epoch.add_metric([one["name"]], one["epoch"])
    yield from (up, owner, epoch)
    labels = ("store", "broker")
    commits = HistogramMetricFamily("partibus_store_commit_seconds", "Durable commits.", labels=labels)
    numbers: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        "failures": _counter("store_commit_failures", "Commits that failed.", *labels),
        "operations": _counter(
            "store_operations", "Messages enqueued, locked, settled or moved by durable commits.", *labels
        ),
        "written_bytes": _counter("store_written_bytes", "Bytes of messages in durable commits.", *labels),
        "queued_operations": _gauge("store_queued_operations", "As above, that wait for the store.", *labels),
        "queued_bytes": _gauge("store_queued_bytes", "Bytes of messages that wait for the store.", *labels),
        "has_room": _gauge("store_has_room", "0: no room for new messages.", *labels),
    }
    bounds = [*map(str, COMMIT_BUCKETS_S), "+Inf"]
    for broker, measured in snapshot.measured.items():
        for store, facts in measured["stores"].items():
            buckets = list(zip(bounds, map(float, accumulate(facts["buckets"])), strict=True))
            commits.add_metric([store, broker], buckets, facts["seconds"])
            for name, family in numbers.items():
                family.add_metric([store, broker], float(facts[name]))
    yield from (commits, *numbers.values())


_TALLY_HELP = {
    "received": "Messages stored, scheduled ones included; of a topic: published.",
    "delivered": "Messages handed out, each time.",
    "completed": "Messages completed, or deleted as they were received.",
    "abandoned": "Messages that receivers gave back.",
    "deferred": "Messages that receivers put aside.",
    "dead_lettered": "Messages that became dead letters, for whatever reason.",
    "expired": "Messages whose time to live was over.",
    "locks_expired": "Messages that came back because nobody settled them in time.",
    "forwarded": "Messages that went on to another entity.",
}


def _of_entities(snapshot: Snapshot) -> Iterator[Metric]:
    number = _gauge("entities", "Queues, topics and subscriptions.", "kind")
    for kind, count in sorted(snapshot.kinds.items()):
        number.add_metric([kind], count)
    available = _gauge("entity_available", "0: some partitions are away (availability Limited).", "entity", "kind")
    for name, facts in snapshot.entities.items():
        available.add_metric([name, facts.kind], float(facts.available))
    yield from (number, available)
    counted = [_counter(f"entity_{name}_messages", _TALLY_HELP[name], "entity", "broker") for name in TALLIED]
    labels = ("entity", "sub_queue", "broker")
    waiting = _gauge("entity_messages", "Messages in the store, in whatever state.", *labels)
    waiting_bytes = _gauge("entity_bytes", "Bytes of messages in the store.", *labels)
    for broker, measured in snapshot.measured.items():
        for name, entity in measured["entities"].items():
            for family, value in zip(counted, entity["counted"], strict=True):
                family.add_metric([name, broker], value)
            for kind, (messages, size_bytes) in entity["waiting"].items():
                waiting.add_metric([name, SUBQUEUES[kind], broker], messages)
                waiting_bytes.add_metric([name, SUBQUEUES[kind], broker], size_bytes)
    yield from (*counted, waiting, waiting_bytes)


def _of_cursors(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ("entity", "sub_queue", "cursor", "broker")
    gauges = {
        "lag": _gauge("cursor_lag_positions", "Positions that the cursor has yet to pass.", *labels),
        "lost": _gauge("cursor_lost_positions", "Of those: where messages are gone, by the bound.", *labels),
        "moved": _gauge("cursor_moved_timestamp_seconds", "When the cursor last moved.", *labels),
        "alone": _gauge("cursor_exclusive", "1: the cursor reads alone, receivers are refused.", *labels),
    }
    kept = _gauge("retained_messages", "Messages that have left, kept for cursors.", *labels[:2], "broker")
    kept_bytes = _gauge("retained_bytes", "Bytes of messages that have left, kept for cursors.", *labels[:2], "broker")
    for broker, measured in snapshot.measured.items():
        for entity, kind, name, lag, lost, moved_ms, alone in measured["cursors"]:
            values = [entity, SUBQUEUES[str(kind)], name, broker]
            gauges["lag"].add_metric(values, lag)
            gauges["lost"].add_metric(values, lost)
            gauges["moved"].add_metric(values, moved_ms / 1_000)
            gauges["alone"].add_metric(values, float(alone))
        for entity, kind, messages, size_bytes in measured["retained"]:
            kept.add_metric([entity, SUBQUEUES[str(kind)], broker], messages)
            kept_bytes.add_metric([entity, SUBQUEUES[str(kind)], broker], size_bytes)
    yield from (*gauges.values(), kept, kept_bytes)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"partibus_{name}", text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """The library adds ``_total`` to the name."""
    return CounterMetricFamily(f"partibus_{name}", text, labels=labels)
