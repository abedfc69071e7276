"""A queue as SQS sees it: the parsed form of an entity's options, made once for each change of them."""

from collections.abc import Callable, Container, Mapping
from typing import Final

from msgspec.structs import replace

from partibus.frontends.sqs.attributes import (
    CONTENT_BASED,
    DEFAULTS,
    DELAY,
    LIMIT,
    MAX_SIZE,
    NUMBERS,
    REDRIVE_POLICY,
    RETENTION,
    SCOPE,
    VISIBILITY,
    WAIT,
    Redrive,
    described,
    read_redrive,
)
from partibus.frontends.sqs.errors import SqsError, no_such_queue
from partibus.frontends.sqs.names import FIFO_SUFFIX, Home, QueueName, arn_of, entity_name, queue_of_entity
from partibus.namespace.broker import Broker
from partibus.namespace.durations import MS_PER_MINUTE, MS_PER_SECOND, UNLIMITED_MS, format_duration
from partibus.namespace.entities import EntityDescription, EntityKind, EntityOptions, SqsOptions, SqsValue
from partibus.namespace.properties import ELASTIC_PARTITIONS, FORWARD_DEAD_LETTERED_TO, SQS
from partibus.namespace.queues import Queue

DUPLICATE_WINDOW_MS: Final = 5 * MS_PER_MINUTE
RECEIVES_UNLIMITED: Final = 2**31 - 1
"""MaxDeliveryCount of a queue without a redrive policy."""
KEPT_MIN: Final = 1_000
_LOCK_MIN_MS: Final = 5 * MS_PER_SECOND
_LOCK_MAX_MS: Final = 5 * MS_PER_MINUTE
_NO_OPTIONS: Final = SqsOptions()


class SqsQueue:
    """The attributes of one queue, ready for use."""

    __slots__ = (
        "_scope_is_group",
        "arn",
        "attributes",
        "content_based",
        "delay_ms",
        "description",
        "fifo",
        "high_throughput",
        "message_bytes_max",
        "name",
        "options",
        "queue",
        "redrive",
        "takes_plain",
        "visibility_ms",
        "wait_s",
    )

    def __init__(self, home: Home, name: QueueName, queue: Queue) -> None:
        """Read the options of an entity."""
        self.queue = queue
        self.name = name
        self.description: EntityDescription = queue.description
        options = self.description.options
        self.options: SqsOptions = options.sqs or _NO_OPTIONS
        self.attributes: dict[str, str] = attributes_of(options)
        self.arn = arn_of(home, name)
        self.fifo: bool = queue.requires_session
        """Whether it is a FIFO queue: an entity with message sessions."""
        values = DEFAULTS | self.attributes
        self.visibility_ms = int(values[VISIBILITY]) * 1000
        self.delay_ms = int(values[DELAY]) * 1000
        self.wait_s = int(values[WAIT])
        self.message_bytes_max = int(values[MAX_SIZE])
        self.content_based = values.get(CONTENT_BASED) == "true"
        self.takes_plain = not (self.fifo or self.delay_ms or queue.requires_duplicate_detection)
        """Whether a message that has nothing but a body needs nothing of the queue's."""
        self._scope_is_group = values.get(SCOPE) == "messageGroup"
        self.high_throughput = values.get(LIMIT) == "perMessageGroupId"
        """Whether each partition has a quota of its own. Otherwise the whole queue has that of one partition."""
        try:
            self.redrive: Redrive | None = read_redrive(home, values.get(REDRIVE_POLICY, ""), name)
        except SqsError:  # changed by hand, or for another account
            self.redrive = None

    def dedup_by_group(self, now_ms: int) -> bool:
        """Tell whether deduplication ids are unique within a group, not the queue. A change takes effect later."""
        return self._scope_is_group != (now_ms < self.options.scope_until_ms)

    def describe(self, home: Home) -> dict[str, str]:
        """Return all set values but the counts."""
        values = described(home, self.name, self.attributes)
        values["CreatedTimestamp"] = str(self.queue.created_ms // 1000)
        values["LastModifiedTimestamp"] = str(self.queue.updated_ms // 1000)
        return values


def attributes_of(options: EntityOptions) -> dict[str, str]:
    """Return the set attributes of an entity: the broker's options count, whichever front end set them."""
    attributes = {} if options.sqs is None else dict(options.sqs.attributes)
    if options.sqs is None:
        attributes[VISIBILITY] = str(options.lock_duration_ms // 1000)
    has_ttl = options.default_ttl_ms < UNLIMITED_MS
    attributes[RETENTION] = str(max(options.default_ttl_ms // 1000, 1) if has_ttl else NUMBERS[RETENTION].most)
    return attributes


def options_of(options: EntityOptions) -> SqsOptions:
    """Return the options of SQS; those of a queue of AMQP give it the attributes that it has shown until now."""
    if options.sqs is not None:
        return options.sqs
    attributes = attributes_of(options)
    del attributes[RETENTION]  # stays an option of the entity
    return SqsOptions(attributes=attributes)


class Queues:
    """The queues of one namespace, by their entities."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[int, SqsQueue] = {}
        """Queues by entity id. Deleted ones stay among them until `_sweep`."""
        self._named: dict[QueueName, SqsQueue] = {}
        """Queues by name, once they were found; deleted ones likewise."""
        self._sweep_at = KEPT_MIN
        """The number of known queues at which the deleted ones are forgotten."""

    def of(self, queue: Queue) -> SqsQueue | None:
        """Return the queue of an entity; None if it is a topic or subscription, or can't be a queue of SQS."""
        known = self._known.get(queue.entity_id)
        if known is not None and known.description is queue.description:
            return known
        name = queue_of_entity(self._home, queue.name) if queue.kind is EntityKind.QUEUE else None
        if name is None or queue.requires_session != name.name.endswith(FIFO_SUFFIX):
            return None
        found = self._known[queue.entity_id] = SqsQueue(self._home, name, queue)
        if len(self._known) >= self._sweep_at:
            self._sweep()
        return found

    def _sweep(self) -> None:
        """Forget deleted queues. The known ones have to double until the next time, so a queue costs O(1)."""
        self._known = {number: one for number, one in self._known.items() if not one.queue.deleted}
        self._named = {name: one for name, one in self._named.items() if not one.queue.deleted}
        self._sweep_at = max(KEPT_MIN, 2 * len(self._known))

    def find(self, broker: Broker, name: QueueName) -> SqsQueue:
        """Return the queue of that name; case counts. Raises `SqsError`."""
        known = self._named.get(name)
        if known is not None and known.description is known.queue.description and not known.queue.deleted:
            return known
        wanted = entity_name(self._home, name)
        queue = broker.namespace.find(wanted)
        found = None if queue is None or queue.name != wanted else self.of(queue)
        if found is None:
            raise no_such_queue()
        self._named[name] = found
        return found

    def all(self, broker: Broker, region: str) -> list[SqsQueue]:
        """Return the queues of a region by name."""
        queues = (self.of(queue) for queue in broker.namespace.queues)
        return sorted(
            (one for one in queues if one is not None and one.name.region == region), key=lambda one: one.name
        )


def properties_for(
    home: Home,
    name: QueueName,
    attributes: Mapping[str, str],
    options: SqsOptions,
    redrive: Redrive | None,
    changed: Container[str],
    partitions_max: int = 0,
) -> dict[str, object]:
    """Return the entity's properties that follow from all set ``attributes`` of a queue, by the service's names.

    Only the properties of ``changed`` attributes are among them: an administrator may have set the others otherwise.
    ``partitions_max`` is the entity's present value of PartibusElasticPartitions.
    """
    values = DEFAULTS | dict(attributes)
    kept = {key: value for key, value in attributes.items() if key != RETENTION}
    properties: dict[str, object] = {SQS: SqsValue().to_json(replace(options, attributes=kept))}
    if VISIBILITY in changed:
        visibility_ms = int(values[VISIBILITY]) * 1000
        properties["LockDuration"] = format_duration(min(max(visibility_ms, _LOCK_MIN_MS), _LOCK_MAX_MS))
    if RETENTION in changed:
        properties["DefaultMessageTimeToLive"] = format_duration(int(values[RETENTION]) * 1000)
    if REDRIVE_POLICY in changed:
        properties["MaxDeliveryCount"] = RECEIVES_UNLIMITED if redrive is None else redrive.receives_max
        properties[FORWARD_DEAD_LETTERED_TO] = "" if redrive is None else entity_name(home, redrive.target)
    if LIMIT in changed:
        properties[ELASTIC_PARTITIONS] = _partitions_max(home, attributes, partitions_max)
    return properties


def _partitions_max(home: Home, attributes: Mapping[str, str], present: int) -> int:
    """Return the most partitions of a queue; an operator's choice for a queue of high throughput stays."""
    if attributes.get(LIMIT) == "perMessageGroupId":
        return present if present > 1 else home.partitions_max
    return min(present, 1)  # a queue that had several gets back to one


def new_properties(name: QueueName) -> dict[str, object]:
    """Return the properties that a queue has for life."""
    if not name.name.endswith(FIFO_SUFFIX):
        return {}
    return {
        "RequiresSession": True,
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": format_duration(DUPLICATE_WINDOW_MS),
    }


def change_options(broker: Broker, home: Home, queue: SqsQueue, change: Callable[[SqsOptions], SqsOptions]) -> None:
    """Give a queue the options of SQS that ``change`` makes of its present ones."""

    def properties(old: EntityOptions) -> dict[str, object]:
        return {SQS: SqsValue().to_json(change(options_of(old)))}

    broker.update_by(entity_name(home, queue.name), properties)
