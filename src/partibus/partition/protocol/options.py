"""Options of a partition, which it takes from its entity."""

from msgspec import Struct, field

from partibus.limits import PartitionLimits


class PartitionOptions(Struct, frozen=True):
    """The options of one partition. Times are in ms."""

    lock_duration_ms: int = 60_000
    max_delivery_count: int = 10
    default_ttl_ms: int | None = None
    size_bytes_max: int | None = None
    """Stored bytes from which on sends are refused."""
    dead_letter_on_expiration: bool = False
    requires_session: bool = False
    topic: bool = False
    """Whether its messages go to subscriptions (`partition.protocol.fan_out`)."""
    dead_letter_at_receive: bool = False
    """Whether a message that was delivered often enough becomes a dead letter when a receiver would get it again (SQS).

    Otherwise it does when its last lock ends.
    """
    keeps_send_time: bool = False
    """Whether a scheduled message keeps the time of its send when it becomes active, and messages expire in flight
    (SQS)."""
    fair: bool = False
    """Whether the groups of a queue without sessions are tenants, of which a noisy one delays no other (SQS)."""
    forwards: int = 0
    """Bit ``1 << kind`` is set for each sub-queue that forwards."""
    duplicate_window_ms: int | None = None
    """The window of duplicate detection; None: off."""
    redelivery_delay_ms: int = 0
    """How long a message stays away after its first abandon, doubled with each further one; 0: not at all."""
    redelivery_delay_max_ms: int = 0
    reservation_ms: int = 5_000
    express_ms: int = 0
    """The loss bound of an express entity (D18); 0: messages are durable when they are acknowledged.

    Messages within the bound are acknowledged from memory, unless they are forced. A subscription follows its topic.
    """
    limits: PartitionLimits = field(default_factory=PartitionLimits)
