"""Packs entries into the columns of `partition.protocol.ports.RangeFrame`.

A database returns 40 bytes per row, big-endian as its own functions make them: position; state (8 bits) and sequence
counter; enqueued ms; due ms; delivery count and size of the message (32 bits each). This module turns them into columns
without a Python object per row: 0.05 us each, measured.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Self

from partibus.partition.protocol.ports import EntryRow, RangeFrame

NOT_DUE = -1

_NUMBERS = 5
ROW_BYTES = 8 * _NUMBERS


def pack(rows: Sequence[EntryRow], next_pos: int) -> RangeFrame:
    """Return a frame of rows that were read one by one."""
    columns = (
        _packed("q", (row.pos for row in rows)),
        _packed("q", (row.sequence for row in rows)),
        _packed("q", (row.enqueued_ms for row in rows)),
        _packed("q", (NOT_DUE if row.due_ms is None else row.due_ms for row in rows)),
        _packed("i", (row.delivery_count for row in rows)),
        _packed("i", (len(row.data) for row in rows)),
        bytes(row.state for row in rows),
    )
    return RangeFrame(len(rows), next_pos, b"".join((*columns, *(row.data for row in rows))))


class PackedRows:
    """Consecutive rows in the form in which a database returns them."""

    def __init__(self, data: bytes = b"") -> None:
        self._numbers = array("q")
        """The rows as numbers, little-endian."""
        self._sizes = array("i")
        self.append(data)

    def __len__(self) -> int:
        return len(self._sizes)

    def append(self, data: bytes) -> None:
        """Append rows."""
        numbers = array("q")
        numbers.frombytes(data)
        numbers.byteswap()
        self._numbers += numbers
        self._sizes += _native(_halves(numbers[4::_NUMBERS])[0::2])

    @property
    def size_bytes(self) -> int:
        """The total size of the messages."""
        return sum(self._sizes)

    @property
    def last_pos(self) -> int:
        """The position of the last row; there must be one."""
        return _native(self._numbers[-_NUMBERS : -_NUMBERS + 1])[0]

    def first(self, max_bytes: int) -> Self:
        """Return the first rows whose messages fit into ``max_bytes``, at least one."""
        fitting = max(1, bisect_right(list(accumulate(self._sizes)), max_bytes))
        part = type(self)()
        part._numbers = self._numbers[: _NUMBERS * fitting]
        part._sizes = self._sizes[:fitting]
        return part

    def frame(self, messages: bytes | memoryview, next_pos: int) -> RangeFrame:
        """Return a frame of the rows and their stored messages."""
        numbers = self._numbers
        marked = bytearray(numbers[1::_NUMBERS].tobytes())
        states = marked[7::8]
        marked[7::8] = bytes(len(self))
        halves = _halves(numbers[4::_NUMBERS])
        columns = (
            numbers[0::_NUMBERS],
            marked,
            numbers[2::_NUMBERS],
            numbers[3::_NUMBERS],
            halves[1::2],
            halves[0::2],
            states,
        )
        return RangeFrame(len(self), next_pos, b"".join((*columns, messages)))


def _packed(typecode: str, numbers: Iterable[int]) -> bytes:
    return _native(array(typecode, numbers)).tobytes()


def _halves(numbers: "array[int]") -> "array[int]":
    halves = array("i")
    halves.frombytes(numbers.tobytes())
    return halves


def _native(numbers: "array[int]") -> "array[int]":
    """Convert from little-endian to this machine's order, or back; may change ``numbers``."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
