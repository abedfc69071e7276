"""Lock tokens as clients have them (section 4.6): the delivery tag of a message, and the uuid that stands for it.

The tag is 16 bytes: partition id (2), lock id (6), position (8). All that a settlement needs is in it, so a token can
be settled by a connection that has never seen the message. Clients read the tag as a GUID whose first three groups are
little-endian, and name the message by that GUID in management requests.
"""

from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

_TAG = Struct(">QQ")
_PARTITION_SHIFT: Final = 48
_LOCK_ID_MASK: Final = (1 << _PARTITION_SHIFT) - 1

delivery_tag: Final = _TAG.pack
"""(start, position) -> the tag of one message; ``start`` is what `tag_start` gives for its whole grant."""


class WireToken(NamedTuple):
    """A lock token taken apart; whether anything like it is under lock only the partition knows."""

    partition_id: int
    lock_id: int
    pos: int


def tag_start(partition_id: int, lock_id: int) -> int:
    """The first half of the tags of messages under one lock."""
    return partition_id << _PARTITION_SHIFT | lock_id


def token_uuid(partition_id: int, lock_id: int, pos: int) -> UUID:
    """The token as management replies and delivery annotations carry it."""
    return UUID(bytes_le=delivery_tag(tag_start(partition_id, lock_id), pos))


def read_token(token: UUID) -> WireToken:
    """Take a token apart; every uuid can be."""
    start, pos = _TAG.unpack(token.bytes_le)
    return WireToken(start >> _PARTITION_SHIFT, start & _LOCK_ID_MASK, pos)
