"""The options of an entity's partitions, from the entity and the broker's limits."""

from partibus.forwarding.forwarder import targets_of
from partibus.limits import Limits
from partibus.namespace.entities import EntityKind
from partibus.namespace.namespace import Queue
from partibus.partition.protocol.options import PartitionOptions


def partition_options(queue: Queue, limits: Limits) -> PartitionOptions:
    """Return the options of every partition of an entity."""
    return PartitionOptions(
        lock_duration_ms=queue.lock_duration_ms,
        max_delivery_count=queue.max_delivery_count,
        default_ttl_ms=queue.default_ttl_ms,
        size_bytes_max=queue.partition_size_max_bytes,
        dead_letter_on_expiration=queue.dead_lettering_on_expiration,
        requires_session=queue.has_sessions,
        topic=queue.kind is EntityKind.TOPIC,
        dead_letter_at_receive=queue.description.options.sqs is not None,
        keeps_send_time=queue.description.options.sqs is not None,
        fair=queue.description.options.sqs is not None and not queue.requires_session,
        forwards=sum(1 << kind for kind in targets_of(queue)),
        duplicate_window_ms=queue.duplicate_window_ms,
        redelivery_delay_ms=queue.redelivery_delay_ms,
        redelivery_delay_max_ms=queue.redelivery_delay_max_ms,
        reservation_ms=limits.cache_ms,
        express_ms=queue.express_ms,
        limits=limits.partition,
    )
