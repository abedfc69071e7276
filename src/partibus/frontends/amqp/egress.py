"""Stored messages as clients read them: on a receiver link, in a peek, in a browse."""

from partibus.message import DeliveryEncoder
from partibus.namespace.broker import Entity
from partibus.partition.keys import SubqueueKind
from partibus.partition.ports import EntryRow


def encoder_for(entity: Entity, kind: int, partition_id: int) -> DeliveryEncoder:
    """Writes messages of one sub-queue as clients read them."""
    return DeliveryEncoder(
        partition_id if entity.route.partitioned else None,
        entity.queue.name if kind == SubqueueKind.DEAD_LETTER else None,
    )


def encode_row(encoder: DeliveryEncoder, row: EntryRow) -> bytes:
    """A stored entry as an encoded message; it carries no lock."""
    parts = encoder.encode(
        row.data,
        sequence=row.sequence,
        enqueued_ms=row.enqueued_ms,
        delivery_count=row.delivery_count,
        state=row.state,
    )
    return b"".join(parts)
