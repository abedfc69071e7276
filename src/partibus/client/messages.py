"""Messages of a client: built from plain values to send, decoded on demand when received."""

import struct
from collections.abc import Mapping
from functools import cached_property
from typing import Final
from uuid import UUID

from msgspec import Struct, field

from partibus.amqp import Delivery, EncodeError
from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.types import Timestamp
from partibus.amqp.section_encoding import (
    MessageId,
    encode_annotations,
    encode_application_properties,
    encode_header,
    encode_properties,
)
from partibus.amqp.section_fields import Header, Property, decode_body, header, iter_map, map_value, properties
from partibus.amqp.sections import DATA, Sections, split_sections
from partibus.errors import ArgumentError

STATES = ("active", "deferred", "scheduled")
"""The texts of the annotation ``x-opt-message-state``."""
KEY_CHARACTERS_MAX: Final = 128
"""The service's bound of message ids, session ids and partition keys."""
TIME_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
TTL_MAX_MS: Final = 0xFFFF_FFFF
"""The largest time to live that the header holds: 49 days. The entity's own may be longer."""
_TEXTS: Final = ("subject", "content_type", "to", "reply_to")
_NOT_DURABLE: Final = encode_header(durable=False)
_DURABLE: Final = encode_header(durable=True)
_ID_ALONE: Final = struct.Struct(">4sBBBB")
"""The head of a properties section with nothing but a message id."""
_SHORT_ID_BYTES_MAX: Final = 128
_TOKEN_BYTES: Final = 16
_DATA_HEAD: Final = b"\x00Su\xb0"


def check_key(name: str, value: str) -> None:
    """Check a message id, session id or partition key. Raises `ArgumentError`."""
    if not isinstance(value, str) or len(value) > KEY_CHARACTERS_MAX:
        raise ArgumentError(name, value, f"a text of {KEY_CHARACTERS_MAX} characters at most")


def check_time(name: str, at_ms: int) -> int:
    """Check a Unix time in milliseconds. Raises `ArgumentError`."""
    return _whole(name, at_ms, TIME_MAX_MS, "milliseconds since 1970", "Pass int(moment.timestamp() * 1000).")


def _whole(name: str, value: int, most: int, unit: str, next_step: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ArgumentError(name, value, f"a whole number of {unit}, 0 to {most}", next_step)
    return value


def _with_text_keys(named: Mapping[str, object]) -> Mapping[str, object]:
    if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named):
        raise ArgumentError("application_properties", named, "a mapping of texts to values")
    return named


class OutgoingMessage(Struct, kw_only=True):
    """A message to send.

    ``ttl_ms`` is its time to live in milliseconds, None for the queue's own. ``scheduled_ms`` is the Unix time in
    milliseconds at which the message becomes active, None for at once. With ``force_persistence`` even an express
    entity stores the message before acknowledging it.
    """

    body: bytes = b""
    message_id: MessageId | None = None
    partition_key: str | None = None
    session_id: str | None = None
    subject: str | None = None
    content_type: str | None = None
    correlation_id: MessageId | None = None
    to: str | None = None
    reply_to: str | None = None
    ttl_ms: int | None = None
    scheduled_ms: int | None = None
    force_persistence: bool = False
    application_properties: Mapping[str, object] = field(default_factory=dict)

    def encode(self, otherwise_id: str | None = None) -> bytes:
        """Return the encoded message. ``otherwise_id`` is its message id if it has none.

        Raises `ArgumentError` for a value of another type or out of bounds, and `partibus.amqp.EncodeError` for an
        application property that no AMQP type can hold. Hot path.
        """
        message_id = otherwise_id if self.message_id is None else self.message_id
        if self.ttl_ms is None:
            header = _DURABLE if self.force_persistence else _NOT_DURABLE
        else:
            header = encode_header(
                durable=self.force_persistence, ttl=_whole("ttl_ms", self.ttl_ms, TTL_MAX_MS, "milliseconds")
            )
        parts = [header]
        annotations: dict[str, object] = {}
        if self.partition_key is not None:
            check_key("partition_key", self.partition_key)
            annotations["x-opt-partition-key"] = self.partition_key
        if self.scheduled_ms is not None:
            annotations["x-opt-scheduled-enqueue-time"] = Timestamp(check_time("scheduled_ms", self.scheduled_ms))
        if annotations:
            parts.append(encode_annotations(annotations))
        if (
            type(message_id) is str
            and len(raw_id := message_id.encode()) <= _SHORT_ID_BYTES_MAX
            and None is self.session_id is self.subject is self.content_type
            and None is self.correlation_id is self.to is self.reply_to
        ):
            size = len(raw_id)
            parts.append(_ID_ALONE.pack(b"\x00Ss\xc0", size + 3, 1, 0xA1, size) + raw_id)
        else:
            self._check_properties(message_id)
            parts.append(
                encode_properties(
                    message_id=message_id,
                    to=self.to,
                    subject=self.subject,
                    reply_to=self.reply_to,
                    correlation_id=self.correlation_id,
                    content_type=self.content_type,
                    group_id=self.session_id,
                )
            )
        if self.application_properties:
            parts.append(encode_application_properties(_with_text_keys(self.application_properties)))
        body: object = self.body
        if not isinstance(body, bytes | bytearray | memoryview):
            raise EncodeError(f"the body is {type(body).__name__}; pass bytes, as text.encode()")
        parts.append(_DATA_HEAD + len(body).to_bytes(4))
        parts.append(bytes(body))
        return b"".join(parts)

    def _check_properties(self, message_id: object) -> None:
        """Check the fields of the properties section. Raises `ArgumentError`."""
        if self.session_id is not None:
            check_key("session_id", self.session_id)
        if isinstance(message_id, str):
            check_key("message_id", message_id)
        for name, one in (("message_id", message_id), ("correlation_id", self.correlation_id)):
            if isinstance(one, bool) or not isinstance(one, str | int | UUID | bytes | None):
                raise ArgumentError(name, one, "a text, a whole number, a UUID or bytes")
        for name in _TEXTS:
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise ArgumentError(name, text, "a text")


class IncomingMessage:
    """A message that was delivered or peeked.

    Every property raises `DecodeError` if its section is malformed. ``payload`` is the whole encoded message.
    ``delivery`` is the argument of `Receiver.settle`, None for a peeked or deferred message.
    """

    settled = False
    """Whether a settlement of the message was begun with `partibus.client.aio`."""

    def __init__(self, payload: bytes, delivery: Delivery | None = None, token: UUID | None = None) -> None:
        """Take an encoded message. ``token`` is the lock token of a deferred message."""
        self.payload = payload
        self.delivery = delivery
        self._token = token

    def __repr__(self) -> str:
        return f"IncomingMessage({self.message_id!r}, sequence number {self.sequence_number})"

    @cached_property
    def sections(self) -> Sections:
        """The sections of the message, not decoded yet."""
        return split_sections(self.payload)

    @cached_property
    def body(self) -> bytes | object:
        """The bytes of all data sections; for other bodies the decoded value, or a list of sequences."""
        contents = decode_body(self.sections.body)
        if self.sections.body_code == DATA or not contents:
            return b"".join(part for part in contents if isinstance(part, bytes))
        return contents[0] if len(contents) == 1 else contents

    @cached_property
    def header(self) -> Header:
        """The header section."""
        return header(self.sections.header)

    @cached_property
    def _properties(self) -> list[object]:
        return properties(self.sections.properties)

    @property
    def message_id(self) -> object:
        """The message id."""
        return self._properties[Property.MESSAGE_ID]

    @property
    def correlation_id(self) -> object:
        """The correlation id."""
        return self._properties[Property.CORRELATION_ID]

    @property
    def subject(self) -> object:
        """The subject, which older client libraries call label."""
        return self._properties[Property.SUBJECT]

    @property
    def content_type(self) -> object:
        """The content type."""
        return self._properties[Property.CONTENT_TYPE]

    @property
    def to(self) -> object:
        """The address in the field ``to``."""
        return self._properties[Property.TO]

    @property
    def reply_to(self) -> object:
        """The address in the field ``reply-to``."""
        return self._properties[Property.REPLY_TO]

    @property
    def session_id(self) -> object:
        """The session id, which AMQP calls group-id."""
        return self._properties[Property.GROUP_ID]

    @property
    def delivery_count(self) -> int:
        """The number of earlier unsuccessful deliveries."""
        return self.header.delivery_count or 0

    @cached_property
    def annotations(self) -> dict[str, object]:
        """The message annotations by name, including those from the broker."""
        return {key: decode(raw)[0] for key, raw in iter_map(self.sections.message_annotations)}

    @cached_property
    def application_properties(self) -> dict[str, object]:
        """The application properties by name."""
        return {key: decode(raw)[0] for key, raw in iter_map(self.sections.application_properties)}

    @property
    def sequence_number(self) -> int | None:
        """The sequence number."""
        return _integer(self.annotations.get("x-opt-sequence-number"))

    @property
    def enqueued_ms(self) -> int | None:
        """The time when the broker stored the message, as Unix time in milliseconds like all times here."""
        return _integer(self.annotations.get("x-opt-enqueued-time"))

    @property
    def scheduled_ms(self) -> int | None:
        """The time when the message became or becomes active."""
        return _integer(self.annotations.get("x-opt-scheduled-enqueue-time"))

    @property
    def lock_token(self) -> UUID | None:
        """The token of the message's lock; None for a peeked or deleted message."""
        delivery = self.delivery
        if delivery is None:
            return self._token
        return None if delivery.settled or len(delivery.tag) != _TOKEN_BYTES else UUID(bytes_le=delivery.tag)

    @property
    def locked_until_ms(self) -> int | None:
        """The time when the message's lock ends."""
        return _integer(self.annotations.get("x-opt-locked-until"))

    @property
    def partition_id(self) -> int | None:
        """The partition id; None on an entity that is not partitioned."""
        return _integer(self.annotations.get("x-opt-partition-id"))

    @property
    def partition_key(self) -> object:
        """The partition key."""
        return map_value(self.sections.message_annotations, "x-opt-partition-key")

    @property
    def dead_letter_reason(self) -> object:
        """The reason why the message was dead-lettered."""
        return self.application_properties.get("DeadLetterReason")

    @property
    def state(self) -> str:
        """The state of the message, one of `STATES`."""
        number = _integer(self.annotations.get("x-opt-message-state")) or 0
        return STATES[number] if 0 <= number < len(STATES) else f"state {number}"


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None
