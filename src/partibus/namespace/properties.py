"""The one table between the service's property names and `QueueOptions`.

Config.json, the admin API and the catalog spell properties alike (``LockDuration``); what differs is how a value is
written down. Here it is JSON: booleans, integers, and text for durations and names.

A property that later work brings is in the table all the same, and refused by its name unless the value is the default:
a file written for the service says ``"EnableExpress": false`` and must go on working here. Properties that the service
does not have begin with ``Partibus``.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from partibus.errors import ArgumentError, PartibusError, Unsupported, shown
from partibus.namespace.durations import MS_PER_DAY, MS_PER_MINUTE, MS_PER_SECOND, UNLIMITED_MS, format_duration
from partibus.namespace.entities import DEFAULT_QUEUE_OPTIONS, REDELIVERY_DELAY_MAX_MS, EntityStatus, QueueOptions
from partibus.namespace.hints import did_you_mean
from partibus.namespace.values import BooleanValue, ChoiceValue, DurationValue, IntegerValue, Json, TextValue, Value


@dataclass(frozen=True, slots=True)
class Property:
    """One row: the service's name, our field, how its value is read and bounded, whether it may change later."""

    name: str
    field: str
    value: Value[Any]
    mutable: bool = True
    available: bool = True
    """False until the work that brings it: then only the default is accepted."""


_SIZES_GB = (1, 2, 3, 4, 5, 10, 20, 40, 80)
"""Sizes that the service offers over all tiers (rows P21, P23)."""

REDELIVERY_DELAY = "PartibusRedeliveryDelay"
MAX_REDELIVERY_DELAY = "PartibusMaxRedeliveryDelay"

QUEUE_PROPERTIES: tuple[Property, ...] = (
    Property("LockDuration", "lock_duration_ms", DurationValue(5 * MS_PER_SECOND, 5 * MS_PER_MINUTE)),
    Property("MaxDeliveryCount", "max_delivery_count", IntegerValue(1, 2**31 - 1)),
    Property("DefaultMessageTimeToLive", "default_ttl_ms", DurationValue(1, UNLIMITED_MS)),
    Property("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration", BooleanValue()),
    Property("EnablePartitioning", "partitioned", BooleanValue(), mutable=False),
    Property("EnableBatchedOperations", "batched_operations", BooleanValue()),
    Property("EnableExpress", "express", BooleanValue(), available=False),
    Property("MaxSizeInMegabytes", "max_size_mb", ChoiceValue({gb * 1024: gb * 1024 for gb in _SIZES_GB})),
    Property("MaxMessageSizeInKilobytes", "max_message_size_kb", IntegerValue(256, 1024)),
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
    Property("ForwardTo", "forward_to", TextValue(1024), available=False),
    Property("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_to", TextValue(1024), available=False),
    Property(REDELIVERY_DELAY, "redelivery_delay_ms", DurationValue(0, REDELIVERY_DELAY_MAX_MS)),
    Property(MAX_REDELIVERY_DELAY, "redelivery_delay_max_ms", DurationValue(0, REDELIVERY_DELAY_MAX_MS)),
)

_BY_NAME = {prop.name: prop for prop in QUEUE_PROPERTIES}


class Change(NamedTuple):
    """A property whose value differs between two options, both in JSON form."""

    name: str
    old: Json
    new: Json


def read_queue_options(properties: Mapping[str, object]) -> tuple[QueueOptions, dict[str, PartibusError]]:
    """Options from service names and JSON values, and what is wrong by property name.

    A property that is absent, or refused, has its default.
    """
    return _read_over(DEFAULT_QUEUE_OPTIONS, properties)


def queue_options(properties: Mapping[str, object]) -> QueueOptions:
    """Options from service names and JSON values. ArgumentError or Unsupported for the first that is refused."""
    return changed_options(DEFAULT_QUEUE_OPTIONS, properties)


def changed_options(old: QueueOptions, changes: Mapping[str, object]) -> QueueOptions:
    """``old`` with some properties changed, by service names and JSON values. ArgumentError or Unsupported for the
    first that is refused; whether it may change is not looked at (`immutable_changes`)."""
    options, problems = _read_over(old, changes)
    for error in problems.values():
        raise error
    return options


def queue_properties(options: QueueOptions) -> dict[str, Json]:
    """Every property by its service name, in JSON form: `queue_options` reads it back."""
    return {prop.name: prop.value.to_json(getattr(options, prop.field)) for prop in QUEUE_PROPERTIES}


def immutable_changes(old: QueueOptions, new: QueueOptions) -> list[Change]:
    """What an update from ``old`` to ``new`` would change although it can't (row P9)."""
    old_values, new_values = queue_properties(old), queue_properties(new)
    return [
        Change(prop.name, old_values[prop.name], new_values[prop.name])
        for prop in QUEUE_PROPERTIES
        if not prop.mutable and old_values[prop.name] != new_values[prop.name]
    ]


def change_refused(name: str, change: Change) -> str:
    """The text that refuses an immutable change of the queue ``name``."""
    return (
        f"{change.name} of the queue '{name}' is {json.dumps(change.old)} for life and can't become "
        f"{json.dumps(change.new)}. Keep the value, or create another queue with the new one and move the messages."
    )


def _read_over(old: QueueOptions, properties: Mapping[str, object]) -> tuple[QueueOptions, dict[str, PartibusError]]:
    """``old`` with what could be read, and the problems by property name."""
    fields: dict[str, Any] = {}
    problems: dict[str, PartibusError] = {}
    for name, raw in properties.items():
        try:
            prop = _known(name)
            fields[prop.field] = _read(prop, raw)
        except PartibusError as error:
            problems[name] = error
    options = replace(old, **fields)
    for name, conflict in _conflicts(options):
        problems.setdefault(name, conflict)
    return options, problems


def _conflicts(options: QueueOptions) -> Iterator[tuple[str, PartibusError]]:
    """Properties that are in range each and do not go together."""
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


def _known(name: str) -> Property:
    prop = _BY_NAME.get(name)
    if prop is None:
        raise ArgumentError("property", name, f"one of {', '.join(_BY_NAME)}", did_you_mean(name, _BY_NAME))
    return prop


def _read(prop: Property, raw: object) -> object:
    default = getattr(DEFAULT_QUEUE_OPTIONS, prop.field)
    if raw is None and not prop.available:
        return default
    try:
        value = prop.value.parse(raw)
    except ValueError:
        raise ArgumentError(prop.name, raw, prop.value.bound) from None
    if not prop.available and value != default:
        raise Unsupported(
            f"{prop.name} with the value {shown(raw)}",
            f"Leave {prop.name} out, or set it to {json.dumps(prop.value.to_json(default))}.",
        )
    return value
