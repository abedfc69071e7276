"""Link credit and drain [2.6.7], one small object for each side of a link.

The count that rules is the sender's `delivery_count`. A receiver says "up to my last known count plus so
much"; both sides only ever subtract how far the other is behind.
"""

from __future__ import annotations

from partibus.amqp import serial


class SenderCredit:
    """What the peer still allows us to send."""

    __slots__ = ("available", "delivery_count", "drain")

    def __init__(self) -> None:
        self.delivery_count = 0
        self.available = 0
        self.drain = False

    def on_flow(self, delivery_count: int | None, link_credit: int, drain: bool) -> None:
        """The peer's flow. Null counts as our initial delivery-count, 0 [2.7.4].

        A peer whose count is ahead of ours has miscounted (one client counts frames): it is taken at its
        word about how many deliveries it wants.
        """
        behind = serial.distance(delivery_count or 0, self.delivery_count)
        self.available = max(0, link_credit - max(0, behind))
        self.drain = drain

    def consume(self, count: int) -> None:
        """`count` deliveries were sent; never more than `available`."""
        self.available -= count
        self.delivery_count = serial.add(self.delivery_count, count)

    def drained(self) -> None:
        """Nothing is left to send: use the credit up."""
        self.consume(self.available)
        self.drain = False


class ReceiverCredit:
    """What we still allow the peer to send. A peer that sends more is not punished: one client always does."""

    __slots__ = ("available", "delivery_count", "drain")

    def __init__(self, delivery_count: int) -> None:
        self.delivery_count = delivery_count
        self.available = 0
        self.drain = False

    def on_delivery(self) -> None:
        """A delivery has begun to arrive."""
        self.delivery_count = (self.delivery_count + 1) & serial.MASK
        if self.available:
            self.available -= 1

    def on_flow(self, delivery_count: int | None, link_credit: int | None) -> bool:
        """The peer's flow; True if it ends the drain that we asked for: no credit is left by its count.

        The peer's count is only believed while we drain, because one client sends made-up flows.
        """
        if not self.drain or delivery_count is None:
            return False
        used = serial.distance(self.delivery_count, delivery_count)
        if used < self.available and link_credit != 0:
            return False
        self.delivery_count = delivery_count
        self.available = 0
        self.drain = False
        return True
