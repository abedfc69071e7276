"""Messages of a frame to Arrow columns.

Numbers, bodies and what is always the same are whole arrays from the start: with the bodies alone a message takes about
a quarter of a microsecond. The sender's annotations, properties and application properties are decoded message by
message, each only if a column of it is asked for (`includeProperties`, or fewer columns in ``.schema``).
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from partibus.amqp.codec.skip import skip_value
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_fields import Property
from partibus.amqp.sections import DATA, SEQUENCE, VALUE, iter_data, split_sections
from partibus.message import HAS_TTL, HOPS, TTL_MAX_MS, WAS_DEAD_LETTER
from partibus.spark.composites import VALUE_START, read_list
from partibus.spark.json_bodies import decode_json
from partibus.spark.named_values import Named, NamedValues, names_of, values_called, values_of
from partibus.spark.properties import text_of, type_of
from partibus.spark.schema import BODY_VALUE, STATES
from partibus.spark.stored import Numbers, Rows

# Spark's timestamps are microseconds within the years 1 to 9999; times outside are cut to that.
_MILLISECONDS_MIN = -62_135_596_800_000
_MICROSECONDS_MAX = 253_402_300_799_999_999
_TIME = pa.timestamp("us", tz="UTC")
_BODY_TYPES = {DATA: "data", SEQUENCE: "sequence", VALUE: "value"}
_SECTION_START = np.frombuffer(b"\x00\x53\x75\xa0", np.uint8)
"""Of a body of one data section: descriptor, then the constructor for short data or 0xb0 for long."""
_SHORT_HEAD, _LONG_HEAD = 5, 8


class Origin(NamedTuple):
    """What all messages of a task have in common."""

    partition_id: int
    entity_id: str = ""
    dead_letter_source: str | None = None
    """The entity whose dead-letter queue is read."""


def decode_columns(rows: Rows, origin: Origin, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch with exactly the columns of ``schema``. Raises `DecodeError` naming the position."""
    with _no_collection():
        page = Page(rows, origin)
        arrays = [
            decode_json(page.bodies, field.type) if field.name == BODY_VALUE else COLUMN_READERS[field.name](page)
            for field in schema
        ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def _no_collection() -> Iterator[None]:
    """A batch may make some 200,000 objects, none of them garbage before its end: collections would find nothing, and
    were a third of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Page:
    """Rows of one partition; sections are decoded on first use, missing ones are empty."""

    def __init__(self, rows: Rows, origin: Origin) -> None:
        self.rows = rows
        self.origin = origin

    # -- bodies ----------------------------------------------------------------------------------------

    @cached_property
    def _simple_bodies(self) -> tuple[Numbers, Numbers, Numbers]:
        """Which bodies are one data section and nothing else, as nearly all are; where each one's data begins and
        ends."""
        rows = self.rows
        raw = np.frombuffer(rows.data, np.uint8)
        lengths = rows.ends - rows.body_starts
        # What is too short for a head is looked at from the frame's start, and is not simple anyway.
        head = raw[np.where(lengths >= _LONG_HEAD, rows.body_starts, 0)[:, None] + np.arange(_LONG_HEAD)]
        is_data = (head[:, :3] == _SECTION_START[:3]).all(axis=1) & (lengths >= _LONG_HEAD)
        short = is_data & (head[:, 3] == 0xA0) & (head[:, 4] + np.int64(_SHORT_HEAD) == lengths)
        size = np.ascontiguousarray(head[:, 4:8]).view(">u4").reshape(-1).astype(np.int64)
        simple = short | (is_data & (head[:, 3] == 0xB0) & (size + _LONG_HEAD == lengths))
        starts = rows.body_starts + np.where(short, _SHORT_HEAD, _LONG_HEAD)
        return simple, np.where(simple, starts, rows.ends), rows.ends

    @cached_property
    def _odd_bodies(self) -> dict[int, tuple[bytes, str | None]]:
        """Of every other body, by its place: the bytes and the type."""
        rows, found = self.rows, {}
        for place in np.flatnonzero(~self._simple_bodies[0]):
            section = rows.blob[rows.body_starts[place] : rows.ends[place]]
            try:
                found[int(place)] = _body(section)
            except DecodeError as error:
                raise self._at_position(int(place), error) from error
        return found

    @cached_property
    def bodies(self) -> pa.Array:
        _, starts, ends = self._simple_bodies
        found = _cut_out(self.rows.data, starts, ends)
        if not self._odd_bodies:
            return found
        values = found.to_pylist()
        for place, (body, _) in self._odd_bodies.items():
            values[place] = body
        return pa.array(values, pa.binary())

    @cached_property
    def body_types(self) -> pa.Array:
        if not self._odd_bodies:
            return self.constant("data", pa.string())
        return pa.array(
            [self._odd_bodies[place][1] if place in self._odd_bodies else "data" for place in range(len(self.rows))],
            pa.string(),
        )

    # -- what the sender wrote -------------------------------------------------------------------------

    @cached_property
    def annotations(self) -> list[Named]:
        rows = self.rows
        counts = rows.prefixes["annotation_count"]
        if not counts.any():
            return []
        read = NamedValues().pairs
        return self._each(
            lambda start, end, count: read(rows.blob, start, end, count),
            rows.annotation_starts,
            rows.property_starts,
            counts,
        )

    @cached_property
    def properties(self) -> list[Sequence[object]]:
        """By field: its values. Fields that no message has are left out."""
        rows = self.rows
        fields = self._each(
            lambda start, end: read_list(rows.blob, start, end), rows.property_starts, rows.application_starts
        )
        return list(zip_longest(*fields))

    @cached_property
    def application_properties(self) -> list[Named]:
        rows, read = self.rows, NamedValues().section
        return self._each(lambda start, end: read(rows.blob, start, end), rows.application_starts, rows.body_starts)

    @cached_property
    def ttls_ms(self) -> pa.Array:
        prefixes = self.rows.prefixes
        ttls = prefixes["ttl_ms"].astype(np.int64)
        open_end = np.flatnonzero(ttls == TTL_MAX_MS)
        if len(open_end):
            fields = self._each(
                lambda start, end: read_list(self.rows.blob, start, end),
                self.rows.property_starts[open_end],
                self.rows.application_starts[open_end],
            )
            for place, properties in zip(open_end, fields, strict=True):
                ttls[place] = _long_ttl_ms(properties)
        return pa.array(ttls, pa.int64(), mask=prefixes["flags"] & HAS_TTL == 0)

    # -- columns ---------------------------------------------------------------------------------------

    def constant(self, value: object, type_: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, type_), len(self.rows))

    def property_text(self, place: int) -> pa.Array:
        if place >= len(self.properties):
            return pa.nulls(len(self.rows), pa.string())
        return _texts(self.properties[place])

    def annotation(self, key: str) -> list[Any] | None:
        """None when no message has it."""
        return values_called(key, self.annotations)

    def application_text(self, name: str) -> pa.Array:
        """The text of one application property."""
        values = values_called(name, self.application_properties)
        return pa.nulls(len(self.rows), pa.string()) if values is None else _texts(values)

    @cached_property
    def application_names(self) -> pa.Array:
        return pa.array(names_of(self.application_properties), pa.string())

    @cached_property
    def application_values(self) -> list[Any]:
        return values_of(self.application_properties)

    def application_map(self, form: Callable[[list[Any]], pa.Array]) -> pa.Array:
        offsets = np.zeros(len(self.rows) + 1, np.int32)
        np.cumsum([len(values) for _, values in self.application_properties], out=offsets[1:])
        return pa.MapArray.from_arrays(offsets, self.application_names, form(self.application_values))

    def _each(self, read: Callable[..., Any], *columns: Numbers) -> list[Any]:
        """``read`` over what belongs to each message; an error gets the message's position."""
        lists = [column.tolist() for column in columns]
        try:
            return list(map(read, *lists))
        except DecodeError:
            for place, values in enumerate(zip(*lists, strict=True)):
                try:
                    read(*values)
                except DecodeError as error:
                    raise self._at_position(place, error) from error
            raise

    def _at_position(self, place: int, error: DecodeError) -> DecodeError:
        return DecodeError(f"the message at position {int(self.rows.positions[place])}: {error}")


def _body(sections: bytes) -> tuple[bytes, str | None]:
    """Data joined; of other bodies the encoded values, one after the other. And which of them it is."""
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


def _cut_out(data: bytes | memoryview, starts: Numbers, ends: Numbers) -> pa.Array:
    """A binary array of pieces of ``data``, which come one behind the other in it. Arrow copies them: an array of
    pieces and what is between them costs nothing, and every second value of it is taken."""
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    if not len(bounds):
        return pa.array([], pa.binary())
    both = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return both.take(pa.array(np.arange(0, len(bounds), 2)))


def _texts(values: Sequence[Any]) -> pa.Array:
    """A string column of values of any type."""
    if set(map(type, values)) - _TEXTS:
        values = [value if value.__class__ is str else text_of(value) for value in values]
    return pa.array(values, pa.string())


_TEXTS = {str, type(None)}


def _types(values: Sequence[Any]) -> pa.Array:
    return pa.array(list(map(type_of, values)), pa.string())


def _number(value: object) -> int | None:
    """An integer of any width; anything else counts as absent, since senders may annotate as they like."""
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _times(milliseconds: Numbers, mask: Numbers | None = None) -> pa.Array:
    in_range = np.clip(milliseconds, _MILLISECONDS_MIN, _MICROSECONDS_MAX // 1000 + 1)
    return pa.array(np.minimum(in_range * 1000, _MICROSECONDS_MAX), pa.int64(), mask=mask).view(_TIME)


def _annotation_text(key: str) -> "ColumnReader":
    def read(page: Page) -> pa.Array:
        values = page.annotation(key)
        return pa.nulls(len(page.rows), pa.string()) if values is None else _texts(values)

    return read


def _scheduled(page: Page) -> pa.Array:
    found = page.annotation("x-opt-scheduled-enqueue-time")
    if found is None:
        return pa.nulls(len(page.rows), _TIME)
    values = list(map(_number, found))
    return _times(np.array([value or 0 for value in values], np.int64), np.array([value is None for value in values]))


def _enqueued_sequence_number(page: Page) -> pa.Array:
    if not (page.rows.prefixes["flags"] & HOPS).any():
        return page.constant(0, pa.int64())
    values = page.annotation("x-opt-enqueue-sequence-number") or ()
    return pa.array([_number(value) or 0 for value in values], pa.int64())


def _dead_letter_source(page: Page) -> pa.Array:
    """What the message brings along, else the entity whose dead-letter queue this is."""
    brought = page.rows.prefixes["flags"] & WAS_DEAD_LETTER != 0
    here = page.origin.dead_letter_source
    if not brought.any():
        return page.constant(here, pa.string())
    values = page.annotation("x-opt-deadletter-source") or ()
    return _texts([value if its else here for value, its in zip(values, brought.tolist(), strict=True)])


def _expiry(page: Page) -> pa.Array:
    ttls = page.ttls_ms
    return _times(page.rows.enqueued_ms + ttls.fill_null(0).to_numpy(), ttls.is_null().to_numpy(zero_copy_only=False))


def _long_ttl_ms(properties: Sequence[object]) -> int:
    """Time to live past a header's range: the span that the sender wrote into the properties."""
    created, expires = (
        _number(properties[place] if place < len(properties) else None)
        for place in (Property.CREATION_TIME, Property.ABSOLUTE_EXPIRY_TIME)
    )
    return TTL_MAX_MS if created is None or expires is None else max(expires - created, TTL_MAX_MS)


_STATE_NAMES = pa.array([STATES.get(number, str(number)) for number in range(256)], pa.string())

ColumnReader = Callable[[Page], pa.Array]


def _property(place: int) -> ColumnReader:
    return lambda page: page.property_text(place)


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
    "dead_letter_reason": lambda page: page.application_text("DeadLetterReason"),
    "dead_letter_error_description": lambda page: page.application_text("DeadLetterErrorDescription"),
    "dead_letter_source": _dead_letter_source,
    "correlation_id": _property(Property.CORRELATION_ID),
    "subject": _property(Property.SUBJECT),
    "to": _property(Property.TO),
    "reply_to": _property(Property.REPLY_TO),
    "reply_to_session_id": _property(Property.REPLY_TO_GROUP_ID),
    "via_partition_key": _annotation_text("x-opt-via-partition-key"),
    "application_properties": lambda page: page.application_map(_texts),
    "application_property_types": lambda page: page.application_map(_types),
}
