"""Converts the narrow columns that ``select_frame.sql`` lists for `partibus.store.frames.PackedRows`.

No code here runs once per entry, except for entries that differ from the first one, and for times at which all entries
are due. The characters become numbers of four bytes, and columns are assembled from every sixteenth byte of these.
"""

import sys
from array import array
from typing import NamedTuple

from partibus.store.frames import NOT_DUE, ROW_BYTES

RUN = 1 << 20
"""The positions of one frame are within one run of this length, so they share their higher bits."""
_OTHER = "\U0010ffff"
"""A marker in place of a size: the entry is among the others."""
_CHARACTERS = 4
_ALL = (1 << 64) - 1
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
