"""Frames and protocol headers [2.2, 2.3], and the outgoing bytes that the transport has not taken yet."""

from __future__ import annotations

from struct import Struct
from typing import Final

from partibus.amqp.codec.encoder import write

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""The keep-alive frame, which has only a frame header."""

HEADER: Final = Struct(">IBBH")
"""Frame size, data offset in words of four bytes, type, channel."""
HEADER_BYTES: Final = 8

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

MIN_MAX_FRAME_SIZE: Final = 512
"""The smallest frame limit that a peer may ask for. It is also the bound of a SASL frame, but we read larger ones
[5.3.1].
"""


def frame(channel: int, performative: object, kind: int = AMQP_FRAME) -> bytes:
    """Encode one frame without payload."""
    out = bytearray(HEADER_BYTES)
    write(out, performative)
    HEADER.pack_into(out, 0, len(out), 2, kind, channel)
    return bytes(out)


GATHERED_BYTES: Final = 2048
"""The mean size of pieces from which on joining them costs more than passing each to the transport."""


class Output:
    """Pieces of frames in order. Hot writers append to `parts` directly and then correct `size` (bytes)."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        self.parts.append(data)
        self.size += len(data)

    def write_first(self, data: bytes) -> None:
        """Insert `data` before all waiting pieces."""
        self.parts.insert(0, data)
        self.size += len(data)

    def take(self) -> list[bytes | memoryview]:
        """Return what waits, and clear the list: the pieces if they are large on average, otherwise one of all.

        The list object stays: writers keep references to it.
        """
        pieces = self.parts[:]
        if self.size < GATHERED_BYTES * len(pieces):
            pieces = [b"".join(pieces)]
        self.parts.clear()
        self.size = 0
        return pieces
