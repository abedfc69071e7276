"""``GET /metrics``: the measurements of all brokers, for Prometheus (rows A4, C13, R13; `docs/metrics.md`).

Each broker answers for all. Under the host names of a namespace it answers for that namespace alone, and only to
clients that may manage it. Under every other name it answers for the whole server. With one namespace it answers every
client that reaches the port. With several, it answers those that may manage the default one, and those on the broker's
own machine.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from partibus.errors import Unauthorized
from partibus.frontends.rest.claims import Claims
from partibus.frontends.rest.exposition import (
    Block,
    Rest,
    Rows,
    Value,
    content_type,
    counter,
    counter_of,
    gauge,
    gauge_of,
    histogram,
    is_open_metrics,
    labels,
    line,
    lines,
    pieces,
)
from partibus.namespace.access import Right
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.requests import FAULTS, REQUEST_KINDS
from partibus.partition.core.meters import COMMIT_BUCKETS_S, COMMITTED, PARTITION_NUMBERS, TALLIED
from partibus.throttling.uses import OPERATIONS

SUBQUEUES = {"0": "active", "1": "dead_letter", "2": "transfer_dead_letter", "3": "transfer"}
"""Label values by kind of sub-queue."""
LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
"""Addresses of clients on the same machine."""


class Snapshot(NamedTuple):
    """Everything at one moment."""

    status: Mapping[str, Any]
    """``brokers`` and ``stores``, as `partibus.node.coordinator.Coordinator.status` has them."""
    measured: Mapping[str, Mapping[str, Any]]
    """Measurements by broker, from `partibus.node.metrics.Measuring.measure`."""
    available: Mapping[tuple[str, str], bool]
    """Whether all partitions can be used (row A4), by namespace and path, where the brokers tell it."""
    express_bounds_ms: Mapping[tuple[str, str], int]
    """The loss bounds of express entities (row C22), by the same keys."""
    moved: Mapping[tuple[str, str], tuple[int, int]]
    """Partitions and unfinished moves of entities whose slots have moved, by the same keys."""
    kinds: Mapping[str, Mapping[str, int]]
    """How many entities there are of each kind, by namespace."""
    default: str
    """Name of the default namespace."""
    only: str | None
    """The namespace that the answer is about; None: the server."""
    rest: Rest
    now: Callable[[], float]
    """Seconds, from whenever on."""


Ask = Callable[[str | None], Awaitable[Snapshot]]
"""Returns the measurements of one namespace, or of all."""


class ShowMetrics:
    """The route."""

    def __init__(self, ask: Ask, namespaces: Namespaces) -> None:
        self._ask = ask
        self._namespaces = namespaces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authorize a request, and answer with the metrics."""
        request = Request(scope)
        response: Response
        try:
            response = await self._answer(request)
        except Unauthorized as error:
            response = JSONResponse({"error": str(error)}, 401, {"www-authenticate": "SharedAccessSignature"})
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        broker = self._namespaces.of_host(request.headers.get("host"))
        of_server = broker is self._namespaces.default
        is_open = of_server and (len(self._namespaces) == 1 or _is_local(request))
        if not is_open or "authorization" in request.headers:
            claims = Claims(broker.access, broker.wall_clock)
            if of_server and not is_open:
                claims.check_operator(request)
            else:
                claims.check(request, (), Right.MANAGE)
        snapshot = await self._ask(None if of_server else broker.namespace.name)
        open_metrics = is_open_metrics(request.headers.get("accept", ""))
        return _Pieces(text_of(snapshot, open_metrics), content_type(open_metrics))


class _Pieces(Response):
    """An answer sent in pieces as they are made.

    Starlette's own streaming answers import a library for 30 ms, in which no other client is served.
    """

    def __init__(self, pieces: AsyncIterator[bytes], media_type: str) -> None:
        self._pieces = pieces
        super().__init__(media_type=media_type)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _is_local(request: Request) -> bool:
    return request.client is None or request.client.host in LOCAL


async def text_of(snapshot: Snapshot, open_metrics: bool = False) -> AsyncIterator[bytes]:
    """Yield the answer, piece by piece."""
    told = await _told(snapshot)
    async for piece in pieces(blocks(snapshot, told), open_metrics, snapshot.rest, snapshot.now):
        yield piece
    # Freeing all of it at once takes milliseconds, too.
    for rows in (told.partitions, told.waiting, told.entities):
        while rows.chunks:
            rows.chunks.pop()
            await snapshot.rest()


class Told:
    """The entities that are told of, each once for each broker that tells of it."""

    def __init__(self) -> None:
        self.entities = Rows(len(_ENTITY_COUNTERS) + 1)
        self.waited: list[tuple[str, float]] = []
        """Seconds by entity."""
        self.waiting = Rows(2)
        """Messages and bytes by sub-queue."""
        self.partitions = Rows(len(PARTITION_NUMBERS))
        self.kinds: dict[tuple[str, str], str] = {}
        """Labels with the kind, by namespace and path, for facts that are the same at every broker."""

    def add(self, of_broker: str, entity: Sequence[Any]) -> None:
        """``of_broker``: its `labels`; ``entity``: as `partibus.node.metrics.Measuring` has it."""
        namespace, path, kind, tallied, commits, waiting, is_scheduled, numbers = entity
        of_entity = labels(namespace=namespace, entity=path)
        self.kinds[namespace, path] = f'{of_entity},kind="{kind}"'
        where = f"{of_entity},{of_broker}"
        self.entities.add(line(where), (*tallied, *commits[:_WAITED], is_scheduled))
        self.waited.append((where, commits[_WAITED]))
        for sub_queue, counts in waiting.items():
            self.waiting.add(line(f'{where},sub_queue="{SUBQUEUES[sub_queue]}"'), counts)
        if numbers:
            text = lines(f'{of_entity},partition="', numbers[:: len(PARTITION_NUMBERS)], f'",{of_broker}')
            self.partitions.add(text, numbers)

    def end(self) -> None:
        """Finish the tables, after the last entity."""
        for rows in (self.entities, self.waiting, self.partitions):
            rows.end()


async def _told(snapshot: Snapshot) -> Told:
    told = Told()
    for broker, measured in snapshot.measured.items():
        of_broker = labels(broker=broker)
        for entity in measured["entities"]:
            if snapshot.only in (None, entity[0]):
                told.add(of_broker, entity)
                await snapshot.rest()
    told.end()
    return told


def blocks(snapshot: Snapshot, told: Told) -> Iterator[Block]:
    """Yield every metric with its values, even if it has none."""
    if snapshot.only is None:
        measured = [(labels(broker=broker), one) for broker, one in snapshot.measured.items()]
        yield from _of_brokers(snapshot)
        yield from _of_clients(measured)
        yield from _of_processes(snapshot, measured)
        yield from _of_stores(snapshot)
    yield from _of_namespaces(snapshot)
    yield from _of_entities(snapshot, told)
    yield from _of_cursors(snapshot)


def _of_brokers(snapshot: Snapshot) -> Iterator[Block]:
    brokers = [(labels(broker=str(one["id"])), one) for one in snapshot.status["brokers"]]
    yield gauge(
        "broker_up", "1: the broker serves clients.", ((at, int(one["state"] == "serving")) for at, one in brokers)
    )
    yield counter(
        "broker_restarts",
        "How often the supervisor has started the broker again.",
        ((at, one["restarts"]) for at, one in brokers),
    )
    yield gauge(
        "broker_lag_seconds",
        "How long the broker took to answer its supervisor, or its catalog.",
        ((at, one["lag_ms"] / 1_000) for at, one in brokers if one["lag_ms"] is not None),
    )


def _of_clients(told: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Block]:
    for name, text in (
        ("connections", "AMQP connections of clients."),
        ("links", "AMQP links of clients."),
        ("unsettled", "Messages that clients were given and hold."),
    ):
        full = "unsettled_messages" if name == "unsettled" else name
        yield gauge(f"broker_{full}", text, [(at, one["clients"][name]) for at, one in told])
    yield gauge(
        "broker_unclaimed_connections",
        "Connections that have shown no claim, over AMQP and HTTP.",
        [(at, one["clients"].get("unclaimed", 0)) for at, one in told],
    )
    yield counter(
        "broker_dropped_connections",
        "Connections without a claim that were dropped because there were too many.",
        [(at, one["clients"].get("dropped", 0)) for at, one in told],
    )
    yield counter(
        "broker_refused_sign_ins",
        "Keys and tokens that were refused, over AMQP and HTTP.",
        [(at, one["clients"].get("refused", 0)) for at, one in told],
    )


def _of_processes(snapshot: Snapshot, told: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Block]:
    yield counter(
        "broker_cpu_seconds",
        "Processor time, of all threads, in user and in system mode.",
        ((at, one["process"]["cpu_seconds"]) for at, one in told),
    )
    yield gauge(
        "broker_resident_memory_bytes",
        "Memory of the process.",
        ((at, one["process"]["resident_bytes"]) for at, one in told),
    )
    yield gauge(
        "broker_left_out",
        "Namespaces, entities and partitions in use that are left out here: too many are.",
        ((f'{at},what="{what}"', count) for at, one in told for what, count in sorted(one["left_out"].items())),
    )
    yield gauge(
        "broker_unanswered_bytes",
        "Messages sent to a store of another broker, or held back.",
        (
            (labels(broker=broker, store=store), size_bytes)
            for broker, one in snapshot.measured.items()
            for store, size_bytes in one["peers"].items()
        ),
    )
    yield counter(
        "telemetry_rows", "Rows of telemetry that were recorded.", ((at, one["telemetry"][0]) for at, one in told)
    )
    yield counter(
        "telemetry_dropped",
        "Of those: that did not get into a file.",
        ((at, one["telemetry"][1]) for at, one in told),
    )


_STORE_COUNTERS = {
    "failures": ("store_commit_failures", "Commits that failed."),
    "breaks": ("store_unexpected_errors", "Unexpected exceptions, each of which is in the log."),
    "operations": ("store_operations", "Messages enqueued, locked, settled or moved by durable commits."),
    "waited_seconds": ("store_commit_wait_seconds", "From a commit's first row to its begin, of all commits."),
    "written_bytes": ("store_written_bytes", "Bytes of messages in durable commits."),
}
_STORE_GAUGES = {
    "queued_operations": ("store_queued_operations", "Operations that wait for the store."),
    "queued_bytes": ("store_queued_bytes", "Bytes of messages that wait for the store."),
    "has_room": ("store_has_room", "0: no room for new messages."),
    "express_messages": ("store_express_messages", "Express messages that only memory has."),
    "express_bytes": ("store_express_bytes", "Bytes of express messages that only memory has."),
}


def _of_stores(snapshot: Snapshot) -> Iterator[Block]:
    stores = [(labels(store=one["name"]), one) for one in snapshot.status["stores"]]
    yield gauge(
        "store_up",
        "1: what is in the store can be used, and it has room.",
        ((at, int(not one["trouble"])) for at, one in stores),
    )
    yield gauge(
        "store_owner",
        "1 for the broker that has the store.",
        ((labels(store=one["name"], broker=str(one["owner"])), 1) for _, one in stores if one["owner"] is not None),
    )
    yield gauge(
        "store_epoch",
        "How often the store was taken over.",
        ((at, one["epoch"]) for at, one in stores if one.get("epoch") is not None),
    )
    facts = [
        (labels(store=store, broker=broker), of)
        for broker, measured in snapshot.measured.items()
        for store, of in measured["stores"].items()
    ]
    yield histogram(
        "store_commit_seconds",
        "Durable commits.",
        [*map(str, COMMIT_BUCKETS_S), "+Inf"],
        ((at, accumulate(of["buckets"]), of["seconds"]) for at, of in facts),
    )
    for key, (name, text) in _STORE_COUNTERS.items():
        yield counter(name, text, [(at, of[key]) for at, of in facts])
    for key, (name, text) in _STORE_GAUGES.items():
        yield gauge(name, text, [(at, _number(of[key])) for at, of in facts])


_NAMESPACE_GAUGES = {
    "connections": ("namespace_connections", "AMQP connections of the namespace's clients."),
    "messages": ("namespace_messages", "Messages in the stores, in any state."),
    "bytes": ("namespace_bytes", "Bytes of messages in the stores."),
    "rate": ("namespace_credits_per_second", "Credits per second of the namespace, enforced or not."),
    "held_bytes": ("namespace_memory_bytes", "Memory of the broker that the namespace takes."),
    "closed": ("namespace_overloaded", "1: requests are refused because the namespace's units are busy."),
    "units": ("namespace_units", "Messaging units of the namespace; 0: none of its own."),
    "cpu_load": ("namespace_cpu_load", "Processor time used in the last second, of that of its units: 1 is all."),
    "memory_load": ("namespace_memory_load", "Memory that it takes, of that of its units: 1 is all."),
}
_NAMESPACE_COUNTERS = {
    "incoming": ("namespace_incoming_messages", "Messages sent to entities, each once."),
    "outgoing": ("namespace_outgoing_messages", "Messages handed out, each time."),
    "granted": ("namespace_credits_granted", "Credits that the broker was given for the namespace."),
    "cpu_seconds": ("namespace_cpu_seconds", "Processor time of the loop that the namespace took."),
}
_BY_OPERATION = {
    "used": ("namespace_credits_used", "Credits that were used."),
    "throttled": ("namespace_throttled_requests", "Requests refused for want of credits, and deliveries withheld."),
    "would_throttle": ("namespace_would_throttle_requests", "Requests that would have been, under the policy observe."),
}


def _of_namespaces(snapshot: Snapshot) -> Iterator[Block]:
    facts = [
        (labels(namespace=name, broker=broker), of)
        for broker, measured in snapshot.measured.items()
        for name, of in measured["namespaces"].items()
        if snapshot.only in (None, name)
    ]
    yield counter(
        "namespace_requests",
        "Requests of clients that were answered, well or not.",
        (
            (f'{at},request="{kind}"', n)
            for at, of in facts
            for kind, n in zip(REQUEST_KINDS, of["requests"], strict=True)
        ),
    )
    for place, fault in enumerate(FAULTS):
        yield counter(
            f"namespace_{fault}_errors",
            _FAULT_HELP[fault],
            [
                (f'{at},request="{kind}"', failed[place])
                for at, of in facts
                for kind, failed in zip(REQUEST_KINDS, of["failed"], strict=True)
            ],
        )
    for key, (name, text) in _BY_OPERATION.items():
        yield counter(
            name,
            text,
            [
                (f'{at},operation="{operation}"', value)
                for at, of in facts
                for operation, value in zip(OPERATIONS, of[key], strict=True)
            ],
        )
    for key, (name, text) in _NAMESPACE_COUNTERS.items():
        yield counter(name, text, [(at, of[key]) for at, of in facts])
    for key, (name, text) in _NAMESPACE_GAUGES.items():
        yield gauge(name, text, [(at, _number(of[key])) for at, of in facts])


_FAULT_HELP = {
    "user": "Requests that can't be done: no claim, no entity, no lock, too large.",
    "server": "Requests that the broker or a store could not do.",
    "busy": "Requests that were refused for now.",
}
_TALLY_HELP = {
    "received": "Messages stored, scheduled ones included; of a topic: published.",
    "delivered": "Messages handed out, each time.",
    "completed": "Messages completed, or deleted as they were received.",
    "abandoned": "Messages that receivers gave back.",
    "deferred": "Messages that receivers put aside.",
    "dead_lettered": "Messages that became dead letters, for any reason.",
    "expired": "Messages whose time to live was over.",
    "locks_expired": "Messages that were requeued because their locks expired.",
    "forwarded": "Messages that went on to another entity.",
    "never_written": "Express messages that left before they were written.",
}
_WAITED = COMMITTED.index("waited_s")
_ENTITY_COUNTERS = (
    *((f"entity_{name}_messages", _TALLY_HELP[name]) for name in TALLIED),
    ("entity_commits", "Commits with messages of the entity; one in several stores counts in each."),
    ("entity_commit_operations", "Messages enqueued, locked, settled or moved in those."),
)
_WAITING_HELP = (
    ("entity_messages", "Messages in the store, in any state."),
    ("entity_bytes", "Bytes of messages in the store."),
)
_PARTITION_COUNTERS = (
    (1, "partition_received_messages", "As of the entity."),
    (2, "partition_delivered_messages", "As of the entity."),
)
_PARTITION_GAUGES = (
    (3, "partition_messages", "Messages in the active sub-queue."),
    (4, "partition_dead_letter_messages", "Messages in the dead-letter sub-queue."),
    (5, "partition_bytes", "Bytes of messages in the store."),
)


def _of_entities(snapshot: Snapshot, told: Told) -> Iterator[Block]:
    yield gauge(
        "entities",
        "Queues, topics and subscriptions.",
        (
            (labels(namespace=namespace, kind=kind), count)
            for namespace, of in snapshot.kinds.items()
            for kind, count in sorted(of.items())
        ),
    )
    yield gauge(
        "entity_available",
        "0: some partitions are away (availability Limited).",
        ((told.kinds[key], int(available)) for key, available in snapshot.available.items() if key in told.kinds),
    )
    yield gauge(
        "entity_express_bound_seconds",
        "A crash loses no message that is older.",
        (
            (told.kinds[key], bound_ms / 1_000)
            for key, bound_ms in snapshot.express_bounds_ms.items()
            if key in told.kinds
        ),
    )
    moved = [(told.kinds[key], counts) for key, counts in snapshot.moved.items() if key in told.kinds]
    yield gauge("entity_partitions", "Of an entity whose slots have moved.", ((at, of[0]) for at, of in moved))
    yield gauge("entity_slot_moves", "Moves of slots that are not finished.", ((at, of[1]) for at, of in moved))
    for place, (name, text) in enumerate(_ENTITY_COUNTERS):
        yield counter_of(told.entities, place, name, text)
    yield counter(
        "entity_commit_wait_seconds",
        "From the first row of the entity in a commit to its begin, of all those.",
        told.waited,
    )
    for place, (name, text) in enumerate(_WAITING_HELP):
        yield gauge_of(told.waiting, place, name, text)
    yield gauge_of(
        told.entities,
        len(_ENTITY_COUNTERS),
        "entity_scheduled_messages",
        "Of the active ones: messages that wait for their time.",
    )
    for place, name, text in _PARTITION_COUNTERS:
        yield counter_of(told.partitions, place, name, text)
    for place, name, text in _PARTITION_GAUGES:
        yield gauge_of(told.partitions, place, name, text)


def _of_cursors(snapshot: Snapshot) -> Iterator[Block]:
    cursors, retained = [], []
    for broker, measured in snapshot.measured.items():
        for entity, kind, name, *values in measured["cursors"]:
            namespace, path = _place(snapshot, entity)
            if snapshot.only in (None, namespace):
                sub_queue = SUBQUEUES[str(kind)]
                where = labels(namespace=namespace, entity=path, sub_queue=sub_queue, cursor=name, broker=broker)
                cursors.append((where, values))
        for entity, kind, messages, size_bytes in measured["retained"]:
            namespace, path = _place(snapshot, entity)
            if snapshot.only in (None, namespace):
                where = labels(namespace=namespace, entity=path, sub_queue=SUBQUEUES[str(kind)], broker=broker)
                retained.append((where, messages, size_bytes))
    yield gauge(
        "cursor_lag_positions", "Positions that the cursor has yet to pass.", ((at, of[0]) for at, of in cursors)
    )
    yield gauge(
        "cursor_lost_positions",
        "Of those: where messages are gone, by the bound.",
        ((at, of[1]) for at, of in cursors),
    )
    yield gauge(
        "cursor_moved_timestamp_seconds", "When the cursor last moved.", ((at, of[2] / 1_000) for at, of in cursors)
    )
    yield gauge(
        "cursor_exclusive",
        "1: the cursor reads alone, receivers are refused.",
        ((at, int(of[3])) for at, of in cursors),
    )
    yield gauge(
        "retained_messages", "Messages that have left, kept for cursors.", ((at, kept) for at, kept, _ in retained)
    )
    yield gauge(
        "retained_bytes",
        "Bytes of messages that have left, kept for cursors.",
        ((at, size_bytes) for at, _, size_bytes in retained),
    )


def _place(snapshot: Snapshot, qualified: str) -> tuple[str, str]:
    """Namespace and path, of what `partibus.namespace.broker.Broker.qualified` gives."""
    namespace, colon, path = qualified.rpartition(":")
    return (namespace, path) if colon else (snapshot.default, qualified)


def _number(value: Value) -> Value:
    """Return a Boolean as 0 or 1, and other values unchanged."""
    return int(value) if isinstance(value, bool) else value
