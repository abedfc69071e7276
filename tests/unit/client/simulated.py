"""A simulated world for the client: an event loop on a manual clock, a network in memory, and a broker that can die.

Time passes only when nothing else can happen, so a test of a minute takes milliseconds. A loop with nothing left to do
raises `Stuck`: a future that waits for ever fails its test.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from partibus.amqp import (
    ACCEPTED,
    AmqpError,
    Attached,
    CreditChanged,
    Deliveries,
    Delivery,
    Disposed,
    Limits,
    Link,
    Opened,
    Receiver,
    Rejected,
    Released,
    Sender,
    Source,
    Target,
)
from partibus.amqp import Connection as Engine
from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.types import Int
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.amqp.sections import BATCH_FORMAT, iter_batch
from partibus.client.aio import Client
from partibus.client.aio.connection import Connection
from partibus.client.errors import ConnectFailed
from partibus.client.messages import IncomingMessage

T = TypeVar("T")
CONNECTION = "Endpoint=sb://simulated:5672;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
EPOCH_S = 1_800_000_000.0
LOCK_S = 60.0
LIFE_S = 100_000.0


class Stuck(BaseException):
    """Nothing is left to do, and the test waits."""


class _Skipping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("no timer and no callback is left, but the test waits")
        self.now += max(0.0, timeout)
        if self.now > LIFE_S:
            raise Stuck(f"the test still waits after {LIFE_S:g} simulated seconds")
        return []


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when it has nothing else to do."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop with a manual clock, and close what it left."""
    loop = ManualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


class Pipe:
    """Calls that happen after a delay, in the order in which they were made: timers of one moment have none."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def put(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self._calls.append((call, arguments))
        self._loop.call_later(delay_s, self._next)

    def _next(self) -> None:
        call, arguments = self._calls.popleft()
        call(*arguments)


class Wire(asyncio.Transport):
    """The client's end of a connection in memory; bytes take `SimulatedBroker.latency_s` in each direction."""

    def __init__(self, broker: SimulatedBroker, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self._pipe = Pipe()
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._closing = False
        self.cut = False
        self.written = 0
        self.peer = Peer(broker, self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.cut:
            self.written += len(data)
            self._pipe.put(self._broker.latency_s, self.peer.receive, bytes(data))

    def deliver(self, data: bytes) -> None:
        """Bring bytes of the broker to the client."""
        if not (self.cut or self._closing):
            self.protocol.data_received(data)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing and not self.cut:
            self._loop.call_later(self._broker.close_s, self._lost)
        self._closing = True
        self.cut = True

    def _lost(self) -> None:
        self._broker.closed += 1
        self.protocol.connection_lost(None)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def break_off(self) -> None:
        """End the connection as the death of the broker does: what is on its way is lost."""
        if not self.cut:
            self.cut = True
            self._loop.call_soon(self.protocol.connection_lost, ConnectionResetError("the simulated broker died"))


def connections(client: Client) -> list[Connection]:
    """Return a client's connections, which tests count links of and lead elsewhere."""
    return client._connections


class SimulatedBroker:
    """Queues in memory that survive `kill`; an answer leaves when its commit is done."""

    def __init__(self) -> None:
        self.stored: dict[str, list[bytes]] = {"q": []}
        """All messages ever stored, in order."""
        self.waiting: dict[str, deque[bytes]] = {"q": deque()}
        self.locked: dict[bytes, tuple[str, bytes, float]] = {}
        """Address, payload and end of the lock, by tag."""
        self.completed: list[bytes] = []
        self.latency_s = 0.001
        self.commit_s = 0.002
        self.credit = 100
        self.incoming_window = Limits().incoming_window
        self.channel_max = Limits().channel_max
        self.max_message_size = 262_144
        self.refuse: Callable[[bytes], AmqpError | None] = lambda payload: None
        """The error for a message, None to store it."""
        self.refuse_attach: AmqpError | None = None
        self.detach: AmqpError | None = None
        """The error that ends a link when a message arrives on it."""
        self.answers: dict[str, Callable[[dict[Any, Any]], tuple[int, str | None, object]]] = {}
        """Status, condition and body of management operations."""
        self.requests: list[tuple[str, Any]] = []
        self.transfers: list[tuple[float, int, list[bytes]]] = []
        """Time, message-format and messages of each transfer that arrived."""
        self.dispositions: list[tuple[float, int]] = []
        """Time and number of messages of each settlement that arrived."""
        self.tokens: list[str] = []
        self.connections = 0
        self.closed = 0
        """Connections that the client has closed to the end."""
        self.close_s = 0.0
        """The time between a close of the client and the end of the transport, which TLS takes."""
        self.down = False
        self.mute = False
        """Whether answers are swallowed."""
        self.wires: list[Wire] = []
        self.serial = 0

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Stand for the network (`Connection.connect`)."""
        await asyncio.sleep(self.latency_s)
        if self.down:
            raise ConnectFailed("the simulated broker is down")
        self.connections += 1
        wire = Wire(self, protocol)
        self.wires.append(wire)
        protocol.connection_made(wire)

    def client(self, **settings: Any) -> Client:
        """Make a client of this broker."""
        client = Client(CONNECTION, **settings)
        loop = asyncio.get_running_loop()
        for connection in connections(client):
            connection.connect = self.connect
            connection.wall = lambda: EPOCH_S + loop.time()
        return client

    def kill(self) -> None:
        """Die: connections break, and commits that are not done never will be."""
        self.down = True
        wires, self.wires = self.wires, []
        for wire in wires:
            wire.peer.dead = True
            wire.break_off()

    def restart(self) -> None:
        self.down = False

    def credit_of(self, address: str) -> int:
        """Return the credit that receivers of a queue have granted."""
        links = [link for wire in self.wires for session in wire.peer.engine.sessions for link in session.links]
        return sum(link.credit for link in links if isinstance(link, Sender) and address_of(link) == address)

    def expire_locks(self) -> None:
        """End all locks; their messages can be received again."""
        for address, payload, _ in self.locked.values():
            self.waiting[address].appendleft(payload)
        self.locked.clear()
        for wire in self.wires:
            for address in self.waiting:
                wire.peer.feed_all(address)

    def arrive(self, address: str, payloads: list[bytes]) -> None:
        """Store messages, and offer them to receivers."""
        self.stored[address] += payloads
        self.waiting[address].extend(payloads)
        for wire in self.wires:
            wire.peer.feed_all(address)


class Peer:
    """The broker's end of a connection."""

    def __init__(self, broker: SimulatedBroker, wire: Wire) -> None:
        self.broker = broker
        self.wire = wire
        self.dead = False
        self.engine = Engine(
            server=True, limits=Limits(incoming_window=broker.incoming_window, channel_max=broker.channel_max)
        )
        self.loop = asyncio.get_running_loop()
        self.commits = Pipe()
        self.answers = Pipe()
        self.tick()

    def receive(self, data: bytes) -> None:
        if self.dead:
            return
        for event in self.engine.receive_data(data):
            self.on_event(event)
        self.flush()

    def tick(self) -> None:
        """Keep the connection alive."""
        if not (self.dead or self.wire.is_closing()):
            self.engine.tick(self.loop.time())
            self.flush()
            self.loop.call_later(self.engine.tick_interval, self.tick)

    def flush(self) -> None:
        if self.dead:
            return
        data = self.engine.data_to_send()
        if data and not self.broker.mute:
            self.answers.put(self.broker.latency_s, self.wire.deliver, data)

    def on_event(self, event: object) -> None:
        if isinstance(event, Opened):
            self.engine.open("simulated")
        elif isinstance(event, Attached):
            self.on_attached(event.link)
        elif isinstance(event, Deliveries) and isinstance(event.link, Receiver):
            self.on_deliveries(event.link, event.deliveries)
        elif isinstance(event, CreditChanged) and isinstance(event.link, Sender):
            self.feed(event.link)
        elif isinstance(event, Disposed) and isinstance(event.link, Sender):
            self.on_settled(event.link, event)

    def on_attached(self, link: Link) -> None:
        address = address_of(link)
        known = address == "$cbs" or address.endswith("$management") or address in self.broker.stored
        refusal = self.broker.refuse_attach if address in self.broker.stored else None
        if not known:
            refusal = AmqpError("amqp:not-found", f"The messaging entity '{address}' could not be found.")
        if refusal is not None:
            link.refuse(refusal)
            return
        link.accept(max_message_size=self.broker.max_message_size)
        if isinstance(link, Receiver):
            link.grant(self.broker.credit)

    def on_deliveries(self, link: Receiver, deliveries: list[Delivery]) -> None:
        address = address_of(link)
        for delivery in deliveries:
            if address == "$cbs":
                message = IncomingMessage(delivery.payload)
                self.broker.tokens.append(str(message.application_properties["name"]))
                self.reply(link, delivery, message, {"status-code": Int(202), "status-description": "ok"}, None)
            elif address.endswith("$management"):
                self.answer(link, delivery)
            else:
                is_batch = delivery.message_format == BATCH_FORMAT
                payloads = list(iter_batch(delivery.payload)) if is_batch else [delivery.payload]
                self.broker.transfers.append((self.loop.time(), delivery.message_format, payloads))
                self.commits.put(self.broker.commit_s, self.store, link, delivery, address, payloads)
        if 2 * link.credit <= self.broker.credit:
            link.grant(self.broker.credit)

    def store(self, link: Receiver, delivery: Delivery, address: str, payloads: list[bytes]) -> None:
        if self.dead:
            return
        if self.broker.detach is not None:
            link.detach(self.broker.detach)
            self.flush()
            return
        errors = [error for payload in payloads if (error := self.broker.refuse(payload)) is not None]
        if errors:
            link.settle_many([delivery], Rejected(errors[0]))
        else:
            self.broker.arrive(address, payloads)
            link.settle_many([delivery], ACCEPTED)
        self.flush()

    def feed_all(self, address: str) -> None:
        for session in self.engine.sessions:
            for link in session.links:
                if isinstance(link, Sender) and link.is_open and address_of(link) == address:
                    self.feed(link)
        self.flush()

    def feed(self, link: Sender) -> None:
        address = address_of(link)
        queue = self.broker.waiting.get(address)
        if queue is None:
            return
        settled = int(link.snd_settle_mode) == 1
        while queue and link.credit:
            self.broker.serial += 1
            tag = self.broker.serial.to_bytes(16)
            payload = queue.popleft()
            if not settled:
                self.broker.locked[tag] = (address, payload, self.loop.time() + LOCK_S)
            link.send(tag, payload, tag, settled=settled)
        if link.drain_requested:
            link.drained()

    def on_settled(self, link: Sender, event: Disposed) -> None:
        tags = [tag for tag in event.contexts if isinstance(tag, bytes)]
        if isinstance(event.state, Released):
            for tag in reversed(tags):
                if (held := self.broker.locked.pop(tag, None)) is not None:
                    self.broker.waiting[held[0]].appendleft(held[1])
            return
        self.broker.dispositions.append((self.loop.time(), len(tags)))
        for tag, delivery_id in zip(tags, event.delivery_ids, strict=True):
            held = self.broker.locked.pop(tag, None)
            if held is None:
                lost = AmqpError("com.microsoft:message-lock-lost", "The lock supplied is invalid.")
                link.settle_many([delivery_id], Rejected(lost))
            else:
                self.broker.completed.append(held[1])
                link.settle_many([delivery_id], event.state if not isinstance(event.state, Rejected) else Rejected())

    def answer(self, link: Receiver, delivery: Delivery) -> None:
        message = IncomingMessage(delivery.payload)
        operation = str(message.application_properties["operation"])
        body, _ = decode(message.sections.body, 3)
        assert isinstance(body, dict)
        self.broker.requests.append((operation, body))
        status, condition, reply = self.broker.answers[operation](body)
        properties: dict[str, object] = {"statusCode": Int(status), "statusDescription": condition or "ok"}
        if condition is not None:
            properties["errorCondition"] = condition
        self.reply(link, delivery, message, properties, reply)

    def reply(
        self, link: Receiver, delivery: Delivery, message: IncomingMessage, properties: dict[str, object], body: object
    ) -> None:
        link.settle_many([delivery], ACCEPTED)
        (back,) = [
            one
            for one in link.session.links
            if isinstance(one, Sender) and isinstance(one.target, Target) and one.target.address == reply_to(message)
        ]
        message_id = message.message_id
        assert isinstance(message_id, str)
        payload = encode_properties(correlation_id=message_id) + encode_application_properties(properties)
        back.send(message_id.encode(), payload + encode_value(body), None, settled=True)


def reply_to(message: IncomingMessage) -> object:
    return message.reply_to


def address_of(link: Link) -> str:
    end = link.target if isinstance(link, Receiver) else link.source
    assert isinstance(end, (Source, Target))
    return str(end.address)
