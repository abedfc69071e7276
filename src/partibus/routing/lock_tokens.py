"""Lock tokens in the form of clients (section 4.6): the delivery tag of a message and its uuid.

The tag is 16 bytes: partition id (2), lock id (6), position (8). It holds everything that a settlement needs, so a
connection that has never seen the message can settle it. Clients read the tag as a GUID whose first three groups are
little-endian, and name the message by that GUID in management requests.
"""

from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

_TAG = Struct(">QQ")
_PARTITION_SHIFT: Final = 48
_LOCK_ID_MASK: Final = (1 << _PARTITION_SHIFT) - 1

delivery_tag: Final = _TAG.pack
"""A function from (start, position) to the tag of one message; `tag_start` gives ``start`` for its grant."""


class WireToken(NamedTuple):
    """The parts of a lock token. Only the partition knows whether the lock exists."""

    partition_id: int
    lock_id: int
    pos: int


def tag_start(partition_id: int, lock_id: int) -> int:
    """Return the first half of the tags of messages under one lock."""
    return partition_id << _PARTITION_SHIFT | lock_id


def token_uuid(partition_id: int, lock_id: int, pos: int) -> UUID:
    """Return the token as management replies and delivery annotations carry it."""
    return UUID(bytes_le=delivery_tag(tag_start(partition_id, lock_id), pos))


def read_token(token: UUID) -> WireToken:
    """Split a token into its parts, which every uuid has."""
    start, pos = _TAG.unpack(token.bytes_le)
    return WireToken(start >> _PARTITION_SHIFT, start & _LOCK_ID_MASK, pos)
