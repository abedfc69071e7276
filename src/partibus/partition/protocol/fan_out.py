"""The interface through which the partition of a topic knows its subscriptions (D17).

Each subscription has a partition row of its own beside the topic's, in the same store, so that all copies of a message
are one commit. The evaluation of rules is elsewhere.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import Struct, field

from partibus.message import Message
from partibus.partition.protocol.options import PartitionOptions

COPIES_MAX: Final = 50_000
"""The most copies that one send to a topic may make. They are one commit, which takes 14 us a copy, and other entities
of the store wait for it: 0.7 s.
"""


class Unfiltered(NamedTuple):
    """A message on which a subscription's filter or action failed, and which the subscription dead-letters."""

    row: int
    message: Message
    reason: str
    description: str


class Plan(Struct):
    """The fan-out of some messages."""

    shares: dict[int, list[Message]]
    """The messages of each subscription in order, by its row.

    An unchanged message is the same object that was published; a copy that an action changed is another one.
    """
    unfiltered: list[Unfiltered] = field(default_factory=list)
    count: int = 0
    """The number of planned messages, from the first on."""
    work: int = 0
    """The work of planning and of storing the copies, in units of a tenth of a microsecond."""


class Planned(NamedTuple):
    """A plan and its input."""

    indexes: Sequence[int]
    """The messages' indexes in the command that brought them."""
    messages: Sequence[Message]
    plan: Plan


class FanOut(Protocol):
    """The current subscriptions of one partition of a topic."""

    @property
    def rows(self) -> Sequence[int]:
        """The partition rows of all subscriptions."""
        ...

    def options_of(self, row: int) -> PartitionOptions:
        """Return the options of a subscription's row: the same object until the subscription is updated."""
        ...

    def plan(self, messages: Sequence[Message], now_ms: int, work_max: int) -> Plan:
        """Plan the fan-out of the first messages: at least one, and no further one after ``work_max`` units of work.

        Never raises: a filter that fails concerns its subscription alone.
        """
        ...


class Subscribers(Protocol):
    """Finds the subscriptions of topics."""

    def fan_out(self, row: int) -> FanOut | None:
        """Return the fan-out of a topic's partition; None when the topic was deleted."""
        ...
