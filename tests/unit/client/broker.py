"""A tiny broker for tests of the client: the engine's server role over real sockets, queues in lists.

It does what it is told: addresses that are not in `queues` are refused, and `refusals` says how messages are answered.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from partibus.amqp import (
    ACCEPTED,
    Accepted,
    AmqpError,
    Attached,
    Closed,
    Connection,
    CreditChanged,
    Deliveries,
    Delivery,
    Disposed,
    Link,
    Modified,
    Opened,
    Receiver,
    Rejected,
    Released,
    Sender,
    Source,
    Target,
)
from partibus.amqp.codec.composite import changed
from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.types import Int, Symbol
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.amqp.sections import BATCH_FORMAT, iter_batch
from partibus.client.messages import IncomingMessage

Answer = tuple[int, str | None, str, object]
"""Status, condition, description and body of a management reply."""


class TinyBroker:
    """One listener, a thread per connection; the test reads and writes the public attributes between calls."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[bytes]] = {"q": deque()}
        self.sessions: dict[str, str] = {}
        """The session for a receiver that asks for any session; one that names a session gets that."""
        self.attaches: list[tuple[str, object, object]] = []
        """Address, session filter and properties of links that asked for sessions."""
        self.settled: list[tuple[bytes, str]] = []
        """Payloads with the outcome that the client sent, in order."""
        self.tokens: list[str] = []
        self.token_status = 202
        self.refuse_send: Callable[[int], AmqpError | None] = lambda number: None
        """Answer to the n-th message that arrives, counted from 0."""
        self.refuse_settlement: AmqpError | None = None
        self.answers: dict[str, Callable[[dict[Any, Any]], Answer]] = {}
        """Management operations."""
        self.requests: list[tuple[str, str, Any]] = []
        """Address, operation and body."""
        self.credit = 1_000
        self.arrived = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._connections: list[socket.socket] = []
        self.lock = threading.Lock()
        """Held while anything of a connection is worked on."""
        self.peers: list[_Peer] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;"
            "UseDevelopmentEmulator=true"
        )

    def cut(self) -> None:
        """Break every connection without a word."""
        for sock in self._connections:
            sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._connections:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(sock)
            peer = _Peer(self, sock)
            self.peers.append(peer)
            threading.Thread(target=peer.run, daemon=True).start()


class _Peer:
    def __init__(self, broker: TinyBroker, sock: socket.socket) -> None:
        self.broker = broker
        self.sock = sock
        self.engine = Connection(server=True)
        self.tag = 0

    def run(self) -> None:
        try:
            while data := self.sock.recv(65536):
                with self.broker.lock:
                    for event in self.engine.receive_data(data):
                        self.on_event(event)
                    self.sock.sendall(self.engine.data_to_send())
                    if self.engine.is_closed:
                        break
        except OSError:
            pass
        self.broker.peers.remove(self)
        self.sock.close()

    def on_event(self, event: object) -> None:
        if isinstance(event, Opened):
            self.engine.open("tiny")
        elif isinstance(event, Attached):
            self.on_attached(event.link)
        elif isinstance(event, Deliveries) and isinstance(event.link, Receiver):
            self.on_deliveries(event.link, event.deliveries)
        elif isinstance(event, CreditChanged) and isinstance(event.link, Sender):
            self.feed(event.link)
        elif isinstance(event, Disposed) and isinstance(event.link, Sender):
            self.on_settled(event, event.link)
        elif isinstance(event, Closed):
            pass

    def on_attached(self, link: Link) -> None:
        address = self.address(link)
        if not (address == "$cbs" or address.endswith("$management") or address in self.broker.queues):
            link.refuse(AmqpError("amqp:not-found", f"The messaging entity '{address}' could not be found."))
            return
        source = link.source
        if isinstance(link, Sender) and isinstance(source, Source) and source.filter:
            self.accept_session(link, source, address)
            return
        link.accept()
        if isinstance(link, Receiver) and self.broker.credit:
            link.grant(self.broker.credit)

    def accept_session(self, link: Sender, source: Source, address: str) -> None:
        assert source.filter is not None
        ((key, wanted),) = source.filter.items()
        self.broker.attaches.append((address, wanted, link.properties))
        session = self.broker.sessions.get(address) if wanted is None else wanted
        if session is None:
            link.refuse(AmqpError("com.microsoft:timeout", "There is no session with messages."))
        elif session == "held":
            link.refuse(AmqpError("com.microsoft:session-cannot-be-locked", "The session 'held' is locked."))
        else:
            link.source = changed(source, filter={key: session})
            link.accept()

    def address(self, link: Link) -> str:
        end = link.target if isinstance(link, Receiver) else link.source
        assert isinstance(end, (Source, Target))
        return str(end.address)

    def on_deliveries(self, link: Receiver, deliveries: list[Delivery]) -> None:
        address = self.address(link)
        for delivery in deliveries:
            if address == "$cbs":
                self.answer_token(link, delivery)
            elif address.endswith("$management"):
                self.answer_request(link, delivery, address)
            else:
                self.store(link, delivery, address)
        link.grant(self.broker.credit)

    def store(self, link: Receiver, delivery: Delivery, address: str) -> None:
        error = self.broker.refuse_send(self.broker.arrived)
        self.broker.arrived += 1
        if error is not None:
            link.settle_many([delivery], Rejected(error))
            return
        is_batch = delivery.message_format == BATCH_FORMAT
        self.broker.queues[address].extend(iter_batch(delivery.payload) if is_batch else [delivery.payload])
        link.settle_many([delivery], ACCEPTED)
        for peer in self.broker.peers:
            peer.feed_all(address)

    def feed_all(self, address: str) -> None:
        for session in self.engine.sessions:
            for link in session.links:
                if isinstance(link, Sender) and link.is_open and self.address(link) == address:
                    self.feed(link)
        with suppress(OSError):  # Its own thread notices.
            self.sock.sendall(self.engine.data_to_send())

    def feed(self, link: Sender) -> None:
        queue = self.broker.queues.get(self.address(link))
        if queue is None:
            return
        settled = int(link.snd_settle_mode) == 1
        while queue and link.credit:
            self.tag += 1
            payload = queue.popleft()
            link.send(self.tag.to_bytes(16), payload, payload, settled=settled)
        if link.drain_requested:
            link.drained()

    def on_settled(self, event: Disposed, link: Sender) -> None:
        for payload in event.contexts:
            assert isinstance(payload, bytes)
            self.broker.settled.append((payload, type(event.state).__name__.lower()))
            if isinstance(event.state, Released):
                self.broker.queues[self.address(link)].appendleft(payload)
        if event.settled:
            return
        if self.broker.refuse_settlement is not None:
            link.settle_many(event.delivery_ids, Rejected(self.broker.refuse_settlement))
        elif isinstance(event.state, Rejected):
            link.settle_many(event.delivery_ids, Rejected())
        else:
            assert isinstance(event.state, (Accepted, Modified))
            link.settle_many(event.delivery_ids, event.state)

    def answer_token(self, link: Receiver, delivery: Delivery) -> None:
        message = IncomingMessage(delivery.payload)
        self.broker.tokens.append(str(message.application_properties["name"]))
        status = self.broker.token_status
        self.reply(link, delivery, message, {"status-code": Int(status), "status-description": "no such key"}, None)

    def answer_request(self, link: Receiver, delivery: Delivery, address: str) -> None:
        message = IncomingMessage(delivery.payload)
        operation = str(message.application_properties["operation"])
        body, _ = decode(message.sections.body, 3)
        self.broker.requests.append((address, operation, body))
        assert isinstance(body, dict)
        answer = self.broker.answers.get(operation)
        if answer is None:
            link.settle_many([delivery], Rejected(AmqpError("amqp:not-implemented", f"no operation {operation}")))
            return
        status, condition, description, reply = answer(body)
        properties: dict[str, object] = {"statusCode": Int(status), "statusDescription": description}
        if condition is not None:
            properties["errorCondition"] = Symbol(condition)
        self.reply(link, delivery, message, properties, reply)

    def reply(
        self, link: Receiver, delivery: Delivery, request: IncomingMessage, properties: dict[str, object], body: object
    ) -> None:
        link.settle_many([delivery], ACCEPTED)
        message_id = request.message_id
        assert isinstance(message_id, str)
        payload = (
            encode_properties(correlation_id=message_id)
            + encode_application_properties(properties)
            + encode_value(body)
        )
        for other in link.session.links:
            if isinstance(other, Sender) and self.address(other) == self.address(link):
                other.send(b"r", payload, settled=True)


@contextmanager
def tiny_broker() -> Iterator[TinyBroker]:
    broker = TinyBroker()
    try:
        yield broker
    finally:
        broker.close()
