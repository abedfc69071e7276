"""Stores messages that differ from the previous one only in body and id, without decoding them (D4).

Senders repeat themselves: header, annotations and properties are the same bytes each time. The bytes around the id of
one message are cached with their stored form. Another message with the same bytes there, and with one body section
after them up to its end, would decode to the same result.

```text
encoded       start  [id]  middle, up to the size of the body  |  size and body
stored form   start   id   middle, up to the size of the body  |  size and body
```

The id has the same length, or the broker assigns one to each message.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final

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
_FIRST_ELEMENT: Final = {0xC0: 6, 0xD0: 12}
"""The offset of the first element in a section, by the constructor of its list."""
_U32: Final = Struct(">I").unpack_from


class Pattern:
    """The bytes of one message before its body."""

    __slots__ = (
        "_body_at",
        "_has_wide_body",
        "_id_at",
        "_id_bytes",
        "_is_id_given",
        "_message",
        "_middle",
        "_middle_at",
        "_start",
        "_stored_middle",
        "_stored_start",
    )

    def __init__(
        self, payload: bytes, body_at: int, id_at: int | None, message: Message, stored_id_at: int, id_bytes: int
    ) -> None:
        """Remember ``payload``, which became ``message``; its stored form ends with the same body.

        ``body_at``: the offset of the body's size in the payload. ``id_at``: the offset of its id; None: the broker has
        made one.
        """
        self._message = Message(
            b"",
            partition_key=message.partition_key,
            session_id=message.session_id,
            ttl_ms=message.ttl_ms,
        )
        self._has_wide_body = payload[body_at - 1] == _BINARY32
        self._body_at = body_at
        self._is_id_given = id_at is not None
        self._id_at = body_at if id_at is None else id_at
        self._id_bytes = id_bytes
        self._middle_at = self._id_at if id_at is None else id_at + id_bytes
        self._start = payload[: self._id_at]
        self._middle = payload[self._middle_at : body_at]
        self._stored_start = message.data[:stored_id_at]
        self._stored_middle = message.data[stored_id_at + id_bytes : len(message.data) - (len(payload) - body_at)]

    def read(self, payload: bytes, new_message_id: Callable[[], str], *, is_id_key: bool) -> Message | None:
        """Return the message of this payload, if it has the pattern. ``is_id_key``: ids must be reported."""
        if not (payload.startswith(self._start) and payload.startswith(self._middle, self._middle_at)):
            return None
        at = self._body_at
        left = len(payload) - at
        if self._has_wide_body:
            if left < 4 or _U32(payload, at)[0] != left - 4:
                return None
        elif not left or payload[at] != left - 1:
            return None
        name = payload[self._id_at : self._middle_at] if self._is_id_given else new_message_id().encode()
        if len(name) != self._id_bytes or not name.isascii():
            return None
        like = self._message
        body = payload[at:] if left < _VIEWED_BYTES else memoryview(payload)[at:]
        return Message(
            b"".join((self._stored_start, name, self._stored_middle, body)),
            message_id=id_text(name.decode()) if is_id_key else None,
            partition_key=like.partition_key,
            session_id=like.session_id,
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
    in_properties = _first_text_at(stored.properties)
    if in_properties is None:
        return None
    id_bytes = stored.properties[in_properties - 1]
    if not stored.properties[in_properties : in_properties + id_bytes].isascii():  # then bytes are not characters
        return None
    id_at = None
    if not is_id_made:
        before = (sections.header, sections.delivery_annotations, sections.message_annotations)
        id_at = in_properties + sum(map(len, before))
    behind = len(stored.properties) + len(stored.application_properties) + len(stored.rest)
    return Pattern(payload, body_at, id_at, message, len(message.data) - behind + in_properties, id_bytes)


def _first_text_at(properties: bytes) -> int | None:
    """Return where the characters of a section's first field, the message's id, begin, if it is a short string."""
    at = _FIRST_ELEMENT.get(properties[_DESCRIPTOR_BYTES]) if properties else None
    return at + 2 if at is not None and properties[at] == _STRING8 else None
