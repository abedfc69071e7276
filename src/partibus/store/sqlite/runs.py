"""Reads runs: consecutive entries that differ only in their times and sizes, as nearly all undelivered ones do.

Their keys give their positions, so SQLite writes one number for each besides its message, and reads no other column.
With the count before, that takes 0.9 us where the characters of ``select_frame.sql`` take 1.6, measured side by side. A
number written as text takes a quarter of the time of characters made from it. A query without a nested one passes no
message from the inner query to the outer.

For other entries, ``select_frame.sql`` lists narrow columns, which are converted for
`partibus.store.frames.PackedRows`. No code for that runs once per entry, except for entries that differ from the first
one, and for times at which all entries are due. The characters become numbers of four bytes, and columns are assembled
from every sixteenth byte of these.
"""

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from partibus.partition.protocol.keys import POSITION_MAX
from partibus.partition.protocol.ports import RangeFrame
from partibus.store.frames import NOT_DUE, ROW_BYTES

SIZE_MAX = (1 << 24) - 1
"""The largest size of a message, beside 32 bits of its time."""
_WORTH = 64
"""The least entries of a run; with fewer, two statements may cost more than one."""

_ALL = (1 << 64) - 1
_numbers = msgspec.json.Decoder(list[int]).decode
_packed = msgspec.msgpack.Encoder().encode
_STRIDE = 9
"""The bytes of a number with more than 32 bits in MessagePack: 0xcf, and its bytes, the highest one first. After its
header, a list consists of nothing else. It is made of Python's numbers in a tenth of the time that an array takes.
"""


class Alike(NamedTuple):
    """The result of ``select_alike.sql``."""

    first_key: int
    state: int
    delivery_count: int
    high: int
    """The bits of the time above 32."""
    span: int | None
    """The time from enqueueing an entry to its due time; None: never due."""
    positions: int
    """The number of positions examined, from the first entry on."""
    entries: int
    """The number of entries there that are alike."""

    @property
    def is_run(self) -> bool:
        """Whether no entry is missing between them and none differs."""
        return self.entries == self.positions >= _WORTH

    @property
    def last_key(self) -> int:
        """The last key of a run."""
        return self.first_key + self.positions - 1


class Run:
    """The narrow columns of a run; the counterpart of `partibus.store.frames.PackedRows`."""

    def __init__(self, alike: Alike, listed: str) -> None:
        """Read the columns from ``listed``, a result of ``select_run.sql``."""
        self._alike = alike
        numbers = _numbers(f"[{listed}]")
        self._count = len(numbers)
        packed = _packed(numbers)[-_STRIDE * self._count :]
        sizes = bytearray(4 * self._count)
        for place in range(3):
            sizes[place::4] = packed[8 - place :: _STRIDE]
        times = bytearray((alike.high << 32 & _ALL).to_bytes(8, "little") * self._count)
        for place in range(4):
            times[place::8] = packed[5 - place :: _STRIDE]
        self._sizes = sizes
        self._times = times

    def __len__(self) -> int:
        return self._count

    @property
    def last_pos(self) -> int:
        """The position of the last entry; there must be one."""
        return (self._alike.first_key & POSITION_MAX) + self._count - 1

    def cut(self, max_bytes: int) -> int:
        """Drop entries that exceed ``max_bytes``, but keep the first; return the bytes of the remaining messages."""
        sums: list[int] = list(accumulate(struct.unpack(f"<{self._count}i", self._sizes)))
        self._count = max(1, bisect_right(sums, max_bytes))
        del self._sizes[4 * self._count :], self._times[8 * self._count :]
        return sums[self._count - 1]

    def frame(self, messages: bytes | memoryview, next_pos: int) -> RangeFrame:
        """Return a frame of the entries and their stored messages."""
        alike, count = self._alike, self._count
        positions = _bytes_of(range(self.last_pos - count + 1, self.last_pos + 1))
        if alike.span is None:
            due = NOT_DUE.to_bytes(8, "little", signed=True) * count
        else:
            span = alike.span
            due = _bytes_of([time + span for time in struct.unpack(f"<{count}q", self._times)])
        columns = (
            positions,
            positions,
            self._times,
            due,
            alike.delivery_count.to_bytes(4, "little") * count,
            self._sizes,
            bytes((alike.state,)) * count,
        )
        return RangeFrame(count, next_pos, b"".join((*columns, messages)))


def _bytes_of(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


RUN = 1 << 20
"""The positions of one frame are within one run of this length, so they share their higher bits."""
_OTHER = "\U0010ffff"
"""A marker in place of a size: the entry is among the others."""
_CHARACTERS = 4
_NUMBERS = ROW_BYTES // 8
_PASSED = "surrogatepass"
"""The codec error handler: the low bits of a position may be a surrogate code point."""


class Usual(NamedTuple):
    """The result of ``select_usual.sql``."""

    state: int
    delivery_count: int
    high: int
    """The bits of the time above 32."""
    span: int | None
    """The time from enqueueing an entry to its due time; None: never due."""


def rows_listed(first_pos: int, usual: Usual, characters: bytes, others: str | None) -> bytes:
    """Return packed rows from listed characters.

    ``first_pos``: any position of the same run; ``others``: the entries that are not usual, in their order.
    """
    text = characters.decode("utf-8", _PASSED)
    count = len(text) // _CHARACTERS
    if others is not None and len(others) == 2 * ROW_BYTES * count:
        return bytes.fromhex(others)
    units = text.encode("utf-32-le", _PASSED)
    run = first_pos & ~(RUN - 1)
    # The third byte has the last four bits of the low ones, and four of the run.
    low = units[0::16], units[1::16], units[2::16].translate(bytes(byte | run >> 16 & 0xF0 for byte in range(256)))
    times = _column(count, usual.high << 32 & _ALL, units[4::16], units[5::16], units[8::16], units[9::16])
    rows = array("q", bytes(ROW_BYTES * count))
    rows[0::_NUMBERS] = _column(count, run, *low)
    rows[1::_NUMBERS] = _column(count, usual.state << 56 | run, *low)
    rows[2::_NUMBERS] = times
    rows[3::_NUMBERS] = _due(times, usual.span)
    rows[4::_NUMBERS] = _column(count, usual.delivery_count << 32, units[12::16], units[13::16], units[14::16])
    if others is not None:
        found = array("q", bytes.fromhex(others))
        places = (place for place, size in enumerate(text[3::_CHARACTERS]) if size == _OTHER)
        for number, place in enumerate(places):
            start = _NUMBERS * number
            rows[_NUMBERS * place : _NUMBERS * (place + 1)] = found[start : start + _NUMBERS]
    return rows.tobytes()


def _column(count: int, common: int, *lowest: bytes) -> "array[int]":
    """Return big-endian numbers that share all but their lowest bytes; the lowest byte of all comes first."""
    column = bytearray(common.to_bytes(8, "big") * count)
    for place, values in enumerate(lowest):
        column[7 - place :: 8] = values
    return array("q", bytes(column))


def _due(times: "array[int]", span: int | None) -> "array[int]":
    if span is None:
        return _swapped(array("q", [NOT_DUE])) * len(times)
    return _swapped(array("q", [time + span for time in _swapped(times[:])]))


def _swapped(numbers: "array[int]") -> "array[int]":
    """Convert between big-endian and this machine's order; changes its argument."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
