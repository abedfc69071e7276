"""Receipt handles: opaque texts that name a queue, a message and one receive of it.

```text
version (1)   check (8)   entity id (8)   created ms (8)   partition (4)   lock id (8)   position (8)   received ms (8)
```

They survive restarts and work at every broker, since all of it comes from the catalog and the store. The check value
tells a handle from any other text, and one with a damaged character from a good one. It is no secret: a client that may
receive from a queue may delete from it.
"""

from binascii import a2b_base64, b2a_base64
from hashlib import blake2b
from struct import Struct, error
from typing import Final, NamedTuple

_VERSION: Final = 1
_LAYOUT: Final = Struct(">QqIQqq")
_CHECK_BYTES: Final = 8
_HANDLE_BYTES: Final = 1 + _CHECK_BYTES + _LAYOUT.size
_TEXT_CHARS: Final = (_HANDLE_BYTES + 2) // 3 * 4
_EMPTY: Final = blake2b(digest_size=_CHECK_BYTES, person=b"sqs-receipt")
"""The hash of nothing: a copy takes a third of the time of a new one."""


class Handle(NamedTuple):
    """The delivery that a receipt handle names."""

    entity_id: int
    created_ms: int
    partition_id: int
    lock_id: int
    pos: int
    received_ms: int


def write_handle(handle: Handle) -> str:
    """Return the text of a handle."""
    packed = _LAYOUT.pack(*handle)
    return b2a_base64(bytes((_VERSION,)) + _check(packed) + packed, newline=False).decode("ascii")


def read_handle(text: str) -> Handle | None:
    """Return what a text names, or None if it is no receipt handle."""
    if len(text) != _TEXT_CHARS or not text.isascii():
        return None
    try:
        raw = a2b_base64(text, strict_mode=True)
        if len(raw) != _HANDLE_BYTES or raw[0] != _VERSION:
            return None
        packed = raw[1 + _CHECK_BYTES :]
        if raw[1 : 1 + _CHECK_BYTES] != _check(packed):
            return None
        if b2a_base64(raw, newline=False).decode("ascii") != text:  # base64 has several forms of its last bits
            return None
        return tuple.__new__(Handle, _LAYOUT.unpack(packed))
    except (ValueError, error):
        return None


def _check(packed: bytes) -> bytes:
    check = _EMPTY.copy()
    check.update(packed)
    return check.digest()
