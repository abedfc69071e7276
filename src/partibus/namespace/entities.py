"""The options of entities, in our units, with the service's defaults.

`properties` maps them to the service's property names and checks them; `EntityOptions` made by it are always in range.

`SqsOptions` are those that only SQS has: they travel with the entity's other options, as JSON in one text.
"""

from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct

from partibus.limits import EXPRESS_BOUND_MS
from partibus.namespace.durations import MS_PER_DAY, MS_PER_MINUTE, UNLIMITED_MS

TEXT_MAX: Final = 256 * 1024
"""Characters: 50 tags of 384 characters and two policies are some 100,000."""


class MoveTask(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message move task of a dead-letter queue. Its newest state is in the catalog, so it survives restarts."""

    task_id: str
    started_ms: int
    source_arn: str
    destination_arn: str = ""
    """Empty: each message goes back to the queue in which it was a dead letter."""
    rate: int = 0
    """Messages per second; 0: no bound."""
    to_move: int = 0
    """Messages in the source at the start."""
    moved: int = 0
    is_new: bool = False
    """Whether no broker has carried out any of it."""
    status: str = "RUNNING"
    failure: str = ""


class SqsOptions(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Attributes in the spelling of SQS, tags, and move tasks."""

    attributes: dict[str, str] = {}
    """Values that were set and are not kept in another option of the entity."""
    tags: dict[str, str] = {}
    moves: tuple[MoveTask, ...] = ()
    """Newest first."""
    scope_until_ms: int = 0
    """The end of the former `DeduplicationScope`, which is the other one of two; 0: the present one holds."""
    purged_ms: int = 0
    """The time of the last purge."""


class SqsValue:
    """JSON of `SqsOptions` in a text; empty or JSON null for none."""

    bound = "JSON of the options that only SQS has, as this broker writes it"

    def parse(self, raw: object) -> SqsOptions | None:
        """Return the checked value."""
        if raw is None or raw == "":
            return None
        if not isinstance(raw, str) or len(raw) > TEXT_MAX:
            raise ValueError
        return msgspec.json.decode(raw, type=SqsOptions)

    def to_json(self, value: SqsOptions | None) -> str:
        """Return what `parse` reads back."""
        return "" if value is None else msgspec.json.encode(value, order="sorted").decode()


STANDARD_PARTITION_COUNT = 16
"""Partitions of every partitioned entity in a basic or standard namespace (row P7)."""


REDELIVERY_DELAY_MAX_MS = MS_PER_DAY
"""Longest time that a policy may keep an abandoned message away."""


EXPRESS_BOUND_MIN_MS = 500
"""A sixth of it is for the commit: 83 ms, four times what one waits for company and takes."""
EXPRESS_BOUND_MAX_MS = 60_000


class EntityKind(Enum):
    """Kinds of entities, with the values of the catalog and our own requests."""

    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


class EntityStatus(Enum):
    """Statuses: the open directions of an entity. The values are the service's words."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def can_send(self) -> bool:
        """Whether messages can be sent."""
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def can_receive(self) -> bool:
        """Whether messages can be received."""
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


class EntityOptions(Struct, frozen=True, kw_only=True):
    """All properties of an entity that its creator chooses.

    Each kind has some of them, as the tables of `properties` say; the others have their defaults and no effect.
    """

    lock_duration_ms: int = MS_PER_MINUTE
    max_delivery_count: int = 10
    """Unsuccessful deliveries after which a message is dead-lettered."""
    default_ttl_ms: int = UNLIMITED_MS
    """The default time to live, which is also the longest one of a message."""
    dead_lettering_on_expiration: bool = False
    dead_lettering_on_filter_exceptions: bool = True
    """Whether a message on which a rule fails becomes a dead letter of the subscription, instead of being skipped."""
    partitioned: bool = False
    """Whether it has several partitions; fixed for life (row P9). A subscription has the value of its topic."""
    batched_operations: bool = True
    """Batched store access: writes may wait a little to share a commit (rows C13, C14)."""
    express: bool = False
    """Messages are acknowledged from memory (D18)."""
    express_bound_ms: int = EXPRESS_BOUND_MS
    """The age from which on messages of an express entity survive a crash."""
    elastic_partitions: int = 0
    """The most partitions of a queue with sessions whose partitions follow its load; 0: their number is fixed."""
    enforce_throughput: bool = False
    """Whether a queue with sessions refuses SQS requests over the capacity of its partitions."""
    partition_requests: int = 0
    """Requests per second that one of its partitions carries, for each action; 0: as the broker's option says."""
    partition_messages: int = 0
    """Messages per second, likewise."""
    partition_split_percent: int = 0
    """The use of a partition at which it is split; 0: as the broker's option says."""
    partition_merge_percent: int = 0
    """The use of the remaining partitions below which there are fewer; 0: as the broker's option says."""
    partition_calm_ms: int = 0
    """How long the use has to be that low; 0: as the broker's option says."""
    max_size_mb: int = 1024
    """The size of each partition in MiB."""
    max_message_size_kb: int = 256
    auto_delete_on_idle_ms: int = UNLIMITED_MS
    """Time without use after which the entity is deleted with its messages (`partibus.node.idle`)."""
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str = ""
    requires_session: bool = False
    """Fixed for life, as `requires_duplicate_detection` is."""
    requires_duplicate_detection: bool = False
    duplicate_detection_window_ms: int = 10 * MS_PER_MINUTE
    forward_to: str = ""
    """Name of the queue or topic; empty for none. Also for `forward_dead_lettered_to`."""
    forward_dead_lettered_to: str = ""
    redelivery_delay_ms: int = 0
    """How long a message stays away after its first abandon, twice as long after each further one. 0: not at all."""
    redelivery_delay_max_ms: int = 10 * MS_PER_MINUTE
    """The bound of the doubled delay."""
    sqs: SqsOptions | None = None
    """The options of a queue that was created over SQS; None: it was not."""
    support_ordering: bool = True
    """A topic's property as its creator set it. It has no effect: messages of one partition are in order."""

    @property
    def forwards(self) -> tuple[str, ...]:
        """Names of the entities that it forwards to."""
        return tuple(name for name in (self.forward_to, self.forward_dead_lettered_to) if name)


DEFAULT_OPTIONS = EntityOptions()


class EntityDescription(Struct, frozen=True):
    """An entity by name; a subscription by its path, ``topic/Subscriptions/name``."""

    name: str
    options: EntityOptions = DEFAULT_OPTIONS
    kind: EntityKind = EntityKind.QUEUE


QueueDescription = EntityDescription
"""The description, where the entity can only be a queue."""
