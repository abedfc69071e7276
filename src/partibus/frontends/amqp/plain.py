"""Recognizes readable sections without decoding them (D4).

Content that is only stored and delivered must be readable, but the broker does not use its values. A walk over the
constructors confirms it for what senders usually write: short keys, short strings, numbers. For anything else the
answer is open, and the decoder decides.
"""

from typing import Final, NamedTuple

_CONSTRUCTOR: Final = 3
"""The offset of the constructor in a section: after the descriptor."""
_LIST8, _MAP8 = 0xC0, 0xC1
_FIRST: Final = 6
"""The offset of the elements of a compound with sizes of one byte."""
_COUNT: Final = 5
_NULL, _STRING8, _SYMBOL8, _BINARY8, _BOOLEAN = 0x40, 0xA1, 0xA3, 0xA0, 0x56
_WIDTHS: Final = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44), 0),
    **dict.fromkeys((0x50, 0x51, 0x52, 0x53, 0x54, 0x55), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys((0x70, 0x71, 0x72, 0x74), 4),
    **dict.fromkeys((0x80, 0x81, 0x82, 0x83, 0x84), 8),
    **dict.fromkeys((0x94, 0x98), 16),
}
"""The byte width for the constructors that make a valid value of any bytes [1.6]."""
_MESSAGE_ID, _GROUP_ID, _FIELDS_MAX = 0, 10, 13
_IDS: Final = (_MESSAGE_ID, _GROUP_ID)
_TEXTS: Final = (_STRING8, _SYMBOL8)


class Identity(NamedTuple):
    """The ids in a properties section."""

    message_id: str | None
    session_id: str | None


def is_plain_map(section: bytes) -> bool:
    """Tell whether all keys are different strings or symbols, and all values readable. False means unknown."""
    end = len(section)
    if section[_CONSTRUCTOR] != _MAP8 or end < _FIRST:
        return False
    pos = _FIRST
    keys = []
    try:
        while pos < end:
            code = section[pos]
            if code != _STRING8 and code != _SYMBOL8:
                return False
            after = pos + 2 + section[pos + 1]
            key = section[pos + 2 : after]
            if not key.isascii():
                return False
            keys.append(key)
            code = section[after]
            if code == _STRING8:
                pos = after + 2 + section[after + 1]
                text = section[after + 2 : pos]
                if not text.isascii():
                    text.decode()
            elif code in _WIDTHS:
                pos = after + 1 + _WIDTHS[code]
            elif code == _BINARY8:
                pos = after + 2 + section[after + 1]
            elif code == _BOOLEAN and section[after + 1] < 2:
                pos = after + 2
            else:
                return False
    except (IndexError, UnicodeDecodeError):
        return False
    return pos == end and 2 * len(keys) == section[_COUNT] and len(set(keys)) == len(keys)


def plain_identity(section: bytes, chars_max: int) -> Identity | None:
    """Return the ids of a properties section if all of it is readable, None if unknown.

    Both ids must be text of up to ``chars_max`` characters, or missing.
    """
    end = len(section)
    if section[_CONSTRUCTOR] != _LIST8 or end < _FIRST or section[_COUNT] > _FIELDS_MAX:
        return None
    message_id = session_id = None
    pos = _FIRST
    try:
        for index in range(section[_COUNT]):
            code = section[pos]
            if code == _NULL:
                pos += 1
                continue
            if code in _TEXTS:
                start, pos = pos + 2, pos + 2 + section[pos + 1]
                text = section[start:pos]
                if not text.isascii():
                    return None
                if index in _IDS:
                    if code == _SYMBOL8 or len(text) > chars_max:
                        return None
                    if index == _MESSAGE_ID:
                        message_id = text.decode()
                    else:
                        session_id = text.decode()
            elif code in _WIDTHS and index not in _IDS:
                pos += 1 + _WIDTHS[code]
            else:
                return None
    except IndexError:
        return None
    return Identity(message_id, session_id) if pos == end else None
