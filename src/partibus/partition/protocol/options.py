"""What a partition has to know of its entity."""

from msgspec import Struct, field

from partibus.limits import PartitionLimits


class PartitionOptions(Struct, frozen=True):
    """Times in ms."""

    lock_duration_ms: int = 60_000
    max_delivery_count: int = 10
    default_ttl_ms: int | None = None
    size_bytes_max: int | None = None
    """Stored bytes past which a send is refused."""
    dead_letter_on_expiration: bool = False
    requires_session: bool = False
    topic: bool = False
    """What is stored goes to subscriptions (`partition.protocol.fan_out`)."""
    forwards: int = 0
    """Bit ``1 << kind`` is set for each sub-queue whose messages go on to another entity."""
    duplicate_window_ms: int | None = None
    """None: duplicates are not detected."""
    redelivery_delay_ms: int = 0
    """How long a message stays away after its first abandon; twice as long after each further one. 0: not at all."""
    redelivery_delay_max_ms: int = 0
    reservation_ms: int = 5_000
    express_ms: int = 0
    """Messages that nobody forces are acknowledged from memory, and durable when they are so old (D18). 0: they are
    durable when they are acknowledged. A subscription's are what its topic says."""
    limits: PartitionLimits = field(default_factory=PartitionLimits)
