"""A small server for recorded conversations: it answers as the one did that they were recorded with.

Each line of a recording is what arrived in one read. Recordings are client bytes only.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from partibus.amqp import (
    AmqpError,
    Attached,
    Closed,
    Connection,
    CreditChanged,
    Deliveries,
    Delivery,
    Detached,
    Disposed,
    Event,
    Limits,
    Link,
    Opened,
    PlainLogin,
    Receiver,
    Sender,
)
from partibus.amqp.frames import AMQP_HEADER

RECORDINGS = Path(__file__).with_name("recordings")


def read_recording(name: str) -> list[bytes]:
    lines = (RECORDINGS / f"{name}.hex").read_text(encoding="ascii").split()
    return [bytes.fromhex(line) for line in lines]


def address_of(link: Link) -> str:
    """The address of the node on our side, without scheme and host; "" where the client gave none."""
    terminus = link.source if isinstance(link, Sender) else link.target
    return str(getattr(terminus, "address", None) or "").rpartition("/")[2]


class Replay:
    """Return the events of a server with `messages` waiting messages while it listens to a recording."""

    def __init__(self, messages: int) -> None:
        self.connection = Connection(server=True, limits=Limits(max_frame_size=4096))
        self.left = messages
        self.logins: list[PlainLogin] = []
        self.attached: list[str] = []
        self.detached: list[str] = []
        self.deliveries: list[Delivery] = []
        self.outcomes: Counter[str] = Counter()
        self.closed: Closed | None = None

    def listen(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._handle(self.connection.receive_data(piece))
            self.connection.data_to_send()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Opened):
                self.connection.open("server")
            elif isinstance(event, PlainLogin):
                self.logins.append(event)
                self._handle(self.connection.answer_login(True))
            elif isinstance(event, Attached):
                self._on_attached(event.link)
            elif isinstance(event, Deliveries):
                self._on_deliveries(event)
            elif isinstance(event, CreditChanged) and isinstance(event.link, Sender):
                self._send(event.link)
            elif isinstance(event, Disposed):
                self.outcomes.update({type(event.state).__name__: len(event.contexts)})
                if not event.settled and isinstance(event.link, Sender):
                    event.link.settle_many(event.delivery_ids, event.state)
            elif isinstance(event, Detached):
                self.detached.append(address_of(event.link))
            elif isinstance(event, Closed):
                self.closed = event

    def _on_attached(self, link: Link) -> None:
        self.attached.append(f"{link.role.name.lower()} {address_of(link)}")
        if address_of(link) == "missing":
            link.refuse(AmqpError("amqp:not-found", "The messaging entity 'missing' could not be found."))
            return
        link.accept()
        if isinstance(link, Receiver):
            link.grant(1000)

    def _on_deliveries(self, event: Deliveries) -> None:
        assert isinstance(event.link, Receiver)
        event.link.settle_many(event.deliveries)
        self.deliveries += event.deliveries
        if address_of(event.link) == "$cbs":
            replies = [link for session in self.connection.sessions for link in session.links]
            for link in replies:
                if isinstance(link, Sender) and address_of(link) == "$cbs":
                    link.send(b"\0\0\0\1", b"reply", settled=True)

    def _send(self, link: Sender) -> None:
        if address_of(link) == "$cbs":
            return
        count = min(self.left, link.credit)
        self.left -= link.send_many([(n.to_bytes(16), b"message", n) for n in range(count)])
        if link.drain_requested:
            link.drained()


def begins_with_sasl(pieces: list[bytes]) -> bool:
    return not b"".join(pieces).startswith(AMQP_HEADER)
