"""Where messages are forwarded to, and what of a stored message decides whether and where it is stored there."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from partibus.amqp.codec.decoder import decode
from partibus.amqp.section_fields import Property, property_value, text_property
from partibus.message import Message, head_of, hops_of, id_text, ttl_of, with_hop
from partibus.routing.partitions import PartitionHandle
from partibus.routing.slots import partition_for_key

HOPS_MAX = 4
"""Entities that a message is passed on by (section 11.1)."""
PARTITION_KEY = "x-opt-partition-key"
SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
RUN_BITS = 8
"""Messages without a key go to the same partition as their neighbours, 256 of them: one command for many."""


class Destination(NamedTuple):
    """A queue or topic as it is now."""

    name: str
    partitions: Sequence[PartitionHandle]
    """The same object as long as it is the same entity."""
    can_send: bool
    message_size_max_bytes: int
    requires_session: bool
    detects_duplicates: bool


Find = Callable[[str], Destination | None]
"""The destination of that name; None when there is none (any more)."""


class Undeliverable(NamedTuple):
    """Why a message becomes a transfer dead letter: what its application properties say."""

    reason: str
    description: str


class Outgoing(NamedTuple):
    """A message as it leaves, and where to."""

    message: Message
    partition: int


def check(name: str, destination: Destination | None) -> Undeliverable | None:
    """Why nothing can be forwarded there; None when something can. Whether there is room only a partition can say."""
    if destination is None:
        return Undeliverable(
            "MessagingEntityNotFound", f"The entity '{name}', to which messages are forwarded, does not exist."
        )
    if not destination.can_send:
        return Undeliverable(
            "MessagingEntityDisabled", f"The entity '{name}', to which messages are forwarded, is disabled for sends."
        )
    return None


def prepare(
    data: bytes, pos: int, sequence_number: int, dead_letter_source: str | None, turn: int, destination: Destination
) -> Outgoing | Undeliverable:
    """What becomes of a message with the stored form ``data`` at the position ``pos`` of its sub-queue.

    The answer is the same whoever asks and however often: a partition of the destination knows by the position alone
    what it has got. ``turn``: the partition that messages without a key begin with.
    """
    if hops_of(data) >= HOPS_MAX:
        return Undeliverable(
            "MaxTransferHopCountExceeded",
            f"The message was forwarded by {HOPS_MAX} entities, which is the most. Shorten the chain of entities.",
        )
    return _placed(with_hop(data, sequence_number, dead_letter_source), pos, turn, destination)


def prepare_transfer(data: bytes, pos: int, turn: int, destination: Destination) -> Outgoing | Undeliverable:
    """As `prepare`, of a message that its sender has sent through the source: it is there as if sent at once."""
    outgoing = _placed(data, pos, turn, destination)
    if isinstance(outgoing, Outgoing):
        scheduled_ms = _annotation(head_of(data)[0], SCHEDULED_TIME)
        if isinstance(scheduled_ms, int):
            outgoing.message.scheduled_ms = int(scheduled_ms)
    return outgoing


def _placed(data: bytes, pos: int, turn: int, destination: Destination) -> Outgoing | Undeliverable:
    annotations, properties, others_bytes = head_of(data)
    size_bytes = len(properties) + others_bytes
    if size_bytes > destination.message_size_max_bytes:
        return Undeliverable(
            "MessageSizeExceeded",
            f"The message has {size_bytes} bytes, over the {destination.message_size_max_bytes} that "
            f"'{destination.name}' takes.",
        )
    session_id = text_property(properties, Property.GROUP_ID)
    if session_id is None and destination.requires_session:
        return Undeliverable(
            "Session ID is null",
            f"'{destination.name}' requires sessions, and the message has no session id (group-id).",
        )
    message_id = None
    if destination.detects_duplicates:
        raw_id = property_value(properties, Property.MESSAGE_ID)
        message_id = None if raw_id is None else id_text(raw_id)
    partition_key = _annotation(annotations, PARTITION_KEY)
    message = Message(
        data,
        message_id=message_id,
        partition_key=str(partition_key) if isinstance(partition_key, str) else None,
        session_id=session_id,
        ttl_ms=ttl_of(data),
    )
    count = len(destination.partitions)
    if count == 1:
        return Outgoing(message, 0)
    key = message.key
    if key is None:
        return Outgoing(message, (turn + (pos >> RUN_BITS)) % count)
    return Outgoing(message, partition_for_key(key, count))


def _annotation(annotations: bytes, wanted: str) -> object:
    if wanted.encode() not in annotations:  # the usual case where there are others
        return None
    pos = 0
    while pos < len(annotations):
        name, pos = decode(annotations, pos)
        value, pos = decode(annotations, pos)
        if name == wanted:
            return value
    return None
