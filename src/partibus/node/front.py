"""A broker without its stores: the namespace, its entities and the front ends, in the order of their start and stop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter_ns, process_time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from partibus.clock import Clock, ManualClock
from partibus.errors import UnusableFile
from partibus.forwarding.forwarder import Forwarder
from partibus.frontends.admission import Admission
from partibus.frontends.amqp.server import AmqpServer
from partibus.limits import TlsLimits
from partibus.namespace.access import AccessPolicies
from partibus.namespace.broker import Broker
from partibus.namespace.catalog import Catalog
from partibus.namespace.changes import Announcer
from partibus.namespace.fan_out import TopicSubscribers
from partibus.namespace.namespace import Namespace, Queue, QueuesByRow, TopicsByRow
from partibus.namespace.namespace_options import NamespaceRecord
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.placement import Placement
from partibus.node.backups import Backups
from partibus.node.clocks import ClockHand
from partibus.node.coordinator import Coordinator
from partibus.node.cursor_watch import LOOK_S, CursorWatch
from partibus.node.host import Share, raise_limit
from partibus.node.http_server import HttpServer
from partibus.node.idle import INTERVAL_S, IdleQueues
from partibus.node.metrics import Measurements, Measuring
from partibus.node.options import partition_options
from partibus.node.settings import Ports, Settings, listening
from partibus.node.sqs_port import SqsPort
from partibus.node.telemetry import Tracing
from partibus.node.tls import ServerTls, TlsListener, fit_certificate
from partibus.node.unit_watch import UnitWatch
from partibus.partition.core.meters import Meters
from partibus.routing.fault_injections import FaultInjections, to_plain
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.throttling.settings import ThrottlingSettings
from partibus.units.fair_scheduler import FairScheduler

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from partibus.frontends.rest.data.api import DataApi
    from partibus.frontends.rest.metrics import Snapshot
    from partibus.frontends.sqs.web import WithSqs
    from partibus.node.identity import IdentityProvider

log = logging.getLogger(__name__)

DRAIN_S = 0.2
"""The pause between telling clients to go and closing their connections."""
_APP_MODULES = (
    "partibus.frontends.rest.app",
    "partibus.frontends.sqs.web",
    "partibus.frontends.origins",
    "partibus.node.http_scheduler",
)
"""The imports of `Front._make_app`. A module that is missing here is imported on the loop, and every message waits."""


class Front:
    """The part of a broker that clients see."""

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        catalog: Catalog,
        access: AccessPolicies,
        coordinator: Coordinator,
        meters: Meters,
        broker_name: str,
    ) -> None:
        """Build the front ends; the certificate of ``settings`` exists already.

        Raises the errors of reading the catalog, and `UnusableFile` for a certificate.
        """
        stores, credits = coordinator.stores.access, coordinator.stores.credits
        runtimes = coordinator.stores.runtimes.values
        self._settings = settings
        self._loop = loop
        self._stores = list(stores.values())
        self._coordinator = coordinator
        self._tracing = Tracing(settings.otlp_endpoint, broker_name)
        self.catalog = catalog
        topics_by_row: TopicsByRow = {}
        queues_by_row: QueuesByRow = {}
        self.subscribers = TopicSubscribers(topics_by_row, lambda queue: partition_options(queue, settings.limits))
        numbers, announcer = Numbers(), Announcer(coordinator.announce)
        fault_injections = FaultInjections(list(stores), self._call_later)
        fault_injections.on_changed = lambda rules: announcer.spread({"rehearsals": to_plain(rules)})

        def serve(record: NamespaceRecord, access: AccessPolicies) -> Broker:
            if self._identity is not None:
                access.identities = self._identity.of(record.name)
            broker = Broker(
                Namespace(catalog.of(record.namespace_id), clock, record, topics_by_row, queues_by_row),
                access,
                clock,
                numbers,
                settings.limits,
                self._make_handle,
                announcer,
                stores,
                self._call_later,
                fault_injections,
                None if credits is None else credits.bank(record.namespace_id),
            )
            broker.tracer = self._tracing.tracer(record.name)
            broker.ask_measured = self._ask_measured
            return broker

        self._identity: IdentityProvider | None = None
        if settings.identity is not None:
            from partibus.node.identity import open_provider

            self._identity = open_provider(settings.identity, loop)
        self.broker = serve(catalog.list_namespaces()[0], access)
        self.namespaces = Namespaces(self.broker, catalog, lambda record: serve(record, AccessPolicies(())), announcer)
        if credits is not None:
            credits.settings_of = self._credits_of
            credits.on_moved = self._tell_debts
        self.broker.ask_status = self._ask_status
        self.forwarder = Forwarder(self.namespaces, self._call_later)
        self._backups = Backups(settings.data, list(stores), loop)
        self.broker.back_up = self._backups.begin
        self.idle = IdleQueues(self.namespaces, clock)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._scheduler = FairScheduler(loop.call_soon, perf_counter_ns)
        self.admission = Admission(settings.limits.admission, loop.time)
        self._amqp = AmqpServer(self.namespaces, loop, self._scheduler, self.admission)
        self.units = UnitWatch(
            self.namespaces,
            self._scheduler,
            self._amqp.protocols,
            runtimes,
            clock,
            settings.limits.units,
            loop,
            process_time,
            brokers_max=settings.brokers_most,
        )
        self._cursors = CursorWatch(self.namespaces, runtimes, loop)
        self._cursor_timer: asyncio.TimerHandle | None = None
        self.measuring = Measuring(self.namespaces, meters, self._amqp, stores, self._cursors)
        self.hand: ClockHand | None = None
        self._advance: Callable[[int], Awaitable[int]] | None = None
        if isinstance(clock, ManualClock):
            self.hand = ClockHand(clock, self.namespaces.clock_moved, runtimes, self.idle)
            self._advance = coordinator.advance
        self._clock = clock
        self._http = HttpServer(
            self._make_app,
            settings.limits.http,
            self._amqp.make_websocket_protocol,
            _APP_MODULES,
            self.admission,
        )

        self._with_sqs: WithSqs | None = None
        self._data: DataApi | None = None
        """The application of the HTTP port, once it is loaded."""
        self._sqs = SqsPort(
            settings,
            self.namespaces,
            loop,
            self._call_later,
            self._scheduler,
            self.admission,
            lambda: self._amqp.sign_ins,
        )
        self.tls = ServerTls.of(settings)
        self._tls_listeners: list[TlsListener] = []
        self.namespaces.on_changed.append(self._fit_certificate)

    @property
    def namespace(self) -> Namespace:
        """The default namespace."""
        return self.broker.namespace

    def _call_later(self, delay_ms: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, call)

    @property
    def connections(self) -> int:
        """The number of AMQP connections of clients."""
        return len(self._amqp.protocols)

    @property
    def connections_by_namespace(self) -> dict[str, int]:
        """The connections of clients that have named their namespace; namespaces without any are missing."""
        return {one.namespace.name: one.clients.connections for one in self.namespaces if one.clients.connections}

    @property
    def told(self) -> dict[str, Any]:
        """The facts that the other brokers need all the time, as JSON can hold them.

        ``used``: what premium namespaces have used of this broker; ``clients``: its clients, and ``elastic``: the load
        of elastic queues, both by numbers of namespaces.
        """
        brokers = {str(broker.namespace.record.namespace_id): broker for broker in self.namespaces}
        return {
            "used": self.units.used,
            "clients": {number: told for number, one in brokers.items() if (told := one.clients.told) is not None},
            "elastic": {number: loads for number, one in brokers.items() if (loads := one.elastic.told)},
        }

    def hear(self, others: Sequence[Mapping[str, Any]]) -> None:
        """Take over what each of the other brokers has `told` last. A broker that ended is not among them."""
        self.units.add_up(one.get("used", {}) for one in others)
        clients, loads = ([one.get(what, {}) for one in others] for what in ("clients", "elastic"))
        for broker in self.namespaces:
            number = str(broker.namespace.record.namespace_id)
            broker.clients.hear([there[number] for there in clients if number in there])
            broker.elastic.hear([there[number] for there in loads if number in there])

    async def listen(self, host: str, ports: Ports, *, shared: bool = False) -> Ports:
        """Accept connections; returns the ports.

        ``shared``: beside other brokers. Raises `ArgumentError` when a port is taken.
        """
        files = Share(raise_limit(), len(self._stores), sum(port is not None for port in ports))
        self.admission.connections_max = files.connections
        tls = self._settings.limits.tls
        tls = replace(tls, handshakes_max=min(tls.handshakes_max, files.handshakes))
        with listening(host, ports.amqp, "--amqp-port"):
            amqp = await self._amqp.start(host, ports.amqp, shared=shared, queue=files.queue)
        with listening(host, ports.http, "--http-port"):
            http = await self._http.start(host, ports.http, shared=shared, queue=files.queue)
        with listening(host, ports.amqps or 0, "--amqps-port"):
            amqps = self._listen_tls(host, ports.amqps, self._amqp.make_protocol, tls, shared=shared)
        with listening(host, ports.https or 0, "--https-port"):
            https = self._listen_tls(host, ports.https, self._http.make_protocol, tls, shared=shared)
        with listening(host, ports.sqs, "--sqs-port"):
            sqs = await self._sqs.start(host, ports.sqs, shared=shared, queue=files.queue)
        with listening(host, ports.sqs_tls or 0, "--sqs-tls-port"):
            sqs_tls = self._listen_tls(host, ports.sqs_tls, self._sqs.make_protocol, tls, shared=shared)
        if self.tls is not None:
            self.tls.watch(self._loop)
        self.units.begin()
        self._idle_timer = self._loop.call_later(INTERVAL_S, self._check_idle)
        self._cursor_timer = self._loop.call_later(LOOK_S, self._look_at_cursors)
        return Ports(amqp, http, amqps, https, sqs, sqs_tls)

    def _listen_tls(
        self,
        host: str,
        port: int | None,
        make_protocol: Callable[[], asyncio.Protocol],
        limits: TlsLimits,
        *,
        shared: bool,
    ) -> int | None:
        if port is None or self.tls is None:
            return None
        listener = TlsListener(self.tls, make_protocol, limits)
        self._tls_listeners.append(listener)
        return listener.start(host, port, shared=shared)

    def reload(self) -> None:
        """Reload the certificate from its files, if it can be used."""
        if self.tls is not None:
            self.tls.reload()

    def _fit_certificate(self, broker: Broker) -> None:
        """Extend the certificate by the host name of a new namespace.

        Other brokers with the same directory do this after the one that made the namespace, and find it done.
        """
        if self.tls is None or self._settings.certificate is not None:
            return
        names = [one.namespace.name for one in self.namespaces if not one.is_default]
        try:
            if fit_certificate(self._settings, names):
                self.tls.reload()
        except UnusableFile as error:
            log.warning("the certificate is not good for the namespace '%s': %s", broker.namespace.name, error)

    async def drain(self) -> None:
        """Stop accepting and tell clients to go; requests under way may still end."""
        self._backups.stop()  # before the stores are closed: a copy under way keeps their logs
        for timer in (self._idle_timer, self._cursor_timer):
            if timer is not None:
                timer.cancel()
        self.units.stop()
        self._amqp.stop_listening()
        self._sqs.stop()
        for listener in self._tls_listeners:
            listener.stop()
        if self.tls is not None:
            self.tls.stop()
        self._amqp.close_connections("The broker is stopping; reconnect when it is back.")
        await asyncio.sleep(DRAIN_S if self._amqp.protocols else 0)
        if self._with_sqs is not None:
            self._with_sqs.stop()
        if self._data is not None:
            self._data.stop()
        await self._http.stop()

    def close(self) -> None:
        """Release the rest once the stores are closed, also after an exception."""
        with ExitStack() as closing:
            closing.callback(self.catalog.close)
            closing.callback(self._tracing.close)
            if self._identity is not None:
                closing.callback(self._identity.close)
            for task in self._tasks:
                task.cancel()

    async def health(self) -> tuple[bool, dict[str, Any]]:
        """Return whether sends and receives work, and what each store says.

        An injected loss shows here, too: a monitor of health takes part in the exercise.
        """
        injected = self.broker.fault_injections.trouble
        status = await self._coordinator.status()
        stores = {store["name"]: store["trouble"] or injected(store["name"]) or "ok" for store in status["stores"]}
        healthy = all(said == "ok" for said in stores.values())
        details: dict[str, Any] = {"status": "healthy" if healthy else "unhealthy", "stores": stores}
        if self.tls is not None:
            details["certificate"] = self.tls.says()
        return healthy, details

    def _make_app(self) -> "ASGIApp":
        from partibus.frontends.rest.app import make_app
        from partibus.frontends.rest.data.api import DataApi
        from partibus.frontends.sqs.web import WithSqs
        from partibus.node.http_scheduler import HttpScheduler, SlowRefusals

        self._data = DataApi(self.namespaces, self._amqp.ingress.new_message_id)
        app = make_app(self.health, self._metrics, self._clock, self._advance, self.namespaces, self._data)
        from partibus.frontends.origins import Origins, RefuseForeignPages

        origins = Origins(self._settings.origins, public_key=self._settings.emulator)
        self._amqp.origins = origins
        self._with_sqs = WithSqs(app, self._sqs.service, origins)
        slow = SlowRefusals(HttpScheduler(self._with_sqs, self.namespaces, self._scheduler), self._amqp.sign_ins)
        scheduler = RefuseForeignPages(slow, origins)
        if self._identity is None:
            return scheduler
        from partibus.node.identity import WithKeys

        return WithKeys(scheduler, self._identity)

    async def _metrics(self, only: str | None) -> "Snapshot":
        status, measured = await self._coordinator.status(), await self._coordinator.measurements()
        return await self.measuring.describe(measured, status, only)

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a task and keep it until `close`: the loop itself keeps only weak references."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ask_status(self, answer: Callable[[dict[object, object]], None]) -> None:
        async def ask() -> None:
            status: dict[Any, object] = await self._coordinator.status()
            answer(status)

        self.spawn(ask())

    def _ask_measured(self, answer: Callable[[Mapping[str, Measurements]], None]) -> None:
        async def ask() -> None:
            answer(await self._coordinator.measurements())

        self.spawn(ask())

    def _check_idle(self) -> None:
        for broker in self.namespaces:
            broker.wall_clock.now_ms()  # it sees a clock that was set, also while no client shows a claim
        self._idle_timer = self._loop.call_later(INTERVAL_S, self._check_idle)
        self.spawn(self.idle.check_all(self._coordinator))

    def _look_at_cursors(self) -> None:
        self._cursor_timer = self._loop.call_later(LOOK_S, self._look_at_cursors)
        self.spawn(self._cursors.look())

    def _make_handle(self, queue: Queue, placement: Placement) -> PartitionHandle:
        options = partition_options(queue, self._settings.limits)
        store = self._stores[placement.store_no]
        return PartitionHandle(
            placement.partition_no, placement.partition_row, store, options, batched=queue.batched_operations
        )

    def _credits_of(self, namespace: int) -> ThrottlingSettings | None:
        broker = self.namespaces.numbered(namespace)
        return None if broker is None else broker.throttle.settings

    def _tell_debts(self) -> None:
        for broker in self.namespaces:
            broker.throttle.tell_debt()
