"""The destinations of forwarding, and the rules that decide whether and where a message is stored there."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from partibus.amqp.codec.decoder import decode
from partibus.amqp.section_fields import Property, property_value, text_property
from partibus.message import TIME_MAX_MS, Message, head_of, hops_of, id_text, ttl_of, with_hop
from partibus.routing.partitions import PartitionHandle
from partibus.routing.slots import SlotMap

HOPS_MAX = 4
"""The largest number of entities that forward a message (section 11.1)."""
PARTITION_KEY = "x-opt-partition-key"
SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
RUN_BITS = 8
"""The bits of a run: 256 neighbouring messages without a key go to the same partition in one command."""


class Destination(NamedTuple):
    """The current state of a queue or topic."""

    name: str
    partitions: Sequence[PartitionHandle]
    """The partitions; the same object as long as the entity is the same."""
    can_send: bool
    message_size_max_bytes: int
    requires_session: bool
    detects_duplicates: bool
    slots: SlotMap | None = None
    """The owners of slots; None: the formula."""
    batch_messages: int = 1 << 30
    """The most messages in one command: a topic makes copies of each, all in one commit."""
    catch_up: Callable[[], None] = lambda: None
    """Reads partitions and slots from the catalog. Raises `StoreUnavailable`."""

    def partition_of(self, key: str) -> int:
        """Return the partition of a key."""
        slots = self.slots
        return (SlotMap(len(self.partitions)) if slots is None else slots).partition_of(key)


Find = Callable[[str], Destination | None]
"""A function that returns the destination of a name, or None if there is none."""


class Undeliverable(NamedTuple):
    """The reason why a message becomes a transfer dead letter, as written to its application properties."""

    reason: str
    description: str


class Outgoing(NamedTuple):
    """A message to forward, and its destination."""

    message: Message
    partition: int


def check(name: str, destination: Destination | None) -> Undeliverable | None:
    """Return why the destination accepts no forwarded messages, or None if it does.

    Only a partition can tell whether it has room.
    """
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
    """Prepare the message with the stored form ``data`` at the position ``pos`` of its sub-queue.

    The result depends only on the arguments, so repeated attempts are equal. A partition of the destination recognizes
    a repeated message by its position alone. ``turn`` is the partition with which messages without a key begin.
    """
    if hops_of(data) >= HOPS_MAX:
        return Undeliverable(
            "MaxTransferHopCountExceeded",
            f"The message was forwarded by {HOPS_MAX} entities, which is the most. Shorten the chain of entities.",
        )
    return _placed(with_hop(data, sequence_number, dead_letter_source), pos, turn, destination)


def prepare_redriven(
    data: bytes, pos: int, sequence_number: int, dead_letter_source: str | None, turn: int, destination: Destination
) -> Outgoing | Undeliverable:
    """Prepare a message that receivers of SQS have had too often (see `prepare`).

    It may come back to a queue any number of times, since each time takes a receive. So its hops count from here on,
    and it is a duplicate of no message.
    """
    data = with_hop(data, sequence_number, dead_letter_source, starts_anew=True)
    outgoing = _placed(data, pos, turn, destination)
    if isinstance(outgoing, Outgoing):
        outgoing.message.message_id = None
    return outgoing


def prepare_transfer(data: bytes, pos: int, turn: int, destination: Destination) -> Outgoing | Undeliverable:
    """Prepare a message that its sender sent through the source (see `prepare`).

    The destination stores it as if it had been sent there directly.
    """
    outgoing = _placed(data, pos, turn, destination)
    if isinstance(outgoing, Outgoing):
        scheduled_ms = _annotation(head_of(data)[0], SCHEDULED_TIME)
        if isinstance(scheduled_ms, int) and abs(scheduled_ms) <= TIME_MAX_MS:
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
    return Outgoing(message, destination.partition_of(key))


def _annotation(annotations: bytes, wanted: str) -> object:
    if wanted.encode() not in annotations:  # the usual case, even with other annotations
        return None
    pos = 0
    while pos < len(annotations):
        name, pos = decode(annotations, pos)
        value, pos = decode(annotations, pos)
        if name == wanted:
            return value
    return None
