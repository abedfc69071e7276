"""The sending half of a link: deliveries within the peer's credit, drain, and answers to dispositions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from partibus.amqp.codec.fast import TransferWriter
from partibus.amqp.codec.performatives import Attach
from partibus.amqp.codec.states import DeliveryState
from partibus.amqp.credit import SenderCredit
from partibus.amqp.endpoint import State
from partibus.amqp.link import Link, Role

if TYPE_CHECKING:
    from partibus.amqp.outbound import Item, Payload
    from partibus.amqp.session import Session


class Sender(Link):
    """A link on which we send."""

    __slots__ = ("flow", "settled_writers", "writers")
    role = Role.SENDER

    def __init__(self, session: Session, handle: int, attach: Attach, state: State) -> None:
        super().__init__(session, handle, attach, state)
        self.flow = SenderCredit()
        self.writers: dict[int, TransferWriter] = {}
        self.settled_writers: dict[int, TransferWriter] = {}

    @property
    def credit(self) -> int:
        """The number of deliveries that the peer accepts now."""
        return self.flow.available

    @property
    def drain_requested(self) -> bool:
        """Whether the peer asks for the available messages and then `drained`."""
        return self.flow.drain

    @property
    def delivery_count(self) -> int:
        """Our delivery-count."""
        return self.flow.delivery_count

    def send_many(self, items: Sequence[Item], *, settled: bool = False) -> int:
        """Send messages (format 0, no state); return how many leading ones were accepted.

        An item is `(tag, payload, context)`. Accepted means sent or waiting for the session window. Fewer are accepted
        when the credit ends or the session's queue is full (then `WindowOpened` comes later); none if the link is not
        open.
        """
        if self.state is not State.OPEN:
            return 0
        count = min(len(items), self.flow.available)
        if count <= 0:
            return 0
        taken = self.session.outbound.send_run(self, items, count, settled)
        self.flow.consume(taken)
        return taken

    def send(
        self,
        tag: bytes,
        payload: Payload,
        context: object = None,
        *,
        message_format: int = 0,
        settled: bool = False,
        state: DeliveryState | None = None,
    ) -> bool:
        """Send one message of any format or with a transactional state; return False if not accepted."""
        if self.state is not State.OPEN or not self.flow.available:
            return False
        taken = self.session.outbound.send_one(self, tag, payload, context, message_format, settled, state)
        if taken:
            self.flow.consume(1)
        return taken

    def drained(self) -> None:
        """Answer a drain by using up the credit, after any waiting deliveries."""
        if self.state is not State.OPEN or self.session.outbound.drained_after_waiting(self):
            return
        self.flow.drained()
        self.session.write_flow(self, drain=True)

    def settle_many(self, delivery_ids: Iterable[int], state: DeliveryState | None, *, retain: bool = False) -> int:
        """Answer `Disposed` events that were not settled; return how many deliveries that settles.

        With `retain` a later disposition of the peer for the same ids is reported again: for temporary failures, which
        one client repeats.
        """
        return self.session.outbound.settle(delivery_ids, state, retain)

    def unsettled_contexts(self) -> list[object]:
        """Return the contexts of deliveries accepted unsettled and not settled yet, sent or not."""
        return self.session.outbound.unsettled_of(self)

    def forget(self) -> None:
        """Drop the deliveries of the link."""
        self.flow.available = 0
        self.session.outbound.drop(self)
