"""What the partition of a topic has to know of its subscriptions (D17).

Each subscription has a partition row of its own beside the topic's, in the same store, so that all copies of a message
are one commit. Who evaluates the rules is not known here.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from partibus.message import Message
from partibus.partition.protocol.options import PartitionOptions


class Unfiltered(NamedTuple):
    """A message that a subscription's filter or action failed on, and that it wants as a dead letter."""

    row: int
    message: Message
    reason: str
    description: str


class Plan(Struct):
    """Who gets what of some messages."""

    shares: dict[int, list[Message]]
    """Row of the subscription -> its messages in order. A message as it was published is the same object that went
    in; a copy that an action changed is another one."""
    unfiltered: list[Unfiltered] = field(default_factory=list)


class Planned(NamedTuple):
    """A plan and what it was made of."""

    indexes: Sequence[int]
    """Of the messages, in the command that brought them."""
    messages: Sequence[Message]
    plan: Plan


class FanOut(Protocol):
    """The subscriptions of one partition of a topic, as they are now."""

    @property
    def rows(self) -> Sequence[int]:
        """The partition rows of all subscriptions."""
        ...

    def options_of(self, row: int) -> PartitionOptions:
        """Of one of these rows; the same object until the subscription is updated."""
        ...

    def plan(self, messages: Sequence[Message], now_ms: int) -> Plan:
        """Who gets these messages. Never raises: what a filter fails on is its subscription's to know."""
        ...


class Subscribers(Protocol):
    """Finds the subscriptions of topics."""

    def fan_out(self, row: int) -> FanOut | None:
        """Of the partition of a topic; None when the topic is gone."""
        ...
