"""Subscriptions of a topic whose rules are functions: a `partition.protocol.fan_out.Subscribers` for tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from partibus.message import Message
from partibus.partition.protocol.fan_out import Plan, Unfiltered
from partibus.partition.protocol.options import PartitionOptions

Rule = Callable[[Message], list[Message] | str]
"""The copies that a subscription gets: none, the message itself, or others; or why the filter failed."""


def everything(message: Message) -> list[Message]:
    """A rule that is true."""
    return [message]


def nothing(_: Message) -> list[Message]:
    """A rule that is false."""
    return []


@dataclass(slots=True)
class SimulatedFanOut:
    """A `partition.protocol.fan_out.FanOut`: rules and options by the row of the subscription."""

    rules: dict[int, Rule]
    options: dict[int, PartitionOptions] = field(default_factory=dict)
    plans: int = 0
    message_work: int = 0
    """The units of work of one message."""

    @property
    def rows(self) -> Sequence[int]:
        """All of them."""
        return list(self.rules)

    def options_of(self, row: int) -> PartitionOptions:
        """Return the options as given, or as any subscription has them."""
        return self.options.setdefault(row, PartitionOptions())

    def plan(self, messages: Sequence[Message], now_ms: int, work_max: int) -> Plan:
        """Plan by the rules as they are now; each message takes ``message_work``."""
        self.plans += 1
        count = len(messages) if not self.message_work else max(1, min(len(messages), work_max // self.message_work))
        messages = messages[:count]
        plan = Plan({}, count=count, work=self.message_work * count)
        for row, rule in self.rules.items():
            for message in messages:
                found = rule(message)
                if isinstance(found, str):
                    plan.unfiltered.append(Unfiltered(row, message, "FilterException", found))
                elif found:
                    plan.shares.setdefault(row, []).extend(found)
        return plan


@dataclass(slots=True)
class SimulatedSubscribers:
    """Fan-outs by the row of the topic's partition."""

    topics: dict[int, SimulatedFanOut]

    def fan_out(self, row: int) -> SimulatedFanOut | None:
        """Return the fan-out as given."""
        return self.topics.get(row)
