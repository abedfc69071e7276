"""Entities in memory, their options converted for use: times in ms, sizes in bytes.

All three kinds are queues to the code that serves them: a topic has no receivers, a subscription no senders. An entity
has one object for as long as it exists. An update changes the object in place, so a link that holds it sees the new
options; ``deleted`` marks its end.
"""

from collections.abc import Iterable

from partibus.errors import EntityNotFound
from partibus.filters.model import CorrelationFilter, Rule
from partibus.namespace.access import SasPolicy
from partibus.namespace.catalog import EntityRecord
from partibus.namespace.catalog_rows import rule_path
from partibus.namespace.durations import UNLIMITED_MS
from partibus.namespace.entities import EntityDescription, EntityKind
from partibus.namespace.names import fold_name, split_path, subscription_path
from partibus.namespace.namespace_options import DEFAULT_BOUNDS, Bounds
from partibus.namespace.partition_moves import EntitySlots
from partibus.namespace.placement import Placement
from partibus.namespace.rules import same_rules

_KIB = 1024
_MIB = 1024 * _KIB


class Queue:
    """A queue, and the part that topics and subscriptions share with one."""

    __slots__ = (
        "auto_delete_on_idle_ms",
        "batched_operations",
        "bounds",
        "can_receive",
        "can_send",
        "created_ms",
        "dead_lettering_on_expiration",
        "default_ttl_ms",
        "deleted",
        "description",
        "duplicate_window_ms",
        "enforces_throughput",
        "entity_id",
        "express_ms",
        "forward_dead_lettered_to",
        "forward_to",
        "has_sessions",
        "is_elastic",
        "kind",
        "lock_duration_ms",
        "max_delivery_count",
        "message_size_max_bytes",
        "name",
        "namespace_id",
        "partition_size_max_bytes",
        "partitioned",
        "partitions",
        "policies",
        "redelivery_delay_max_ms",
        "redelivery_delay_ms",
        "requires_duplicate_detection",
        "requires_session",
        "slots",
        "updated_ms",
    )

    def __init__(self, record: EntityRecord, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        """Make the entity of a catalog record within the ``bounds`` of its namespace."""
        self.bounds = bounds
        self.entity_id: int = record.entity_id
        self.namespace_id: int = record.namespace_id
        self.name: str = record.description.name
        """The name; of a subscription its path, ``topic/Subscriptions/name``."""
        self.kind: EntityKind = record.description.kind
        self.partitioned: bool = record.description.options.partitioned
        self.requires_session: bool = record.description.options.requires_session
        """Whether each message must have a session id."""
        self.has_sessions: bool = self.requires_session and not record.description.options.forward_to
        """Whether clients receive by session.

        Messages of an entity that forwards go on in the order of arrival. On an entity that requires sessions this
        never changes.
        """
        self.requires_duplicate_detection: bool = record.description.options.requires_duplicate_detection
        self.created_ms: int = record.created_ms
        self.deleted = False
        self.follow(record)

    def follow(self, record: EntityRecord) -> None:
        """Apply everything that an update may change."""
        options = record.description.options
        self.partitions: tuple[Placement, ...] = record.placements
        """The partitions; some entities get more, or fewer."""
        self.is_elastic: bool = bool(options.elastic_partitions) and self.has_sessions
        """Whether the number of partitions follows the load."""
        self.enforces_throughput: bool = options.enforce_throughput and options.requires_session
        """Whether SQS requests over the capacity of its partitions are refused (row S8)."""
        self.slots: EntitySlots = record.slots
        """The owners of slots, and their moves."""
        self.description: EntityDescription = record.description
        self.updated_ms: int = record.updated_ms
        self.policies: tuple[SasPolicy, ...] = record.policies
        self.lock_duration_ms: int = options.lock_duration_ms
        self.max_delivery_count: int = options.max_delivery_count
        self.default_ttl_ms: int | None = None if options.default_ttl_ms >= UNLIMITED_MS else options.default_ttl_ms
        """The default time to live, of a subscription not above its topic's; None: no limit."""
        self.dead_lettering_on_expiration: bool = options.dead_lettering_on_expiration
        self.batched_operations: bool = options.batched_operations
        self.express_ms: int = options.express_bound_ms if options.express else 0
        """The loss bound; 0: not express."""
        self.message_size_max_bytes: int = options.max_message_size_kb * _KIB
        self.partition_size_max_bytes: int | None = options.max_size_mb * _MIB
        """The bound on stored bytes; None: not bounded by itself."""
        self.can_send: bool = options.status.can_send
        self.can_receive: bool = options.status.can_receive
        self.duplicate_window_ms: int | None = (
            options.duplicate_detection_window_ms if options.requires_duplicate_detection else None
        )
        """The window of duplicate detection; None: off."""
        self.auto_delete_on_idle_ms: int | None = (
            None if options.auto_delete_on_idle_ms >= UNLIMITED_MS else options.auto_delete_on_idle_ms
        )
        """The idle time before deletion; None: never."""
        self.redelivery_delay_ms: int = options.redelivery_delay_ms
        self.redelivery_delay_max_ms: int = options.redelivery_delay_max_ms
        self.forward_to: str | None = options.forward_to or None
        self.forward_dead_lettered_to: str | None = options.forward_dead_lettered_to or None

    @property
    def batch_size_max_bytes(self) -> int:
        """The bound of a batch: that of one message, or the namespace's if that is smaller."""
        return min(self.message_size_max_bytes, self.bounds.batch_bytes)

    @property
    def size_max_bytes(self) -> int:
        """The size of all partitions together (row P22)."""
        return self.description.options.max_size_mb * _MIB * len(self.partitions)

    @property
    def rule_count(self) -> int:
        """The number of subscription rules that each message is compared with (row R5)."""
        return 0

    @property
    def touched_ms(self) -> int:
        """The time of its creation or latest change; of a subscription also that of an added rule."""
        return self.updated_ms

    def is_as(self, record: EntityRecord) -> bool:
        """Tell whether the entity matches a catalog record."""
        return (
            self.updated_ms == record.updated_ms
            and self.description == record.description
            and self.slots.version == record.slots.version
            and self.partitions == record.placements
        )

    def index_of(self, partition_row: int) -> int:
        """Return the index of one of its partitions."""
        return next(i for i, place in enumerate(self.partitions) if place.partition_row == partition_row)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, entity {self.entity_id}, {len(self.partitions)} partitions>"


class Topic(Queue):
    """A topic: its messages go to the subscriptions whose rules select them."""

    __slots__ = ("_by_name", "_counted", "_sorted", "compiled", "version")

    def __init__(self, record: EntityRecord, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self.version = 0
        """Rises with every change of the subscriptions, their options and rules."""
        self._by_name: dict[str, Subscription] = {}
        self._sorted: list[Subscription] | None = []
        self._counted = (0, 0)
        """A version, and the number of rules in it."""
        self.compiled: object = None
        """The compiled rules of `namespace.fan_out`, which end with the topic."""
        super().__init__(record, bounds)

    def follow(self, record: EntityRecord) -> None:
        """Apply an update, and pass on to the subscriptions what concerns them."""
        super().follow(record)
        self.can_receive = False
        for subscription in self._by_name.values():
            subscription.follow_topic()

    @property
    def subscriptions(self) -> list["Subscription"]:
        """The subscriptions by folded name."""
        if self._sorted is None:
            self._sorted = [subscription for _, subscription in sorted(self._by_name.items())]
        return self._sorted

    def subscription(self, name: str) -> "Subscription":
        """Return a subscription. Raises EntityNotFound."""
        subscription = self._by_name.get(fold_name(name))
        if subscription is None:
            raise EntityNotFound(subscription_path(self.name, name))
        return subscription

    @property
    def rule_count(self) -> int:
        """The number of rules of all subscriptions."""
        if self._counted[0] != self.version:
            self._counted = self.version, sum(len(one.rules) for one in self._by_name.values())
        return self._counted[1]

    @property
    def sql_filter_count(self) -> int:
        """The number of rules with another filter than a correlation filter."""
        return sum(not isinstance(rule.filter, CorrelationFilter) for rule in self._rules())

    @property
    def correlation_filter_count(self) -> int:
        """The number of rules with a correlation filter."""
        return sum(isinstance(rule.filter, CorrelationFilter) for rule in self._rules())

    def add(self, subscription: "Subscription") -> None:
        """Add a new subscription."""
        self._by_name[fold_name(subscription.short_name)] = subscription
        self.note_change(subscriptions=True)

    def remove(self, subscription: "Subscription") -> None:
        """Remove a deleted subscription."""
        del self._by_name[fold_name(subscription.short_name)]
        self.note_change(subscriptions=True)

    def note_change(self, *, subscriptions: bool = False) -> None:
        """Note a change of a subscription; ``subscriptions``: of the set of them."""
        self.version += 1
        if subscriptions:
            self._sorted = None

    def _rules(self) -> Iterable[Rule]:
        return (rule for subscription in self._by_name.values() for rule in subscription.rules)


class Subscription(Queue):
    """A queue that its topic fills. It has a partition beside each of the topic's, in the same store (D17)."""

    __slots__ = ("dead_lettering_on_filter_exceptions", "rules", "short_name", "topic")

    def __init__(self, record: EntityRecord, topic: Topic) -> None:
        self.topic = topic
        self.short_name: str = split_path(record.description.name)[1]
        super().__init__(record, topic.bounds)

    def follow(self, record: EntityRecord) -> None:
        """Apply an update and the rules."""
        super().follow(record)
        options = record.description.options
        self.dead_lettering_on_filter_exceptions: bool = options.dead_lettering_on_filter_exceptions
        self.can_send = False
        # The topic counts the stored bytes of all subscriptions (row P21).
        self.partition_size_max_bytes = None
        self.follow_topic()
        self.rules: tuple[Rule, ...] = record.rules
        """The rules by folded name."""
        self.topic.note_change()

    def follow_topic(self) -> None:
        """Apply the topic's message size, and its default time to live where it is the shorter one."""
        topic = self.topic
        self.message_size_max_bytes = topic.message_size_max_bytes
        least_ms = min(self.description.options.default_ttl_ms, topic.description.options.default_ttl_ms)
        self.default_ttl_ms = None if least_ms >= UNLIMITED_MS else least_ms

    def rule(self, name: str) -> Rule:
        """Return a rule. Raises EntityNotFound."""
        folded = fold_name(name)
        for rule in self.rules:
            if fold_name(rule.name) == folded:
                return rule
        raise EntityNotFound(rule_path(self.name, name))

    @property
    def touched_ms(self) -> int:
        """The time of its creation or latest change, or of an added rule."""
        return max([self.updated_ms, *(rule.created_ms for rule in self.rules)])

    def is_as(self, record: EntityRecord) -> bool:
        """Tell whether the subscription and its rules match a catalog record."""
        return super().is_as(record) and same_rules(self.rules, record.rules)
