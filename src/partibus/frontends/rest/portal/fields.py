"""The fields of the forms that make and change entities, with their present and typed values.

A form offers the properties of the namespace's tier, in the order of `LABELS`. A field has the name of the property, so
an error of a property's check is shown at its field.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from partibus.errors import ArgumentError, EntityExists, PartibusError
from partibus.frontends.rest.portal.words import duration_json
from partibus.namespace.durations import UNLIMITED_FROM_MS, duration_text, format_duration, parse_duration
from partibus.namespace.entities import (
    DEFAULT_OPTIONS,
    EXPRESS_BOUND_MAX_MS,
    EXPRESS_BOUND_MIN_MS,
    STANDARD_PARTITION_COUNT,
    EntityKind,
    EntityOptions,
    EntityStatus,
)
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.properties import (
    ELASTIC_PARTITIONS,
    ENFORCE_THROUGHPUT,
    EXPRESS_BOUND,
    FORWARD_DEAD_LETTERED_TO,
    FORWARD_TO,
    MAX_REDELIVERY_DELAY,
    PARTITION_CALM,
    PARTITION_MERGE,
    PARTITION_MESSAGES,
    PARTITION_REQUESTS,
    PARTITION_SPLIT,
    PROPERTIES,
    REDELIVERY_DELAY,
    SQS,
    properties_of,
)
from partibus.namespace.tier_rules import BASIC_TTL_MAX_MS, PREMIUM_MESSAGE_KB, sizes_mb
from partibus.namespace.tiers import Feature, Tier, has, limits_of
from partibus.namespace.values import BooleanValue, ChoiceValue, DurationValue, IntegerValue, Json

NAME: Final = "Name"
PARTITIONING: Final = "EnablePartitioning"
_MAX_SIZE: Final = "MaxSizeInMegabytes"
_MESSAGE_SIZE: Final = "MaxMessageSizeInKilobytes"
_TTL: Final = "DefaultMessageTimeToLive"
_NOTE: Final = "UserMetadata"

KEYS_HINT: Final = (
    "A partition key or session id pins a message to one partition: while its messaging store is away or busy, such "
    "messages can't be sent, and others can. Set none unless messages have to stay together."
)
"""Row K15."""
LOW_VOLUME_HINT: Final = (
    "With few messages receivers may have to ask several times, and wait longer: leave such an entity unpartitioned. "
    "It can't be changed later; the entity has to be deleted and made anew."
)
"""Rows A13, P9."""


class Label(NamedTuple):
    """The name and the description of a property, and the feature of a tier that it needs."""

    label: str
    hint: str = ""
    feature: Feature | None = None


LABELS: Final[Mapping[str, Label]] = {
    PARTITIONING: Label("Enable partitioning"),
    _MAX_SIZE: Label("Maximum size of each partition"),
    _TTL: Label("Time to live", "Default, and the longest that a message may have. Empty: no limit."),
    "LockDuration": Label("Lock duration", "How long a receiver may keep a message before another one can get it."),
    "MaxDeliveryCount": Label("Maximum delivery count", "After so many tries a message is dead-lettered."),
    "RequiresSession": Label(
        "Sessions", "Every message has a session id; those of a session are received in order.", Feature.SESSIONS
    ),
    "RequiresDuplicateDetection": Label(
        "Duplicate detection",
        "A message whose id has come before is accepted and dropped.",
        Feature.DUPLICATE_DETECTION,
    ),
    "DuplicateDetectionHistoryTimeWindow": Label(
        "Window of duplicate detection", "How long ids are kept.", Feature.DUPLICATE_DETECTION
    ),
    "DeadLetteringOnMessageExpiration": Label("Dead-letter what expires"),
    "EnableBatchedOperations": Label("Batched store access", "Writes may wait a moment to share a commit."),
    FORWARD_TO: Label("Forward messages to", "Name of a queue or topic. Empty: nowhere.", Feature.FORWARDING),
    FORWARD_DEAD_LETTERED_TO: Label(
        "Forward dead letters to", "Name of a queue or topic. Empty: nowhere.", Feature.FORWARDING
    ),
    "EnableExpress": Label(
        "Express",
        "Messages are acknowledged from memory: a crash loses those that are younger than the bound below.",
        Feature.EXPRESS,
    ),
    EXPRESS_BOUND: Label(
        "Loss bound of express, in ms",
        f"From {EXPRESS_BOUND_MIN_MS} to {EXPRESS_BOUND_MAX_MS:,}: what is older survives.",
        Feature.EXPRESS,
    ),
    SQS: Label("Attributes and tags that SQS clients have set"),
    _MESSAGE_SIZE: Label("Maximum size of a message, in KB"),
    "Status": Label("Status"),
    "DeadLetteringOnFilterEvaluationExceptions": Label("Dead-letter what a filter fails on"),
    "SupportOrdering": Label("Support ordering", "Changes nothing: the messages of one partition are in order."),
    "AutoDeleteOnIdle": Label("Delete when idle for", "Empty: never."),
    REDELIVERY_DELAY: Label("Delay after an abandon", "Twice as long after each further one. 0 s: none."),
    MAX_REDELIVERY_DELAY: Label("Longest delay after abandons"),
    ELASTIC_PARTITIONS: Label(
        "Elastic partitions",
        "The most partitions of a queue with sessions, whose number follows the load. 0: the number stays.",
        Feature.SESSIONS,
    ),
    ENFORCE_THROUGHPUT: Label(
        "Enforce the throughput of SQS",
        "Refuse SQS requests over the capacity of a FIFO queue's partitions. Off: only the load splits partitions.",
        Feature.SESSIONS,
    ),
    PARTITION_REQUESTS: Label(
        "Requests per second of a partition", "For each action. 0: as the broker's option says.", Feature.SESSIONS
    ),
    PARTITION_MESSAGES: Label(
        "Messages per second of a partition", "For each action. 0: as the broker's option says.", Feature.SESSIONS
    ),
    PARTITION_SPLIT: Label(
        "Split a partition at, in percent", "Of its capacity. 0: as the broker's option says.", Feature.SESSIONS
    ),
    PARTITION_MERGE: Label("Merge partitions below, in percent", "0: as the broker's option says.", Feature.SESSIONS),
    PARTITION_CALM: Label("Merge partitions after", "0 s: as the broker's option says.", Feature.SESSIONS),
    _NOTE: Label("Note", "For people; at most 1,024 characters."),
}
"""Labels by property, in the order of forms."""
_SELDOM: Final = frozenset(list(LABELS)[list(LABELS).index("Status") :])
"""Forms fold these away."""


class Field(Struct):
    """One field of a form."""

    name: str
    label: str
    kind: str
    """``text``, ``lines``, ``number``, ``check`` or ``select``."""
    value: str | bool
    hint: str = ""
    """Lines of it."""
    error: str = ""
    disabled: bool = False
    seldom: bool = False
    choices: list[tuple[str, str]] = []
    """Value and text, of a ``select``."""


def new_fields(namespace: NamespaceOptions, kind: EntityKind) -> list[Field]:
    """Return the fields of the form that makes an entity, with the defaults.

    The default is partitioned, where the tier allows a choice (row P26).
    """
    options = DEFAULT_OPTIONS
    name = Field(NAME, "Name", "text", "", "Letters, digits and . - _ ~" + _SLASHES.get(kind, ""))
    fields = _fields(namespace, kind, options, sizes_mb(namespace, _partitions(namespace)), new=True)
    return [name, *fields]


def change_fields(
    namespace: NamespaceOptions, kind: EntityKind, options: EntityOptions, partitions: int
) -> list[Field]:
    """Return the fields of the form that changes an entity: the properties that may change, with their values."""
    allowed = sorted({*sizes_mb(namespace, partitions), options.max_size_mb})
    return _fields(namespace, kind, options, allowed, new=False, partitions=partitions)


def filled_in(fields: list[Field], form: Mapping[str, str]) -> None:
    """Fill the fields with the typed values."""
    for field in fields:
        if not field.disabled:
            field.value = field.name in form if field.kind == "check" else form.get(field.name, "")


def typed_properties(kind: EntityKind, fields: list[Field]) -> dict[str, object]:
    """Return the typed values by property, in JSON form; `partibus.namespace.properties` checks them."""
    values = {prop.name: prop.value for prop in PROPERTIES[kind]}
    typed: dict[str, object] = {}
    for field in fields:
        value = values.get(field.name)
        if value is None or field.disabled:
            continue
        if isinstance(field.value, bool):
            typed[field.name] = field.value
        elif isinstance(value, DurationValue):
            typed[field.name] = duration_json(field.value)
        elif isinstance(value, IntegerValue):
            bare = field.value.strip().replace(",", "")
            is_number = bare.isascii() and bare.isdigit() and len(bare) < 20
            typed[field.name] = int(bare) if is_number else field.value
        else:
            typed[field.name] = _as_sent(field.value).strip()
    return typed


def mark_differing(fields: list[Field], now: Mapping[str, str | bool]) -> None:
    """Note the present value at each field, by ``now``, where it differs from the typed one."""
    for field in fields:
        value = now[field.name]
        if field.value == value:
            continue
        if isinstance(value, bool):
            text = "ticked" if value else "not ticked"
        else:
            text = dict(field.choices).get(value, value) or "empty"
        field.error = f"It is {text} now."


def _as_sent(text: str) -> str:
    """Return a text as an untouched form sends it back: HTML knows one end of lines, and no NUL."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def blame(fields: list[Field], error: PartibusError) -> str:
    """Put an error at its field; return the text of an error without a field, for the top of the form."""
    about = error.field if isinstance(error, ArgumentError) else NAME if isinstance(error, EntityExists) else ""
    text = str(error)
    for field in fields:
        if field.name == about or (not about and text.startswith(f"{field.name} ")):
            field.error = text
            return ""
    return text


def property_text(name: str, value: Json, partitions: int) -> str:
    """Return the value of a property for display."""
    if name == _MAX_SIZE:
        return _size_text(int(value), partitions)
    if name in _OPTIONAL and value in (0, "PT0S"):
        return "as the broker's option says"
    if name == ELASTIC_PARTITIONS and value == 0:
        return "none, the number stays"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _DURATIONS:
        return duration_text(parse_duration(str(value)))
    if name in (EXPRESS_BOUND, _MESSAGE_SIZE):
        return f"{value:,} {'ms' if name == EXPRESS_BOUND else 'KB'}"
    return str(value)


_OPTIONAL = {PARTITION_REQUESTS, PARTITION_MESSAGES, PARTITION_SPLIT, PARTITION_MERGE, PARTITION_CALM}
"""Properties whose zero leaves the value to an option of the broker."""
_SLASHES = {EntityKind.QUEUE: ", with / between parts", EntityKind.TOPIC: ", with / between parts"}
_DURATIONS = {
    prop.name for properties in PROPERTIES.values() for prop in properties if isinstance(prop.value, DurationValue)
}


def _fields(
    namespace: NamespaceOptions,
    kind: EntityKind,
    options: EntityOptions,
    sizes: list[int],
    *,
    new: bool,
    partitions: int = 0,
) -> list[Field]:
    props = {prop.name: prop for prop in PROPERTIES[kind]}
    values = properties_of(kind, options)
    fields = []
    for name, (label, hint, feature) in LABELS.items():
        if name == SQS or name not in props or not (new or props[name].mutable):
            continue  # SQS clients change their attributes, no form does
        if feature is not None and not has(namespace.tier, feature):
            continue
        value, of = values[name], props[name].value
        if name == PARTITIONING:
            fields.append(_partitioning(namespace))
        elif name == _MAX_SIZE:
            count = partitions or _partitions(namespace)
            choices = [(str(size), _choice_text(namespace, size, count, new=new)) for size in sizes]
            fields.append(Field(name, label, "select", str(value), _size_hint(namespace, count), choices=choices))
        elif name == _MESSAGE_SIZE:
            limits = limits_of(namespace)
            is_one = (partitions or _partitions(namespace)) == 1
            most = limits.message_kb if is_one else limits.partitioned_message_kb
            least = min(most, PREMIUM_MESSAGE_KB if namespace.tier is Tier.PREMIUM else int(value))
            if most > least:
                text = str(max(int(value), least))
                fields.append(Field(name, label, "number", text, f"From {least:,} to {most:,}."))
        elif isinstance(of, BooleanValue):
            fields.append(Field(name, label, "check", bool(value), hint))
        elif isinstance(of, ChoiceValue):
            texts = [(status.value, status.value) for status in EntityStatus]
            fields.append(Field(name, label, "select", str(value), hint, choices=texts))
        elif isinstance(of, DurationValue):
            if name == _TTL and namespace.tier is Tier.BASIC and new:
                value, hint = format_duration(BASIC_TTL_MAX_MS), "At most 14 d in the tier basic."
            else:
                hint = f"{hint} {_bounds_text(of)}".strip()
            text = duration_text(parse_duration(str(value)))
            fields.append(Field(name, label, "text", text, hint))
        else:
            form = "number" if isinstance(of, IntegerValue) else "lines" if name == _NOTE else "text"
            fields.append(Field(name, label, form, str(value), hint))
    for field in fields:
        field.seldom = field.name in _SELDOM
    return fields


def _partitions(namespace: NamespaceOptions) -> int:
    """Return the partition count of an entity that is made by default."""
    return namespace.partition_count if namespace.tier is Tier.PREMIUM else STANDARD_PARTITION_COUNT


def _partitioning(namespace: NamespaceOptions) -> Field:
    label = LABELS[PARTITIONING].label
    count = _partitions(namespace)
    if namespace.tier is Tier.PREMIUM:
        said = f"Every entity of this premium namespace has {count} partition{'s' if count > 1 else ''}."
        hint = f"{said}\n{KEYS_HINT}" if count > 1 else said
        return Field(PARTITIONING, label, "check", count > 1, hint, disabled=True)
    hint = f"{count} partitions, each with a message broker and a messaging store.\n{KEYS_HINT}\n{LOW_VOLUME_HINT}"
    return Field(PARTITIONING, label, "check", True, hint)


def _bounds_text(of: DurationValue) -> str:
    """Return the bounds of a duration, if there are any: the service's own texts for them are XML durations."""
    least_ms, most_ms = of.range_ms[0], of.range_ms[-1]
    if most_ms < UNLIMITED_FROM_MS:
        return f"From {duration_text(least_ms)} to {duration_text(most_ms)}."
    return f"At least {duration_text(least_ms)}." if least_ms > 1 else ""


def _size_hint(namespace: NamespaceOptions, count: int) -> str:
    return "" if count == 1 else f"{count} partitions take {count} times as much."


def _choice_text(namespace: NamespaceOptions, size_mb: int, count: int, *, new: bool) -> str:
    if count == 1:
        return _gb(size_mb)
    when = ", partitioned" if new and namespace.tier is not Tier.PREMIUM else ""
    return f"{_gb(size_mb)} ({_gb(size_mb * count)} in all{when})"


def _size_text(size_mb: int, partitions: int) -> str:
    if partitions == 1:
        return _gb(size_mb)
    return f"{_gb(size_mb * partitions)} ({partitions} partitions of {_gb(size_mb)})"


def _gb(size_mb: int) -> str:
    return f"{size_mb // 1024} GB" if size_mb % 1024 == 0 else f"{size_mb:,} MB"


def as_plain(fields: list[Field]) -> list[dict[str, Any]]:
    """Return fields as part of a page's data."""
    return [
        {name: getattr(field, name) for name in Field.__struct_fields__ if name != "choices"}
        | {"choices": [list(choice) for choice in field.choices]}
        for field in fields
    ]
