"""The seven scenarios of the guidance as data: what each sets, and the sentence that says so (rows C26 to C34).

```text
 profile            connections  batching         prefetch        store     row
 high-throughput    several      50 ms, 100 ms    20 x rate       batched   C28
 several-queues     several      50 ms, 100 ms    20 x rate       batched   C29
 low-latency        one          off              20 x rate or 0  at once   C30
 many-senders       one          20 ms            20 x rate       batched   C31
 many-receivers     one          20 ms            10              batched   C32
 few-subscriptions  several      20 ms            20 x rate       batched   C33
 many-subscriptions one          20 ms            20 x rate       batched   C34
```

Every profile partitions its entity. None makes it express: only the owner of the messages knows whether a loss is
bearable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from types import MappingProxyType
from typing import Any, Final

from partibus.advice import guidance
from partibus.advice.classes import (
    CLIENTS_MAX,
    RATE_MAX_PER_S,
    RATES,
    Level,
    check_count,
    check_number,
    client_class,
    rate_class,
)
from partibus.advice.guidance import Sentence

SEVERAL_CONNECTIONS: Final = 4
"""The connections of "several factories". The guidance names no number; docs/scenarios.md has the measured gain."""
PREFETCH_FACTOR: Final = 20
"""Seconds of work in the caches of a factory's receivers: a third of the default lock of 60 s."""
LOCK_S: Final = 60.0
"""The default LockDuration, which the factor of 20 is for."""
MANY_RECEIVERS_PREFETCH: Final = 10
SUBSCRIPTIONS_FEW: Final = 5
"""The most subscriptions of a topic with few of them: the guidance's small class."""
SUBSCRIPTIONS_MAX: Final = 2_000
"""The most subscriptions of a topic."""
QUEUES_MAX: Final = 1_000_000
LOCK_MAX_S: Final = 300.0
"""The longest LockDuration."""
PREFETCH_MAX: Final = 10_000
"""The largest prefetch count of one receiver; a larger cache only holds memory."""


class PrefetchRule(Enum):
    """How a profile computes the prefetch count."""

    BY_RATE = "20 x rate x receivers"
    SMALL = "10"
    ONE_CLIENT_ONLY = "20 x rate, 0 for several clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one client by a profile, and the properties of its entity."""

    connections: int
    batch_flush_interval_ms: int
    """0: off."""
    prefetch: int
    """Messages in the cache of each receiver."""
    prefetch_of_factory: int
    """Messages in the caches of all receivers of the client: the number of the guidance."""
    entity: Mapping[str, bool]
    """Properties of the entity by the service's names."""

    @property
    def client_arguments(self) -> dict[str, Any]:
        """The arguments of the public client."""
        return {
            "connections": self.connections,
            "batch_flush_interval": self.batch_flush_interval_ms / 1000,
            "prefetch": self.prefetch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One scenario."""

    name: str
    row: str
    title: str
    goal: str
    topic: bool = False
    entities: Level = Level.SMALL
    """LARGE: several queues at a time."""
    rates: tuple[Level, ...]
    """The rate classes of an entity that the scenario is for."""
    senders: Level = Level.SMALL
    receivers: Level = Level.SMALL
    connections: int = 1
    batch_flush_interval_ms: int = 20
    batch_flush_interval_several_ms: int = 20
    """The interval where an entity has several senders."""
    prefetch: PrefetchRule = PrefetchRule.BY_RATE
    store_batching: bool = True
    partitioned: bool = True
    express: bool = False
    sentences: Mapping[str, tuple[Sentence, ...]] = field(default_factory=dict)
    """The sentences of the guidance by setting."""

    @property
    def entity_properties(self) -> Mapping[str, bool]:
        """The properties of the entity by the service's names."""
        return {
            "EnablePartitioning": self.partitioned,
            "EnableBatchedOperations": self.store_batching,
            "EnableExpress": self.express,
        }

    @property
    def typical_per_s(self) -> float:
        """The smallest rate of the largest class that the scenario is for, where no rate is known."""
        return max(band.least for band in RATES if band.level in self.rates)

    def prefetch_of_factory(self, rate_per_s: float, receivers: int = 1) -> int:
        """Return the messages in the caches of all receivers of one client.

        ``rate_per_s``: messages that one receiver processes per second at most. Raises ValueError for numbers out of
        range.
        """
        check_number("rate_per_s", rate_per_s, 0, RATE_MAX_PER_S, "measure what one receiver processes at most")
        check_count("receivers", receivers, 1, CLIENTS_MAX)
        if self.prefetch is PrefetchRule.SMALL:
            return MANY_RECEIVERS_PREFETCH * receivers
        if self.prefetch is PrefetchRule.ONE_CLIENT_ONLY and receivers > 1:
            return 0
        return ceil(PREFETCH_FACTOR * rate_per_s * receivers)

    def settings(
        self, *, rate_per_s: float = 0.0, senders: int = 1, receivers: int = 1, lock_s: float = LOCK_S
    ) -> Settings:
        """Return the settings of a client with so many senders and receivers.

        ``rate_per_s``: messages that one receiver processes per second at most. The caches are filled for a third of
        ``lock_s``, so a shorter lock has smaller ones. Each receiver gets an equal part. Raises ValueError for numbers
        out of range.
        """
        check_count("senders", senders, 0, CLIENTS_MAX)
        check_number("lock_s", lock_s, 1, LOCK_MAX_S, "give the LockDuration of the entity")
        of_factory = self.prefetch_of_factory(rate_per_s, receivers)
        each = of_factory / receivers
        if self.prefetch is not PrefetchRule.SMALL:
            each *= min(1.0, lock_s / LOCK_S)
        interval_ms = self.batch_flush_interval_several_ms if senders > 1 else self.batch_flush_interval_ms
        return Settings(
            connections=self.connections,
            batch_flush_interval_ms=interval_ms,
            prefetch=min(PREFETCH_MAX, int(each)),
            prefetch_of_factory=of_factory,
            entity=self.entity_properties,
        )

    def client_arguments(
        self, *, rate_per_s: float = 0.0, senders: int = 1, receivers: int = 1, lock_s: float = LOCK_S
    ) -> dict[str, Any]:
        """Return the arguments of the public client, as `settings` computes them."""
        settings = self.settings(rate_per_s=rate_per_s, senders=senders, receivers=receivers, lock_s=lock_s)
        return settings.client_arguments


HIGH_THROUGHPUT: Final = Profile(
    name="high-throughput",
    row="C28",
    title="High-throughput queue",
    goal="The greatest throughput of one queue, with few senders and receivers.",
    rates=(Level.HIGH,),
    connections=SEVERAL_CONNECTIONS,
    batch_flush_interval_ms=50,
    batch_flush_interval_several_ms=100,
    sentences={
        "partitioned": (guidance.HIGH_PARTITIONED,),
        "connections": (guidance.HIGH_SEND_FACTORIES, guidance.HIGH_RECEIVE_FACTORIES),
        "batching": (guidance.HIGH_ASYNC, guidance.HIGH_INTERVAL),
        "store_batching": (guidance.HIGH_STORE,),
        "prefetch": (guidance.HIGH_PREFETCH,),
        "express": (guidance.EXPRESS_CRITICAL,),
    },
)
SEVERAL_QUEUES: Final = Profile(
    name="several-queues",
    row="C29",
    title="Several high-throughput queues",
    goal="The greatest overall throughput of several queues, each with a medium or high rate.",
    entities=Level.LARGE,
    rates=(Level.MEDIUM, Level.HIGH),
    connections=SEVERAL_CONNECTIONS,
    batch_flush_interval_ms=50,
    batch_flush_interval_several_ms=100,
    sentences={
        "partitioned": (guidance.SEVERAL_SETTINGS, guidance.HIGH_PARTITIONED),
        "connections": (guidance.SEVERAL_FACTORIES, guidance.DEDICATED_CLIENTS),
        "batching": (guidance.SEVERAL_SETTINGS, guidance.HIGH_ASYNC, guidance.HIGH_INTERVAL),
        "store_batching": (guidance.SEVERAL_SETTINGS, guidance.HIGH_STORE),
        "prefetch": (guidance.SEVERAL_SETTINGS, guidance.HIGH_PREFETCH),
        "express": (guidance.EXPRESS_CRITICAL,),
    },
)
LOW_LATENCY: Final = Profile(
    name="low-latency",
    row="C30",
    title="Low-latency queue",
    goal="The shortest time from sender to receiver, with few clients and a small or medium rate.",
    rates=(Level.SMALL, Level.MEDIUM),
    batch_flush_interval_ms=0,
    batch_flush_interval_several_ms=0,
    prefetch=PrefetchRule.ONE_CLIENT_ONLY,
    store_batching=False,
    sentences={
        "partitioned": (guidance.LOW_PARTITIONED,),
        "connections": (guidance.REUSE,),
        "batching": (guidance.LOW_INTERVAL,),
        "store_batching": (guidance.LOW_STORE,),
        "prefetch": (guidance.LOW_PREFETCH_ONE, guidance.LOW_PREFETCH_SEVERAL),
        "express": (guidance.EXPRESS_CRITICAL,),
    },
)
MANY_SENDERS: Final = Profile(
    name="many-senders",
    row="C31",
    title="Queue with many senders",
    goal="The greatest throughput of a queue or topic with many senders at a moderate rate each, and few receivers.",
    rates=(Level.SMALL, Level.MEDIUM, Level.HIGH),
    senders=Level.LARGE,
    sentences={
        "partitioned": (guidance.SENDERS_PARTITIONED,),
        "connections": (guidance.SENDERS_FACTORY,),
        "batching": (guidance.SENDERS_ASYNC, guidance.SENDERS_INTERVAL),
        "store_batching": (guidance.SENDERS_STORE,),
        "prefetch": (guidance.SENDERS_PREFETCH,),
        "express": (guidance.EXPRESS_CRITICAL,),
    },
)
MANY_RECEIVERS: Final = Profile(
    name="many-receivers",
    row="C32",
    title="Queue with many receivers",
    goal="The greatest receive rate of a queue or subscription with many receivers at a moderate rate each.",
    rates=(Level.SMALL, Level.MEDIUM, Level.HIGH),
    receivers=Level.LARGE,
    prefetch=PrefetchRule.SMALL,
    sentences={
        "partitioned": (guidance.RECEIVERS_PARTITIONED,),
        "connections": (guidance.RECEIVERS_FACTORY,),
        "batching": (guidance.RECEIVERS_EITHER,),
        "store_batching": (guidance.RECEIVERS_STORE,),
        "prefetch": (guidance.RECEIVERS_PREFETCH,),
        "express": (guidance.EXPRESS_CRITICAL,),
    },
)
FEW_SUBSCRIPTIONS: Final = Profile(
    name="few-subscriptions",
    row="C33",
    title="Topic with few subscriptions",
    goal="The greatest throughput of a topic with few subscriptions.",
    topic=True,
    rates=(Level.SMALL, Level.MEDIUM, Level.HIGH),
    connections=SEVERAL_CONNECTIONS,
    sentences={
        "partitioned": (guidance.FEW_PARTITIONED,),
        "connections": (guidance.FEW_SEND_FACTORIES, guidance.FEW_RECEIVE_FACTORIES),
        "batching": (guidance.FEW_ASYNC, guidance.FEW_INTERVAL),
        "store_batching": (guidance.FEW_STORE,),
        "prefetch": (guidance.FEW_PREFETCH,),
        "express": (guidance.EXPRESS_CRITICAL,),
    },
)
MANY_SUBSCRIPTIONS: Final = Profile(
    name="many-subscriptions",
    row="C34",
    title="Topic with many subscriptions",
    goal="The greatest throughput of a topic with many subscriptions.",
    topic=True,
    rates=(Level.SMALL, Level.MEDIUM, Level.HIGH),
    sentences={
        "partitioned": (guidance.MANY_PARTITIONED,),
        "connections": (guidance.REUSE,),
        "batching": (guidance.MANY_ASYNC, guidance.MANY_INTERVAL),
        "store_batching": (guidance.MANY_STORE,),
        "prefetch": (guidance.MANY_PREFETCH,),
        "express": (guidance.EXPRESS_CRITICAL,),
    },
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            HIGH_THROUGHPUT,
            SEVERAL_QUEUES,
            LOW_LATENCY,
            MANY_SENDERS,
            MANY_RECEIVERS,
            FEW_SUBSCRIPTIONS,
            MANY_SUBSCRIPTIONS,
        )
    }
)
"""The profiles by name."""


def profile_named(name: str) -> Profile:
    """Return a profile. Raises ValueError for an unknown name."""
    profile = PROFILES.get(name)
    if profile is None:
        raise ValueError(f"profile is {name!r}, it must be one of {', '.join(PROFILES)}")
    return profile


def choose(
    rate_per_s: float, *, senders: int = 1, receivers: int = 1, queues: int = 1, subscriptions: int | None = None
) -> Profile:
    """Return the profile for a rate per entity and numbers of clients per entity.

    ``queues``: queues that are used at a time. ``subscriptions``: of a topic; None for a queue. Raises ValueError for
    numbers out of range, and for more subscriptions than a topic can have.
    """
    rate, sending, receiving = rate_class(rate_per_s), client_class(senders), client_class(receivers)
    check_count("queues", queues, 1, QUEUES_MAX)
    if subscriptions is not None:
        more = "forward messages to further topics, and subscribe there"
        check_count("subscriptions", subscriptions, 0, SUBSCRIPTIONS_MAX, more)
        if sending is Level.LARGE:
            return MANY_SENDERS
        return FEW_SUBSCRIPTIONS if subscriptions <= SUBSCRIPTIONS_FEW else MANY_SUBSCRIPTIONS
    if receiving is Level.LARGE:
        return MANY_RECEIVERS
    if sending is Level.LARGE:
        return MANY_SENDERS
    if queues > 1 and rate is not Level.SMALL:
        return SEVERAL_QUEUES
    return HIGH_THROUGHPUT if rate is Level.HIGH else LOW_LATENCY
