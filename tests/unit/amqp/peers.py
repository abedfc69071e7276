"""Peers for tests of the engine: two connections joined by hand, and one opposite a scripted peer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from partibus.amqp import (
    Attached,
    Connection,
    Deliveries,
    Delivery,
    Event,
    Limits,
    Opened,
    Receiver,
    Sender,
    Session,
    SessionOpened,
    Source,
    Target,
)
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.performatives import (
    AMQP_BODIES,
    SASL_BODIES,
    Attach,
    Begin,
    Flow,
    Open,
    Transfer,
    decode_performative,
)
from partibus.amqp.frames import AMQP_HEADER, HEADER, frame
from partibus.amqp.sasl import Login

E = TypeVar("E")


class Frame(NamedTuple):
    """One frame as it stood on the wire; `body` None is the empty frame."""

    kind: int
    channel: int
    body: Any
    payload: bytes


def read_frames(data: bytes) -> list[Frame]:
    """The frames in `data`, which holds nothing else but protocol headers, which are passed over."""
    frames = []
    while data:
        if data.startswith(b"AMQP"):
            data = data[8:]
            continue
        size, offset, kind, channel = HEADER.unpack_from(data)
        assert len(data) >= size
        body, end = (None, size) if size == offset * 4 else _decode(data, offset * 4, size)
        frames.append(Frame(kind, channel, body, data[end:size]))
        data = data[size:]
    return frames


def _decode(data: bytes, pos: int, end: int) -> tuple[Any, int]:
    return decode_performative(data, pos, end, allowed=AMQP_BODIES + SASL_BODIES)


def of_type(kind: type[E], items: Iterable[object]) -> list[E]:
    """The events or performatives of one class."""
    return [item for item in items if isinstance(item, kind)]


def deliveries(events: Iterable[Event]) -> list[Delivery]:
    """All deliveries, whatever events they came in."""
    return [delivery for event in of_type(Deliveries, events) for delivery in event.deliveries]


def transfer(payload: bytes = b"payload", channel: int = 0, **fields: Any) -> bytes:
    """A transfer frame; by default complete, delivery 0 on handle 0."""
    values: dict[str, Any] = {"handle": 0, "delivery_id": 0, "delivery_tag": b"tag", "message_format": 0} | fields
    body = encode(Transfer(**values)) + payload
    return HEADER.pack(8 + len(body), 2, 0, channel) + body


class Scripted:
    """A connection under test, opposite a peer whose every frame the test writes."""

    def __init__(self, *, server: bool = True, limits: Limits | None = None) -> None:
        self.connection = Connection(server=server, limits=limits)

    def say(self, *performatives: object, channel: int = 0) -> list[Event]:
        return self.connection.receive_data(b"".join(frame(channel, body) for body in performatives))

    def heard(self) -> list[Frame]:
        return read_frames(self.connection.data_to_send())

    def heard_bodies(self) -> list[Any]:
        return [heard.body for heard in self.heard()]

    def open(self, **fields: Any) -> None:
        """Exchange headers and opens."""
        self.connection.receive_data(AMQP_HEADER)
        self.say(Open(**({"container_id": "peer"} | fields)))
        self.connection.open("tested")
        self.heard()

    def begin(self, *, channel: int = 0, incoming_window: int = 5000, next_outgoing_id: int = 0) -> Session:
        """The peer begins a session; our answer is taken away."""
        begin = Begin(next_outgoing_id=next_outgoing_id, incoming_window=incoming_window, outgoing_window=5000)
        (event,) = of_type(SessionOpened, self.say(begin, channel=channel))
        self.heard()
        assert isinstance(event.session, Session)
        return event.session

    def attach_peer_sender(self, handle: int = 0, name: str = "in", channel: int = 0, **fields: Any) -> Receiver:
        """The peer attaches a link on which it sends; we have not answered yet."""
        link = self._attach(handle, name, False, channel, {"initial_delivery_count": 0} | fields)
        assert isinstance(link, Receiver)
        return link

    def attach_peer_receiver(self, handle: int = 0, name: str = "out", channel: int = 0, **fields: Any) -> Sender:
        """The peer attaches a link on which we send; we have not answered yet."""
        link = self._attach(handle, name, True, channel, fields)
        assert isinstance(link, Sender)
        return link

    def _attach(self, handle: int, name: str, role: bool, channel: int, fields: dict[str, Any]) -> Receiver | Sender:
        values: dict[str, Any] = {"source": Source("source"), "target": Target("target")} | fields
        (event,) = of_type(Attached, self.say(Attach(name=name, handle=handle, role=role, **values), channel=channel))
        assert isinstance(event.link, (Sender, Receiver))
        return event.link

    def with_receiver(self, credit: int = 100) -> Receiver:
        """Exchange frames up to an open link on which the peer sends."""
        self.open()
        self.begin()
        link = self.attach_peer_sender()
        link.accept()
        link.grant(credit)
        self.heard()
        return link

    def with_sender(self, credit: int = 100, incoming_window: int = 5000, **opening: Any) -> Sender:
        """Exchange frames up to an open link on which we send, with credit."""
        self.open(**opening)
        self.begin(incoming_window=incoming_window)
        link = self.attach_peer_receiver()
        link.accept()
        self.credit(credit, incoming_window=incoming_window)
        self.heard()
        return link

    def credit(self, credit: int, **fields: Any) -> list[Event]:
        """The peer's flow for handle 0."""
        values: dict[str, Any] = {
            "next_incoming_id": 0,
            "incoming_window": 5000,
            "next_outgoing_id": 0,
            "outgoing_window": 5000,
            "handle": 0,
            "delivery_count": 0,
            "link_credit": credit,
        }
        return self.say(Flow(**(values | fields)))


class Joined:
    """A client and a server whose bytes are carried over by `run`; the server opens and accepts everything."""

    def __init__(
        self,
        *,
        login: Login | None = None,
        client_limits: Limits | None = None,
        server_limits: Limits | None = None,
        step: int | None = None,
    ) -> None:
        self.client = Connection(server=False, login=login, limits=client_limits)
        self.server = Connection(server=True, limits=server_limits)
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self._step = step

    def run(self) -> None:
        """Carry bytes until both are silent."""
        while True:
            to_server, to_client = self.client.data_to_send(), self.server.data_to_send()
            if not to_server and not to_client:
                return
            for chunk in self._chunks(to_server):
                for event in self.server.receive_data(chunk):
                    self.server_events.append(event)
                    self._serve(event)
            for chunk in self._chunks(to_client):
                self.client_events += self.client.receive_data(chunk)

    def _chunks(self, data: bytes) -> Iterator[bytes]:
        step = self._step or max(1, len(data))
        return (data[start : start + step] for start in range(0, len(data), step))

    def _serve(self, event: Event) -> None:
        if isinstance(event, Opened):
            self.server.open("server")
        elif isinstance(event, Attached) and event.link.awaits_answer:
            event.link.accept()

    def session(self) -> Session:
        """An open session of the client."""
        self.client.open("client")
        session = self.client.begin()
        self.run()
        return session

    def client_sends(self, credit: int = 1000) -> tuple[Sender, Receiver]:
        """A link from client to server, with credit."""
        sender = self.session().attach_sender("link", source=Source("a"), target=Target("b"))
        self.run()
        receiver = of_type(Attached, self.server_events)[-1].link
        assert isinstance(receiver, Receiver)
        receiver.grant(credit)
        self.run()
        return sender, receiver

    def server_sends(self, credit: int = 1000) -> tuple[Sender, Receiver]:
        """A link from server to client, with credit."""
        receiver = self.session().attach_receiver("link", source=Source("a"), target=Target("b"))
        self.run()
        sender = of_type(Attached, self.server_events)[-1].link
        assert isinstance(sender, Sender)
        receiver.grant(credit)
        self.run()
        return sender, receiver
