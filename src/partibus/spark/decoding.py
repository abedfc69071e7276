"""Encoded messages to Arrow columns, a batch at a time.

A batch is turned round twice: each message into its sections, then each column as one pass over a section's list. Only
the sections that the asked-for columns need are decoded.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from operator import attrgetter
from typing import Any

import pyarrow as pa

from partibus.amqp.codec.skip import skip_value
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_fields import Property
from partibus.amqp.sections import DATA, SEQUENCE, VALUE, Sections, iter_data, split_sections
from partibus.client.browse import BrowsedMessage
from partibus.spark.composites import VALUE_START, read_list, read_map
from partibus.spark.properties import text_of, type_of

Fields = Sequence[object]
Map = Mapping[object, object]

TTL_OPEN_END = 2**32 - 1
"""A header's ttl with the largest value says "this or more"; the properties then know more."""

# Spark's timestamps are microseconds within the years 1 to 9999; times outside are cut to that.
_MICROSECONDS_MIN = -62_135_596_800_000_000
_MICROSECONDS_MAX = 253_402_300_799_999_999
_INT32_MAX = 2**31 - 1
_STATES = {0: "active", 1: "deferred", 2: "scheduled"}

_TTL, _DELIVERY_COUNT = 2, 4
"""Places in the header [3.2.1]."""
_BODY_TYPES = {DATA: "data", SEQUENCE: "sequence", VALUE: "value"}


def decode_columns(messages: Sequence[BrowsedMessage], partition_id: int, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch with exactly the columns of ``schema``. Raises `DecodeError` naming the position."""
    with _no_collection():
        page = Page(messages, partition_id)
        arrays = [pa.array(COLUMN_READERS[field.name](page), type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def _no_collection() -> Iterator[None]:
    """A batch makes some 200,000 objects, none of them garbage before its end: collections would find nothing, and were
    a third of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Page:
    """Messages of one partition; their sections are decoded on first use, missing ones are empty."""

    def __init__(self, messages: Sequence[BrowsedMessage], partition_id: int) -> None:
        self.messages = messages
        self.partition_id = partition_id

    @cached_property
    def sections(self) -> list[Sections]:
        return self._each(split_sections, [message.payload for message in self.messages])

    @cached_property
    def headers(self) -> list[Fields]:
        return self._decoded(read_list, attrgetter("header"))

    @cached_property
    def annotations(self) -> list[Map]:
        return self._decoded(read_map, attrgetter("message_annotations"))

    @cached_property
    def properties(self) -> list[Fields]:
        return self._decoded(read_list, attrgetter("properties"))

    @cached_property
    def application_properties(self) -> list[Map]:
        return self._decoded(read_map, attrgetter("application_properties"))

    @cached_property
    def bodies(self) -> list[bytes]:
        return self._each(_body, self.sections)

    @cached_property
    def ttls_ms(self) -> list[int | None]:
        return [_ttl_ms(*pair) for pair in zip(self.headers, self.properties, strict=True)]

    def _decoded(self, read: Callable[[bytes], Any], section: Callable[[Sections], bytes]) -> list[Any]:
        """A section of every message; `split_sections` has checked that it is a list or map, as it must be."""
        return self._each(read, list(map(section, self.sections)))

    def _each(self, read: Callable[[Any], Any], values: Sequence[object]) -> list[Any]:
        """``read`` over what belongs to each message; an error gets the message's position."""
        try:
            return list(map(read, values))
        except DecodeError:
            for message, value in zip(self.messages, values, strict=True):
                try:
                    read(value)
                except DecodeError as error:
                    raise DecodeError(f"the message at position {message.position}: {error}") from error
            raise


ColumnReader = Callable[[Page], Sequence[object]]


def _property(place: int) -> ColumnReader:
    return lambda page: [text_of(_at(fields, place)) for fields in page.properties]


def _annotation_text(key: str) -> ColumnReader:
    return lambda page: [text_of(annotations.get(key)) for annotations in page.annotations]


def _annotation_number(key: str) -> ColumnReader:
    return lambda page: [_number(annotations.get(key)) for annotations in page.annotations]


def _annotation_time(key: str) -> ColumnReader:
    return lambda page: [_microseconds(_number(annotations.get(key))) for annotations in page.annotations]


def _application_text(key: str) -> ColumnReader:
    return lambda page: [text_of(properties.get(key)) for properties in page.application_properties]


def _application_map(form: Callable[[object], str | None]) -> ColumnReader:
    return lambda page: [
        [(str(name), form(value)) for name, value in properties.items()] for properties in page.application_properties
    ]


def _delivery_count(page: Page) -> list[int]:
    return [min(_number(_at(header, _DELIVERY_COUNT)) or 0, _INT32_MAX) for header in page.headers]


def _expiry(page: Page) -> list[int | None]:
    enqueued = (_number(annotations.get("x-opt-enqueued-time")) for annotations in page.annotations)
    pairs = zip(enqueued, page.ttls_ms, strict=True)
    return [None if start is None or ttl is None else _microseconds(start + ttl) for start, ttl in pairs]


def _state(page: Page) -> list[str]:
    numbers = (_number(annotations.get("x-opt-message-state")) or 0 for annotations in page.annotations)
    return [_STATES.get(number, str(number)) for number in numbers]


COLUMN_READERS: Mapping[str, ColumnReader] = {
    "body": lambda page: page.bodies,
    "body_type": lambda page: [_BODY_TYPES.get(sections.body_code) for sections in page.sections],
    "content_type": _property(Property.CONTENT_TYPE),
    "content_encoding": _property(Property.CONTENT_ENCODING),
    "message_id": _property(Property.MESSAGE_ID),
    "session_id": _property(Property.GROUP_ID),
    "partition_key": _annotation_text("x-opt-partition-key"),
    "partition_id": lambda page: [page.partition_id] * len(page.messages),
    "position": lambda page: [message.position for message in page.messages],
    "sequence_number": _annotation_number("x-opt-sequence-number"),
    "enqueued_sequence_number": _annotation_number("x-opt-enqueue-sequence-number"),
    "enqueued_time": _annotation_time("x-opt-enqueued-time"),
    "scheduled_enqueue_time": _annotation_time("x-opt-scheduled-enqueue-time"),
    "expires_at": _expiry,
    "time_to_live_ms": lambda page: page.ttls_ms,
    "delivery_count": _delivery_count,
    "state": _state,
    "dead_letter_reason": _application_text("DeadLetterReason"),
    "dead_letter_error_description": _application_text("DeadLetterErrorDescription"),
    "dead_letter_source": _annotation_text("x-opt-deadletter-source"),
    "correlation_id": _property(Property.CORRELATION_ID),
    "subject": _property(Property.SUBJECT),
    "to": _property(Property.TO),
    "reply_to": _property(Property.REPLY_TO),
    "reply_to_session_id": _property(Property.REPLY_TO_GROUP_ID),
    "via_partition_key": _annotation_text("x-opt-via-partition-key"),
    "application_properties": _application_map(text_of),
    "application_property_types": _application_map(type_of),
}


def _body(sections: Sections) -> bytes:
    """Data joined; of other bodies the encoded values, one after the other."""
    if sections.body_code == DATA:
        return b"".join(iter_data(sections.body))
    encoded, values, pos = sections.body, [], 0
    while pos < len(encoded):
        start = pos + VALUE_START
        pos = skip_value(encoded, start, len(encoded))
        values.append(encoded[start:pos])
    return b"".join(values)


def _at(fields: Fields, place: int) -> object:
    """A field of a composite value; trailing nulls may be left out on the wire."""
    return fields[place] if place < len(fields) else None


def _number(value: object) -> int | None:
    """An integer of any width; anything else counts as absent, since senders may annotate as they like."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(milliseconds: int | None) -> int | None:
    if milliseconds is None:
        return None
    return min(max(milliseconds * 1000, _MICROSECONDS_MIN), _MICROSECONDS_MAX)


def _ttl_ms(header: Fields, properties: Fields) -> int | None:
    """Time to live: the header's; past its range, the span that the sender wrote into the properties."""
    ttl = _number(_at(header, _TTL))
    if ttl != TTL_OPEN_END:
        return ttl
    created, expires = (
        _number(_at(properties, Property.CREATION_TIME)),
        _number(_at(properties, Property.ABSOLUTE_EXPIRY_TIME)),
    )
    return ttl if created is None or expires is None else max(expires - created, ttl)
