"""What `Connection.receive_data` reports. Events come in the order in which the peer made them happen.

Runs of transfers, and runs of dispositions with the same outcome, are one event each: the lists grow while
one call of `receive_data` is at work, and are the caller's afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from partibus.amqp.codec.states import DeliveryState
from partibus.amqp.errors import AmqpError

if TYPE_CHECKING:
    from partibus.amqp.connection import Connection
    from partibus.amqp.link import Link
    from partibus.amqp.receiver import Receiver
    from partibus.amqp.sender import Sender
    from partibus.amqp.session import Session


class Delivery:
    """One message as it arrived. `payload` is the encoded message, `state` the transactional state if any."""

    __slots__ = ("delivery_id", "link", "message_format", "payload", "settled", "state", "tag")

    def __init__(
        self,
        link: Receiver,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        state: DeliveryState | None,
        payload: bytes,
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.state = state
        self.payload = payload

    def __repr__(self) -> str:
        return f"Delivery({self.link.name!r}, {self.delivery_id}, {self.tag!r}, {len(self.payload)} bytes)"


@dataclass(slots=True)
class PlainLogin:
    """The client logs in by SASL PLAIN; `Connection.answer_login` says yes or no."""

    username: str
    password: str = field(repr=False)
    hostname: str | None = None
    """What the client calls the server."""


class Opened(Struct):
    """The peer's open is here, in `connection.peer`. A server answers with `Connection.open`."""

    connection: Connection


class Closed(Struct):
    """The connection is over: send what `data_to_send` still gives, then close the transport.

    `error` is the peer's if `by_peer`, else the one that we closed with because the peer broke the rules.
    """

    error: AmqpError | None
    by_peer: bool


class SessionOpened(Struct):
    """A session is usable: the peer began it (already answered), or answered ours."""

    session: Session


class SessionClosed(Struct):
    """A session ended with all its links; no `Detached` comes for them."""

    session: Session
    error: AmqpError | None
    by_peer: bool


class Attached(Struct):
    """The peer attached a link (`link.awaits_answer`: accept or refuse it), or answered ours."""

    link: Link


class Detached(Struct):
    """A link is over; the answer to the peer's detach is already written.

    `closed` false means that the peer asked to detach without closing. Our own `refuse` and `detach` are
    confirmed by this event, too.
    """

    link: Link
    error: AmqpError | None
    closed: bool
    by_peer: bool


class Deliveries(Struct):
    """Complete deliveries, in order of arrival."""

    link: Receiver
    deliveries: list[Delivery]


class Disposed(Struct):
    """The peer told the state of deliveries: of those we sent (`contexts` are what was handed to the send
    verb) or of those we received (`contexts` are the `Delivery` objects).

    `delivery_ids` runs parallel to `contexts`. Where `settled` is false the peer waits for
    `Sender.settle_many`.
    """

    link: Link
    contexts: list[object]
    delivery_ids: list[int]
    state: DeliveryState | None
    settled: bool


class CreditChanged(Struct):
    """A flow for our sender: look at `link.credit` and `link.drain_requested`.

    It may come before the attach is answered; the credit holds from `accept` on.
    """

    link: Sender


class Drained(Struct):
    """The peer has used up or given back the credit that we asked it to drain."""

    link: Receiver


class WindowOpened(Struct):
    """Deliveries that waited in the session have left, after a send verb took fewer than it was offered."""

    session: Session


Event = (
    PlainLogin
    | Opened
    | Closed
    | SessionOpened
    | SessionClosed
    | Attached
    | Detached
    | Deliveries
    | Disposed
    | CreditChanged
    | Drained
    | WindowOpened
)
