"""The receiving half of a link: credit, drain and settlement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from partibus.amqp.codec.performatives import Attach
from partibus.amqp.codec.states import ACCEPTED, DeliveryState
from partibus.amqp.credit import ReceiverCredit
from partibus.amqp.endpoint import State
from partibus.amqp.link import Link, Role

if TYPE_CHECKING:
    from partibus.amqp.events import Delivery
    from partibus.amqp.inbound import Partial
    from partibus.amqp.session import Session


class Receiver(Link):
    """A link on which the peer sends."""

    __slots__ = ("flow", "partial")
    role = Role.RECEIVER

    def __init__(self, session: Session, handle: int, attach: Attach, state: State) -> None:
        super().__init__(session, handle, attach, state)
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
        self.session.inbound.settle(deliveries, state, settled)

    def forget(self) -> None:
        """Drop the incomplete and unsettled deliveries of the link."""
        self.flow.available = 0
        self.session.inbound.drop(self)
