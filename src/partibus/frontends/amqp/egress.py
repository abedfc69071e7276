"""Encodes stored messages for clients: on a receiver link, in management replies, in a browse."""

from uuid import UUID

from partibus.amqp.codec.encoder import encode
from partibus.amqp.section_encoding import encode_raw_map
from partibus.amqp.section_fields import iter_map
from partibus.amqp.sections import DELIVERY_ANNOTATIONS
from partibus.message import DeliveryEncoder, StoredMessage, split_delivery_annotations
from partibus.namespace.entity import Entity
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.ports import EntryRow, EntryState

LOCK_TOKEN = "x-opt-lock-token"


def encoder_for(entity: Entity, kind: int, partition_id: int) -> DeliveryEncoder:
    """Return an encoder of the messages of one sub-queue."""
    return DeliveryEncoder(
        partition_id if entity.route.partitioned else None,
        None if kind == SubqueueKind.ACTIVE else entity.queue.name,
    )


def shown_state(state: int) -> int:
    """Return the state of an entry as clients know it (section 4.7).

    An entry that is delayed after an abandon is active.
    """
    return EntryState.ACTIVE if state == EntryState.DELAYED else state


def encode_row(encoder: DeliveryEncoder, row: EntryRow, *, with_body: bool = True) -> bytes:
    """Return a stored entry as an encoded message; it carries no lock."""
    parts = encoder.encode(
        row.data if with_body else without_body(row.data),
        sequence=row.sequence,
        enqueued_ms=row.enqueued_ms,
        delivery_count=row.delivery_count,
        state=shown_state(row.state),
    )
    return b"".join(parts)


def encode_deferred(
    encoder: DeliveryEncoder,
    data: bytes,
    *,
    sequence: int,
    enqueued_ms: int,
    delivery_count: int,
    token: UUID | None,
    locked_until_ms: int | None,
) -> bytes:
    """Encode a deferred message for `receive-by-sequence-number`; both lock fields are None if it was deleted.

    One client reads the lock token of such a message only from its delivery annotations (section 4.7).
    """
    section, data = split_delivery_annotations(data)
    header, *others = encoder.encode(
        data,
        sequence=sequence,
        enqueued_ms=enqueued_ms,
        delivery_count=delivery_count,
        locked_until_ms=locked_until_ms,
        state=EntryState.DEFERRED,
    )
    if token is not None:
        own = iter_map(section) if section else ()
        section = encode_raw_map(DELIVERY_ANNOTATIONS, [(LOCK_TOKEN, encode(token)), *own])
    return b"".join((header, section, *others))


def without_body(data: bytes) -> bytes:
    """Return a stored form without body section and footer, for a peek at properties only."""
    stored = StoredMessage(data)
    stored.rest = b""
    return stored.pack()
