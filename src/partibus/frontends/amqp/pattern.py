"""Stores messages that differ from the previous one only in body, id and session, without decoding them (D4).

Senders repeat themselves: header, annotations and properties are the same bytes each time. The bytes around the ids of
one message are cached with their stored form. Another message with the same bytes there, and with one body section
after them up to its end, would decode to the same result.

```text
encoded       start  [message id]  middle  [session id  end]  up to the size of the body  |  size and body
stored form   start   message id   middle  [session id  end]  up to the size of the body  |  size and body
```

Each id has the same length, or the broker assigns a message id to each message. The session id of a message with a
partition key is among the bytes that stay, since both must be equal.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from partibus.amqp.codec.decoder import skip_value
from partibus.amqp.section_fields import Property, open_section
from partibus.amqp.sections import Sections
from partibus.message import Message, StoredMessage, id_text

HEAD_BYTES_MAX: Final = 1024
"""The most bytes before the body that are cached for a sending link, below all limits of these sections."""
MISSES_MAX: Final = 64
"""The number of misses after which a link with differing messages has only one in so many examined for a pattern."""
_VIEWED_BYTES: Final = 8 * 1024
"""The size of bodies from which making a view is faster than a copy."""
_DESCRIPTOR_BYTES: Final = 3
_BINARY8, _BINARY32 = 0xA0, 0xB0
"""The constructors of bodies that need no inspection."""
_STRING8: Final = 0xA1
_U32: Final = Struct(">I").unpack_from


class _Field(NamedTuple):
    """A text that differs from message to message."""

    at: int
    """Its offset in the payload; without a text there, that of the first byte that stays behind it."""
    stored_at: int
    size_bytes: int


class Pattern:
    """The bytes of one message before its body."""

    __slots__ = (
        "_body_at",
        "_end",
        "_end_at",
        "_has_session",
        "_has_wide_body",
        "_id_at",
        "_id_bytes",
        "_is_id_made",
        "_message",
        "_middle",
        "_middle_at",
        "_session_at",
        "_start",
        "_stored_end",
        "_stored_middle",
        "_stored_start",
    )

    def __init__(
        self,
        payload: bytes,
        body_at: int,
        message: Message,
        message_id: _Field,
        session: _Field | None,
        *,
        is_id_made: bool,
    ) -> None:
        """Remember ``payload``, which became ``message``; its stored form ends with the same body.

        ``body_at``: the offset of the body's size in the payload. ``session``: the session id, if it may differ.
        """
        self._message = Message(
            b"",
            partition_key=message.partition_key,
            session_id=message.session_id,
            ttl_ms=message.ttl_ms,
        )
        self._has_wide_body = payload[body_at - 1] == _BINARY32
        self._has_session = session is not None
        self._body_at = body_at
        self._is_id_made = is_id_made
        self._id_at = message_id.at
        self._id_bytes = message_id.size_bytes
        stored_body_at = len(message.data) - (len(payload) - body_at)
        if session is None:
            session = _Field(body_at, stored_body_at, 0)
        self._middle_at = message_id.at if is_id_made else message_id.at + message_id.size_bytes
        self._session_at = session.at
        self._end_at = session.at + session.size_bytes
        self._start = payload[: message_id.at]
        self._middle = payload[self._middle_at : session.at]
        self._end = payload[self._end_at : body_at]
        self._stored_start = message.data[: message_id.stored_at]
        self._stored_middle = message.data[message_id.stored_at + message_id.size_bytes : session.stored_at]
        self._stored_end = message.data[session.stored_at + session.size_bytes : stored_body_at]

    def read(self, payload: bytes, new_message_id: Callable[[], str], *, is_id_key: bool) -> Message | None:
        """Return the message of this payload, if it has the pattern. ``is_id_key``: ids must be reported."""
        if not (payload.startswith(self._start) and payload.startswith(self._middle, self._middle_at)):
            return None
        at = self._body_at
        left = len(payload) - at
        if self._has_wide_body:
            if left < 4 or _U32(payload, at)[0] != left - 4:
                return None
        elif left < 1 or payload[at] != left - 1:
            return None
        name = new_message_id().encode() if self._is_id_made else payload[self._id_at : self._middle_at]
        if len(name) != self._id_bytes or not name.isascii():
            return None
        like = self._message
        session_id = like.session_id
        body = payload[at:] if left < _VIEWED_BYTES else memoryview(payload)[at:]
        if self._has_session:
            session = payload[self._session_at : self._end_at]
            if not payload.startswith(self._end, self._end_at) or not session.isascii():
                return None
            session_id = session.decode()
            data = b"".join((self._stored_start, name, self._stored_middle, session, self._stored_end, body))
        else:
            data = b"".join((self._stored_start, name, self._stored_middle, body))
        return Message(
            data,
            message_id=id_text(name.decode()) if is_id_key else None,
            partition_key=like.partition_key,
            session_id=session_id,
            ttl_ms=like.ttl_ms,
        )


class Repeats:
    """The pattern of one sending link, if its messages have one."""

    __slots__ = ("misses", "pattern")

    def __init__(self) -> None:
        self.pattern: Pattern | None = None
        self.misses = 0
        """Messages since the last match; a caller that reads with the pattern sets it to 0."""

    def note(self, payload: bytes, sections: Sections, message: Message, *, is_id_made: bool) -> None:
        """Note a message without the pattern that was decoded."""
        misses = self.misses = self.misses + 1
        if misses > 1 and not (misses & (misses - 1) and misses % MISSES_MAX):  # 2, 4, 8 ... 64, 128, 192 ...
            self.pattern = pattern_of(payload, sections, message, is_id_made=is_id_made)


def pattern_of(payload: bytes, sections: Sections, message: Message, *, is_id_made: bool) -> Pattern | None:
    """Return the pattern of messages like this one.

    Returns None if such messages are unlikely, or the message is encoded unusually. ``is_id_made``: it came without an
    id.
    """
    body = sections.body
    body_at = len(payload) - len(body) + _DESCRIPTOR_BYTES + 1
    if not body or body[_DESCRIPTOR_BYTES] not in (_BINARY8, _BINARY32):
        return None
    if body_at > HEAD_BYTES_MAX or message.scheduled_ms is not None or sections.join() != payload or sections.footer:
        return None
    stored = StoredMessage(message.data)
    id_text_at = _text_at(stored.properties, Property.MESSAGE_ID)
    if id_text_at is None:
        return None
    before = len(sections.header) + len(sections.delivery_annotations) + len(sections.message_annotations)
    behind = len(stored.properties) + len(stored.application_properties) + len(stored.rest)
    stored_before = len(message.data) - behind
    id_bytes = stored.properties[id_text_at - 1]
    session = None
    if message.session_id is not None and message.partition_key is None:
        there, stored_there = (
            _text_at(properties, Property.GROUP_ID) for properties in (sections.properties, stored.properties)
        )
        if there is not None and stored_there is not None:
            session = _Field(before + there, stored_before + stored_there, sections.properties[there - 1])
    start_bytes = body_at if session is None else session.at
    id_at = start_bytes if is_id_made else before + id_text_at
    message_id = _Field(id_at, stored_before + id_text_at, id_bytes)
    return Pattern(payload, body_at, message, message_id, session, is_id_made=is_id_made)


def _text_at(properties: bytes, field: Property) -> int | None:
    """Return where the characters of a field begin, if it is a short string of ASCII: its bytes are characters."""
    if not properties:
        return None
    elements, at, end = open_section(properties)
    if elements <= field:
        return None
    for _ in range(field):
        at = skip_value(properties, at, end)
    if properties[at] != _STRING8 or not properties[at + 2 : at + 2 + properties[at + 1]].isascii():
        return None
    return at + 2
