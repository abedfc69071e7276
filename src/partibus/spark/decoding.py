"""Conversion of the messages of a frame into Arrow columns.

Where messages are written alike, as nearly all are, no code runs once per message. Numbers, bodies and constants are
whole arrays from the start. Annotations, properties and application properties are walked through value by value, for
all messages at once (`partibus.spark.sections`), each only if a column of it is asked for (`includeProperties`, or
fewer columns in ``.schema``).
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partibus.amqp.codec.decoder import skip_value
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_fields import Property
from partibus.amqp.sections import DATA, SEQUENCE, VALUE, iter_data, split_sections
from partibus.message import HAS_TTL, HOPS, TTL_MAX_MS, WAS_DEAD_LETTER
from partibus.spark.composites import VALUE_START, read_list
from partibus.spark.encoded import Encoded, Numbers
from partibus.spark.json_bodies import decode_json
from partibus.spark.properties import NamedValues
from partibus.spark.schema import BODY_VALUE, STATES
from partibus.spark.sections import Fields, NamedColumns, ReadOne
from partibus.spark.stored import Rows

# Spark's timestamps are microseconds within the years 1 to 9999; times outside are clamped.
_MILLISECONDS_MIN = -62_135_596_800_000
_MICROSECONDS_MAX = 253_402_300_799_999_999
_LONG_MAX = (1 << 63) - 1
_TIME = pa.timestamp("us", tz="UTC")
_BODY_TYPES = {DATA: "data", SEQUENCE: "sequence", VALUE: "value"}
_SHORT_DATA, _LONG_DATA = (int.from_bytes(b"\x00\x53\x75" + code, "little") for code in (b"\xa0", b"\xb0"))
"""The beginnings of a data section: descriptor and constructor."""
_SHORT_HEAD, _LONG_HEAD = 5, 8
"""Bytes before the data: these and the size."""


class Origin(NamedTuple):
    """The facts that all messages of a task have in common."""

    partition_id: int
    entity_id: str = ""
    dead_letter_source: str | None = None
    """The entity whose dead-letter queue is read."""


def decode_columns(rows: Rows, origin: Origin, schema: pa.Schema) -> pa.RecordBatch:
    """Make a record batch with exactly the columns of ``schema``. Raises `DecodeError` naming the position."""
    with _no_collection():
        page = Page(rows, origin)
        arrays = [
            decode_json(page.bodies, field.type) if field.name == BODY_VALUE else COLUMN_READERS[field.name](page)
            for field in schema
        ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend garbage collection.

    A batch may make some 200,000 objects, none of them garbage before its end. Collections found nothing and took a
    third of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Page:
    """Rows of one partition. Sections are decoded on first use; missing ones are empty."""

    def __init__(self, rows: Rows, origin: Origin) -> None:
        self.rows = rows
        self.origin = origin

    # -- bodies ----------------------------------------------------------------------------------------

    @cached_property
    def _simple_bodies(self) -> tuple[Numbers, Numbers, Numbers]:
        """The bodies that are one data section and nothing else, as nearly all are, with the bounds of their data."""
        rows, encoded = self.rows, self._encoded
        lengths = rows.ends - rows.body_starts
        sizes = rows.body_starts + 4
        short = encoded.numbers(rows.body_starts, "<u4") == _SHORT_DATA
        if short.all() and (encoded.codes(sizes) == lengths - _SHORT_HEAD).all():  # as small messages are, nearly all
            return short, rows.body_starts + _SHORT_HEAD, rows.ends
        short &= encoded.codes(sizes) == lengths - _SHORT_HEAD
        long = encoded.numbers(rows.body_starts, "<u4") == _LONG_DATA
        simple = short | (long & (encoded.numbers(sizes, ">u4") == lengths - _LONG_HEAD))
        starts = rows.body_starts + np.where(short, _SHORT_HEAD, _LONG_HEAD)
        return simple, np.where(simple, starts, rows.ends), rows.ends

    @cached_property
    def _odd_bodies(self) -> dict[int, tuple[bytes, str | None]]:
        """The bytes and the type of every other body, by its place."""
        rows, found = self.rows, {}
        for place in np.flatnonzero(~self._simple_bodies[0]):
            section = bytes(rows.data[rows.body_starts[place] : rows.ends[place]])
            try:
                found[int(place)] = _body(section)
            except DecodeError as error:
                raise self._at_position(int(place), error) from error
        return found

    @cached_property
    def bodies(self) -> pa.Array:
        """The body of each message as binary."""
        _, starts, ends = self._simple_bodies
        found = self._encoded.cut(starts, ends)
        if not self._odd_bodies:
            return found
        values = found.to_pylist()
        for place, (body, _) in self._odd_bodies.items():
            values[place] = body
        return pa.array(values, pa.binary())

    @cached_property
    def body_types(self) -> pa.Array:
        """The type of each body, as the column ``body_type`` shows it."""
        if not self._odd_bodies:
            return self.constant("data", pa.string())
        return pa.array(
            [self._odd_bodies[place][1] if place in self._odd_bodies else "data" for place in range(len(self.rows))],
            pa.string(),
        )

    # -- what the sender wrote -------------------------------------------------------------------------

    @cached_property
    def annotations(self) -> NamedColumns:
        """The annotations that senders wrote, by name."""
        rows = self.rows
        starts, ends, counts = rows.annotation_starts, rows.property_starts, rows.prefixes["annotation_count"]
        read = NamedValues().pairs
        return NamedColumns(
            self._encoded,
            starts,
            ends,
            self._reader(starts, ends, lambda section, place: read(section, 0, len(section), int(counts[place]))),
            counts,
        )

    @cached_property
    def properties(self) -> Fields:
        """The fields of the properties sections."""
        starts, ends = self.rows.property_starts, self.rows.application_starts
        return Fields(self._encoded, starts, ends, self._reader(starts, ends, lambda section, _: read_list(section)))

    @cached_property
    def application_properties(self) -> NamedColumns:
        """The application properties, by name."""
        starts, ends = self.rows.application_starts, self.rows.body_starts
        read = NamedValues().section
        return NamedColumns(
            self._encoded, starts, ends, self._reader(starts, ends, lambda section, _: read(section, 0, len(section)))
        )

    @cached_property
    def _encoded(self) -> Encoded:
        return Encoded(self.rows.data)

    def _reader(self, starts: Numbers, ends: Numbers, read: Callable[[bytes, int], Any]) -> ReadOne:
        """Return a reader of one message's section whose errors name the message's position."""

        def read_one(place: int) -> Any:
            try:
                return read(bytes(self.rows.data[starts[place] : ends[place]]), place)
            except DecodeError as error:
                raise self._at_position(place, error) from error

        return read_one

    @cached_property
    def ttls_ms(self) -> pa.Array:
        """The time to live of each message in ms."""
        prefixes = self.rows.prefixes
        ttls = prefixes["ttl_ms"].astype(np.int64)
        open_end = np.flatnonzero(ttls == TTL_MAX_MS)
        if len(open_end):
            starts, ends = self.rows.property_starts, self.rows.application_starts
            read = self._reader(starts, ends, lambda section, _: read_list(section))
            for place in open_end.tolist():
                ttls[place] = _long_ttl_ms(read(place))
        return pa.array(ttls, pa.int64(), mask=prefixes["flags"] & HAS_TTL == 0)

    # -- columns ---------------------------------------------------------------------------------------

    def constant(self, value: object, type_: pa.DataType) -> pa.Array:
        """Repeat a value for each message."""
        return pa.repeat(pa.scalar(value, type_), len(self.rows))

    def texts(self, name: str, of: NamedColumns) -> pa.Array:
        """Return the values of this name as text."""
        found = of.texts(name)
        return pa.nulls(len(self.rows), pa.string()) if found is None else found

    def _at_position(self, place: int, error: DecodeError) -> DecodeError:
        return DecodeError(f"the message at position {int(self.rows.positions[place])}: {error}")


def _body(sections: bytes) -> tuple[bytes, str | None]:
    """Join data sections, or the encoded values of another body; returns the bytes and the body's type."""
    split = split_sections(sections)
    kind = _BODY_TYPES.get(split.body_code)
    if split.body_code == DATA:
        return b"".join(iter_data(split.body)), kind
    encoded, values, pos = split.body, [], 0
    while pos < len(encoded):
        start = pos + VALUE_START
        pos = skip_value(encoded, start, len(encoded))
        values.append(encoded[start:pos])
    return b"".join(values), kind


def _number(value: object) -> int | None:
    """Return an integer of any width. Anything else counts as absent, since senders may annotate as they like."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _times(milliseconds: Numbers, mask: Numbers | None = None) -> pa.Array:
    in_range = np.clip(milliseconds, _MILLISECONDS_MIN, _MICROSECONDS_MAX // 1000 + 1)
    return pa.array(np.minimum(in_range * 1000, _MICROSECONDS_MAX), pa.int64(), mask=mask).view(_TIME)


def _annotation_text(key: str) -> "ColumnReader":
    return lambda page: page.texts(key, page.annotations)


def _application_text(name: str) -> "ColumnReader":
    return lambda page: page.texts(name, page.application_properties)


def _scheduled(page: Page) -> pa.Array:
    found = page.annotations.integers("x-opt-scheduled-enqueue-time")
    return pa.nulls(len(page.rows), _TIME) if found is None else _times(*found)


def _enqueued_sequence_number(page: Page) -> pa.Array:
    """Return the sequence numbers at the first entity; 0 unless a message was forwarded."""
    was_forwarded = page.rows.prefixes["flags"] & HOPS != 0
    found = page.annotations.integers("x-opt-enqueue-sequence-number") if was_forwarded.any() else None
    return page.constant(0, pa.int64()) if found is None else pa.array(found[0])


def _dead_letter_source(page: Page) -> pa.Array:
    """Return the source that a message names, or the entity whose dead-letter queue this is."""
    brought = page.rows.prefixes["flags"] & WAS_DEAD_LETTER != 0
    here = page.constant(page.origin.dead_letter_source, pa.string())
    if not brought.any():
        return here
    return pc.if_else(pa.array(brought), page.texts("x-opt-deadletter-source", page.annotations), here)


def _expiry(page: Page) -> pa.Array:
    ttls = page.ttls_ms
    spans = np.minimum(ttls.fill_null(0).to_numpy(), _MICROSECONDS_MAX // 1000)  # a sum of longer ones may overflow
    # The longest time in a header stands for any longer one, for which the broker has no limit.
    is_open = pc.fill_null(pc.equal(ttls, TTL_MAX_MS), True)
    return _times(page.rows.enqueued_ms + spans, is_open.to_numpy(zero_copy_only=False))


def _long_ttl_ms(properties: Sequence[object]) -> int:
    """Return a time to live beyond the header's range: the span that the sender wrote into the properties."""
    created, expires = (
        _number(properties[place] if place < len(properties) else None)
        for place in (Property.CREATION_TIME, Property.ABSOLUTE_EXPIRY_TIME)
    )
    if created is None or expires is None:
        return TTL_MAX_MS
    return min(max(expires - created, TTL_MAX_MS), _LONG_MAX)  # two timestamps may be 64 bits apart


_STATE_NAMES = pa.array([STATES.get(number, str(number)) for number in range(256)], pa.string())

ColumnReader = Callable[[Page], pa.Array]


def _property(place: int) -> ColumnReader:
    return lambda page: page.properties.texts(place)


COLUMN_READERS: Mapping[str, ColumnReader] = {
    "body": lambda page: page.bodies,
    "body_type": lambda page: page.body_types,
    "content_type": _property(Property.CONTENT_TYPE),
    "content_encoding": _property(Property.CONTENT_ENCODING),
    "message_id": _property(Property.MESSAGE_ID),
    "session_id": _property(Property.GROUP_ID),
    "partition_key": _annotation_text("x-opt-partition-key"),
    "entity_id": lambda page: page.constant(page.origin.entity_id, pa.string()),
    "partition_id": lambda page: page.constant(page.origin.partition_id, pa.int32()),
    "position": lambda page: pa.array(page.rows.positions),
    "sequence_number": lambda page: pa.array(page.rows.sequences | page.origin.partition_id << 48),
    "enqueued_sequence_number": _enqueued_sequence_number,
    "enqueued_time": lambda page: _times(page.rows.enqueued_ms),
    "scheduled_enqueue_time": _scheduled,
    "expires_at": _expiry,
    "time_to_live_ms": lambda page: page.ttls_ms,
    "delivery_count": lambda page: pa.array(page.rows.delivery_counts),
    "state": lambda page: _STATE_NAMES.take(pa.array(page.rows.states)),
    "dead_letter_reason": _application_text("DeadLetterReason"),
    "dead_letter_error_description": _application_text("DeadLetterErrorDescription"),
    "dead_letter_source": _dead_letter_source,
    "correlation_id": _property(Property.CORRELATION_ID),
    "subject": _property(Property.SUBJECT),
    "to": _property(Property.TO),
    "reply_to": _property(Property.REPLY_TO),
    "reply_to_session_id": _property(Property.REPLY_TO_GROUP_ID),
    "via_partition_key": _annotation_text("x-opt-via-partition-key"),
    "application_properties": lambda page: page.application_properties.text_map(),
    "application_property_types": lambda page: page.application_properties.type_map(),
}
