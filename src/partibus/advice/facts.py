"""Facts about one live entity: counters at two moments, and the traffic between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from partibus.advice.classes import Level, client_class, rate_class
from partibus.advice.profiles import Profile, choose

SUBSCRIPTION: Final = "subscription"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Counters and clients of one entity at one moment, of all brokers. Counters rise while the brokers live."""

    received: int = 0
    """Messages stored; at a topic: published; at a subscription: copies."""
    delivered: int = 0
    completed: int = 0
    locks_expired: int = 0
    transmissions: int = 0
    """Reads of connections that brought messages. A sender that waits for each answer has one for each message."""
    commits: int = 0
    operations: int = 0
    """Messages enqueued, locked, settled or moved in those commits."""
    waited_s: float = 0.0
    """The time from the first row of the entity in a commit to its begin, of all commits."""
    messages: int = 0
    """Active messages in the store."""
    sender_links: int = 0
    sender_connections: int = 0
    shared_connections: int = 0
    """The number of those connections that also send to another entity."""
    receiver_links: int = 0
    receiver_connections: int = 0
    deleting_links: int = 0
    """Receivers in the mode receive-and-delete."""
    held_max: int = 0
    """The most messages that one receiver holds or has credit for: its prefetch count, or larger."""
    keyed_load: float = 0.0
    """Recent messages with a key, estimated from one run in several."""
    top_slot: int = -1
    """The slot of keys with the most of that load; -1: no message had a key."""
    top_slot_load: float = 0.0
    counted_ms: int = 0
    """The time for which the counters have counted, by the clock of the broker that counted shortest."""
    partition_received: Sequence[int] = ()
    """`received` by partition, of a partitioned entity."""
    partition_messages: Sequence[int] = ()

    def plus(self, other: Self) -> Self:
        """Return the traffic of two brokers. Each counts its own clients, and the partitions that it owns."""
        sums: dict[str, Any] = {}
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, int | float):
                sums[one.name] = mine + theirs
            else:
                longer, shorter = sorted((list(mine), list(theirs)), key=len, reverse=True)
                for place, value in enumerate(shorter):
                    longer[place] += value
                sums[one.name] = tuple(longer)
        busier = self if self.top_slot_load >= other.top_slot_load else other
        sums |= {
            "counted_ms": min(self.counted_ms, other.counted_ms),
            "held_max": max(self.held_max, other.held_max),
            "top_slot": busier.top_slot,
            "top_slot_load": busier.top_slot_load
            if self.top_slot != other.top_slot
            else self.top_slot_load + other.top_slot_load,
        }
        return type(self)(**sums)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Make traffic of values by name. Unknown names are left out: a newer broker may say more."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySample:
    """Keys of messages that wait in the entity, or that telemetry has recorded."""

    messages: int = 0
    """The messages of the sample that have a key."""
    distinct: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """Messages of the sample by key, the most frequent ones."""
    by_partition: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """The same by partition."""

    @property
    def top(self) -> tuple[str, float]:
        """The most frequent key and its share of the sample; ("", 0) without keys."""
        if not self.counts or not self.messages:
            return "", 0.0
        key = max(self.counts, key=lambda one: self.counts[one])
        return key, self.counts[key] / self.messages


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityFacts:
    """One entity during a time of observation."""

    name: str
    kind: str
    """``queue``, ``topic`` or ``subscription``."""
    partitions: int
    properties: Mapping[str, object]
    """Properties by the service's names, as in Config.json."""
    lock_s: float
    ttl_s: float | None
    """The default time to live; None: unlimited."""
    subscriptions: int = 0
    queues: int = 1
    """The queues of the namespace with a medium or high rate in the same time, this one included."""
    window_s: float
    before: Traffic
    after: Traffic
    keys: KeySample = KeySample()
    premium: bool = False
    """Whether the namespace decides about partitions, and has no express entities."""

    def rose(self, counter: str) -> float:
        """Return the increase of a counter in the window. A broker that was started again counts from 0."""
        before, after = getattr(self.before, counter), getattr(self.after, counter)
        return float(after - before if after >= before else after)

    @property
    def partition_rose(self) -> list[int]:
        """The messages received in the window, by partition."""
        now = self.after.partition_received
        then = [*self.before.partition_received, *[0] * len(now)]
        return [last - first if last >= first else last for last, first in zip(now, then, strict=False)]

    @property
    def partitioned(self) -> bool:
        """Whether the entity has more than one partition."""
        return self.partitions > 1

    @property
    def sessions(self) -> bool:
        """Whether every message is of a session."""
        return self.properties.get("RequiresSession") is True

    @property
    def store_batching(self) -> bool:
        """Whether writes may wait to share a commit."""
        return self.properties.get("EnableBatchedOperations") is not False

    @property
    def express(self) -> bool:
        """Whether messages are acknowledged from memory."""
        return self.properties.get("EnableExpress") is True

    @property
    def in_per_s(self) -> float:
        """Messages received per second."""
        return self.rose("received") / self.window_s

    @property
    def out_per_s(self) -> float:
        """Messages delivered per second."""
        return self.rose("delivered") / self.window_s

    @property
    def per_s(self) -> float:
        """The larger of the two rates, which selects the class."""
        return max(self.in_per_s, self.out_per_s)

    @property
    def senders(self) -> int:
        """The most sending links at the begin or the end."""
        return max(self.before.sender_links, self.after.sender_links)

    @property
    def receivers(self) -> int:
        """The most receiving links at the begin or the end."""
        return max(self.before.receiver_links, self.after.receiver_links)

    @property
    def rate(self) -> Level:
        """The class of the rate."""
        return rate_class(self.per_s)

    @property
    def sender_class(self) -> Level:
        """The class of the number of senders."""
        return client_class(self.senders)

    @property
    def receiver_class(self) -> Level:
        """The class of the number of receivers."""
        return client_class(self.receivers)

    @property
    def profile(self) -> Profile:
        """The scenario that the entity's real rate and clients select."""
        return choose(
            self.per_s,
            senders=self.senders,
            receivers=self.receivers,
            queues=self.queues,
            subscriptions=self.subscriptions if self.kind == "topic" else None,
        )
