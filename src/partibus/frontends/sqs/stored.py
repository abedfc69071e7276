"""Messages of SQS <-> messages as they are stored.

| SQS | stored |
|---|---|
| MessageId | message-id, a UUID in text |
| SenderId | user-id |
| MessageGroupId | group-id |
| Body | one data section of UTF-8 |
| attribute of type String or Number; Binary | application property: string; binary |
| data types other than String and Binary; of `REASONS`, all | annotation ``x-opt-partibus-sqs-types``: JSON by name |
| MessageDeduplicationId, AWSTraceHeader | annotations ``x-opt-partibus-sqs-deduplication-id``, ``-trace`` |

So AMQP and REST clients read what SQS clients have sent, and the other way round: a foreign body that is no UTF-8 text
becomes base64, numbers and booleans become attributes of type Number and String.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from struct import Struct
from typing import Final
from uuid import UUID

import msgspec

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode, write_compound
from partibus.amqp.codec.types import Symbol, Timestamp
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_encoding import encode_application_properties, encode_raw_map
from partibus.amqp.section_fields import Property, decode_body, iter_map, later_properties, properties
from partibus.amqp.sections import APPLICATION_PROPERTIES
from partibus.frontends.sqs.messages import CONTROLS, TYPE_BYTES, Attribute, is_allowed_text, utf8_of
from partibus.message import REASONS, RECEIVES, SQS_TYPES, StoredMessage, pack, sqs_types

_DEDUPLICATION_KEY: Final = "x-opt-partibus-sqs-deduplication-id"
_TRACE_KEY: Final = "x-opt-partibus-sqs-trace"
_SOURCE_KEY: Final = "x-opt-deadletter-source"
_NUMBER_KEY: Final = "x-opt-enqueue-sequence-number"
_SYMBOLS: Final = {key: encode(Symbol(key)) for key in (SQS_TYPES, _DEDUPLICATION_KEY, _TRACE_KEY)}
_VALUES_MAX: Final = 10_000
_USER_AT: Final = 46
"""Where user-id begins in properties of `_properties`."""
_NO_FIELDS: Final = 8 * b"\x40"
"""The fields between user-id and group-id."""
_SIZE: Final = Struct(">I").pack
_USERS_MAX: Final = 1_000
"""Senders whose encoded names are remembered: 0.5 MB at most."""


def stored_form(
    message_id: str,
    sender: str,
    body: bytes,
    attributes: Mapping[str, Attribute],
    group: str | None,
    deduplication_id: str | None,
    trace: str | None,
) -> bytes:
    """Return a message as it is stored."""
    annotations, count, sections = b"", 0, b""
    if attributes:
        sections = encode_application_properties(
            {name: one.value if one.is_binary else one.value.decode() for name, one in attributes.items()}
        )
        types = {
            name: one.data_type
            for name, one in attributes.items()
            if one.data_type not in ("String", "Binary") or name in REASONS
        }
        if types:
            annotations += _SYMBOLS[SQS_TYPES] + encode(msgspec.json.encode(types).decode())
            count += 1
    if deduplication_id is not None:
        raw = deduplication_id.encode("ascii")  # at most 128 characters, as `check_id` has checked
        annotations += b"%b\xa1%c%b" % (_SYMBOLS[_DEDUPLICATION_KEY], len(raw), raw)
        count += 1
    if trace is not None:
        annotations += _SYMBOLS[_TRACE_KEY] + encode(trace)
        count += 1
    return pack(
        durable=True,
        annotation_count=count,
        annotations=annotations,
        properties=_properties(message_id, sender, group),
        application_properties=sections,
        rest=_data(body),
    )


def plain_forms(message_ids: Sequence[str], sender: str, bodies: Sequence[bytes]) -> list[bytes]:
    """Return messages that have nothing but a body as they are stored; equal to `stored_form` without the rest."""
    begin, end = _around_id(sender)
    return [
        b"%b%b%b%b" % (begin, message_id.encode("ascii"), end, section)
        for message_id, section in zip(message_ids, _data_sections(bodies), strict=True)
    ]


@lru_cache(maxsize=_USERS_MAX)
def _around_id(sender: str) -> tuple[bytes, bytes]:
    """Return what a plain message has before and behind its id, up to the body."""
    begin, end = stored_form(_SAMPLE, sender, b"", {}, None, None, None).split(_SAMPLE.encode("ascii"), 1)
    return begin, end.removesuffix(_data(b""))


def grouped_forms(
    message_ids: Sequence[str], sender: str, bodies: Sequence[bytes], groups: Sequence[str], keys: Sequence[str]
) -> list[bytes]:
    """Return messages with a group and a deduplication id as they are stored; equal to `stored_form` of the same.

    Both are good for `check_id`.
    """
    forms = []
    for message_id, section, group, key in zip(message_ids, _data_sections(bodies), groups, keys, strict=True):
        begin, to_id, to_group = _around_group(sender, len(group), len(key))
        forms.append(
            b"%b%b%b%b%b%b%b"
            % (
                begin, key.encode("ascii"), to_id, message_id.encode("ascii"), to_group, group.encode("ascii"), section,
            )
        )  # fmt: skip
    return forms


@lru_cache(maxsize=_USERS_MAX)
def _around_group(sender: str, group_chars: int, key_chars: int) -> tuple[bytes, bytes, bytes]:
    """Return what a message of `grouped_forms` has before its deduplication id, its own id, and its group."""
    form = stored_form(_SAMPLE, sender, b"", {}, "g" * group_chars, "k" * key_chars, None)
    symbol = _SYMBOLS[_DEDUPLICATION_KEY]
    key_at = form.index(symbol) + len(symbol) + 2
    id_at = form.index(_SAMPLE.encode("ascii"), key_at + key_chars)
    group_at = len(form) - len(_data(b"")) - group_chars
    return form[:key_at], form[key_at + key_chars : id_at], form[id_at + len(_SAMPLE) : group_at]


_SAMPLE: Final = "00000000-0000-4000-8000-000000000000"


def _data(body: bytes) -> bytes:
    """Encode a data section."""
    return _data_sections((body,))[0]


def _data_sections(bodies: Sequence[bytes]) -> list[bytes]:
    """Encode the data section of each body."""
    return [
        b"\x00\x53\x75\xa0%c%b" % (len(body), body)
        if len(body) < 256
        else b"\x00\x53\x75\xb0%b%b" % (_SIZE(len(body)), body)
        for body in bodies
    ]


def _properties(message_id: str, sender: str, group: str | None) -> bytes:
    """Encode message-id, user-id and group-id: two or eleven fields, of which eight are null."""
    user = _user(sender)
    fields = b"\xa1\x24%b%b" % (message_id.encode("ascii"), user)
    count = 2
    if group is not None:
        raw = group.encode()
        fields += b"%b\xa1%c%b" % (_NO_FIELDS, len(raw), raw)
        count = 11
    if len(fields) < 255:
        return b"\x00\x53\x73\xc0%c%c%b" % (len(fields) + 1, count, fields)
    return b"\x00\x53\x73\xd0" + (len(fields) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + fields


@lru_cache(maxsize=_USERS_MAX)
def _user(sender: str) -> bytes:
    """Encode user-id."""
    user = sender.encode()[:255]
    return b"\xa0%c%b" % (len(user), user)


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """A stored message as SQS shows it."""

    message_id: str
    sender: str
    group: str | None
    body: str
    raw: bytes
    """The body in UTF-8."""
    attributes: dict[str, Attribute]
    deduplication_id: str | None
    trace: str | None
    dead_letter_source: str | None
    """The name of the entity in which it was a dead letter."""
    receives: int = 0
    """Its receives in the queues in which it was before."""


def read_stored(data: bytes) -> Incoming:
    """Return what a stored form holds. A part that can't be read, as only a foreign sender can make it, is left out.

    Hot path.
    """
    known = _PLAIN.get(data[:_ID_AT])
    if known is not None and data[_ID_END : _ID_END + 2] == known:
        # A form of `plain_forms` whose beginning was seen before.
        user_at = _ID_END + 2
        body_at = user_at + known[1]
        try:
            message_id, sender = data[_ID_AT:_ID_END].decode("ascii"), data[user_at:body_at].decode()
            return Incoming(message_id, sender, None, *_body_of(data[body_at:]), {}, None, None, None)
        except UnicodeDecodeError:
            pass
    stored = StoredMessage(data)
    sender_and_group = _own_properties(stored.properties)
    body, raw = _body_of(stored.rest)
    if sender_and_group is not None and not (stored.annotation_count or stored.application_properties):
        _note_plain(data, sender_and_group[1])
        return Incoming(*sender_and_group, body, raw, {}, None, None, None)
    if sender_and_group is not None and stored.annotation_count == 1 and not stored.application_properties:
        key = _own_key(stored.annotations)
        if key is not None:
            return Incoming(*sender_and_group, body, raw, {}, key, None, None)
    notes = _annotations(stored)
    types = sqs_types(notes[SQS_TYPES]) if SQS_TYPES in notes else {}
    source = _text_or_none(notes.get(_SOURCE_KEY))
    attributes = _stored_attributes(stored.application_properties, types) if stored.application_properties else {}
    if source is not None:
        attributes = {name: one for name, one in attributes.items() if name not in REASONS or name in types}
    return Incoming(
        *(sender_and_group or _foreign_properties(stored.properties)),
        body,
        raw,
        attributes,
        _text_or_none(notes.get(_DEDUPLICATION_KEY)),
        _text_or_none(notes.get(_TRACE_KEY)),
        source,
        receives if isinstance(receives := notes.get(RECEIVES), int) else 0,
    )


def read_body(data: bytes) -> Incoming:
    """Return the body of a stored form, and nothing else of what it holds."""
    return Incoming("", "", None, *_body_of(StoredMessage(data).rest), {}, None, None, None)


def _note_plain(data: bytes, sender: str) -> None:
    """Note how a plain message begins: what is before the id says how long the name of the sender is."""
    begin, end = _around_id(sender)
    if data[:_ID_AT] == begin:
        _PLAIN[begin] = end[:2]


_ID_AT: Final = len(_around_id("")[0])
_ID_END: Final = _ID_AT + len(_SAMPLE)
_PLAIN: Final[dict[bytes, bytes]] = {}
"""Code and length of user-id, by what a plain message has before its id: one for each length, so 256 at most."""


def _own_properties(section: bytes) -> tuple[str, str, str | None] | None:
    """Return message id, sender and group of properties as `_properties` encodes them; None for any other form."""
    if len(section) < _USER_AT or section[:4] != b"\x00\x53\x73\xc0" or section[6:8] != b"\xa1\x24":
        return None
    user_end = _USER_AT + section[_USER_AT - 1]
    try:
        message_id, user = section[8:44].decode("ascii"), section[_USER_AT:user_end].decode()
        if section[44] != 0xA0 or len(section) != section[4] + 5:
            return None
        if section[5] == 2 and len(section) == user_end:
            return message_id, user, None
        group_at = user_end + len(_NO_FIELDS) + 1
        if section[5] == 11 and section[user_end:group_at] == _NO_FIELDS + b"\xa1":
            group = section[group_at + 1 :]
            return (message_id, user, group.decode()) if len(group) == section[group_at] else None
    except (UnicodeDecodeError, IndexError):
        pass
    return None


def _own_key(annotations: bytes) -> str | None:
    """Return the deduplication id of annotations that have nothing else, as `stored_form` encodes them; else None."""
    symbol = _SYMBOLS[_DEDUPLICATION_KEY]
    at = len(symbol) + 2
    if not annotations.startswith(symbol) or annotations[at - 2 : at - 1] != b"\xa1":
        return None
    raw = annotations[at:]
    return raw.decode("ascii") if raw.isascii() and len(raw) == annotations[at - 1] else None


def _foreign_properties(section: bytes) -> tuple[str, str, str | None]:
    fields = _fields(section)
    return (
        _id_text(fields[Property.MESSAGE_ID]),
        _plain_text(fields[Property.USER_ID]),
        _text_or_none(fields[Property.GROUP_ID]),
    )


def as_new(data: bytes, message_id: str) -> bytes:
    """Return a dead letter's stored form as that of a new message.

    It gets another id and loses the broker's notes about its way. Raises `DecodeError` for a form that can't be read.
    """
    stored = StoredMessage(data)
    count, later = later_properties(stored.properties)
    out = bytearray(b"\x00\x53\x73")
    write_compound(out, 0xC0, 1 + count, encode(message_id) + later)
    stored.properties = bytes(out)
    types: dict[str, str] = {}
    kept, pos, number = b"", 0, 0
    for _ in range(stored.annotation_count):
        start = pos
        key, pos = decode(stored.annotations, pos)
        value_at = pos
        value, pos = decode(stored.annotations, pos)
        if key in (_SOURCE_KEY, _NUMBER_KEY, RECEIVES):
            continue
        if key == SQS_TYPES:
            types = sqs_types(value)
        if key == _DEDUPLICATION_KEY:
            kept += stored.annotations[start:value_at] + encode(message_id)
        else:
            kept += stored.annotations[start:pos]
        number += 1
    stored.annotations, stored.annotation_count, stored.forwarding = kept, number, 0
    if stored.application_properties:
        pairs = [
            (name, raw) for name, raw in iter_map(stored.application_properties) if name not in REASONS or name in types
        ]
        stored.application_properties = encode_raw_map(APPLICATION_PROPERTIES, pairs) if pairs else b""
    return stored.pack()


def _fields(section: bytes) -> list[object]:
    try:
        return properties(section)
    except DecodeError:
        return [None] * len(Property)


def _annotations(stored: StoredMessage) -> dict[str, object]:
    found: dict[str, object] = {}
    pos = 0
    try:
        for _ in range(stored.annotation_count):
            key, pos = decode(stored.annotations, pos)
            value, pos = decode(stored.annotations, pos)
            found[str(key)] = value
    except DecodeError:
        pass
    return found


def _id_text(value: object) -> str:
    if isinstance(value, int):
        value = int(value)
    return "" if value is None else value.hex() if isinstance(value, bytes) else str(value)


def _plain_text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return "" if value is None else str(value)


def _text_or_none(value: object) -> str | None:
    return str(value) if isinstance(value, str) else None


def _body_of(rest: bytes) -> tuple[str, bytes]:
    """Return the body as text, and that in UTF-8; base64 of one that is no text which XML allows."""
    code = rest[3:4]
    if rest[:3] == b"\x00\x53\x75" and code in (b"\xa0", b"\xb0"):  # one data section, as SQS sends it
        start = 5 if code == b"\xa0" else 8
        end = start + int.from_bytes(rest[4:start], "big")
        raw = rest[start:end] if end == len(rest) else _joined(rest)
    else:
        raw = _joined(rest)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _base64(raw)
    if len(text) == len(raw):  # ASCII
        return (text, raw) if len(raw.translate(None, CONTROLS)) == len(raw) else _base64(raw)
    return (text, raw) if is_allowed_text(text, raw) else _base64(raw)


def _base64(raw: bytes) -> tuple[str, bytes]:
    encoded = b64encode(raw)
    return encoded.decode("ascii"), encoded


def _joined(rest: bytes) -> bytes:
    """Return the body of a foreign message: data joined, a text as it is, another value as JSON."""
    try:
        values = decode_body(rest, _VALUES_MAX)
    except DecodeError:
        return rest
    if rest[2:3] == b"\x75":
        return b"".join(bytes(value) for value in values if isinstance(value, bytes | memoryview))
    value = values[0] if len(values) == 1 else values
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return msgspec.json.encode(value, enc_hook=_plain) if value is not None else b""


def _stored_attributes(section: bytes, types: Mapping[str, str]) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    try:
        for name, raw in iter_map(section):
            attribute = _foreign(decode(raw)[0])
            if attribute is None:
                continue
            data_type = types.get(name, "")
            if data_type.partition(".")[0] in TYPE_BYTES:
                attribute = Attribute(data_type, attribute.value)
            found[name] = attribute
    except DecodeError:
        pass
    return found


def _foreign(value: object) -> Attribute | None:
    """Return an application property as an attribute; None for a value that has no such form."""
    if isinstance(value, bytes | bytearray | memoryview):
        return Attribute("Binary", bytes(value)) if len(value) else None
    if isinstance(value, bool):
        return Attribute("String", b"true" if value else b"false")
    if isinstance(value, Timestamp):
        return Attribute("Number", str(int(value)).encode())
    if isinstance(value, int | float):
        return Attribute("Number", str(value).encode())
    if isinstance(value, str | UUID | datetime):
        text = str(value)
        encoded = utf8_of(text)
        # XML can't show some characters: as bytes, the value agrees with its MD5.
        return Attribute("String" if is_allowed_text(text, encoded) else "Binary", encoded) if text else None
    return None


def _plain(value: object) -> object:
    """Return the nearest value that JSON has for one of AMQP's types."""
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)
