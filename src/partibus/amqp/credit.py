"""Link credit and drain [2.6.7], one small object for each side of a link.

The sender's `delivery_count` is authoritative. A receiver grants "up to my last known count plus this many". Both sides
only subtract how far the other is behind.
"""

from __future__ import annotations

from partibus.amqp import serial


class SenderCredit:
    """The credit that the peer has granted us."""

    __slots__ = ("available", "delivery_count", "drain")

    def __init__(self) -> None:
        self.delivery_count = 0
        self.available = 0
        self.drain = False

    def on_flow(self, delivery_count: int | None, link_credit: int, drain: bool) -> None:
        """Process the peer's flow. Null counts as our initial delivery-count, 0 [2.7.4].

        A peer whose count is ahead of ours has miscounted (one client counts frames). Its link-credit is then the
        number of deliveries that it wants.
        """
        behind = serial.distance(delivery_count or 0, self.delivery_count)
        self.available = max(0, link_credit - max(0, behind))
        self.drain = drain

    def consume(self, count: int) -> None:
        """Count `count` sent deliveries, at most `available`."""
        self.available -= count
        self.delivery_count = (self.delivery_count + count) & serial.MASK

    def drained(self) -> None:
        """Use up the credit, because no delivery is left to send."""
        self.consume(self.available)
        self.drain = False


class ReceiverCredit:
    """The credit that we have granted the peer.

    A peer that exceeds it gets no error, because one client always does.
    """

    __slots__ = ("available", "delivery_count", "drain")

    def __init__(self, delivery_count: int) -> None:
        self.delivery_count = delivery_count
        self.available = 0
        self.drain = False

    def on_delivery(self) -> None:
        """Count a delivery that has begun to arrive."""
        self.delivery_count = (self.delivery_count + 1) & serial.MASK
        if self.available:
            self.available -= 1

    def on_flow(self, delivery_count: int | None, link_credit: int | None) -> bool:
        """Process the peer's flow; return True if it ends our drain: no credit is left by its count.

        The peer's count matters only during a drain, because one client sends invented flows.
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
