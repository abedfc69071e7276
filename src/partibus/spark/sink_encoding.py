"""Arrow record batches as encoded messages, column by column.

A column becomes a list of encoded values, and the sections of all messages are put together from such lists. There is
no object for a message, and a value that is the same in all messages is encoded once.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat

import pyarrow as pa
import pyarrow.compute as pc

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Byte, Float, Int, Short, Symbol, Timestamp
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_encoding import encode_header
from partibus.amqp.section_fields import Property
from partibus.spark.errors import WriteError
from partibus.spark.sink_values import NULL, encoded_value

_PROPERTY_COLUMNS = (
    "message_id", None, "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding", None, None,
    "session_id", None, "reply_to_session_id",
)  # fmt: skip
"""The fields of the properties section in their order; None: of no column."""
_SYMBOLS = frozenset(("content_type", "content_encoding"))
_HEADER = encode_header(durable=True)
_TTL_MAX_MS = 0xFFFFFFFF
"""The longest time to live in a header. It stands for any longer one, which the properties then have as two times."""
_TIME_MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_EXPIRY, _CREATION = Property.ABSOLUTE_EXPIRY_TIME, Property.CREATION_TIME
_KEY = encode(Symbol("x-opt-partition-key"))
_TIME = encode(Symbol("x-opt-scheduled-enqueue-time"))
_STRING8 = [bytes((0xA1, size)) for size in range(256)]
_SYMBOL8 = [bytes((0xA3, size)) for size in range(256)]
_DATA8 = [bytes((0x00, 0x53, 0x75, 0xA0, size)) for size in range(256)]
_BODY_CODES = {"value": b"\x00\x53\x77", "sequence": b"\x00\x53\x76"}
_PROPERTIES, _APPLICATION_PROPERTIES, _ANNOTATIONS = b"\x00\x53\x73", b"\x00\x53\x74", b"\x00\x53\x72"
_LIST, _MAP = (0xC0, 0xD0), (0xC1, 0xD1)


def encode_batch(
    batch: pa.RecordBatch, message_ids: Sequence[str] | None, property_columns: Sequence[str], now_ms: int
) -> list[bytes]:
    """Return the messages of the rows in their order. ``message_ids`` are for rows without one.

    ``now_ms`` is the creation time of messages whose time to live no header can hold. Raises `WriteError`.
    """
    if not batch.num_rows:
        return []
    sections = [
        _headers(batch),
        _annotations(batch),
        _properties(batch, message_ids, now_ms),
        _application_properties(batch, property_columns),
        _bodies(batch),
    ]
    return [b"".join(parts) for parts in zip(*(section for section in sections if section is not None), strict=False)]


def _headers(batch: pa.RecordBatch) -> Iterator[bytes] | list[bytes]:
    column = _column(batch, "time_to_live_ms")
    if column is None:
        return repeat(_HEADER)
    known: dict[int | None, bytes] = {None: _HEADER}
    found = []
    for ttl_ms in column.to_pylist():
        header = known.get(ttl_ms)
        if header is None:
            if ttl_ms < 0:
                raise WriteError(f"column 'time_to_live_ms' is {ttl_ms}; it must be 0 or more, or null")
            header = encode_header(durable=True, ttl=min(ttl_ms, _TTL_MAX_MS))
            if len(known) < 10_000:
                known[ttl_ms] = header
        found.append(header)
    return found


def _annotations(batch: pa.RecordBatch) -> list[bytes] | None:
    pairs: list[list[bytes]] = []
    keys = _column(batch, "partition_key")
    if keys is not None:
        pairs.append([b"" if value is NULL else _KEY + value for value in _strings(keys, _STRING8)])
    times = _column(batch, "scheduled_enqueue_time")
    if times is not None:
        ms = pc.cast(pc.cast(times, pa.timestamp("us", "UTC")), pa.int64()).to_pylist()
        pairs.append([b"" if us is None else _TIME + encode(Timestamp(us // 1000)) for us in ms])
    if not pairs:
        return None
    return [
        _section(_ANNOTATIONS, _MAP, 2 * sum(map(bool, row)), b"".join(row)) if any(row) else b""
        for row in zip(*pairs, strict=True)
    ]


def _properties(batch: pa.RecordBatch, message_ids: Sequence[str] | None, now_ms: int) -> list[bytes] | None:
    fields: list[list[bytes] | Iterator[bytes]] = []
    last = 0
    times = _times_of_long_lives(batch, now_ms)
    for index, name in enumerate(_PROPERTY_COLUMNS):
        column = None if name is None else _column(batch, name)
        if name == "message_id" and message_ids is not None:
            given = pa.array(message_ids, pa.string())
            column = given if column is None else pc.coalesce(column, given)
        if index in times:
            fields.append(times[index])
            last = index + 1
        elif column is None:
            fields.append(repeat(NULL))
        else:
            if name in _SYMBOLS:
                _check_ascii(column, str(name))
            fields.append(_strings(column, _SYMBOL8 if name in _SYMBOLS else _STRING8))
            last = index + 1
    if not last:
        return None
    return [_section(_PROPERTIES, _LIST, last, content) for content in map(b"".join, zip(*fields[:last], strict=False))]


def _times_of_long_lives(batch: pa.RecordBatch, now_ms: int) -> dict[int, list[bytes]]:
    """Return two fields for messages that live longer than a header can say; empty where none does."""
    column = _column(batch, "time_to_live_ms")
    ttls = [] if column is None else column.to_pylist()
    if not any(ttl_ms is not None and ttl_ms > _TTL_MAX_MS for ttl_ms in ttls):
        return {}
    ends = [None if ttl_ms is None or ttl_ms <= _TTL_MAX_MS else min(now_ms + ttl_ms, _TIME_MAX_MS) for ttl_ms in ttls]
    created = encode(Timestamp(now_ms))
    return {
        _EXPIRY: [NULL if end_ms is None else encode(Timestamp(end_ms)) for end_ms in ends],
        _CREATION: [NULL if end_ms is None else created for end_ms in ends],
    }


def _application_properties(batch: pa.RecordBatch, property_columns: Sequence[str]) -> list[bytes] | None:
    """Return a map section for each row: the map's pairs, then those of columns."""
    parts: list[list[tuple[int, bytes]]] = []
    column = _column(batch, "application_properties")
    if column is not None:
        _check_unlike(column, property_columns)
        parts.append(_map_pairs(column, _column(batch, "application_property_types")))
    for name in property_columns:
        key = encode(name)
        values = _values(batch.column(name), name)
        parts.append([(0, b"") if value is NULL else (2, key + value) for value in values])
    if not parts:
        return None
    if len(parts) == 1:
        return [_section(_APPLICATION_PROPERTIES, _MAP, count, data) if count else b"" for count, data in parts[0]]
    found = []
    for row in zip(*parts, strict=True):
        count = sum([one for one, _ in row])
        data = b"".join([data for _, data in row])
        found.append(_section(_APPLICATION_PROPERTIES, _MAP, count, data) if count else b"")
    return found


def _check_ascii(column: pa.Array, name: str) -> None:
    is_odd = pc.invert(pc.string_is_ascii(column))
    if pc.any(is_odd).as_py():
        raise WriteError(f"column {name!r} is {column.filter(is_odd)[0].as_py()!r}; it must be ASCII")


def _check_unlike(column: pa.Array, property_columns: Sequence[str]) -> None:
    """Check that no name comes twice: no client could read such a message."""
    if not property_columns:
        return
    twice = pc.unique(column.keys.filter(pc.is_in(column.keys, pa.array(property_columns, pa.string()))))
    if len(twice):
        raise WriteError(
            f"application property {twice[0].as_py()!r} is in column 'application_properties' and in a column that "
            "option 'propertyColumns' names; take it out of one of them"
        )


def _map_pairs(column: pa.Array, types: pa.Array | None) -> list[tuple[int, bytes]]:
    """Return (elements, encoded pairs) of each row."""
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    names = column.keys.slice(first, last - first)
    keys = _strings(names, _STRING8)
    values = column.items.slice(first, last - first)
    encoded = _strings(values, _STRING8)
    if types is not None:
        _encode_typed(column, types, names, values, encoded)
    pairs = [key + value for key, value in zip(keys, encoded, strict=True)]
    return [(2 * (end - start), b"".join(pairs[start - first : end - first])) for start, end in pairwise(offsets)]


def _encode_typed(column: pa.Array, types: pa.Array, names: pa.Array, values: pa.Array, encoded: list[bytes]) -> None:
    """Encode values that are no strings. ``encoded`` holds strings, and gets the others."""
    offsets = column.offsets.to_pylist()
    first = offsets[0]
    name_list, value_list = names.to_pylist(), values.to_pylist()
    type_offsets = types.offsets.to_pylist()
    type_first, type_last = type_offsets[0], type_offsets[-1]
    type_names = types.keys.slice(type_first, type_last - type_first).to_pylist()
    type_values = types.items.slice(type_first, type_last - type_first).to_pylist()
    present = types.is_valid().to_pylist()
    for row, is_there in enumerate(present):
        if not is_there:
            continue
        low, high = type_offsets[row] - type_first, type_offsets[row + 1] - type_first
        if all(one == "string" for one in type_values[low:high]):
            continue
        of = dict(zip(type_names[low:high], type_values[low:high], strict=True))
        for place in range(offsets[row] - first, offsets[row + 1] - first):
            type_ = of.get(name_list[place])
            if type_ is not None and type_ != "string":
                encoded[place] = encoded_value(name_list[place], value_list[place], type_)


def _values(column: pa.Array, name: str) -> list[bytes]:
    """Encode the values of a column of any of `PROPERTY_TYPES`."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _strings(column, _STRING8)
    if pa.types.is_date(kind):
        return _strings(pc.cast(column, pa.string()), _STRING8)
    if pa.types.is_timestamp(kind):
        column = pc.cast(pc.cast(column, pa.timestamp("us", "UTC")), pa.int64())
        return [NULL if us is None else encode(Timestamp(us // 1000)) for us in column.to_pylist()]
    wrap = {pa.int32(): Int, pa.int16(): Short, pa.int8(): Byte, pa.float32(): Float}.get(kind)
    if wrap is not None:
        return [NULL if value is None else encode(wrap(value)) for value in column.to_pylist()]
    if kind in (pa.int64(), pa.float64(), pa.bool_(), pa.binary(), pa.large_binary()):
        return [NULL if value is None else encode(value) for value in column.to_pylist()]
    raise WriteError(f"column {name!r} is {kind}, which no application property can be; cast it to a string")


def _bodies(batch: pa.RecordBatch) -> list[bytes]:
    bodies = _column(batch, "body")
    assert bodies is not None, "checked when the write was planned"
    values = pc.cast(bodies, pa.binary()).to_pylist()
    sections = [
        _DATA8[0] if value is None
        else _DATA8[len(value)] + value if len(value) < 256
        else b"\x00\x53\x75\xb0" + len(value).to_bytes(4) + value
        for value in values
    ]  # fmt: skip
    types = _column(batch, "body_type")
    if types is not None and pc.any(pc.not_equal(types, "data")).as_py():
        for index, type_ in enumerate(types.to_pylist()):
            if type_ not in (None, "data"):
                sections[index] = _other_body(type_, values[index] or b"")
    return sections


def _other_body(type_: str, body: bytes) -> bytes:
    """Return the sections of encoded values."""
    code = _BODY_CODES.get(type_)
    if code is None:
        raise WriteError(f"column 'body_type' is {type_!r}; it must be 'data', 'value' or 'sequence'")
    asked = f"which 'body_type' {type_!r} asks for"
    parts = bytearray()
    pos = count = 0
    try:
        while pos < len(body):
            start = pos
            value, pos = decode(body, start)
            if type_ == "sequence" and not isinstance(value, list):
                raise WriteError(f"column 'body' has an encoded {type(value).__name__} and no list, {asked}")
            parts += code + body[start:pos]
            count += 1
    except DecodeError as error:
        raise WriteError(f"column 'body' is no encoded AMQP value, {asked}: {error}") from None
    if type_ == "value" and count != 1:
        raise WriteError(f"column 'body' has {count} encoded AMQP values in place of one, {asked}")
    return bytes(parts)


def _strings(column: pa.Array, prefixes: list[bytes]) -> list[bytes]:
    """Encode strings or symbols; null becomes `NULL`."""
    code32 = bytes((prefixes[0][0] + 0x10,))
    return [
        NULL if value is None
        else prefixes[len(value)] + value if len(value) < 256
        else code32 + len(value).to_bytes(4) + value
        for value in pc.cast(column, pa.binary()).to_pylist()
    ]  # fmt: skip


def _section(descriptor: bytes, codes: tuple[int, int], count: int, content: bytes) -> bytes:
    size = len(content) + 1
    if size < 256 and count < 256:
        return b"%b%c%c%c%b" % (descriptor, codes[0], size, count, content)
    return b"%b%c%b%b%b" % (descriptor, codes[1], (size + 3).to_bytes(4), count.to_bytes(4), content)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)
