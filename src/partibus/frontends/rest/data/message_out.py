"""Messages -> answers (dialect section 10)."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import islice
from typing import Final
from uuid import UUID

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.types import Pairs, Timestamp
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_fields import Property, decode_body, iter_map, properties
from partibus.amqp.sections import DATA
from partibus.frontends.rest.data.message_in import BROKER_PROPERTIES, STANDARD_HEADERS
from partibus.message import StoredMessage
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.ports import EntryState
from partibus.routing.send import COUNTER_BITS

_TEXTS = {
    "CorrelationId": Property.CORRELATION_ID,
    "Label": Property.SUBJECT,
    "MessageId": Property.MESSAGE_ID,
    "ReplyTo": Property.REPLY_TO,
    "ReplyToSessionId": Property.REPLY_TO_GROUP_ID,
    "SessionId": Property.GROUP_ID,
    "To": Property.TO,
}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
"""Valid names of headers; properties with other names are left out."""
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
"""Valid values of headers: blanks at the ends are no part of them."""
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
"""The first and the last second of the years 1 to 9999."""
PROPERTIES_MAX: Final = 500
"""Properties of a message that become headers. 10,000 would take 90 ms, and few clients read so many headers."""
VALUES_MAX: Final = 5_000
"""Values in a body that is written in JSON."""
SECTIONS_MAX: Final = 60_000
"""The most data sections of a body; a message of 256 KiB has no room for more."""
_DATA_TYPE = "application/octet-stream"


def sequence_number(partition_id: int, entry: Entry) -> int:
    """Return the sequence number as clients know it (D9)."""
    return partition_id << COUNTER_BITS | entry.sequence


def headers_of(
    entry: Entry, data: bytes, partition_id: int, *, token: UUID | None, locked_until_ms: int | None
) -> dict[str, str]:
    """Return the headers of a message; ``token`` and ``locked_until_ms`` of one under lock.

    They leave out the sections that can't be read. The broker checks only so many values of what AMQP senders encode.
    """
    stored = StoredMessage(data)
    fields = _fields(stored.properties)
    broker: dict[str, object] = {name: _plain(fields[at]) for name, at in _TEXTS.items() if fields[at] is not None}
    for key, raw in _pairs(stored.annotation_count, stored.annotations):
        if key == "x-opt-partition-key":
            broker["PartitionKey"] = _plain(raw)
        elif key == "x-opt-via-partition-key":
            broker["ViaPartitionKey"] = _plain(raw)
        elif key == "x-opt-scheduled-enqueue-time" and isinstance(raw, int):
            broker["ScheduledEnqueueTimeUtc"] = date_text(raw)
    if stored.ttl_ms is not None:
        broker["TimeToLive"] = stored.ttl_ms / 1000
    broker |= {
        "DeliveryCount": entry.delivery_count + 1,
        "EnqueuedSequenceNumber": 0,
        "EnqueuedTimeUtc": date_text(entry.enqueued_ms),
        "SequenceNumber": sequence_number(partition_id, entry),
        "State": EntryState(entry.state).name.capitalize(),
    }
    if token is not None and locked_until_ms is not None:
        broker |= {"LockToken": str(token), "LockedUntilUtc": date_text(locked_until_ms)}
    content_type = fields[Property.CONTENT_TYPE]
    if not isinstance(content_type, str) or not _VALUE.fullmatch(content_type):
        content_type = _DATA_TYPE
    return {**_application_properties(stored), BROKER_PROPERTIES: json.dumps(broker), "Content-Type": content_type}


def body_of(data: bytes) -> bytes:
    """Return the content of the body: bytes as they are, text as UTF-8, anything else as JSON.

    A value of more than `VALUES_MAX` others stays in AMQP's encoding, because its JSON would take too long. So does a
    body that can't be read.
    """
    rest = StoredMessage(data).rest
    try:
        values = decode_body(rest, SECTIONS_MAX if rest[2:3] == bytes((DATA,)) else VALUES_MAX) if rest else []
    except DecodeError:
        return rest
    if rest[2:3] == bytes((DATA,)):
        return b"".join(bytes(value) for value in values if isinstance(value, bytes))
    value = values[0] if len(values) == 1 else values
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return value.encode() if isinstance(value, str) else json.dumps(_nested(value)).encode()


def date_text(ms: int) -> str:
    """RFC 1123 of ms since 1970; of a time that no calendar has, the nearest one."""
    seconds = min(max(ms // 1000, _FIRST_S), _LAST_S)
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


def _fields(section: bytes) -> list[object]:
    try:
        return properties(section)
    except DecodeError:
        return [None] * len(Property)


def _pairs(count: int, pairs: bytes) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    pos = 0
    with suppress(DecodeError):
        for _ in range(count):
            key, pos = decode(pairs, pos)
            value, pos = decode(pairs, pos)
            found.append((str(key), value))
    return found


def _application_properties(stored: StoredMessage) -> dict[str, str]:
    """Return the first `PROPERTIES_MAX` properties, of those whose names can be headers and are none of HTTP's own.

    Strings are in quotes, with all characters beyond ASCII escaped, so that no value ends its line.
    """
    if not stored.application_properties:
        return {}
    try:
        found = {name: decode(raw)[0] for name, raw in islice(iter_map(stored.application_properties), PROPERTIES_MAX)}
    except DecodeError:
        return {}
    return {
        name: json.dumps(_plain(value))
        for name, value in found.items()
        if _NAME.fullmatch(name) and name.lower() not in STANDARD_HEADERS
    }


def _nested(value: object) -> object:
    """Return a value for JSON; keys of maps, which may have any type, as text. No deeper than the decoded part."""
    if isinstance(value, Mapping | Pairs):
        return {str(_plain(key)): _nested(item) for key, item in value.items()}
    return [_nested(item) for item in value] if isinstance(value, list | tuple) else _plain(value)


def _plain(value: object) -> object:
    """Return the value as JSON can say it, if it is no list and no map."""
    if isinstance(value, Timestamp):
        return date_text(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)
