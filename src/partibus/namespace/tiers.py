"""The tiers of a namespace: every number that a tier bounds, in one table of data.

`limits_of` gives the limits of a namespace: the numbers of its tier, with those that its own options change.
`partibus.namespace.tier_rules` checks entities against them. ``docs/tiers.md`` shows the same table.
"""

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from partibus.errors import InvalidOperation


class Tier(Enum):
    """Tiers, with the values of the catalog, the command line and our own requests."""

    BASIC = "basic"
    STANDARD = "standard"
    PREMIUM = "premium"


class Feature(Enum):
    """Features that not every tier has. The values are their names in errors."""

    TOPICS = "topics and subscriptions"
    SESSIONS = "sessions"
    DUPLICATE_DETECTION = "duplicate detection"
    FORWARDING = "forwarding"
    TRANSACTIONS = "transactions"
    EXPRESS = "express entities"
    PARTITIONED_ENTITIES = "partitioning chosen per entity"


_LACKING: Final[Mapping[Tier, frozenset[Feature]]] = {
    Tier.BASIC: frozenset(
        {
            Feature.TOPICS,
            Feature.SESSIONS,
            Feature.DUPLICATE_DETECTION,
            Feature.FORWARDING,
            Feature.TRANSACTIONS,
            Feature.EXPRESS,
        }
    ),
    Tier.STANDARD: frozenset(),
    # Premium has no express entities, which keep messages in memory only (row C22, seeds 0 and 2):
    Tier.PREMIUM: frozenset({Feature.EXPRESS, Feature.PARTITIONED_ENTITIES}),
}

PARTITION_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)
"""The partition counts of a premium namespace; the service offers the first three (row P8). A power of two keeps each
partition's share of the key slots the same.
"""
ENTITY_SIZES_MB: Final = tuple(gb * 1024 for gb in (1, 2, 3, 4, 5, 10, 20, 40, 80))
"""Sizes that the service offers over all tiers (rows P21, P23); a namespace has those up to its `entity_size_mb`."""

_MANY = 1_000_000


class Limit(NamedTuple):
    """One number of the table."""

    name: str
    of_tiers: tuple[int, int, int]
    """The values of basic, standard and premium."""
    unit: str
    what: str
    source: str
    """Rows of the specification, sections of the dialect, decisions."""
    span: tuple[int, int]
    """Least and most that a namespace may choose: past them the number would mean nothing."""

    def of(self, tier: Tier) -> int:
        """Return the tier's number."""
        return self.of_tiers[_TIERS.index(tier)]


_TIERS = tuple(Tier)


def _alike(number: int) -> tuple[int, int, int]:
    """Return one number for all tiers, where the service names no tier."""
    return number, number, number


LIMITS: Final = (
    Limit("entities", _alike(10_000), "", "queues and topics", "row A12", (0, _MANY)),
    Limit(
        "partitioned_entities",
        (100, 100, 10_000),
        "",
        "partitioned ones among them; in premium no other bound than that of all",
        "row A12",
        (0, _MANY),
    ),
    Limit("subscriptions", _alike(2_000), "", "subscriptions of one topic", "row C37, section 11.2", (0, _MANY)),
    Limit(
        "sql_filters",
        _alike(2_000),
        "",
        "SQL filters of one topic, true and false ones included",
        "section 11.2",
        (1, _MANY),
    ),
    Limit("correlation_filters", _alike(100_000), "", "correlation filters of one topic", "section 11.2", (1, _MANY)),
    Limit("policies", _alike(12), "", "access policies of one entity, or of the namespace", "section 11.2", (1, 1_000)),
    Limit(
        "entity_size_mb",
        (5_120, 5_120, 81_920),
        "MiB",
        "MaxSizeInMegabytes, the size of each partition",
        "rows P21, P23, section 11.1",
        (1_024, 81_920),
    ),
    Limit(
        "entity_total_mb",
        _alike(81_920),
        "MiB",
        "MaxSizeInMegabytes times the number of partitions",
        "rows P22, P23",
        (1_024, 64 * 81_920),
    ),
    Limit(
        "retained_mb",
        _alike(1_048_576),
        "MiB",
        "what cursors may have kept of finished messages, in each partition of a sub-queue",
        "D14",
        (1, 1_073_741_824),
    ),
    Limit(
        "message_kb",
        (256, 256, 102_400),
        "KiB",
        "MaxMessageSizeInKilobytes of an entity with one partition",
        "sections 11.1, 11.2",
        (256, 102_400),
    ),
    Limit(
        "partitioned_message_kb",
        (256, 256, 1_024),
        "KiB",
        "MaxMessageSizeInKilobytes of an entity with several partitions",
        "row A11, section 11.2",
        (256, 102_400),
    ),
    Limit(
        "batch_kb",
        (256, 256, 1_024),
        "KiB",
        "a batch, a message over HTTP, the state of a session",
        "row A11, section 11.2",
        (256, 102_400),
    ),
    Limit("batch_messages", _alike(4_500), "", "messages of one batch", "section 11.2", (1, _MANY)),
    Limit(
        "property_kb", _alike(32), "KiB", "one application property, its name and value", "section 11.2", (1, 65_536)
    ),
    Limit("properties_kb", _alike(64), "KiB", "all properties and headers of one message", "section 11.2", (1, 65_536)),
    Limit(
        "transaction_messages", _alike(100), "", "messages of one transaction", "section 11.2, section 8", (1, 10_000)
    ),
    Limit("connections", _alike(5_000), "", "AMQP connections at a time", "row C35, section 11.2", (1, _MANY)),
    Limit(
        "entity_connections",
        _alike(5_000),
        "",
        "AMQP connections that use one entity at a time",
        "rows C35, C36",
        (1, _MANY),
    ),
    Limit("receivers", _alike(5_000), "", "receivers of one entity at a time", "sections 7.4, 11.2", (1, _MANY)),
    Limit("links", _alike(5_000), "", "links of one AMQP connection", "D24", (1, 5_000)),
)
"""The table."""

LIMITS_BY_NAME = {limit.name: limit for limit in LIMITS}


class TierLimits(NamedTuple):
    """The limits of one namespace: a number for each row of `LIMITS`, in its order and unit."""

    entities: int
    partitioned_entities: int
    subscriptions: int
    sql_filters: int
    correlation_filters: int
    policies: int
    entity_size_mb: int
    entity_total_mb: int
    retained_mb: int
    message_kb: int
    partitioned_message_kb: int
    batch_kb: int
    batch_messages: int
    property_kb: int
    properties_kb: int
    transaction_messages: int
    connections: int
    entity_connections: int
    receivers: int
    links: int


class OfTier(Protocol):
    """The options of a namespace, as far as they change the numbers of its tier."""

    @property
    def tier(self) -> Tier:
        """The tier."""
        ...

    @property
    def limits(self) -> Mapping[str, int]:
        """Numbers that are others in the namespace, by name."""
        ...


def limits_of(options: OfTier) -> TierLimits:
    """Return the numbers of a namespace: its tier's, replaced by its own where it has some."""
    return _limits_of(options.tier, tuple(sorted(options.limits.items())))


@lru_cache(maxsize=1024)
def _limits_of(tier: Tier, changed: tuple[tuple[str, int], ...]) -> TierLimits:
    others = dict(changed)
    return TierLimits(*(others.get(limit.name, limit.of(tier)) for limit in LIMITS))


def has(tier: Tier, feature: Feature) -> bool:
    """Tell whether the tier allows it."""
    return feature not in _LACKING[tier]


def tiers_with(feature: Feature) -> str:
    """Return the tiers with a feature, for errors."""
    return " or ".join(tier.value for tier in Tier if has(tier, feature))


def check_has(tier: Tier, feature: Feature) -> None:
    """InvalidOperation when the tier does not allow it."""
    if not has(tier, feature):
        raise InvalidOperation(
            f"A namespace of the tier {tier.value} has no {feature.value}. "
            f"Use a namespace of the tier {tiers_with(feature)}."
        )
