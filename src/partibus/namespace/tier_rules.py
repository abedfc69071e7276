"""The rules of a namespace's tier for its entities: values that it refuses, and values that it adjusts.

Only changes are checked: an entity that came from another tier, or from before a limit was lowered, keeps its values
(row P10).
"""

from typing import Final

from msgspec.structs import replace

from partibus.errors import ArgumentError
from partibus.namespace.durations import MS_PER_DAY, UNLIMITED_MS, format_duration
from partibus.namespace.entities import DEFAULT_OPTIONS, STANDARD_PARTITION_COUNT, EntityKind, EntityOptions
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.tiers import ENTITY_SIZES_MB, Feature, Tier, has, limits_of, tiers_with

BASIC_TTL_MAX_MS: Final = 14 * MS_PER_DAY
"""Default and longest DefaultMessageTimeToLive in the tier basic (dialect section 11.1)."""
PREMIUM_MESSAGE_KB: Final = 1024
"""Default and least MaxMessageSizeInKilobytes in the tier premium (section 11.1)."""

_SWITCHES: Final = (
    ("RequiresSession", "requires_session", Feature.SESSIONS),
    ("RequiresDuplicateDetection", "requires_duplicate_detection", Feature.DUPLICATE_DETECTION),
    ("EnableExpress", "express", Feature.EXPRESS),
    ("ForwardTo", "forward_to", Feature.FORWARDING),
    ("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_to", Feature.FORWARDING),
)


def partition_count(namespace: NamespaceOptions, options: EntityOptions) -> int:
    """Return the number of partitions of a new queue or topic (rows P6, P7)."""
    if not options.partitioned:
        return 1
    return namespace.partition_count if namespace.tier is Tier.PREMIUM else STANDARD_PARTITION_COUNT


def sizes_mb(namespace: NamespaceOptions, partitions: int) -> list[int]:
    """Return the allowed MaxSizeInMegabytes of an entity of so many partitions: the size of each (rows P21-P23)."""
    limits = limits_of(namespace)
    most = min(limits.entity_size_mb, limits.entity_total_mb // partitions)
    return [size for size in ENTITY_SIZES_MB if size <= most]


def new_options(namespace: NamespaceOptions, kind: EntityKind, wanted: EntityOptions) -> EntityOptions:
    """Return the options of a new entity. Raises `ArgumentError` for those that the tier does not allow."""
    if kind is not EntityKind.QUEUE:
        _check_topics(namespace, kind)
    options = wanted
    if namespace.tier is Tier.PREMIUM and kind is not EntityKind.SUBSCRIPTION:
        options = replace(options, partitioned=_premium_partitioned(namespace, wanted))
    return _checked(namespace, kind, options, None, partition_count(namespace, options))


def changed_options(
    namespace: NamespaceOptions, kind: EntityKind, wanted: EntityOptions, old: EntityOptions, partitions: int
) -> EntityOptions:
    """Return the options of an entity of ``partitions`` in place of ``old``. Raises as `new_options`."""
    return _checked(namespace, kind, wanted, old, partitions)


def _checked(
    namespace: NamespaceOptions, kind: EntityKind, options: EntityOptions, old: EntityOptions | None, partitions: int
) -> EntityOptions:
    tier = namespace.tier
    for name, field, feature in _SWITCHES:
        value = getattr(options, field)
        if value and not has(tier, feature) and (old is None or value != getattr(old, field)):
            raise ArgumentError(
                name,
                value,
                f"{'empty' if value is not True else 'false'} in a namespace of the tier {tier.value}, "
                f"which has no {feature.value}",
                f"Leave it out, or use a namespace of the tier {tiers_with(feature)}.",
            )
    if tier is Tier.BASIC and options.default_ttl_ms > BASIC_TTL_MAX_MS:
        if options.default_ttl_ms != UNLIMITED_MS and (old is None or options.default_ttl_ms != old.default_ttl_ms):
            raise ArgumentError(
                "DefaultMessageTimeToLive",
                format_duration(options.default_ttl_ms),
                f"at most {format_duration(BASIC_TTL_MAX_MS)} in a namespace of the tier {tier.value}",
                "Take a shorter one, or use a namespace of the tier standard or premium.",
            )
        # Clients send "unlimited" where their users have said nothing.
        options = replace(options, default_ttl_ms=BASIC_TTL_MAX_MS)
    if kind is EntityKind.SUBSCRIPTION:
        return options  # its topic has the sizes
    if old is None or options.max_message_size_kb != old.max_message_size_kb:
        options = _with_message_size(namespace, options, partitions)
    if old is None or options.max_size_mb != old.max_size_mb:
        _check_size(namespace, options, partitions)
    return options


def _check_topics(namespace: NamespaceOptions, kind: EntityKind) -> None:
    if not has(namespace.tier, Feature.TOPICS):
        raise ArgumentError(
            "The kind of entity",
            kind.value,
            f"queue in a namespace of the tier {namespace.tier.value}, which has no {Feature.TOPICS.value}",
            f"Use a namespace of the tier {tiers_with(Feature.TOPICS)}.",
        )


def _premium_partitioned(namespace: NamespaceOptions, wanted: EntityOptions) -> bool:
    """Return whether a new entity is partitioned in a premium namespace: the namespace decides.

    Some clients send ``EnablePartitioning`` false when their users have said nothing, so false is no contradiction;
    true is always meant.
    """
    if wanted.partitioned and namespace.partition_count == 1:
        raise ArgumentError(
            "EnablePartitioning",
            True,
            "false in a premium namespace of 1 partition, which is chosen when the namespace is made",
            "Leave it out, or create a premium namespace of more partitions.",
        )
    return namespace.partition_count > 1


def _with_message_size(namespace: NamespaceOptions, options: EntityOptions, partitions: int) -> EntityOptions:
    limits = limits_of(namespace)
    most = limits.message_kb if partitions == 1 else limits.partitioned_message_kb
    least = DEFAULT_OPTIONS.max_message_size_kb
    size = options.max_message_size_kb
    if namespace.tier is Tier.PREMIUM:
        least = min(PREMIUM_MESSAGE_KB, most)
        if size == DEFAULT_OPTIONS.max_message_size_kb:
            return replace(options, max_message_size_kb=least)
    if not least <= size <= most:
        where = "an entity of several partitions" if partitions > 1 else "an entity of one partition"
        raise ArgumentError(
            "MaxMessageSizeInKilobytes",
            size,
            (f"{least}" if least == most else f"an integer from {least} to {most}")
            + f" for {where} in a namespace of the tier {namespace.tier.value}",
            _next_step(namespace, "message_kb" if partitions == 1 else "partitioned_message_kb"),
        )
    return options


def _check_size(namespace: NamespaceOptions, options: EntityOptions, partitions: int) -> None:
    allowed = sizes_mb(namespace, partitions)
    if options.max_size_mb not in allowed:
        each = f", for each of its {partitions} partitions" if partitions > 1 else ""
        sizes = ", ".join(map(str, allowed)) or "smaller than any size that there is"
        limits = limits_of(namespace)
        all_bound = limits.entity_total_mb // partitions < limits.entity_size_mb
        raise ArgumentError(
            "MaxSizeInMegabytes",
            options.max_size_mb,
            f"one of {sizes} in a namespace of the tier {namespace.tier.value}{each}",
            _next_step(namespace, "entity_total_mb" if all_bound else "entity_size_mb"),
        )


def _next_step(namespace: NamespaceOptions, limit: str) -> str:
    if namespace.tier is Tier.PREMIUM:
        return f"Take another value, or raise the limit {limit} of the namespace."
    return f"Take another value, raise the limit {limit} of the namespace, or use a premium namespace."
