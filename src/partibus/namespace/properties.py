"""The one table between the service's property names and `EntityOptions`, and which kind of entity has which.

Config.json, the admin API and the catalog spell properties alike (``LockDuration``); the forms of values differ. Here
it is JSON: booleans, integers, and text for durations and names. Bounds here are those of all tiers together;
`partibus.namespace.tier_rules` has those of a namespace.

Properties that the service does not have begin with ``Partibus``.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from partibus.errors import ArgumentError, PartibusError, did_you_mean
from partibus.namespace.durations import MS_PER_DAY, MS_PER_MINUTE, MS_PER_SECOND, UNLIMITED_MS, format_duration
from partibus.namespace.entities import (
    DEFAULT_OPTIONS,
    EXPRESS_BOUND_MAX_MS,
    EXPRESS_BOUND_MIN_MS,
    REDELIVERY_DELAY_MAX_MS,
    EntityKind,
    EntityOptions,
    EntityStatus,
    SqsValue,
)
from partibus.namespace.tiers import ENTITY_SIZES_MB
from partibus.namespace.values import (
    BooleanValue,
    ChoiceValue,
    DurationValue,
    IntegerValue,
    Json,
    TargetValue,
    TextValue,
    Value,
)


class Property(Struct, frozen=True):
    """One row: the service's name, our field, how its value is read and bounded, whether it may change later."""

    name: str
    field: str
    value: Value[Any]
    mutable: bool = True


REDELIVERY_DELAY = "PartibusRedeliveryDelay"
MAX_REDELIVERY_DELAY = "PartibusMaxRedeliveryDelay"
EXPRESS_BOUND = "PartibusExpressBoundInMilliseconds"
"""The loss bound of an express entity (row C22): older messages survive a crash."""

ELASTIC_PARTITIONS = "PartibusElasticPartitions"
"""The most partitions of a queue whose partitions follow its load (ADR 0026); 0: their number is fixed."""

ENFORCE_THROUGHPUT = "PartibusEnforceThroughput"
"""Whether SQS requests over the capacity of a FIFO queue's partitions are refused (row S8)."""

PARTITION_REQUESTS = "PartibusPartitionRequests"
PARTITION_MESSAGES = "PartibusPartitionMessages"
PARTITION_SPLIT = "PartibusPartitionSplitPercent"
PARTITION_MERGE = "PartibusPartitionMergePercent"
PARTITION_CALM = "PartibusPartitionCalm"
"""When the partitions of one queue are split and merged, and their capacity; 0: as the broker's options say."""

SQS = "PartibusSqs"
"""The options of a queue that only SQS has, as JSON in text."""

FORWARD_TO = "ForwardTo"
FORWARD_DEAD_LETTERED_TO = "ForwardDeadLetteredMessagesTo"

_ALL = (
    Property("LockDuration", "lock_duration_ms", DurationValue(5 * MS_PER_SECOND, 5 * MS_PER_MINUTE)),
    Property("MaxDeliveryCount", "max_delivery_count", IntegerValue(1, 2**31 - 1)),
    Property("DefaultMessageTimeToLive", "default_ttl_ms", DurationValue(1, UNLIMITED_MS)),
    Property("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration", BooleanValue()),
    Property("DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_exceptions", BooleanValue()),
    Property("EnablePartitioning", "partitioned", BooleanValue(), mutable=False),
    Property("EnableBatchedOperations", "batched_operations", BooleanValue()),
    Property("EnableExpress", "express", BooleanValue()),
    Property(EXPRESS_BOUND, "express_bound_ms", IntegerValue(EXPRESS_BOUND_MIN_MS, EXPRESS_BOUND_MAX_MS)),
    Property(ELASTIC_PARTITIONS, "elastic_partitions", IntegerValue(0, 1024)),
    Property(ENFORCE_THROUGHPUT, "enforce_throughput", BooleanValue()),
    Property(PARTITION_REQUESTS, "partition_requests", IntegerValue(0, 1_000_000)),
    Property(PARTITION_MESSAGES, "partition_messages", IntegerValue(0, 10_000_000)),
    Property(PARTITION_SPLIT, "partition_split_percent", IntegerValue(0, 100)),
    Property(PARTITION_MERGE, "partition_merge_percent", IntegerValue(0, 99)),
    Property(PARTITION_CALM, "partition_calm_ms", DurationValue(0, 7 * MS_PER_DAY)),
    # The allowed sizes depend on the tier: `tier_rules` has them.
    Property("MaxSizeInMegabytes", "max_size_mb", IntegerValue(1, ENTITY_SIZES_MB[-1])),
    Property("MaxMessageSizeInKilobytes", "max_message_size_kb", IntegerValue(256, 102_400)),
    Property("AutoDeleteOnIdle", "auto_delete_on_idle_ms", DurationValue(5 * MS_PER_MINUTE, UNLIMITED_MS)),
    Property("Status", "status", ChoiceValue({status.value: status for status in EntityStatus})),
    Property("UserMetadata", "user_metadata", TextValue(1024)),
    Property("RequiresSession", "requires_session", BooleanValue(), mutable=False),
    Property("RequiresDuplicateDetection", "requires_duplicate_detection", BooleanValue(), mutable=False),
    Property(
        "DuplicateDetectionHistoryTimeWindow",
        "duplicate_detection_window_ms",
        DurationValue(20 * MS_PER_SECOND, 7 * MS_PER_DAY),
    ),
    Property(FORWARD_TO, "forward_to", TargetValue()),
    Property(FORWARD_DEAD_LETTERED_TO, "forward_dead_lettered_to", TargetValue()),
    Property("SupportOrdering", "support_ordering", BooleanValue()),
    Property(REDELIVERY_DELAY, "redelivery_delay_ms", DurationValue(0, REDELIVERY_DELAY_MAX_MS)),
    Property(MAX_REDELIVERY_DELAY, "redelivery_delay_max_ms", DurationValue(0, REDELIVERY_DELAY_MAX_MS)),
    Property(SQS, "sqs", SqsValue()),
)
_FOR_SUBSCRIPTIONS_ONLY = {"dead_lettering_on_filter_exceptions"}
_FOR_TOPICS_ONLY = {"support_ordering"}
_OF_SQS = (
    "sqs",
    "elastic_partitions",
    "enforce_throughput",
    "partition_requests",
    "partition_messages",
    "partition_split_percent",
    "partition_merge_percent",
    "partition_calm_ms",
)
"""Options of an SQS queue that Service Bus has not."""
_FOR_QUEUES_ONLY = {*_OF_SQS}
_OF_RECEIVING = {
    "lock_duration_ms",
    "max_delivery_count",
    "dead_lettering_on_expiration",
    "requires_session",
    "forward_to",
    "forward_dead_lettered_to",
    "redelivery_delay_ms",
    "redelivery_delay_max_ms",
}
"""Properties of entities that messages are received from: not of a topic."""
_OF_STORING = {
    "partitioned",
    "express",
    "express_bound_ms",
    "max_size_mb",
    "max_message_size_kb",
    "requires_duplicate_detection",
    "duplicate_detection_window_ms",
}
"""Properties of entities that messages are sent to: a subscription has its topic for that."""


def _without(*fields: set[str]) -> tuple[Property, ...]:
    return tuple(prop for prop in _ALL if not any(prop.field in one for one in fields))


QUEUE_PROPERTIES = _without(_FOR_SUBSCRIPTIONS_ONLY, _FOR_TOPICS_ONLY)
TOPIC_PROPERTIES = _without(_FOR_SUBSCRIPTIONS_ONLY, _FOR_QUEUES_ONLY, _OF_RECEIVING)
SUBSCRIPTION_PROPERTIES = _without(_OF_STORING, _FOR_QUEUES_ONLY, _FOR_TOPICS_ONLY)
PROPERTIES = {
    EntityKind.QUEUE: QUEUE_PROPERTIES,
    EntityKind.TOPIC: TOPIC_PROPERTIES,
    EntityKind.SUBSCRIPTION: SUBSCRIPTION_PROPERTIES,
}

_BY_NAME = {kind: {prop.name: prop for prop in properties} for kind, properties in PROPERTIES.items()}


class Change(NamedTuple):
    """A property whose value differs between two options, both in JSON form."""

    name: str
    old: Json
    new: Json


def read_options(kind: EntityKind, properties: Mapping[str, object]) -> tuple[EntityOptions, dict[str, PartibusError]]:
    """Return options from service names and JSON values, and the problems by property name.

    A property that is absent, or refused, has its default.
    """
    return _read_over(kind, DEFAULT_OPTIONS, properties)


def options_of(kind: EntityKind, properties: Mapping[str, object]) -> EntityOptions:
    """Options from service names and JSON values. ArgumentError for the first that is refused."""
    return changed_options(DEFAULT_OPTIONS, properties, kind)


def properties_of(kind: EntityKind, options: EntityOptions) -> dict[str, Json]:
    """Return every property of the kind by its service name, in JSON form: `options_of` reads it back."""
    return {prop.name: prop.value.to_json(getattr(options, prop.field)) for prop in PROPERTIES[kind]}


def changed_options(
    old: EntityOptions, changes: Mapping[str, object], kind: EntityKind = EntityKind.QUEUE
) -> EntityOptions:
    """Return ``old`` with some properties changed, by service names and JSON values.

    Raises `ArgumentError` for the first one that is refused; `immutable_changes` checks which may change.
    """
    options, problems = _read_over(kind, old, changes)
    for error in problems.values():
        raise error
    return options


def replaced_options(old: EntityOptions, properties: Mapping[str, object], kind: EntityKind) -> EntityOptions:
    """Return options as `changed_options`, with defaults for omitted properties, except those for life.

    The options of an SQS queue stay, too: clients of Service Bus know none of them.
    """
    for_life = {prop.field: getattr(old, prop.field) for prop in PROPERTIES[kind] if not prop.mutable}
    if old.sqs is not None:
        for_life |= {field: getattr(old, field) for field in _OF_SQS}
    return changed_options(replace(DEFAULT_OPTIONS, **for_life | {"partitioned": old.partitioned}), properties, kind)


def immutable_changes(
    old: EntityOptions, new: EntityOptions, kind: EntityKind = EntityKind.QUEUE, *, is_new: bool = False
) -> list[Change]:
    """Return the forbidden changes of an update from ``old`` to ``new`` (row P9).

    An entity that requires sessions forwards for life or never: its messages are stored by session only if it does not.
    ``is_new``: it has had no messages.
    """
    old_values, new_values = properties_of(kind, old), properties_of(kind, new)
    begins_or_ends = not is_new and old.requires_session and bool(old.forward_to) != bool(new.forward_to)
    return [
        Change(prop.name, old_values[prop.name], new_values[prop.name])
        for prop in PROPERTIES[kind]
        if old_values[prop.name] != new_values[prop.name]
        and (not prop.mutable or (prop.name == FORWARD_TO and begins_or_ends))
    ]


def change_refused(name: str, change: Change, kind: EntityKind = EntityKind.QUEUE) -> str:
    """Return the text that refuses an immutable change of the entity ``name``."""
    return (
        f"{change.name} of the {kind.value} '{name}' is {json.dumps(change.old)} for life and can't become "
        f"{json.dumps(change.new)}. Keep the value, or create another {kind.value} with the new one and move the "
        "messages."
    )


PROBLEMS_MAX = 20
"""The problems of one entity that are looked for. A request has room for some 2,500 properties, and to find a similar
name for an unknown one takes up to 0.4 ms.
"""


def _read_over(
    kind: EntityKind, old: EntityOptions, properties: Mapping[str, object]
) -> tuple[EntityOptions, dict[str, PartibusError]]:
    """Return ``old`` with the values that could be read, and the problems by property name."""
    fields: dict[str, Any] = {}
    problems: dict[str, PartibusError] = {}
    for name, raw in properties.items():
        try:
            prop = _known(kind, name)
            fields[prop.field] = _read(prop, raw)
        except PartibusError as error:
            problems[name] = error
            if len(problems) >= PROBLEMS_MAX:
                break
    options = replace(old, **fields)
    if options.forward_to:
        # A message passes through: without receivers the entity would count as idle (dialect section 9.5).
        options = replace(options, auto_delete_on_idle_ms=UNLIMITED_MS)
    for name, conflict in _conflicts(options):
        problems.setdefault(name, conflict)
    return options, problems


def _conflicts(options: EntityOptions) -> Iterator[tuple[str, PartibusError]]:
    """Properties that are in range each and do not go together."""
    split, merge = options.partition_split_percent, options.partition_merge_percent
    if split and merge >= split:
        yield (
            PARTITION_MERGE,
            ArgumentError(
                PARTITION_MERGE,
                merge,
                f"below {PARTITION_SPLIT}, {split}",
                "Lower it: partitions would be split and merged in turn.",
            ),
        )
    delay_ms, delay_max_ms = options.redelivery_delay_ms, options.redelivery_delay_max_ms
    if not delay_ms:
        return
    delay = format_duration(delay_ms)
    if options.requires_session:
        # The message stays away and the ones behind it do not: the order inside of the session would be lost.
        yield (
            REDELIVERY_DELAY,
            ArgumentError(REDELIVERY_DELAY, delay, "PT0S where RequiresSession is true", "Leave it out."),
        )
    elif delay_max_ms < delay_ms:
        yield (
            MAX_REDELIVERY_DELAY,
            ArgumentError(
                MAX_REDELIVERY_DELAY,
                format_duration(delay_max_ms),
                f"at least {REDELIVERY_DELAY}, {delay}",
                f"Raise it, or lower {REDELIVERY_DELAY}.",
            ),
        )


def _known(kind: EntityKind, name: str) -> Property:
    known = _BY_NAME[kind]
    prop = known.get(name)
    if prop is None:
        bound = f"one of {', '.join(known)}, which a {kind.value} has"
        raise ArgumentError("property", name, bound, did_you_mean(name, known))
    return prop


def _read(prop: Property, raw: object) -> object:
    try:
        return prop.value.parse(raw)
    except ValueError:
        raise ArgumentError(prop.name, raw, prop.value.bound) from None
