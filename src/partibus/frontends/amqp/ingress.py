"""A delivery as it came -> messages as they are stored (D4).

The broker looks at as little as it can: the header's numbers, the keys of the annotations, message-id and group-id.
The sections themselves are kept as their bytes. Senders repeat themselves, so what headers and annotations say is
remembered by their bytes.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from partibus.amqp import DecodeError, Delivery
from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol
from partibus.amqp.section_encoding import encode_raw_properties
from partibus.amqp.section_fields import Property, header, iter_map, raw_property
from partibus.amqp.sections import BATCH_FORMAT, iter_batch, split_sections
from partibus.errors import ArgumentError, InvalidOperation, MessageTooLarge, Unsupported
from partibus.message import DEFAULT_PRIORITY, Message, pack
from partibus.namespace.namespace import Queue

PARTITION_KEY = "x-opt-partition-key"
SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
WRITTEN_BY_BROKER = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-partition-id",
        "x-opt-deadletter-source",
        "x-opt-message-state",
    }
)
"""Annotations that a sender can't set: dropped at ingress, written anew in each delivery (section 4.7)."""
KEY_CHARS_MAX = 128
"""Longest message id, session id and partition key (section 11.2)."""
REMEMBERED_MAX = 512

_T = TypeVar("_T")


class _Header(NamedTuple):
    durable: bool
    priority: int
    ttl_ms: int | None


class _Annotations(NamedTuple):
    pair_count: int
    pairs: bytes
    partition_key: str | None


_NO_HEADER = _Header(durable=False, priority=DEFAULT_PRIORITY, ttl_ms=None)
_NO_ANNOTATIONS = _Annotations(0, b"", None)


class Ingress:
    """``new_message_id`` makes the 32 characters of an id for messages that come without (trap 2)."""

    def __init__(self, new_message_id: Callable[[], str]) -> None:
        self._new_message_id = new_message_id
        self._headers: dict[bytes, _Header] = {b"": _NO_HEADER}
        self._annotations: dict[bytes, _Annotations] = {b"": _NO_ANNOTATIONS}

    def messages_of(self, delivery: Delivery, queue: Queue) -> list[Message]:
        """The messages of one delivery: one, or those of a batch. Raises a `PartibusError` that rejects it."""
        if delivery.state is not None:
            raise Unsupported("A transaction", "Send the message outside of it.")
        if len(delivery.payload) > queue.message_size_max_bytes:
            raise MessageTooLarge(queue.name, len(delivery.payload), queue.message_size_max_bytes)
        try:
            if delivery.message_format == BATCH_FORMAT:
                return [self.message_of(payload) for payload in iter_batch(delivery.payload)]
            return [self.message_of(delivery.payload)]
        except DecodeError as error:
            raise ArgumentError(
                "message", f"{len(delivery.payload)} bytes", "an encoded AMQP message", f"{error}."
            ) from error

    def message_of(self, payload: bytes) -> Message:
        """One encoded message. Raises `DecodeError`, `ArgumentError`, `InvalidOperation`."""
        sections = split_sections(payload)
        head = self._headers.get(sections.header) or self._read_header(sections.header)
        notes = self._annotations.get(sections.message_annotations) or self._read_annotations(
            sections.message_annotations
        )
        properties = sections.properties
        session_id = _text("session id (group-id)", raw_property(properties, Property.GROUP_ID))
        partition_key = notes.partition_key
        if session_id is not None and partition_key is not None and session_id != partition_key:
            raise InvalidOperation(
                f"The session id '{session_id}' and the partition key '{partition_key}' of a message differ. "
                "Set both to the same value, or only one of them."
            )
        raw_id = raw_property(properties, Property.MESSAGE_ID)
        if raw_id is None:
            properties = self._with_message_id(properties)
        elif len(raw_id) > KEY_CHARS_MAX:
            _text("message id", raw_id)
        data = pack(
            durable=head.durable,
            priority=head.priority,
            ttl_ms=head.ttl_ms,
            annotation_count=notes.pair_count,
            annotations=notes.pairs,
            properties=properties,
            application_properties=sections.application_properties,
            rest=sections.body + sections.footer if sections.footer else sections.body,
        )
        return Message(data, partition_key=partition_key, session_id=session_id, ttl_ms=head.ttl_ms)

    def _read_header(self, section: bytes) -> _Header:
        fields = header(section)
        priority = DEFAULT_PRIORITY if fields.priority is None else fields.priority
        if priority > 255 or (fields.ttl is not None and fields.ttl > 0xFFFFFFFF):
            raise DecodeError(f"priority {priority} or ttl {fields.ttl} is out of the range of its type")
        found = _Header(bool(fields.durable), priority, fields.ttl)
        _remember(self._headers, section, found)
        return found

    def _read_annotations(self, section: bytes) -> _Annotations:
        pairs = bytearray()
        count = 0
        partition_key = None
        for key, raw in iter_map(section):
            if key in WRITTEN_BY_BROKER:
                continue
            if key == PARTITION_KEY:
                partition_key = _text("partition key", raw)
            elif key == SCHEDULED_TIME and raw != b"\x40":
                raise Unsupported("A scheduled enqueue time", f"Send the message without {SCHEDULED_TIME}.")
            pairs += encode(Symbol(key)) + raw
            count += 1
        found = _Annotations(count, bytes(pairs), partition_key)
        _remember(self._annotations, section, found)
        return found

    def _with_message_id(self, properties: bytes) -> bytes:
        fields: list[bytes | None] = [raw_property(properties, which) for which in Property]
        while len(fields) > 1 and fields[-1] is None:
            fields.pop()
        fields[0] = encode(self._new_message_id())
        return encode_raw_properties(fields)


def _remember(known: dict[bytes, _T], section: bytes, found: _T) -> None:
    if len(known) >= REMEMBERED_MAX:
        known.clear()
    known[section] = found


def _text(name: str, raw: bytes | None) -> str | None:
    """A short text, decoded; None for null. Other types have no such bound and no meaning as a key."""
    if raw is None or raw == b"\x40":
        return None
    value, _ = decode(raw)
    if isinstance(value, str):
        if len(value) > KEY_CHARS_MAX:
            raise ArgumentError(name, value, f"at most {KEY_CHARS_MAX} characters long")
        return str(value)
    if name == "message id":
        return None
    raise ArgumentError(name, value, "a string")
