"""The subscriptions of topics as the namespace knows them, for the partitions that this broker owns (D17, row C38).

Rules are compiled once per topic and version of it, on the first message that needs them; its partitions share the
result. A change of rules applies to every message that is planned after memory has followed it, which is before the
reply to the change.
"""

from collections.abc import Callable, Sequence

from partibus.filters.matcher import Matcher
from partibus.filters.matcher import Subscription as Matched
from partibus.message import Message
from partibus.namespace.entities import EntityDescription
from partibus.namespace.namespace import Queue, Subscription, Topic, TopicsByRow
from partibus.partition.protocol.fan_out import Plan, Unfiltered
from partibus.partition.protocol.options import PartitionOptions

MakeOptions = Callable[[Queue], PartitionOptions]


class TopicSubscribers:
    """The `partition.protocol.fan_out.Subscribers` of a broker."""

    def __init__(self, topics_by_row: TopicsByRow, make_options: MakeOptions) -> None:
        self._topics_by_row = topics_by_row
        self._options = _Options(make_options)

    def fan_out(self, row: int) -> "TopicFanOut | None":
        """Return the fan-out of a topic's partition; the same object until the topic's subscriptions change."""
        found = self._topics_by_row.get(row)
        if found is None:
            return None
        topic, index = found
        rules = topic.compiled
        if not isinstance(rules, _Rules) or rules.version != topic.version:
            rules = topic.compiled = _Rules(topic)
            self._options.keep(rules.subscriptions)
        fan_out = rules.fan_outs.get(index)
        if fan_out is None:
            fan_out = rules.fan_outs[index] = TopicFanOut(rules, index, self._options)
        return fan_out


class _Rules:
    """The subscriptions of a topic in one version of it."""

    __slots__ = ("_matcher", "fan_outs", "subscriptions", "version")

    def __init__(self, topic: Topic) -> None:
        self.version = topic.version
        self.subscriptions = tuple(topic.subscriptions)
        self.fan_outs: dict[int, TopicFanOut] = {}
        """The fan-outs by index of the topic's partition."""
        self._matcher: Matcher | None = None

    @property
    def matcher(self) -> Matcher:
        """Its keys are places among ``subscriptions``."""
        if self._matcher is None:
            self._matcher = Matcher(
                Matched(place, subscription.rules, subscription.dead_lettering_on_filter_exceptions)
                for place, subscription in enumerate(self.subscriptions)
            )
        return self._matcher


class _Options:
    """The options of subscriptions' partitions: the same object until an update changes them."""

    def __init__(self, make: MakeOptions) -> None:
        self._make = make
        self._made: dict[int, tuple[EntityDescription, int | None, PartitionOptions]] = {}
        """The description, the default time to live, and the options made of them, by entity id."""

    def of(self, subscription: Subscription) -> PartitionOptions:
        made = self._made.get(subscription.entity_id)
        if made is None or made[0] != subscription.description or made[1] != subscription.default_ttl_ms:
            made = subscription.description, subscription.default_ttl_ms, self._make(subscription)
            self._made[subscription.entity_id] = made
        return made[2]

    def keep(self, subscriptions: Sequence[Subscription]) -> None:
        """Drop the options of deleted subscriptions, once they are many."""
        if len(self._made) > 2 * len(subscriptions) + _MADE_MAX:
            self._made.clear()


_MADE_MAX = 20_000
"""The most kept options of deleted subscriptions: some MB."""


class TopicFanOut:
    """The `partition.protocol.fan_out.FanOut` of one partition of a topic, in one version of the topic."""

    __slots__ = ("_options", "_places", "_rules", "rows")

    def __init__(self, rules: _Rules, index: int, options: _Options) -> None:
        self.rows: Sequence[int] = [
            subscription.partitions[index].partition_row for subscription in rules.subscriptions
        ]
        self._rules = rules
        self._options = options
        self._places: dict[int, int] | None = None

    def options_of(self, row: int) -> PartitionOptions:
        """Return the options of a subscription's partition."""
        if self._places is None:
            self._places = {row: place for place, row in enumerate(self.rows)}
        return self._options.of(self._rules.subscriptions[self._places[row]])

    def plan(self, messages: Sequence[Message], now_ms: int, work_max: int) -> Plan:
        """Return the plan of copies for messages."""
        matched = self._rules.matcher.match(messages, now_ms, work_max)
        rows = self.rows
        return Plan(
            {rows[place]: share for place, share in matched.shares.items()},
            [Unfiltered(rows[failure.key], *failure[1:]) for failure in matched.failures],
            matched.count,
            matched.work,
        )
