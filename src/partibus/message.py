"""The protocol-neutral message: the sections of an AMQP message, kept as the bytes received (D4).

Every front end makes one of these at ingress and every store keeps its *stored form*, one byte string:

```text
prefix (21 bytes)   version, flags, priority, annotation count, ttl ms, lengths of the three sections that follow
annotations         pairs of the message-annotations map from the sender, without those that the broker writes;
                    a forwarded message also keeps some of the entity that it comes from; delivery annotations are the
                    value of one pair
properties          whole section 0x73, or nothing
application props   whole section 0x74, or nothing
rest                body sections and footer
```

A delivery consists of the prefix's few numbers, two freshly written sections (header, annotations) and one slice.
Replacing the application properties leaves all other parts unchanged. The broker decodes a section only on demand.
"""

from collections.abc import Mapping
from contextlib import suppress
from struct import Struct

import msgspec

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol
from partibus.amqp.errors import DecodeError

_PREFIX = Struct(">BBBHIIII")
TIME_MAX_MS = (1 << 63) - 1
"""The latest time of AMQP and of the stores, in ms since 1970: 64 bits with a sign."""
_VERSION = 1
_DURABLE = 1
_HAS_TTL = 2
_HAS_DELIVERY_ANNOTATIONS = 4
"""The flag of a message that came with delivery annotations (`DELIVERY_ANNOTATIONS_KEY`)."""
_WAS_DEAD_LETTER = 8
"""The flag of a message whose annotations name the entity in which it was a dead letter."""
_HOP = 16
_HOPS = 7 * _HOP
"""The number of entities that have forwarded the message. Unless it is 0, the annotations hold the sequence number at
the first of them.
"""
_WAS_SCHEDULED = 128
"""The flag of a message that was scheduled when it came. A receiver is told so (docs/dialect.md)."""
_STATE_SCHEDULED = 2

# For readers of whole ranges, which receive stored forms unchanged:
FORM_VERSION = _VERSION
HAS_TTL, WAS_DEAD_LETTER, HOPS = _HAS_TTL, _WAS_DEAD_LETTER, _HOPS

DELIVERY_ANNOTATIONS_KEY = "x-opt-partibus-delivery-annotations"
"""The annotation that holds the sender's delivery annotations: an encoded map, as binary."""
_DELIVERY_ANNOTATIONS = b"\x00\x53\x71"
_APPLICATION_PROPERTIES = b"\x00\x53\x74"
_DESCRIPTOR_BYTES = 3
DEFAULT_PRIORITY = 4

TTL_MAX_MS = 0xFFFFFFFF
"""The longest time to live that a header can hold, 49.7 days. Clients write it for any longer time, so it means no
limit here: a message with a time to live of a year must not expire after seven weeks.
"""


class Message(msgspec.Struct, eq=False, gc=False):
    """An incoming message: the stored form and the values that routing and the partition need."""

    data: bytes
    """The stored form."""
    message_id: str | None = None
    """The message id, set only on an entity with duplicate detection, where it is a key (rows K7, K10)."""
    partition_key: str | None = None
    session_id: str | None = None
    ttl_ms: int | None = None
    """The time to live; None means no limit."""
    scheduled_ms: int | None = None
    """The time at which the message becomes active, in ms since 1970; None means at once."""
    tag: bytes = b""
    """The note that duplicate detection keeps with the message id, for replies about duplicates."""
    enqueued_ms: int | None = None
    """When a forwarded message was first stored, or a message of SQS sent that is delayed; None: it is stored now.

    Its time to live runs from then.
    """

    @property
    def key(self) -> str | None:
        """The key that decides the partition: session id, else partition key, else message id (rows K3, K5, K7)."""
        if self.session_id is not None:
            return self.session_id
        return self.partition_key if self.partition_key is not None else self.message_id


WIDE_ID = "\0entity "
"""The beginning of a message id that is unique in the whole entity, across all keys.

No other id begins so: see `id_text`.
"""


def id_text(message_id: object) -> str:
    """Convert a message id to the text used as a key (rows K7, K9).

    Ids of types other than string begin with a character that sets them apart from strings. A string that begins with
    that character gets it once more in front.
    """
    if isinstance(message_id, str):
        return f"\0{message_id}" if message_id.startswith("\0") else str(message_id)
    text = message_id.hex() if isinstance(message_id, bytes) else str(message_id)
    return f"\0{type(message_id).__name__} {text}"


def pack(
    *,
    durable: bool = False,
    priority: int = DEFAULT_PRIORITY,
    ttl_ms: int | None = None,
    annotation_count: int = 0,
    annotations: bytes = b"",
    properties: bytes = b"",
    application_properties: bytes = b"",
    rest: bytes = b"",
    forwarding: int = 0,
    delivery_annotations: bool = False,
) -> bytes:
    """Join the parts of a stored form. ``forwarding`` is the value from `StoredMessage`.

    ``delivery_annotations``: whether one of the annotations has the key `DELIVERY_ANNOTATIONS_KEY`.
    """
    flags = (_DURABLE if durable else 0) | (_HAS_TTL if ttl_ms is not None else 0) | forwarding
    if delivery_annotations:
        flags |= _HAS_DELIVERY_ANNOTATIONS
    prefix = _PREFIX.pack(
        _VERSION,
        flags,
        priority,
        annotation_count,
        ttl_ms or 0,
        len(annotations),
        len(properties),
        len(application_properties),
    )
    return b"".join((prefix, annotations, properties, application_properties, rest))


class StoredMessage:
    """The parts of a stored form."""

    __slots__ = (
        "annotation_count",
        "annotations",
        "application_properties",
        "durable",
        "forwarding",
        "priority",
        "properties",
        "rest",
        "ttl_ms",
    )

    def __init__(self, data: bytes) -> None:
        version, flags, self.priority, self.annotation_count, ttl_ms, a, p, q = _PREFIX.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"stored message has form {version}, this program knows form {_VERSION}")
        start = _PREFIX.size
        self.durable = bool(flags & _DURABLE)
        self.ttl_ms: int | None = ttl_ms if flags & _HAS_TTL else None
        self.forwarding: int = flags & (_HOPS | _WAS_DEAD_LETTER | _HAS_DELIVERY_ANNOTATIONS | _WAS_SCHEDULED)
        """Flags about the annotations, only to be passed on."""
        self.annotations = data[start : start + a]
        self.properties = data[start + a : start + a + p]
        self.application_properties = data[start + a + p : start + a + p + q]
        self.rest = data[start + a + p + q :]

    def pack(self) -> bytes:
        """Return the stored form."""
        return pack(
            durable=self.durable,
            priority=self.priority,
            ttl_ms=self.ttl_ms,
            annotation_count=self.annotation_count,
            annotations=self.annotations,
            properties=self.properties,
            application_properties=self.application_properties,
            rest=self.rest,
            forwarding=self.forwarding,
        )


def head_of(data: bytes) -> tuple[bytes, bytes, int]:
    """Return the annotations (pairs) and properties of a stored form, and the size of its other parts in bytes."""
    _, _, _, _, _, a, p, _ = _PREFIX.unpack_from(data)
    start = _PREFIX.size
    end = start + a
    return data[start:end], data[end : end + p], len(data) - end - p


def is_durable(data: bytes) -> bool:
    """Tell whether the sender asked for durability, from the stored form.

    The sender asks by ``durable`` in the header, or by ``ForcePersistence`` (row C24).
    """
    return bool(data[1] & _DURABLE)


def as_scheduled(data: bytes) -> bytes:
    """Return the stored form of a message that is scheduled."""
    return b"".join((data[:1], bytes((data[1] | _WAS_SCHEDULED,)), memoryview(data)[2:]))


def hops_of(data: bytes) -> int:
    """Return how many entities have forwarded a message, from its stored form."""
    return (data[1] & _HOPS) // _HOP


def with_hop(data: bytes, sequence_number: int, dead_letter_source: str | None, *, starts_anew: bool = False) -> bytes:
    """Return the stored form of a message that an entity forwards.

    ``sequence_number`` is the message's number in that entity; the message keeps it if that is the first entity.
    ``dead_letter_source`` names the entity if the message was a dead letter there. The broker removes the time to live
    of such a message, because expiry may have dead-lettered it. ``starts_anew``: this is the first hop that counts.
    """
    version, flags, priority, count, ttl_ms, a, p, q = _PREFIX.unpack_from(data)
    pairs = b""
    if not flags & _HOPS:
        pairs += _encoded_pair("x-opt-enqueue-sequence-number", sequence_number)
        count += 1
    if dead_letter_source is not None:
        flags &= ~_HAS_TTL
        ttl_ms = 0
    if dead_letter_source is not None and not flags & _WAS_DEAD_LETTER:
        pairs += _encoded_pair("x-opt-deadletter-source", dead_letter_source)
        count += 1
        flags |= _WAS_DEAD_LETTER
    flags = (flags & ~_HOPS if starts_anew else flags) + _HOP
    prefix = _PREFIX.pack(version, flags, priority, count, ttl_ms, a + len(pairs), p, q)
    return b"".join((prefix, pairs, data[_PREFIX.size :]))


RECEIVES = "x-opt-partibus-receives"
"""The annotation with the receives that an SQS dead letter had in the queues before."""


def with_receives(data: bytes, count: int) -> bytes:
    """Return the stored form of a dead letter with ``count`` more receives in its annotation."""
    stored = StoredMessage(data)
    kept, pos, number = b"", 0, 0
    for _ in range(stored.annotation_count):
        start = pos
        key, pos = decode(stored.annotations, pos)
        value, pos = decode(stored.annotations, pos)
        if key == RECEIVES and isinstance(value, int):
            count += value
        else:
            kept += stored.annotations[start:pos]
            number += 1
    stored.annotations, stored.annotation_count = kept + _encoded_pair(RECEIVES, int(count)), number + 1
    return stored.pack()


_DESTINATION = "x-opt-partibus-destination"


def with_destination(data: bytes, name: str) -> bytes:
    """Return the stored form of a message sent through an entity to the one of this name (section 3.7)."""
    version, flags, priority, count, ttl_ms, a, p, q = _PREFIX.unpack_from(data)
    pair = _encoded_pair(_DESTINATION, name)
    prefix = _PREFIX.pack(version, flags, priority, count + 1, ttl_ms, a + len(pair), p, q)
    return b"".join((prefix, pair, data[_PREFIX.size :]))


def without_destination(data: bytes) -> tuple[str, bytes]:
    """Return the name that `with_destination` inserted, and the original stored form.

    Raises `DecodeError` or ValueError for a stored form without such a name.
    """
    version, flags, priority, count, ttl_ms, a, p, q = _PREFIX.unpack_from(data)
    key, start = decode(data, _PREFIX.size)
    name, end = decode(data, start)
    if key != _DESTINATION or not isinstance(name, str):
        raise ValueError(f"the first annotation of a message on its way is {key!r}, not {_DESTINATION}")
    prefix = _PREFIX.pack(version, flags, priority, count - 1, ttl_ms, a - (end - _PREFIX.size), p, q)
    return str(name), prefix + data[end:]


def split_delivery_annotations(data: bytes) -> tuple[bytes, bytes]:
    """Return the section of the sender's delivery annotations, b"" without one, and the stored form without it."""
    version, flags, priority, count, ttl_ms, a, p, q = _PREFIX.unpack_from(data)
    if not flags & _HAS_DELIVERY_ANNOTATIONS:
        return b"", data
    start, section = _PREFIX.size, b""
    pos, end = start, start + a
    others = data[start:end]
    for _ in range(count):
        key, value_at = decode(data, pos, end)
        value, after = decode(data, value_at, end)
        if key == DELIVERY_ANNOTATIONS_KEY and isinstance(value, bytes):
            section, others, count = _DELIVERY_ANNOTATIONS + value, data[start:pos] + data[after:end], count - 1
            break
        pos = after
    prefix = _PREFIX.pack(version, flags & ~_HAS_DELIVERY_ANNOTATIONS, priority, count, ttl_ms, len(others), p, q)
    return section, b"".join((prefix, others, data[end:]))


def _encoded_pair(key: str, value: object) -> bytes:
    return encode(Symbol(key)) + encode(value)


def ttl_of(data: bytes) -> int | None:
    """Return the time to live in a stored form, in ms; None means no limit."""
    _, flags, _, _, ttl_ms, _, _, _ = _PREFIX.unpack_from(data)
    return lifetime_ms(ttl_ms) if flags & _HAS_TTL else None


def lifetime_ms(ttl_ms: int | None) -> int | None:
    """Return the lifetime in ms of a message with this ttl in its header; None means no limit."""
    return None if ttl_ms == TTL_MAX_MS else ttl_ms


SQS_TYPES = "x-opt-partibus-sqs-types"
"""The annotation with data types of a message's SQS attributes: JSON by name."""
REASONS = ("DeadLetterReason", "DeadLetterErrorDescription")
"""The application properties that the broker adds to dead letters. `SQS_TYPES` names those that are SQS attributes."""
_SQS_TYPES_BYTES = SQS_TYPES.encode()
_read_types = msgspec.json.Decoder(dict[str, str]).decode
"""Refuses other values at once: an AMQP sender may nest them deeper than a decoder of any value can follow."""


def sqs_types(annotation: object) -> dict[str, str]:
    """Return what `SQS_TYPES` says; nothing for a value that can't be read, as only another sender can make it."""
    if not isinstance(annotation, str):
        return {}
    try:
        return _read_types(annotation)
    except msgspec.DecodeError:
        return {}


def _sqs_attributes(stored: StoredMessage) -> dict[str, str]:
    if _SQS_TYPES_BYTES not in stored.annotations:
        return {}
    pos = 0
    with suppress(DecodeError):
        for _ in range(stored.annotation_count):
            key, pos = decode(stored.annotations, pos)
            value, pos = decode(stored.annotations, pos)
            if key == SQS_TYPES:
                return sqs_types(value)
    return {}


def with_application_properties(data: bytes, changes: Mapping[str, object]) -> bytes:
    """Return a stored form with these application properties set; all other bytes stay the same.

    Attributes of SQS stay, also if they have the name of a reason: a dead letter of SQS keeps its attributes.
    """
    stored = StoredMessage(data)
    attributes = _sqs_attributes(stored)
    if attributes:
        changes = {name: value for name, value in changes.items() if name not in REASONS or name not in attributes}
    properties: dict[object, object] = {}
    if stored.application_properties:
        # The properties were checked at ingress. If a stored row is damaged nevertheless, only its properties are lost.
        with suppress(DecodeError):
            decoded, _ = decode(stored.application_properties, _DESCRIPTOR_BYTES)
            if isinstance(decoded, dict):
                properties = decoded
    stored.application_properties = _APPLICATION_PROPERTIES + encode(properties | dict(changes))
    return stored.pack()


# Fields that the broker writes into every delivery -------------------------------------------------------------------

# Header (0x70) as a list8 of durable, priority (ubyte), ttl (uint or null), first-acquirer (null), delivery-count
# (uint). Every delivery needs it: without it clients report no delivery count.
_HEADER = Struct(">7sBB3sI")
_HEADER_WITH_TTL = Struct(">7sBBBI2sI")
_HEADER_START = {True: b"\x00\x53\x70\xc0\x0b\x05\x41", False: b"\x00\x53\x70\xc0\x0b\x05\x42"}
_HEADER_WITH_TTL_START = {True: b"\x00\x53\x70\xc0\x0f\x05\x41", False: b"\x00\x53\x70\xc0\x0f\x05\x42"}


def _symbol(text: str) -> bytes:
    return b"\xa3" + bytes([len(text)]) + text.encode("ascii")


# Message annotations (0x72): one struct per combination of present values, so that a delivery packs them in one call.
_START = b"\x00\x53\x72\xd1"
_TIME = _symbol("x-opt-enqueued-time") + b"\x83"
_SEQUENCE = _symbol("x-opt-sequence-number") + b"\x81"
_STATE = _symbol("x-opt-message-state") + b"\x71"
_COMMON = f">4sII{len(_TIME)}sq{len(_SEQUENCE)}sq{len(_STATE)}si"
_ENQUEUE_SEQUENCE = _symbol("x-opt-enqueue-sequence-number") + b"\x55\x00"
_PARTITION_ID = _symbol("x-opt-partition-id") + b"\x61"
_LOCKED_UNTIL = _symbol("x-opt-locked-until") + b"\x83"


_LARGE_BYTES = 8 * 1024
"""The size from which on a copy takes longer than the making of a view."""


class DeliveryEncoder:
    """An encoder for the head of deliveries from one sub-queue of one partition.

    ``partition_id`` is None on a plain entity. ``dead_letter_source`` names the entity whose dead-letter sub-queue this
    is. The sequence number on the wire is the partition id in the top 16 bits and the counter below (D9, row P18).
    """

    __slots__ = (
        "_arguments", "_count", "_locked", "_sequence_base", "_shown", "_state", "_tail", "_unlocked", "_variants"
    )  # fmt: skip

    def __init__(self, partition_id: int | None, dead_letter_source: str | None = None, *, shown: int = 0) -> None:
        """Build an encoder; ``shown`` holds the flags of a stored form about the message's own annotations."""
        self._arguments = (partition_id, dead_letter_source)
        self._shown = shown
        self._variants: dict[int, DeliveryEncoder] = {}
        self._state = _STATE_SCHEDULED if shown & _WAS_SCHEDULED else 0
        self._sequence_base = (partition_id or 0) << 48
        tail = b""
        count = 3
        if not shown & _HOPS:
            tail += _ENQUEUE_SEQUENCE
            count += 1
        if partition_id is not None:
            tail += _PARTITION_ID + partition_id.to_bytes(2, "big")
            count += 1
        if dead_letter_source is not None and not shown & _WAS_DEAD_LETTER:
            name = dead_letter_source.encode()
            tail += _symbol("x-opt-deadletter-source") + b"\xb1" + len(name).to_bytes(4, "big") + name
            count += 1
        self._tail = tail
        self._count = count
        self._unlocked = Struct(f"{_COMMON}{len(tail)}s")
        self._locked = Struct(f"{_COMMON}{len(tail)}s{len(_LOCKED_UNTIL)}sq")

    def sequence_number(self, counter: int) -> int:
        """Return the sequence number on the wire for a counter."""
        return self._sequence_base | counter

    def encode(
        self,
        data: bytes,
        *,
        sequence: int,
        enqueued_ms: int,
        delivery_count: int,
        locked_until_ms: int | None = None,
        state: int | None = None,
    ) -> tuple[bytes, bytes, bytes | memoryview]:
        """Return the parts of an encoded message, to be joined.

        Without a ``state`` it is that of a received message: scheduled if it was when it came, otherwise active. The
        parts are the header, the annotations up to the sender's, and the rest of the stored form unchanged. The
        sender's annotations come first in that rest. It is a view of a large form, so that this does not copy it.
        """
        _, flags, priority, annotation_count, ttl_ms, length, _, _ = _PREFIX.unpack_from(data)
        if flags & (_HOPS | _WAS_DEAD_LETTER | _HAS_DELIVERY_ANNOTATIONS | _WAS_SCHEDULED) != self._shown:
            if flags & _HAS_DELIVERY_ANNOTATIONS:
                section, data = split_delivery_annotations(data)
                header, annotations, rest = self.encode(
                    data, sequence=sequence, enqueued_ms=enqueued_ms, delivery_count=delivery_count,
                    locked_until_ms=locked_until_ms, state=state,
                )  # fmt: skip
                return header + section, annotations, rest
            return self._variant(flags & (_HOPS | _WAS_DEAD_LETTER | _WAS_SCHEDULED)).encode(
                data, sequence=sequence, enqueued_ms=enqueued_ms, delivery_count=delivery_count,
                locked_until_ms=locked_until_ms, state=state,
            )  # fmt: skip
        if state is None:
            state = self._state
        durable = flags & _DURABLE == _DURABLE
        if flags & _HAS_TTL:
            start = _HEADER_WITH_TTL_START[durable]
            header = _HEADER_WITH_TTL.pack(start, 0x50, priority, 0x70, ttl_ms, b"\x40\x70", delivery_count)
        else:
            header = _HEADER.pack(_HEADER_START[durable], 0x50, priority, b"\x40\x40\x70", delivery_count)
        if locked_until_ms is None:
            layout = self._unlocked
            annotations = layout.pack(
                _START, layout.size - 8 + length, 2 * (self._count + annotation_count),
                _TIME, enqueued_ms, _SEQUENCE, self._sequence_base | sequence, _STATE, state, self._tail,
            )  # fmt: skip
        else:
            layout = self._locked
            annotations = layout.pack(
                _START, layout.size - 8 + length, 2 * (self._count + 1 + annotation_count),
                _TIME, enqueued_ms, _SEQUENCE, self._sequence_base | sequence, _STATE, state, self._tail,
                _LOCKED_UNTIL, locked_until_ms,
            )  # fmt: skip
        if len(data) < _LARGE_BYTES:
            return header, annotations, data[_PREFIX.size :]
        return header, annotations, memoryview(data)[_PREFIX.size :]

    def _variant(self, shown: int) -> "DeliveryEncoder":
        """Return the encoder for messages that were forwarded."""
        variant = self._variants.get(shown)
        if variant is None:
            variant = self._variants[shown] = DeliveryEncoder(*self._arguments, shown=shown)
        return variant
