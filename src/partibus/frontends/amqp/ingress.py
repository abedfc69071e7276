"""Converts a delivery to messages as they are stored (D4).

Every section but data is decoded once, or recognized as `plain`, so that the broker refuses messages that no client
could read. Then the section is kept as its bytes. Senders repeat themselves, so the content of headers and annotations
is cached by their bytes.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from partibus.amqp import DecodeError, Delivery, EncodeError
from partibus.amqp.codec.decoder import decode, decode_at_most, skip_value
from partibus.amqp.codec.encoder import encode, write_compound
from partibus.amqp.codec.types import Symbol
from partibus.amqp.errors import TooManyValues
from partibus.amqp.section_encoding import encode_raw_map
from partibus.amqp.section_fields import Property, header, iter_map, later_properties, open_section
from partibus.amqp.sections import BATCH_FORMAT, DATA, DELIVERY_ANNOTATIONS, Sections, iter_batch, split_sections
from partibus.errors import ArgumentError, InvalidOperation, MessageTooLarge, QuotaExceeded
from partibus.frontends.amqp.egress import LOCK_TOKEN
from partibus.frontends.amqp.pattern import Repeats
from partibus.frontends.amqp.plain import is_plain_map, plain_identity
from partibus.message import (
    DEFAULT_PRIORITY,
    DELIVERY_ANNOTATIONS_KEY,
    RECEIVES,
    TIME_MAX_MS,
    Message,
    id_text,
    lifetime_ms,
    pack,
)
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
        RECEIVES,
    }
)
"""Annotations that a sender can't set: dropped at ingress, set again in each delivery (section 4.7), or by a pump."""
KEY_CHARS_MAX = 128
"""The longest message id, session id and partition key (section 11.2)."""
BATCH_LEEWAY_BYTES = 2_048
"""The bytes by which a batch may exceed its limit. The Python library fills a batch to the announced limit but leaves
out what it sends around the messages: 56 bytes, and the ids and keys of the first message, each of up to 128 characters
of up to four bytes.
"""
PAIRS_MAX = 4_096
"""The most annotations of one message, and as many delivery annotations. The stored form has room for 65,535."""
PAIRS_AT_ONCE = 4_000
"""The annotations read in one turn of a connection: each takes two to five microseconds, and a read brings 50,000."""
ODD_DELIVERY_PAIRS = 32
"""The annotations whose cost is that of a refused delivery, or of one in a transaction, with an answer of its own."""
REMEMBERED_MAX = 4_096
"""The most different headers and annotations that are cached: every partition key makes its own."""
VALUES_MAX = 10_000
"""The most values that are checked in properties and bodies of the messages of one run: some ten milliseconds. Further
values are stored unchecked, like data: a receiver can't read what its sender has encoded wrongly.
"""
REMEMBERED_BYTES_MAX = 1024
"""The longest header or annotations section that is cached."""

_DESCRIPTOR_BYTES = 3
_PROPERTIES = b"\x00\x53\x73"
_SYMBOL8 = 0xA3
_KNOWN = frozenset(
    key.encode() for key in (*WRITTEN_BY_BROKER, PARTITION_KEY, SCHEDULED_TIME, DELIVERY_ANNOTATIONS_KEY)
)
_DELIVERY_ANNOTATIONS = b"\x00\x53\x71"
LIST8 = 0xC0
_T = TypeVar("_T")


class _Header(NamedTuple):
    durable: bool
    priority: int
    ttl_ms: int | None
    """The time to live as sent."""
    lifetime_ms: int | None


class _Annotations(NamedTuple):
    pair_count: int
    pairs: bytes
    partition_key: str | None
    scheduled_ms: int | None
    of_delivery: bool = False
    """Whether the sender's delivery annotations are among the pairs."""


_NO_HEADER = _Header(durable=False, priority=DEFAULT_PRIORITY, ttl_ms=None, lifetime_ms=None)
_NO_ANNOTATIONS = _Annotations(0, b"", None, None)


class Ingress:
    """The conversion of deliveries.

    ``new_message_id`` makes the 32 characters of an id for messages without one (trap 2).
    """

    def __init__(self, new_message_id: Callable[[], str]) -> None:
        self.new_message_id = new_message_id
        self._values_left = VALUES_MAX
        self.pairs_left = PAIRS_AT_ONCE
        """The annotations that this turn may still read. Messages behind the last of them wait for the next turn."""
        self._headers: dict[bytes, _Header] = {b"": _NO_HEADER}
        self._annotations: dict[bytes, _Annotations] = {b"": _NO_ANNOTATIONS}

    def begin(self) -> None:
        """Begin a turn of one connection, and so check up to `VALUES_MAX` values again."""
        self._values_left = VALUES_MAX
        self.pairs_left = PAIRS_AT_ONCE

    def messages_of(self, delivery: Delivery, queue: Queue, repeats: Repeats | None = None) -> list[Message]:
        """Return the messages of one delivery: one, or those of a batch. Raises a `PartibusError` that rejects it.

        ``repeats``: the pattern that the link's messages share.
        """
        if delivery.message_format != BATCH_FORMAT:
            return [self.message_of(delivery.payload, queue, repeats)]
        payload, most = delivery.payload, queue.batch_size_max_bytes
        if len(payload) > most + BATCH_LEEWAY_BYTES:
            raise MessageTooLarge(queue.name, len(payload), most, "batch")
        try:
            messages = [
                self._message_of(one, queue, repeats)
                for one in islice(iter_batch(payload), queue.bounds.batch_messages + 1)
            ]
        except DecodeError as error:
            raise _unreadable(payload, error) from error
        if len(messages) > queue.bounds.batch_messages:
            raise QuotaExceeded(
                f"A batch to '{queue.name}'", queue.bounds.batch_messages, "messages", "Send it as several batches."
            )
        return messages

    def message_of(self, payload: bytes, queue: Queue, repeats: Repeats | None = None) -> Message:
        """Return one encoded message. Raises a `PartibusError` that refuses it."""
        if len(payload) > queue.message_size_max_bytes:
            raise MessageTooLarge(queue.name, len(payload), queue.message_size_max_bytes)
        try:
            return self._message_of(payload, queue, repeats)
        except DecodeError as error:
            raise _unreadable(payload, error) from error

    def _message_of(self, payload: bytes, queue: Queue, repeats: Repeats | None) -> Message:
        if repeats is not None and repeats.pattern is not None:
            found = repeats.pattern.read(payload, self.new_message_id, is_id_key=queue.requires_duplicate_detection)
            if found is not None:
                repeats.misses = 0
                return found
        sections = split_sections(payload)
        if len(payload) > queue.bounds.small_bytes:
            _check_sizes(sections, queue)
        head = self._headers.get(sections.header) or self._read_header(sections.header)
        notes = self._annotations.get(sections.message_annotations) or self._read_annotations(
            sections.message_annotations
        )
        properties = sections.properties
        message_id, session_id = _identity(properties)
        if sections.application_properties and not is_plain_map(sections.application_properties):
            self._check_map(sections.application_properties)
        if sections.footer:
            self._check_map(sections.footer)
        if sections.body_code > DATA:
            self._check_body(sections.body)
        partition_key = notes.partition_key
        if session_id is not None and partition_key is not None and session_id != partition_key:
            raise InvalidOperation(
                f"The session id '{session_id}' and the partition key '{partition_key}' of a message differ. "
                "Set both to the same value, or only one of them."
            )
        if session_id is None and queue.requires_session:
            raise InvalidOperation(
                f"'{queue.name}' requires sessions, but a message has no session id. Set one (group-id), or send to a "
                "queue that does not require sessions."
            )
        is_id_made = message_id is None
        if message_id is None:
            message_id = self.new_message_id()
            properties = _with_message_id(properties, message_id)
        if sections.delivery_annotations:
            self.pairs_left -= open_section(sections.delivery_annotations)[0]  # a pair costs twice as much here
            notes = _with_delivery_annotations(notes, sections.delivery_annotations)
        data = pack(
            durable=head.durable,
            priority=head.priority,
            ttl_ms=head.ttl_ms,
            annotation_count=notes.pair_count,
            annotations=notes.pairs,
            delivery_annotations=notes.of_delivery,
            properties=properties,
            application_properties=sections.application_properties,
            rest=sections.body + sections.footer if sections.footer else sections.body,
        )
        message = Message(
            data,
            message_id=id_text(message_id) if queue.requires_duplicate_detection else None,
            partition_key=partition_key,
            session_id=session_id,
            ttl_ms=head.lifetime_ms,
            scheduled_ms=notes.scheduled_ms,
        )
        if repeats is not None:
            repeats.note(payload, sections, message, is_id_made=is_id_made)
        return message

    def _iter_annotations(self, section: bytes) -> Iterator[tuple[bytes, int, str | None, bytes]]:
        """Yield encoded pairs without meaning to the broker, and their number; then a key that has one, and its value.

        The key is None after the last pairs. Symbols stay as they are encoded, and values are checked as long as the
        run may check any: a section of 64 KB has 16,000 pairs. Raises `DecodeError`.
        """
        elements, pos, end = open_section(section)
        if elements % 2:
            raise DecodeError(f"annotations have an odd number of elements: {elements}")
        if elements > 2 * PAIRS_MAX:
            raise DecodeError(f"there are {elements // 2} annotations, at most {PAIRS_MAX} are kept")
        self.pairs_left -= elements // 2
        start, count = pos, 0
        try:
            for _ in range(elements // 2):
                value_at = pos + 2 + section[pos + 1]
                name = section[pos + 2 : value_at]
                if section[pos] == _SYMBOL8 and name not in _KNOWN and name.isascii():
                    pos = skip_value(section, value_at, end)
                    if self._values_left:
                        with suppress(TooManyValues):
                            _, _, self._values_left = decode_at_most(section, value_at, self._values_left)
                    count += 1
                    continue
                key, value_at = decode(section, pos, end)
                if not isinstance(key, str):
                    raise DecodeError(f"an annotation has the key {key!r}, no symbol or string")
                before = section[start:pos]
                pos = start = skip_value(section, value_at, end)
                yield before, count, str(key), section[value_at:pos]
                count = 0
        except IndexError:
            raise DecodeError(f"the annotation at byte {pos} is cut short") from None
        if pos != end:
            raise DecodeError(f"annotations have {end - pos} bytes after {elements} elements")
        yield section[start:end], count, None, b""

    def _check_map(self, section: bytes) -> None:
        """Check that application properties or a footer are readable; they are only stored and delivered.

        Raises `DecodeError`.
        """
        with suppress(TooManyValues):
            values: Any
            values, _, self._values_left = decode_at_most(section, _DESCRIPTOR_BYTES, self._values_left)
            for key in values:
                if not isinstance(key, str):
                    raise DecodeError(f"section {section[2]:#04x} has the key {key!r}, no string or symbol")

    def _check_body(self, body: bytes) -> None:
        """Check in the same way a body that is not data."""
        pos = 0
        with suppress(TooManyValues):
            while pos < len(body) and self._values_left:
                _, pos, self._values_left = decode_at_most(body, pos + _DESCRIPTOR_BYTES, self._values_left - 1)

    def _read_header(self, section: bytes) -> _Header:
        fields = header(section)
        priority = DEFAULT_PRIORITY if fields.priority is None else fields.priority
        if priority > 255 or (fields.ttl is not None and fields.ttl > 0xFFFFFFFF):
            raise DecodeError(f"priority {priority} or ttl {fields.ttl} is out of the range of its type")
        found = _Header(bool(fields.durable), priority, fields.ttl, lifetime_ms(fields.ttl))
        _remember(self._headers, section, found)
        return found

    def _read_annotations(self, section: bytes) -> _Annotations:
        pairs = bytearray()
        count = 0
        partition_key = scheduled_ms = None
        of_delivery = False
        for raw_pairs, pair_count, key, raw in self._iter_annotations(section):
            pairs += raw_pairs
            count += pair_count
            if key is None or key in WRITTEN_BY_BROKER:
                continue
            if key == PARTITION_KEY:
                partition_key = _text("partition key", decode(raw)[0])
                raw = encode(partition_key)  # readers of other libraries expect a string
            elif key == SCHEDULED_TIME:
                scheduled_ms = _time(key, decode(raw)[0])
            elif key == DELIVERY_ANNOTATIONS_KEY:  # of a message that was read by position, and is sent again
                found = decode(raw)[0]
                if of_delivery or not isinstance(found, bytes):
                    continue
                raw = encode(_delivery_annotations(found))
                of_delivery = True
            try:
                pairs += encode(Symbol(key))
            except EncodeError as error:
                raise DecodeError(f"the key {key!r} of an annotation can't be a symbol") from error
            decode(raw)
            pairs += raw
            count += 1
        found = _Annotations(count, bytes(pairs), partition_key, scheduled_ms, of_delivery)
        if scheduled_ms is None:  # a time hardly comes twice
            _remember(self._annotations, section, found)
        return found


def _unreadable(payload: bytes, error: DecodeError) -> ArgumentError:
    return ArgumentError("message", f"{len(payload)} bytes", "an encoded AMQP message", f"{error}.")


def _delivery_annotations(encoded: bytes) -> bytes:
    """Return an encoded map of delivery annotations without the lock token, which only the broker sets.

    Raises `DecodeError`.
    """
    section = _DELIVERY_ANNOTATIONS + encoded
    elements, _, _ = open_section(section)
    if elements > 2 * PAIRS_MAX:
        raise DecodeError(f"there are {elements // 2} delivery annotations, at most {PAIRS_MAX} are kept")
    pairs = [(key, raw) for key, raw in iter_map(section) if key != LOCK_TOKEN]
    return encode_raw_map(DELIVERY_ANNOTATIONS, pairs)[_DESCRIPTOR_BYTES:]


def _with_delivery_annotations(notes: _Annotations, section: bytes) -> _Annotations:
    """Put a section of delivery annotations among the pairs, unless it is there already. Raises `DecodeError`."""
    encoded = _delivery_annotations(section[_DESCRIPTOR_BYTES:])
    if notes.of_delivery:
        return notes
    pairs = encode(Symbol(DELIVERY_ANNOTATIONS_KEY)) + encode(encoded) + notes.pairs
    return notes._replace(pair_count=notes.pair_count + 1, pairs=pairs, of_delivery=True)


def _with_message_id(properties: bytes, message_id: str) -> bytes:
    count, others = later_properties(properties)
    section = bytearray(_PROPERTIES)
    write_compound(section, LIST8, 1 + count, encode(message_id) + others)
    return bytes(section)


def _remember(known: dict[bytes, _T], section: bytes, found: _T) -> None:
    if len(section) > REMEMBERED_BYTES_MAX:
        return
    if len(known) >= REMEMBERED_MAX:
        known.clear()
    known[section] = found


def _identity(properties: bytes) -> tuple[object, str | None]:
    """Return message id and session id of a properties section, all of which must be readable."""
    if not properties:
        return None, None
    plain = plain_identity(properties, KEY_CHARS_MAX)
    if plain is not None:
        return plain
    values: Any = decode(properties, _DESCRIPTOR_BYTES)[0]
    if len(values) > len(Property):
        raise DecodeError(f"the properties have {len(values)} fields, at most {len(Property)} are defined")
    message_id = values[Property.MESSAGE_ID] if values else None
    if isinstance(message_id, str):
        _text("message id", message_id)
    elif message_id is not None and (not isinstance(message_id, int | bytes | UUID) or isinstance(message_id, bool)):
        raise DecodeError(f"message-id is {message_id!r}, no string, ulong, uuid or binary")
    session_id = values[Property.GROUP_ID] if len(values) > Property.GROUP_ID else None
    return message_id, _text("session id (group-id)", session_id)


def _check_sizes(sections: Sections, queue: Queue) -> None:
    """Check section sizes. Raises ArgumentError, see `Bounds`."""
    application_properties = sections.application_properties
    annotations = sections.delivery_annotations + sections.message_annotations
    kept = (sections.header, annotations, sections.properties, application_properties)
    pairs = iter_map(application_properties) if application_properties else ()
    queue.bounds.check_headers(sum(map(len, kept)), pairs)


def _time(name: str, value: object) -> int | None:
    """Return milliseconds since 1970; None for null."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not -TIME_MAX_MS <= value <= TIME_MAX_MS:
        raise ArgumentError(name, value, f"a timestamp of at most {TIME_MAX_MS} ms since 1970")
    return int(value)


def _text(name: str, value: object) -> str | None:
    """Return a short text; None for null.

    One client's library sends a key that it has received as binary: the UTF-8 bytes of a text mean that text.
    """
    if value is None:
        return None
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise ArgumentError(name, value, "a string, or the bytes of one in UTF-8") from error
    if not isinstance(value, str):
        raise ArgumentError(name, value, "a string")
    if len(value) > KEY_CHARS_MAX:
        raise ArgumentError(name, value, f"at most {KEY_CHARS_MAX} characters long")
    return str(value)
