"""Events that `Connection.receive_data` reports, in the order in which the peer caused them.

A run of transfers, or of dispositions with the same outcome, is one event. Its lists grow during one call of
`receive_data`, and belong to the caller afterwards.
"""

from __future__ import annotations

from msgspec import Struct

from partibus.amqp.codec.performatives import DeliveryState
from partibus.amqp.errors import AmqpError
from partibus.amqp.link import ConnectionPort, Link, SessionPort


class Delivery(Struct, eq=False):
    """One received message. `payload` is the encoded message, `state` the transactional state if any."""

    link: Link
    delivery_id: int
    tag: bytes
    message_format: int
    settled: bool
    state: DeliveryState | None
    payload: bytes

    def __repr__(self) -> str:
        return f"Delivery({self.link.name!r}, {self.delivery_id}, {self.tag!r}, {len(self.payload)} bytes)"


class PlainLogin(Struct):
    """A client's login by SASL PLAIN; `Connection.answer_login` accepts or refuses it."""

    username: str
    password: str
    hostname: str | None = None
    """The client's name for the server."""

    def __repr__(self) -> str:
        return f"PlainLogin(username={self.username!r}, hostname={self.hostname!r})"


class Opened(Struct):
    """The arrival of the peer's open, now in `connection.peer`. A server answers with `Connection.open`."""

    connection: ConnectionPort


class Closed(Struct):
    """The end of the connection: send the rest of `data_to_send`, then close the transport.

    `error` is the peer's if `by_peer`, else the one with which we closed after a violation by the peer.
    """

    error: AmqpError | None
    by_peer: bool


class SessionOpened(Struct):
    """A usable session: the peer began it and we have answered, or the peer answered ours."""

    session: SessionPort


class SessionClosed(Struct):
    """The end of a session with all its links; no `Detached` follows for them."""

    session: SessionPort
    error: AmqpError | None
    by_peer: bool


class Attached(Struct):
    """The peer's attach: a request (`link.awaits_answer`: accept or refuse it), or an answer to ours."""

    link: Link


class Detached(Struct):
    """The end of a link; the answer to the peer's detach is already written.

    `closed` is False if the peer asked to detach without closing. This event also confirms our own `refuse` and
    `detach`.
    """

    link: Link
    error: AmqpError | None
    closed: bool
    by_peer: bool


class Deliveries(Struct):
    """Complete deliveries, in order of arrival.

    There may be none: aborted and oversize deliveries are not reported, but they have used credit of the link.
    """

    link: Link
    deliveries: list[Delivery]


class Disposed(Struct):
    """The peer's disposition of deliveries that we sent or received.

    For sent deliveries `contexts` are the values passed to the send call; for received ones they are the `Delivery`
    objects. `delivery_ids` runs parallel to `contexts`. Where `settled` is False the peer waits for
    `Sender.settle_many`.
    """

    link: Link
    contexts: list[object]
    delivery_ids: list[int]
    state: DeliveryState | None
    settled: bool


class CreditChanged(Struct):
    """A flow for our sender: see `link.credit` and `link.drain_requested`.

    It may come before the attach is answered; the credit holds from `accept` on.
    """

    link: Link


class Drained(Struct):
    """The end of a drain: the peer has used up or returned the credit."""

    link: Link


class WindowOpened(Struct):
    """The departure of deliveries that waited in the session, after a send call accepted only a part."""

    session: SessionPort


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


def add_delivery(events: list[Event], delivery: Delivery) -> None:
    """Extend the last event if it is a run on the same link; else begin a new one."""
    event = events[-1] if events else None
    if type(event) is Deliveries and event.link is delivery.link:
        event.deliveries.append(delivery)
    else:
        events.append(Deliveries(delivery.link, [delivery]))


def add_used_credit(events: list[Event], link: Link) -> None:
    """Let the owner of a link look at its credit: a delivery has used some and is not reported."""
    event = events[-1] if events else None
    if type(event) is not Deliveries or event.link is not link:
        events.append(Deliveries(link, []))


def add_disposed(
    events: list[Event],
    link: Link,
    context: object,
    delivery_id: int,
    state: DeliveryState | None,
    settled: bool,
) -> Disposed:
    """Extend the last event if link, state and settlement are the same; else begin a new one. Return that event."""
    event = events[-1] if events else None
    if (
        type(event) is Disposed
        and event.link is link
        and event.settled is settled
        and (event.state is state or event.state == state)
    ):
        event.contexts.append(context)
        event.delivery_ids.append(delivery_id)
        return event
    event = Disposed(link, [context], [delivery_id], state, settled)
    events.append(event)
    return event
