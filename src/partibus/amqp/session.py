"""Sessions [2.5]: a pair of channels with windows, and the links on it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeVar, Unpack

from partibus.amqp.codec.fast import flow_frame, read_disposition
from partibus.amqp.codec.performatives import ACCEPTED, RELEASED, Attach, Begin, Detach, End, Flow
from partibus.amqp.endpoint import ENDING, Move, State, after
from partibus.amqp.errors import (
    HANDLE_IN_USE,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    AmqpError,
    PeerError,
    Scope,
)
from partibus.amqp.events import Attached, CreditChanged, Detached, Drained, Event
from partibus.amqp.frames import frame
from partibus.amqp.inbound import Inbound, Receiver
from partibus.amqp.link import ConnectionPort, Link, LinkTerms, Role
from partibus.amqp.outbound import Outbound, Sender
from partibus.amqp.pool import NumberPool

ODD_STATE_IDS: Final = 40
"""The deliveries whose look-up costs as much as a disposition of another state than accepted or released. It becomes an
event and an answer of its own, 250 microseconds with the settlement, where equal neighbours are settled as one.
"""


L = TypeVar("L", bound=Link)


class Session:
    """One session. `user` belongs to the owner."""

    __slots__ = (
        "_handles",
        "_links_out",
        "_requested",
        "connection",
        "decoding",
        "failure",
        "inbound",
        "limits",
        "local_channel",
        "outbound",
        "output",
        "remote_channel",
        "state",
        "user",
    )

    def __init__(self, connection: ConnectionPort, local_channel: int) -> None:
        self.connection = connection
        self.limits = connection.limits
        self.output = connection.output
        self.decoding = connection.decoding
        self.local_channel = local_channel
        self.remote_channel: int | None = None
        self.state = State.IDLE
        self._handles = NumberPool()
        self._links_out: dict[int, Link] = {}
        """Links by our handle, until both detaches are exchanged."""
        self._requested: dict[tuple[str, Role], Link] = {}
        """Links that we attached and the peer has not answered."""
        self.inbound = Inbound(self)
        self.outbound = Outbound(self)
        self.failure: AmqpError | None = None
        """The error with which we ended the session after a violation by the peer."""
        self.user: object = None

    @property
    def links(self) -> list[Link]:
        """Every link that has not ended."""
        return list(self._links_out.values())

    def write(self, performative: object) -> None:
        """Send a performative on this session's channel."""
        self.output.write(frame(self.local_channel, performative))

    # -- life ------------------------------------------------------------------------------------------

    def write_begin(self) -> None:
        """Send our begin."""
        self.state = after(self.state, Move.SEND_OPEN, f"session {self.local_channel}")
        self.output.write(
            _begin_frame(
                self.local_channel,
                self.remote_channel,
                self.outbound.next_transfer_id,
                self.inbound.window,
                self.limits.outgoing_window,
                self.limits.handle_max,
            )
        )

    def on_begin(self, channel: int, begin: Begin) -> None:
        """Process the peer's begin."""
        self.state = after(self.state, Move.RECEIVE_OPEN, f"session {self.local_channel}")
        self.remote_channel = channel
        self.inbound.next_transfer_id = begin.next_outgoing_id
        self.outbound.window = begin.incoming_window

    def end(self, error: AmqpError | None = None) -> None:
        """End the session with all its links. Does nothing if it has ended."""
        if self.state in ENDING:
            return
        self.state = after(self.state, Move.SEND_CLOSE, f"session {self.local_channel}")
        self.forget()
        self.write(End(error))

    def fail(self, error: AmqpError) -> None:
        """End the session after a protocol violation by the peer."""
        self.failure = error
        self.end(error)

    def on_end(self) -> bool:
        """Process the peer's end; return whether the peer initiated it. In that case it is answered."""
        self.state = after(self.state, Move.RECEIVE_CLOSE, f"session {self.local_channel}")
        self.forget()
        if self.state is State.CLOSED:
            return False
        self.state = after(self.state, Move.SEND_CLOSE, f"session {self.local_channel}")
        self.write(End())
        return True

    def forget(self) -> None:
        """Discard all links of the ended session."""
        self.inbound.unsettled.clear()
        if self.outbound.unsettled or self.outbound.stated or self.outbound.bytes_waiting:
            self.outbound.forget()
        for link in self._links_out.values():
            link.forget()
            link.state = State.CLOSED
        self.connection.link_count -= len(self._links_out)
        self._links_out.clear()
        self.inbound.links.clear()
        self._requested.clear()

    # -- links -----------------------------------------------------------------------------------------

    def attach_sender(self, name: str, **terms: Unpack[LinkTerms]) -> Sender:
        """Ask the peer for a link on which we send; `Attached` or `Detached` with an error follows."""
        attach = Attach(name=name, handle=self._handles.take(), role=Role.SENDER.value, **terms)
        return self._request(Sender(self.outbound, attach.handle, attach, State.IDLE))

    def attach_receiver(self, name: str, **terms: Unpack[LinkTerms]) -> Receiver:
        """Ask the peer for a link on which it sends; `Attached` or `Detached` with an error follows."""
        attach = Attach(name=name, handle=self._handles.take(), role=Role.RECEIVER.value, **terms)
        return self._request(Receiver(self.inbound, attach.handle, attach, State.IDLE))

    def _request(self, link: L) -> L:
        self._links_out[link.handle] = link
        self.connection.link_count += 1
        self._requested[link.name, link.role] = link
        link.write_attach(link.source, link.target, link.properties)
        return link

    def on_attach(self, attach: Attach, events: list[Event]) -> None:
        """Process the peer's attach: a request, or the answer to ours."""
        if attach.handle in self.inbound.links:
            raise _session_error(HANDLE_IN_USE, f"handle {attach.handle} is attached already")
        our_role = Role.SENDER if attach.role else Role.RECEIVER
        link = self._requested.pop((attach.name, our_role), None)
        if link is not None:
            self._on_answer(link, attach, events)
            return
        handle = self._handles.take()
        if our_role is Role.SENDER:
            link = Sender(self.outbound, handle, attach, State.OPEN_RECEIVED)
        else:
            link = Receiver(self.inbound, handle, attach, State.OPEN_RECEIVED)
        self._links_out[link.handle] = self.inbound.links[attach.handle] = link
        self.connection.link_count += 1
        links_max = self.limits.links_max
        if self.connection.link_count > 2 * links_max:  # the peer attaches more without detaching refused links
            raise PeerError(Scope.CONNECTION, RESOURCE_LIMIT_EXCEEDED, f"{2 * links_max} links are attached or refused")
        if self.connection.link_count > links_max:
            link.refuse(
                AmqpError(
                    RESOURCE_LIMIT_EXCEEDED,
                    f"the connection has {links_max} links, its most: detach one first",
                )
            )
        else:
            events.append(Attached(link))

    def _on_answer(self, link: Link, attach: Attach, events: list[Event]) -> None:
        """Process the peer's answer to our attach.

        The peer's own end is null when it refuses; its detach with the error follows [2.6.3].
        """
        self.inbound.links[attach.handle] = link
        link.on_attach(attach)
        theirs = link.target if link.role is Role.SENDER else link.source
        link.refused = theirs is None
        if link.is_open:
            events.append(Attached(link))

    def on_detach(self, detach: Detach, events: list[Event]) -> None:
        """Process the peer's detach; one for a free handle is ignored, because the link has ended anyway."""
        link = self.inbound.links.pop(detach.handle, None)
        if link is None:
            return
        by_peer = link.on_detach(detach)
        del self._links_out[link.handle]
        self.connection.link_count -= 1
        self._handles.give_back(link.handle)
        events.append(Detached(link, detach.error, detach.closed, by_peer))

    # -- flow ------------------------------------------------------------------------------------------

    def hold_window(self) -> None:
        """Keep the incoming window closed until `release_window`: back-pressure on all links."""
        self.inbound.held = True

    def release_window(self) -> None:
        """Reopen the incoming window."""
        self.inbound.held = False
        self.inbound.replenish()

    def write_flow(self, link: Link | None = None, *, drain: bool = False) -> None:
        """Send the state of the session, and of `link` if given. It includes next-incoming-id once it is known."""
        window = self.inbound.refill()
        known = None if self.state is State.OPEN_SENT else self.inbound.next_transfer_id
        next_id, outgoing_window = self.outbound.next_transfer_id, self.limits.outgoing_window
        if isinstance(link, (Sender, Receiver)) and known is not None:
            of_link = link.handle, link.flow.delivery_count, link.flow.available
            self.output.write(
                flow_frame(self.local_channel, (known, window, next_id, outgoing_window, *of_link), drain)
            )
            return
        flow = Flow(
            next_incoming_id=known,
            incoming_window=window,
            next_outgoing_id=next_id,
            outgoing_window=outgoing_window,
            drain=drain,
        )
        if isinstance(link, (Sender, Receiver)):
            flow.handle = link.handle
            flow.delivery_count = link.flow.delivery_count
            flow.link_credit = link.flow.available
        self.write(flow)

    def on_flow(self, flow: Flow, events: list[Event]) -> None:
        """Process the peer's flow."""
        self.outbound.on_flow(flow.next_incoming_id, flow.incoming_window, events)
        link: Link | None = None
        if flow.handle is not None:
            link = self.inbound.links.get(flow.handle)
            if link is None:
                raise _session_error(UNATTACHED_HANDLE, f"a flow names handle {flow.handle}, which is not attached")
            self._on_link_flow(link, flow, events)
        if flow.echo and (link is None or link.is_open):
            self.write_flow(link)

    def _on_link_flow(self, link: Link, flow: Flow, events: list[Event]) -> None:
        """Apply credit, even before the attach is answered: clients send it right after theirs."""
        if not link.is_open and not link.awaits_answer:
            return
        if isinstance(link, Sender):
            if flow.link_credit is not None:
                link.flow.on_flow(flow.delivery_count, flow.link_credit, flow.drain)
                events.append(CreditChanged(link))
        elif isinstance(link, Receiver) and link.flow.on_flow(flow.delivery_count, flow.link_credit):
            events.append(Drained(link))

    # -- frames ----------------------------------------------------------------------------------------

    def on_disposition(self, buf: bytes, pos: int, end: int, events: list[Event]) -> None:
        """Process the disposition whose list starts at `pos`; hot path."""
        role, first, last, settled, state = read_disposition(buf, pos, end, self.decoding)
        if state is not ACCEPTED and state is not RELEASED and state is not None:
            self.connection.ids_looked_at += ODD_STATE_IDS
        half = self.outbound if role else self.inbound
        half.on_disposition(first, last, settled, state, events)

    def on_performative(self, performative: Any, events: list[Event]) -> None:
        """Process any performative that is neither per message nor about the session itself."""
        if isinstance(performative, Flow):
            self.on_flow(performative, events)
        elif isinstance(performative, Attach):
            self.on_attach(performative, events)
        elif isinstance(performative, Detach):
            self.on_detach(performative, events)


@lru_cache(256)
def _begin_frame(
    channel: int,
    remote_channel: int | None,
    next_outgoing_id: int,
    incoming_window: int,
    outgoing_window: int,
    handle_max: int,
) -> bytes:
    """Encode a begin: that of the first session is the same on nearly every connection."""
    return frame(
        channel,
        Begin(
            remote_channel=remote_channel,
            next_outgoing_id=next_outgoing_id,
            incoming_window=incoming_window,
            outgoing_window=outgoing_window,
            handle_max=handle_max,
        ),
    )


def _session_error(condition: str, description: str) -> PeerError:
    return PeerError(Scope.SESSION, condition, description)
