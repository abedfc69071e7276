"""Encoded messages to Arrow columns, a batch at a time.

A batch is turned round twice: each message into its decoded sections, then each column as one pass over a section's
list. Only the sections that the asked-for columns need are decoded.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from partibus.spark.ports import BrowsedMessage
from partibus.spark.properties import text_of, type_of
from partibus.spark.wire import Sections, split

Fields = Sequence[object]
Map = Mapping[object, object]

TTL_OPEN_END = 2**32 - 1
"""A header's ttl with the largest value says "this or more"; the properties then know more."""

# Spark's timestamps are microseconds within the years 1 to 9999; times outside are cut to that.
_MICROSECONDS_MIN = -62_135_596_800_000_000
_MICROSECONDS_MAX = 253_402_300_799_999_999
_INT32_MAX = 2**31 - 1
_STATES = {0: "active", 1: "deferred", 2: "scheduled"}

# Places of fields in the header [3.2.1] and the properties section [3.2.4].
_TTL, _DELIVERY_COUNT = 2, 4
_MESSAGE_ID, _TO, _SUBJECT, _REPLY_TO, _CORRELATION_ID = 0, 2, 3, 4, 5
_CONTENT_TYPE, _CONTENT_ENCODING, _EXPIRY_TIME, _CREATION_TIME = 6, 7, 8, 9
_GROUP_ID, _REPLY_TO_GROUP_ID = 10, 12


def decode_columns(messages: Sequence[BrowsedMessage], partition_id: int, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch with exactly the columns of ``schema``. Raises `DecodeError` naming the position."""
    page = Page(messages, partition_id)
    arrays = [pa.array(COLUMN_READERS[field.name](page), type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Page:
    """Messages of one partition; their sections are decoded on first use, missing ones are empty."""

    def __init__(self, messages: Sequence[BrowsedMessage], partition_id: int) -> None:
        self.messages = messages
        self.partition_id = partition_id

    @cached_property
    def sections(self) -> list[Sections]:
        return [split(message) for message in self.messages]

    @cached_property
    def headers(self) -> list[Fields]:
        return [section.header for section in self.sections]

    @cached_property
    def annotations(self) -> list[Map]:
        return [section.annotations for section in self.sections]

    @cached_property
    def properties(self) -> list[Fields]:
        return [section.properties for section in self.sections]

    @cached_property
    def application_properties(self) -> list[Map]:
        return [section.application_properties for section in self.sections]

    @cached_property
    def ttls_ms(self) -> list[int | None]:
        return [_ttl_ms(*pair) for pair in zip(self.headers, self.properties, strict=True)]


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
    "body": lambda page: [section.body for section in page.sections],
    "body_type": lambda page: [section.body_type for section in page.sections],
    "content_type": _property(_CONTENT_TYPE),
    "content_encoding": _property(_CONTENT_ENCODING),
    "message_id": _property(_MESSAGE_ID),
    "session_id": _property(_GROUP_ID),
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
    "correlation_id": _property(_CORRELATION_ID),
    "subject": _property(_SUBJECT),
    "to": _property(_TO),
    "reply_to": _property(_REPLY_TO),
    "reply_to_session_id": _property(_REPLY_TO_GROUP_ID),
    "via_partition_key": _annotation_text("x-opt-via-partition-key"),
    "application_properties": _application_map(text_of),
    "application_property_types": _application_map(type_of),
}


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
    created, expires = _number(_at(properties, _CREATION_TIME)), _number(_at(properties, _EXPIRY_TIME))
    return ttl if created is None or expires is None else max(expires - created, ttl)
