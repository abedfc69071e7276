"""A broker's AMQP front end in one process: `Peer` opposite the engine's client role, stores in memory.

No sockets, no threads, no waiting: a timeline decides when commits and loads of the stores end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from partibus.amqp import (
    AmqpError,
    Attached,
    Closed,
    Connection,
    Deliveries,
    Delivery,
    DeliveryState,
    Detached,
    Disposed,
    Event,
    Plain,
    Receiver,
    Sender,
    Session,
    SessionClosed,
    Source,
    Target,
    TransactionalState,
)
from partibus.amqp import Limits as EngineLimits
from partibus.amqp.section_encoding import encode_application_properties, encode_batch, encode_properties, encode_value
from partibus.amqp.sections import BATCH_FORMAT
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.clock import ManualClock
from partibus.forwarding.forwarder import Forwarder
from partibus.frontends.admission import SignIns
from partibus.frontends.amqp.ingress import Ingress
from partibus.frontends.amqp.operations.request import CallLater
from partibus.frontends.amqp.peer import Peer
from partibus.limits import Limits
from partibus.namespace.access import AccessPolicies, Right, SasPolicy
from partibus.namespace.broker import Broker
from partibus.namespace.fan_out import TopicSubscribers
from partibus.namespace.namespace import Namespace, Queue
from partibus.namespace.namespace_options import DEFAULT_NAME, NamespaceOptions
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.placement import Placement
from partibus.namespace.sas import make_token
from partibus.node.options import partition_options
from partibus.partition.protocol.fan_out import FanOut
from partibus.partition.protocol.ports import Store, StoreError, Writes
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.arrivals import Arrivals
from partibus.routing.partitions import Numbers, PartitionHandle
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.stores.memory import MemoryDisk, MemoryStore
from tests.unit.namespace.catalogs import open_catalog

STORES = 16
NOW_S = 1_700_000_000
POLICIES = AccessPolicies(
    [
        SasPolicy("root", Right.MANAGE, "root-key", ""),
        SasPolicy("sender", Right.SEND, "sender-key", ""),
        SasPolicy("listener", Right.LISTEN, "listener-key", ""),
    ]
)
REST_MS = 400.0
"""Longer than any chain of commits and loads, shorter than any lock."""


class Host(SimulatedHost):
    """Every blocking job takes ``delay_ms`` to begin."""

    delay_ms = 1.0

    def _delay_ms(self) -> float:
        return self.delay_ms


class TestStore(MemoryStore):
    """Fails when told to."""

    __test__ = False

    def __init__(self, disk: MemoryDisk, world: Servant) -> None:
        super().__init__(disk)
        self._servant = world

    def commit(self, writes: Writes) -> None:
        """Commit as the port does, unless it is to fail."""
        error = self._servant.fails
        if error is not None:
            if error.executed is None:  # it was stored, but nobody hears of it
                super().commit(writes)
            raise error
        super().commit(writes)
        if self._servant.message_ms:
            self._servant.host.delay_ms = len(writes.bodies) / 2 * self._servant.message_ms


class Servant:
    """One store with its runtime and host."""

    def __init__(self, world: World) -> None:
        self.disk = MemoryDisk()
        self.host = Host(world.timeline, Random(1))
        self.fails: StoreError | None = None
        """The error that every commit raises."""
        self.message_ms = 0.0
        """How long each message of a commit takes; 0: a commit takes as long as any other job."""
        self.stays_away = False
        """The store can't be opened."""
        self.runtime = StoreRuntime(
            self._open, self.host, world.timeline, world.limits.store, forward=self._forward, subscribers=world
        )
        self.forwarder: Forwarder | None = None
        self.runtime.open()

    def _forward(self, row: int, transfers: bool) -> None:
        if self.forwarder is not None:
            self.forwarder.see(self.runtime, row, transfers=transfers)

    def _open(self) -> Store:
        if self.stays_away:
            raise StoreError("the disk is away", executed=False)
        return TestStore(self.disk, self)


class World:
    """A broker with stores in memory."""

    def __init__(
        self, folder: Path, limits: Limits | None = None, servant: Callable[[World], Servant] = Servant
    ) -> None:
        self.limits = limits or Limits()
        self.timeline = Timeline(NOW_S * 1000.0)
        self.stores = [servant(self) for _ in range(STORES)]
        self.catalog = open_catalog(folder, STORES)
        self.namespace = Namespace(self.catalog, self.timeline)
        self.subscribers = TopicSubscribers(
            self.namespace.topics_by_row, lambda queue: partition_options(queue, self.limits)
        )
        self.numbers = Numbers()
        self.access = AccessPolicies(POLICIES)
        self.broker = Broker(self.namespace, self.access, self.timeline, self.numbers, self.limits, self._handle)
        self.namespaces = Namespaces(self.broker)
        self.broker.arrivals = Arrivals(self.timeline.call_later)
        self.broker.wall_clock = self.wall_clock = ManualClock(NOW_S * 1000)
        self.clients: list[Client] = []
        self._ids = 0
        self.ingress = Ingress(self._new_id)

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def _handle(self, queue: Queue, placement: Placement) -> PartitionHandle:
        options = partition_options(queue, self.limits)
        runtime = self.stores[placement.store_no].runtime
        return PartitionHandle(
            placement.partition_no, placement.partition_row, runtime, options, batched=queue.batched_operations
        )

    def queue(self, name: str, **properties: object) -> str:
        """Make a queue with properties by the service's names."""
        self.broker.create_queue(name, properties)
        return name

    def forward(self) -> Forwarder:
        """Forward messages from now on."""
        forwarder = Forwarder(self.namespaces, self.timeline.call_later)
        for store in self.stores:
            store.forwarder = forwarder
        return forwarder

    def become(self, options: NamespaceOptions) -> None:
        """The namespace has these options from now on."""
        self.namespace.record = self.catalog.update_namespace(DEFAULT_NAME, lambda _: options, NOW_S * 1000)

    def fan_out(self, row: int) -> FanOut | None:
        """Return the fan-out (`partition.protocol.fan_out.Subscribers`)."""
        return self.subscribers.fan_out(row)

    def store_of(self, queue: str, partition: int = 0) -> Servant:
        """The store that holds a partition."""
        return self.stores[self.namespace.queue(queue).partitions[partition].store_no]

    def client(self, *, login: str | None = "root", limits: EngineLimits | None = None) -> Client:
        """A connected client, logged in by SASL PLAIN with a policy's name; None: not at all."""
        client = Client(self, None if login is None else Plain(login, f"{login}-key"), limits)
        client.open()
        return client

    def wait(self, ms: float = REST_MS) -> None:
        """Let everything happen that is due in so many milliseconds, and carry all bytes."""
        timeline = self.timeline
        end_ms = timeline.time_ms + ms
        timeline.call_later(ms, lambda: None)
        self.carry()
        while timeline.time_ms < end_ms:
            timeline.run_next()
            self.carry()

    def carry(self) -> None:
        """Carry bytes between clients and their peers until all are silent."""
        while sum(client.carry() for client in self.clients):
            pass


class Client:
    """One connection with what it has seen."""

    def __init__(
        self,
        world: World,
        login: Plain | None,
        limits: EngineLimits | None = None,
        *,
        call_later: CallLater | None = None,
        sign_ins: SignIns | None = None,
    ) -> None:
        self.world = world
        self.engine = Connection(server=False, login=login, limits=limits)
        self.congested = False
        """The addresses of the server's transport."""
        self._congested_links = False
        self.peer = Peer(
            world.namespaces,
            world.ingress,
            lambda: None,
            self._is_congested,
            call_later or world.timeline.call_later,
            sign_ins=sign_ins,
        )
        self.events: list[Event] = []
        self._tag = 0
        world.clients.append(self)

    def open(self) -> None:
        self.engine.open("client")
        self.world.carry()

    def carry(self) -> bool:
        """Carry what both sides have to say; False if that was nothing."""
        up, down = self.engine.data_to_send(), self.peer.connection.data_to_send()
        if up:
            self.peer.receive_data(up)
            while self.peer.more_to_read:
                self.peer.receive_data(b"")
        if self._congested_links and not self.congested:
            self._congested_links = False
            self.peer.resume()
        if down:
            self.events += self.engine.receive_data(down)
        return bool(up or down)

    def _is_congested(self) -> bool:
        """Tell whether the link is congested, as the server does."""
        unsent_bytes = self.peer.connection.bytes_buffered
        self._congested_links = self.congested or unsent_bytes > self.world.limits.connection.outgoing_bytes
        return self._congested_links

    # -- links -------------------------------------------------------------------------------------------------------

    def session(self) -> Session:
        return self.engine.begin()

    def sender(self, address: str, session: Session | None = None, **fields: Any) -> Sender:
        """A link to send on, attached or refused by now."""
        session = session or self.session()
        name = f"link-{len(self.events)}-{id(session)}-{address}"
        link = session.attach_sender(name, source=Source("client"), target=Target(address), **fields)
        self.world.wait()
        return link

    def receiver(
        self,
        address: str,
        session: Session | None = None,
        *,
        delete: bool = False,
        source: Source | None = None,
        **fields: Any,
    ) -> Receiver:
        """A link to receive on, attached or refused by now."""
        session = session or self.session()
        link = session.attach_receiver(
            f"link-{len(self.events)}-{id(session)}-{address}",
            source=source or Source(address),
            target=Target("client"),
            snd_settle_mode=1 if delete else 0,
            rcv_settle_mode=0 if delete else 1,
            **fields,
        )
        self.world.wait()
        return link

    def refusal(self, link: Sender | Receiver) -> AmqpError:
        """Why the broker ended a link."""
        (event,) = [e for e in self.events if isinstance(e, Detached) and e.link is link]
        assert event.error is not None
        return event.error

    def is_detached(self, link: Sender | Receiver) -> bool:
        return any(isinstance(event, Detached) and event.link is link for event in self.events)

    # -- sending -----------------------------------------------------------------------------------------------------

    def send_raw(
        self,
        link: Sender,
        payload: bytes,
        context: object = None,
        *,
        message_format: int = 0,
        settled: bool = False,
        state: DeliveryState | None = None,
    ) -> None:
        """One transfer; nothing is carried yet."""
        self._tag += 1
        tag = self._tag.to_bytes(4)
        taken = link.send(tag, payload, context, message_format=message_format, settled=settled, state=state)
        assert taken, "no credit"

    def send(self, link: Sender, *messages: OutgoingMessage | bytes) -> list[DeliveryState | None]:
        """Send and wait; the states that came back, in the order of the messages."""
        start = len(self.events)
        for index, message in enumerate(messages):
            self.send_raw(link, message if isinstance(message, bytes) else message.encode(), index)
        self.world.wait()
        states = self.outcomes(link, start)
        return [states[index] for index in sorted(states)]

    def send_batch_nowait(self, link: Sender, messages: Iterable[bytes]) -> None:
        self.send_raw(link, encode_batch(messages), message_format=BATCH_FORMAT)

    def send_batch(self, link: Sender, messages: Iterable[bytes]) -> DeliveryState | None:
        start = len(self.events)
        self.send_raw(link, encode_batch(messages), 0, message_format=BATCH_FORMAT)
        self.world.wait()
        (state,) = self.outcomes(link, start).values()
        return state

    def outcomes(self, link: Sender, start: int = 0) -> dict[Any, DeliveryState | None]:
        """Context -> state of what was answered, in the order of the answers."""
        found: dict[Any, DeliveryState | None] = {}
        for event in self.events[start:]:
            if isinstance(event, Disposed) and event.link is link:
                found |= dict.fromkeys(event.contexts, event.state)
        return found

    # -- receiving ---------------------------------------------------------------------------------------------------

    def deliveries(self, link: Receiver, start: int = 0) -> list[Delivery]:
        return [
            delivery
            for event in self.events[start:]
            if isinstance(event, Deliveries) and event.link is link
            for delivery in event.deliveries
        ]

    def receive(self, link: Receiver, credit: int) -> list[Delivery]:
        """Grant credit and take what comes."""
        start = len(self.events)
        link.grant(credit)
        self.world.wait()
        return self.deliveries(link, start)

    def settle(self, link: Receiver, deliveries: Iterable[Delivery], state: DeliveryState | None) -> list[Disposed]:
        """Settle and wait for the answers."""
        start = len(self.events)
        link.settle_many(deliveries, state, settled=False)
        self.world.wait()
        return [event for event in self.events[start:] if isinstance(event, Disposed) and event.link is link]

    # -- nodes -------------------------------------------------------------------------------------------------------

    def request(
        self,
        address: str,
        operation: str,
        body: object = None,
        properties: Mapping[str, object] | None = None,
        *,
        transaction: bytes | None = None,
    ) -> IncomingMessage:
        """One request to a node and its reply."""
        session = self.session()
        replies = self.receiver(address, session)
        replies.grant(10)
        sender = self.sender(address, session)
        request = (
            encode_properties(message_id="request-1")
            + encode_application_properties({"operation": operation, **(properties or {})})
            + encode_value(body)
        )
        assert sender.send(b"request", request, state=TransactionalState(txn_id=transaction) if transaction else None)
        self.world.wait()
        (delivery,) = self.deliveries(replies)
        session.end()
        self.world.carry()
        return IncomingMessage(delivery.payload)

    def put_token(self, policy: str, audience: str, *, expires_in_s: int = 3600, key: str | None = None) -> int:
        """Show a token; the status code."""
        token = make_token(audience, policy, key or f"{policy}-key", NOW_S + expires_in_s)
        reply = self.request("$cbs", "put-token", token, {"name": audience, "type": "jwt"})
        status = reply.application_properties["status-code"]
        assert isinstance(status, int)
        return int(status)

    # -- the end -----------------------------------------------------------------------------------------------------

    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self.closed is not None

    @property
    def closed(self) -> Closed | None:
        """How the connection ended."""
        return next((event for event in self.events if isinstance(event, Closed)), None)

    def session_ends(self) -> list[SessionClosed]:
        return [event for event in self.events if isinstance(event, SessionClosed)]

    def attached(self) -> list[Attached]:
        return [event for event in self.events if isinstance(event, Attached)]

    def lose(self) -> None:
        """The connection breaks."""
        self.world.clients.remove(self)
        self.peer.on_lost()


def message(body: bytes = b"body", **fields: Any) -> bytes:
    """An encoded message."""
    return OutgoingMessage(body=body, **fields).encode()


def body_of(delivery: Delivery) -> Any:
    return IncomingMessage(delivery.payload).body


def until(world: World, done: Callable[[], Any]) -> None:
    """Let time pass until something is true."""
    while not done():
        assert world.timeline, "nothing is left to happen"
        world.timeline.run_next()
        world.carry()
