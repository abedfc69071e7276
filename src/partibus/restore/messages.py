"""Conversion of a stored message into one that is sent again.

It keeps its header, properties, application properties (the dead-letter reason among them), body, and its sender's
annotations with partition key and scheduled time. Two annotations say where it was.
"""

from partibus.amqp.codec.encoder import encode, write_compound
from partibus.amqp.codec.types import Symbol
from partibus.amqp.section_encoding import encode_header
from partibus.message import StoredMessage

RESTORED_FROM = "x-opt-partibus-restored-from"
"""The entity, or its dead-letter sub-queue, that the message was in."""
RESTORED_NUMBER = "x-opt-partibus-restored-sequence-number"
"""Its sequence number there. Two restored messages with the same one are the same message."""

_ANNOTATIONS = b"\x00\x53\x72"
_MAP8 = 0xC1


def outgoing(data: bytes, source: str, sequence_number: int) -> bytes:
    """Encode a stored message for sending. Raises ValueError for bytes that are no stored message."""
    stored = StoredMessage(data)
    header = encode_header(durable=stored.durable, priority=stored.priority, ttl=stored.ttl_ms)
    ours = {RESTORED_FROM: source, RESTORED_NUMBER: sequence_number}
    pairs = stored.annotations + b"".join(encode(Symbol(key)) + encode(value) for key, value in ours.items())
    annotations = bytearray(_ANNOTATIONS)
    write_compound(annotations, _MAP8, 2 * (stored.annotation_count + len(ours)), pairs)
    return b"".join((header, bytes(annotations), stored.properties, stored.application_properties, stored.rest))
