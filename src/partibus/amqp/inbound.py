"""Deliveries that arrive on a session: receivers, the incoming window, reassembly, and settlement.

The window counts transfer frames. It reopens when half of it is used, unless the owner holds it or too many deliveries
are unsettled. A peer that exceeds it gets no error (one client counts deliveries instead of frames). Memory stays
bounded nevertheless: complete deliveries belong to the owner, which stops reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from partibus.amqp import serial
from partibus.amqp.codec.fast import DispositionWriter, accepted_writer, read_transfer
from partibus.amqp.codec.performatives import ACCEPTED, Attach, DeliveryState, Rejected
from partibus.amqp.credit import ReceiverCredit
from partibus.amqp.endpoint import ENDING, State
from partibus.amqp.errors import (
    ILLEGAL_STATE,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    AmqpError,
    PeerError,
    Scope,
)
from partibus.amqp.events import Deliveries, Delivery, Disposed, Event, add_delivery, add_disposed, add_used_credit
from partibus.amqp.link import Link, Role, SessionPort

_RECEIVER_ROLE: Final = True
_OPEN: Final = State.OPEN
"""An enum member takes ten times as long to look up as a global, and each transfer needs it."""


class Partial:
    """An incomplete delivery. For an oversize one only the size is kept, not the bytes."""

    __slots__ = ("chunks", "delivery_id", "message_format", "settled", "size", "state", "tag")

    def __init__(
        self, delivery_id: int, tag: bytes, message_format: int, settled: bool, state: DeliveryState | None
    ) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.state = state
        self.chunks: list[bytes | memoryview] = []
        self.size = 0


class Receiver(Link):
    """A link on which the peer sends."""

    __slots__ = ("flow", "inbound", "partial")
    role = Role.RECEIVER

    def __init__(self, inbound: Inbound, handle: int, attach: Attach, state: State) -> None:
        super().__init__(inbound.session, handle, attach, state)
        self.inbound = inbound
        self.flow = ReceiverCredit(attach.initial_delivery_count or 0)
        self.partial: Partial | None = None

    def on_attach(self, attach: Attach) -> None:
        """Process the peer's attach."""
        super().on_attach(attach)
        self.flow.delivery_count = attach.initial_delivery_count or 0

    @property
    def credit(self) -> int:
        """The number of deliveries that the peer may still send; one client sends some even at 0."""
        return self.flow.available

    @property
    def delivery_count(self) -> int:
        """The sender's delivery-count as far as known."""
        return self.flow.delivery_count

    def grant(self, credit: int) -> None:
        """Let the peer send `credit` deliveries from now on; this raises or lowers the current credit."""
        if self.state is not State.OPEN or (credit == self.flow.available and not self.flow.drain):
            return
        self.flow.available = credit
        self.flow.drain = False
        self.session.write_flow(self)

    def drain(self, credit: int | None = None) -> None:
        """Ask the peer to send its available messages and to return the rest of the credit (`Drained`)."""
        if self.state is not State.OPEN:
            return
        if credit is not None:
            self.flow.available = credit
        self.flow.drain = True
        self.session.write_flow(self, drain=True)

    def settle_many(
        self, deliveries: Iterable[Delivery], state: DeliveryState | None = ACCEPTED, *, settled: bool = True
    ) -> None:
        """Settle deliveries of this session, in as few frames as their ids allow.

        Deliveries that came settled, or were settled before, are skipped. With `settled` False (the receiver settles
        second) the peer's answer is reported as `Disposed`.
        """
        self.inbound.settle(deliveries, state, settled)

    def forget(self) -> None:
        """Drop the incomplete and unsettled deliveries of the link."""
        self.flow.available = 0
        self.inbound.drop(self)


class Inbound:
    """The receiving half of a session."""

    __slots__ = ("_accepted", "_low_water", "held", "links", "next_transfer_id", "session", "unsettled", "window")

    def __init__(self, session: SessionPort) -> None:
        limits = session.limits
        self.session = session
        self.window = limits.incoming_window
        self._low_water = limits.incoming_window // 2
        self.held = False
        self.next_transfer_id = 0
        """The id of the next transfer frame, counted from the peer's begin."""
        self.links: dict[int, Link] = {}
        """Links in both directions by the peer's handle, until its detach."""
        self.unsettled: dict[int, Delivery] = {}
        self._accepted = accepted_writer(session.local_channel, _RECEIVER_ROLE)

    def refill(self) -> int:
        """Return the window to state in a flow: a full one, unless the window is held."""
        limits = self.session.limits
        if not self.held and len(self.unsettled) < limits.max_unsettled:
            self.window = limits.incoming_window
        return max(0, self.window)

    def replenish(self) -> None:
        """Send the peer a full window, unless the window is held."""
        before = max(0, self.window)
        if self.refill() > before:
            self.session.write_flow()

    def on_transfer(self, buf: bytes, pos: int, end: int, events: list[Event]) -> None:
        """Process the transfer whose list starts at `pos`, payload included; hot path."""
        session = self.session
        fields = read_transfer(buf, pos, end, session.decoding)
        handle, delivery_id, tag, message_format, settled, more, state, aborted, start = fields
        self.next_transfer_id = (self.next_transfer_id + 1) & 0xFFFFFFFF
        self.window -= 1
        if self.window <= self._low_water:
            self.replenish()
        link = self.links.get(handle)
        if link is None or link.state is not _OPEN or type(link) is not Receiver:
            self._not_receiving(link, handle)
            return
        if more or aborted or link.partial is not None:
            # A view spares a copy. It keeps all bytes of one read, so it must be a good part of them.
            is_large = 4 * (end - start) >= len(buf)
            self._on_part(link, fields, memoryview(buf)[start:end] if is_large else buf[start:end], events)
            return
        if delivery_id is None or tag is None:
            raise _session_error(INVALID_FIELD, f"a transfer on link {link.name} has no delivery-id or no tag")
        link.flow.on_delivery()
        if end - start > link.taken_bytes_max:
            self._reject_oversize(link, delivery_id, settled, events)
            return
        delivery = Delivery(link, delivery_id, tag, message_format or 0, settled, state, buf[start:end])
        if not settled:
            self.unsettled[delivery_id] = delivery
        last = events[-1] if events else None
        if type(last) is Deliveries and last.link is link:  # as add_delivery does
            last.deliveries.append(delivery)
        else:
            events.append(Deliveries(link, [delivery]))

    def _not_receiving(self, link: Link | None, handle: int) -> None:
        """Drop a transfer on a link that we have detached; raise an error for any other one."""
        if link is None:
            raise _session_error(UNATTACHED_HANDLE, f"a transfer names handle {handle}, which is not attached")
        if link.state in ENDING:
            return
        if link.state is not State.OPEN:
            raise _session_error(ILLEGAL_STATE, f"a transfer came before attach of link {link.name} was answered")
        raise _session_error(NOT_ALLOWED, f"a transfer came on link {link.name}, where we are the sender")

    def _on_part(
        self,
        link: Receiver,
        fields: tuple[int, int | None, bytes | None, int | None, bool, bool, DeliveryState | None, bool, int],
        payload: bytes | memoryview,
        events: list[Event],
    ) -> None:
        """Process one frame of a delivery that has several [2.6.14].

        Later frames may repeat or omit the delivery's identity.
        """
        _handle, delivery_id, tag, message_format, settled, more, state, aborted, _start = fields
        partial = link.partial
        if partial is None:
            if delivery_id is None or tag is None:
                raise _session_error(INVALID_FIELD, f"a first transfer on link {link.name} has no delivery-id or tag")
            link.flow.on_delivery()
            partial = link.partial = Partial(delivery_id, tag, message_format or 0, settled, state)
        elif delivery_id is not None and delivery_id != partial.delivery_id:
            raise _session_error(
                INVALID_FIELD,
                f"delivery {delivery_id} began on link {link.name} before delivery {partial.delivery_id} was complete",
            )
        if aborted:
            self.forget_partial(link)
            add_used_credit(events, link)
            return
        partial.settled = partial.settled or settled
        partial.state = state or partial.state
        self._keep(link, partial, payload)
        if not more:
            self._complete(link, partial, events)

    def _keep(self, link: Receiver, partial: Partial, payload: bytes | memoryview) -> None:
        connection = self.session.connection
        partial.size += len(payload)
        if partial.size > link.taken_bytes_max:
            connection.partial_bytes -= sum(map(len, partial.chunks))
            partial.chunks.clear()
            return
        if not payload:  # an empty frame has no size, so it must use no memory
            return
        connection.partial_bytes += len(payload)
        partial.chunks.append(payload)
        if connection.partial_bytes > self.session.limits.partial_bytes_max:
            # One message of the maximum size beside another one is allowed.
            most = max(self.session.limits.partial_bytes_max, 2 * connection.message_bytes_max)
            if connection.partial_bytes > most:
                raise PeerError(
                    Scope.CONNECTION, RESOURCE_LIMIT_EXCEEDED, f"incomplete deliveries hold more than {most} bytes"
                )

    def forget_partial(self, link: Receiver) -> None:
        """Drop the frames of an incomplete delivery."""
        if link.partial is not None:
            self.session.connection.partial_bytes -= sum(map(len, link.partial.chunks))
            link.partial = None

    def _complete(self, link: Receiver, partial: Partial, events: list[Event]) -> None:
        payload = b"".join(partial.chunks)
        self.forget_partial(link)
        if partial.size > link.taken_bytes_max:
            self._reject_oversize(link, partial.delivery_id, partial.settled, events)
            return
        delivery = Delivery(
            link,
            partial.delivery_id,
            partial.tag,
            partial.message_format,
            partial.settled,
            partial.state,
            payload,
        )
        if not partial.settled:
            self.unsettled[partial.delivery_id] = delivery
        add_delivery(events, delivery)

    def _reject_oversize(self, link: Receiver, delivery_id: int, settled: bool, events: list[Event]) -> None:
        """Reject an oversize message; the link stays open."""
        add_used_credit(events, link)
        if settled:
            return
        error = AmqpError(
            MESSAGE_SIZE_EXCEEDED,
            f"the message is larger than the {link.max_message_size} bytes that link {link.name} takes",
        )
        writer = DispositionWriter(self.session.local_channel, _RECEIVER_ROLE, True, Rejected(error))
        self.session.output.write(writer.frame(delivery_id, delivery_id))

    def settle(self, deliveries: Iterable[Delivery], state: DeliveryState | None, settled: bool) -> None:
        """Send `state` to the peer, one disposition per run of ids; settled deliveries are skipped."""
        session = self.session
        if session.state in ENDING:
            return
        if state is ACCEPTED and settled:
            writer = self._accepted
        else:
            writer = DispositionWriter(session.local_channel, _RECEIVER_ROLE, settled, state)
        unsettled = self.unsettled
        first = last = -1
        for delivery in deliveries:
            delivery_id = delivery.delivery_id
            if delivery_id not in unsettled:
                continue
            if settled:
                del unsettled[delivery_id]
            if first >= 0:
                if delivery_id == (last + 1) & 0xFFFFFFFF:
                    last = delivery_id
                    continue
                session.output.write(writer.frame(first, last))
            first = last = delivery_id
        if first >= 0:
            session.output.write(writer.frame(first, last))
        if self.window <= self._low_water:
            self.replenish()

    def on_disposition(
        self, first: int, last: int, settled: bool, state: DeliveryState | None, events: list[Event]
    ) -> None:
        """Process the sending peer's disposition of our deliveries: it settles second, or withdraws."""
        if state is None and not settled:
            return
        if first != last:
            self.session.connection.ids_looked_at += len(self.unsettled)
        unsettled = self.unsettled
        run: Disposed | None = None
        for delivery_id in serial.ids_in_range(first, last, unsettled):
            delivery = unsettled.pop(delivery_id, None) if settled else unsettled.get(delivery_id)
            if delivery is None:
                continue
            if run is not None and run.link is delivery.link:
                run.contexts.append(delivery)
                run.delivery_ids.append(delivery_id)
                continue
            run = add_disposed(events, delivery.link, delivery, delivery_id, state, settled)

    def drop(self, link: Receiver) -> None:
        """Discard the state of a link that has ended."""
        if link.partial is not None:
            self.forget_partial(link)
        if not self.unsettled:
            return
        gone = [delivery_id for delivery_id, held in self.unsettled.items() if held.link is link]
        for delivery_id in gone:
            del self.unsettled[delivery_id]


def _session_error(condition: str, description: str) -> PeerError:
    return PeerError(Scope.SESSION, condition, description)
